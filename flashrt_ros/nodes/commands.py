"""Starting the package's own modules as processes."""

from __future__ import annotations

import sys


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module in this Python.

    The working folder stays off the child's path (``-P``): in a checkout the source
    tree, whose interfaces are not compiled, would stand in for the installed package.
    """
    return (sys.executable, "-P", "-m", module, *arguments)
