"""``python -m flashrt_ros.planner``: a planner engine in a process, until told to stop.

With ``--engine-config`` it shares the process with engines of policies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flashrt_ros.engine.host_process import serve_members
from flashrt_ros.engine.hosting import Stopper, add_options, read_settings, run_process
from flashrt_ros.engine.leaving import leave
from flashrt_ros.engine.members import member_plan, read_config
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.members import check_host, planner_plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a planner engine, beside engines of policies if told to, until a signal or a stop.

    Prints one line for each that starts with "ready" on standard output once clients can
    connect; everything else goes to standard error.

    Returns:
        0 after a stop, 1 when it could not start, 3 after the device was lost.
    """
    options = _parser().parse_args(arguments)

    def work(stopper: Stopper) -> None:
        config = read_settings(
            options.config, PlannerConfig, name=options.name, device=options.device
        )
        engines = [read_config(file, device=options.device) for file in options.engine_config]
        check_host(config, [engine.name for engine in engines])
        plans = [member_plan(engine, options.engine_model_factory) for engine in engines]
        plans.append(planner_plan(config, options.model_factory, fills=bool(engines)))
        serve_members(plans, stopper, ready_fd=options.ready_fd)

    return run_process("flashrt_ros.planner", options.log_level, work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.planner", description=main.__doc__)
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="parameters as a YAML or JSON mapping; '-' reads standard input",
    )
    parser.add_argument(
        "--engine-config",
        action="append",
        default=[],
        metavar="FILE",
        help="parameters of an engine of a policy that shares the process: the planner runs in its "
        "slack; may be given again",
    )
    parser.add_argument(
        "--engine-model-factory",
        default="",
        metavar="MODULE:FUNCTION",
        help="as --model-factory of flashrt_ros.engine",
    )
    add_options(
        parser,
        builds="model and tokenizer",
        takes="the path of the checkpoint or None, and the PlannerConfig",
    )
    return parser


if __name__ == "__main__":
    leave(main())
