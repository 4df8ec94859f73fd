"""How a command that asks engines ends where one refuses, or is not there."""

from __future__ import annotations

import sys

import msgspec

from flashrt_ros.errors import EngineGoneError, FlashrtError, PeerRefusedError, ProtocolVersionError

REFUSED = 1
"""Exit code where an engine refused the verb; everything is as before."""

NO_ENGINE = 3
"""Exit code where no engine could be asked: not there, not trusted, or of another version."""


def tell(error: FlashrtError, *, as_json: bool) -> int:
    """Print an error's name, code and text on standard error, and as JSON where that is asked for.

    Returns:
        The exit code.
    """
    print(f"flashrt-ros: {error.name} ({error.code}): {error}", file=sys.stderr)
    if as_json:
        plain = {"error": {"name": error.name, "code": error.code, "message": str(error)}}
        print(msgspec.json.encode(plain).decode())
    is_absent = isinstance(error, EngineGoneError | PeerRefusedError | ProtocolVersionError)
    return NO_ENGINE if is_absent else REFUSED
