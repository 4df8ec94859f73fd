"""What builds a model of somebody else's package: a function, by module and name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from flashrt_ros.errors import UnknownModelError


def load_factory(name: str) -> Callable[..., Any]:
    """Import what ``"module:function"`` names.

    Only for names out of a configuration or a command line: importing runs the module. An error
    that the module raises by itself, other than an import that fails, is passed on.

    Raises:
        UnknownModelError: There is no such module or function.
    """
    module, _, function = name.partition(":")
    try:
        make: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownModelError(
            f"no model factory '{name}'",
            expected="module:function",
            found=error,
            fix="install the module, or name its folder in PYTHONPATH",
        ) from error
    return make
