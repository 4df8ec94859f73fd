"""``python -m flashrt_ros.engine``: engines in a process of their own, until told to stop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flashrt_ros.engine.host_process import serve_members
from flashrt_ros.engine.hosting import Stopper, add_options, run_process
from flashrt_ros.engine.leaving import leave
from flashrt_ros.engine.members import member_plan, read_config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one engine, or several in one process, until a signal or a client's stop.

    Prints one line for each that starts with "ready" on standard output once clients can
    connect; everything else goes to standard error.

    Returns:
        0 after a stop, 1 when it could not start, 3 after the device was lost.
    """
    options = _parser().parse_args(arguments)

    def work(stopper: Stopper) -> None:
        files = options.config or [""]
        names = [options.name, *([""] * len(files))]
        configs = [
            read_config(file, name=name, device=options.device)
            for file, name in zip(files, names, strict=False)
        ]
        plans = [member_plan(config, options.model_factory) for config in configs]
        serve_members(plans, stopper, ready_fd=options.ready_fd)

    return run_process("flashrt_ros.engine", options.log_level, work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.engine", description=main.__doc__)
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="parameters as a YAML or JSON mapping; '-' reads standard input; given again, another "
        "engine in the same process",
    )
    add_options(
        parser,
        builds="each model",
        takes="the path of the weights or None, and returns a PolicyModel",
    )
    return parser


if __name__ == "__main__":
    leave(main())
