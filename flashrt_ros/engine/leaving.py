"""The end of a process whose work is done and whose resources are closed."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process at once, everything in it closed.

    What would follow is the end of Python, which takes torch half a second and more on a
    busy machine, and after it the destructors of a middleware, which may wait without an
    end for threads of theirs.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
