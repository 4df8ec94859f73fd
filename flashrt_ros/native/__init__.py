"""Sources of the C library over the engine's slots; nothing here is imported by the package.

``python -m flashrt_ros.native`` prints the folder, for CMake. docs/native.md says the rest.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["source_folder"]


def source_folder() -> Path:
    """Return the folder with ``CMakeLists.txt``, the C files and ``include/``."""
    return Path(__file__).parent
