"""Entry point of ``flashrt-ros``: finds the subcommand's module and runs it.

A subcommand is a module ``flashrt_ros.cli.<name>`` with ``add_arguments(parser)`` and
``run(arguments) -> int``. Only the one asked for is imported, so that ``--help`` and
the quick commands don't wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import flashrt_ros
from flashrt_ros.cli.signals import Interrupted
from flashrt_ros.errors import FlashrtError

COMMANDS: dict[str, str] = {
    "demo": "drive the simulated robot through the engine, and check what must hold",
    "up": "start the engine and the nodes from one YAML file",
    "capsule": "snapshot, restore, fork, search, save, load, draw or collect capsules",
    "episode": "snapshot and restore policy and planner under one id, list and drop episodes",
    "trace": "show when goals were written, committed, latched and first acted on",
    "doctor": "say what is installed, what is missing and what would go wrong",
    "bench": "time captured plans, restores, ticks, goals and services beside their peers",
    "prove": "show that a model's declared state is its whole state",
}
"""Subcommands, with their line in ``--help``."""

FAILURE = 1
"""Exit code of a command that a :class:`FlashrtError` ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: Without the program's name; None takes the process's.

    Returns:
        The subcommand's exit code; 1 if it was refused, with code and reason on stderr; 128
        and the signal's number if it was interrupted.
    """
    try:
        return _run(arguments)
    except FlashrtError as error:
        print(f"flashrt-ros: {error.name} ({error.code}): {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            print("flashrt-ros: interrupted", file=sys.stderr, flush=True)
        return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="flashrt-ros", description=flashrt_ros.__doc__)
    parser.add_argument("--version", action="version", version=flashrt_ros.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked_for = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == asked_for:
            module = importlib.import_module(f"flashrt_ros.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        # Of the command's own usage, unless it stood before the command.
        before = words[: words.index(parsed.command)]
        blamed = parser if unknown[0] in before else commands.choices[parsed.command]
        blamed.error(f"unrecognized arguments: {' '.join(unknown)}")
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(main())
