"""Where Triton kernels become operators: a capture must be told what a kernel writes.

A kernel that is launched from a program reads and writes past torch's dispatcher. As an
operator with a schema it is seen by what judges a program, and its writes are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMESPACE = "flashrt_hybrid"
_library = torch.library.Library(_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an operator, and return what calls it by the dispatcher.

    Args:
        schema: Name, arguments and results as torch writes them. Arguments that are written
            are marked, ``Tensor(a!)``; results are tensors of their own.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(  # type: ignore[no-untyped-call]
            name, function, "CompositeExplicitAutograd"
        )
        packet = getattr(getattr(torch.ops, _NAMESPACE), name)
        call: Callable[..., Any] = packet.default
        return call

    return register
