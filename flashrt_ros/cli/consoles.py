"""Where the command's answers are shown."""

from __future__ import annotations

from rich.console import Console

_UNBOUNDED_COLUMNS = 10_000


def make_console() -> Console:
    """Return standard output: as wide as the terminal, or without bound in a file or pipe.

    So that programs such as ``grep`` find each row on one line, with its words whole.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _UNBOUNDED_COLUMNS
    return console
