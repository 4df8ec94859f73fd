"""``cmake -S "$(python -m flashrt_ros.native)"``."""

from __future__ import annotations

from flashrt_ros.native import source_folder


def main() -> None:
    """Print the folder of the C library's sources."""
    print(source_folder())


if __name__ == "__main__":
    main()
