"""What every exception of the package has: the parts of its message, a code and a name."""

from __future__ import annotations

from typing import ClassVar, TypedDict


class Parts(TypedDict, total=False):
    """What a message may say besides what failed; see :class:`FlashrtError`."""

    expected: object
    found: object
    fix: str | None


class FlashrtError(Exception):
    """Base of every error the package raises on purpose.

    The message says what failed, what was expected, what was found and what to
    do; the parts stay readable as attributes.

    Args:
        what: What failed, naming the object it failed on.
        expected: What would have been accepted.
        found: What was there instead.
        fix: What the caller can do about it.
    """

    code: ClassVar[int] = 1
    name: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.fix = fix
        parts = [what]
        if expected is not None:
            parts.append(f"expected {expected}")
        if found is not None:
            parts.append(f"found {found}")
        message = ": ".join((parts[0], ", ".join(parts[1:]))) if parts[1:] else what
        super().__init__(f"{message}; {fix}" if fix else message)
