"""``python -m flashrt_ros.planner``: a planner engine in a process, until told to stop.

With ``--engine-config`` it shares the process with engines of policies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.__main__ import member_plan, read_config
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.host import FillingMember, Member
from flashrt_ros.engine.host_channels import Commons
from flashrt_ros.engine.host_process import MemberPlan, serve_members
from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.engine.hosting import (
    Stopper,
    add_options,
    read_settings,
    run_process,
)
from flashrt_ros.engine.leaving import leave
from flashrt_ros.errors import ConfigError, UnknownModelError
from flashrt_ros.models.factories import load_factory
from flashrt_ros.planner.config import NO_HABITS, Habits, PlannerConfig, PrefixText

if TYPE_CHECKING:
    from flashrt_ros.models.hybrid_lm import HybridLm
    from flashrt_ros.planner.vocabulary import Tokenizer

PACKAGED = "planner_lm"
"""Name of the model that ships."""


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


def check_host(config: PlannerConfig, engines: Sequence[str]) -> None:
    """Refuse a planner engine that is to join a process in which its host is not.

    Raises:
        ConfigError: It names another host.
    """
    if config.host and config.host not in engines:
        raise ConfigError(
            f"planner engine '{config.name}' is to join the process of engine '{config.host}'",
            expected=f"--engine-config with the file of '{config.host}'",
            found=", ".join(engines) or "none",
            fix="start both with `flashrt-ros up`, or set its parameter 'host' to \"\"",
        )


def load_model(config: PlannerConfig, factory: str = "") -> tuple[HybridLm, Tokenizer, Habits]:
    """Build the model: a checkpoint's, or what a factory of the user's own makes.

    Args:
        config: Names the checkpoint; "" means the one in the package.
        factory: ``"module:function"``; the function takes the checkpoint's path or None,
            and the configuration, and returns model and tokenizer.

    Returns:
        The model, its tokenizer, and what holds for it where the configuration says nothing.

    Raises:
        UnknownModelError: No such module or function, or a name without a checkpoint.
        ConfigError: Config or tokenizer can't be used.
        WeightsError: The weights can't be used.
    """
    checkpoint = Path(config.checkpoint) if config.checkpoint else None
    if factory:
        model, tokenizer = load_factory(factory)(checkpoint, config)
        return model, tokenizer, NO_HABITS
    if checkpoint is None and config.model != PACKAGED:
        raise UnknownModelError(
            f"no language model is named '{config.model}'",
            expected=f"'{PACKAGED}', or a checkpoint",
            fix="set the engine parameter 'checkpoint' to a folder",
        )
    from flashrt_ros.models.planner_lm import load_planner_lm
    from flashrt_ros.models.planner_text import HOLDS, PLANNER_PREFIX, STOP
    from flashrt_ros.planner.reading import bare_words

    own, text = load_planner_lm(
        checkpoint,
        max_positions=config.max_positions,
        chunk_length=config.chunk_length,
        device=config.device,
    )
    if config.model != PACKAGED:
        return own, text, NO_HABITS
    return (
        own,
        text,
        Habits(
            prefixes=(PrefixText("task", PLANNER_PREFIX),),
            synonyms={bare_words(words): STOP for words in HOLDS},
            checks_numbers=True,
        ),
    )


def planner_plan(config: PlannerConfig, factory: str = "", *, fills: bool = False) -> MemberPlan:
    """Plan a planner engine as a member of a process; nothing is loaded yet.

    Args:
        config: Validated.
        factory: As of :func:`load_model`.
        fills: Whether it runs in the slack of other members.
    """

    def build(address: EngineSocket, owned: ExitStack, commons: Commons) -> Member | FillingMember:
        from flashrt_ros.planner.engine import PlannerEngine

        model, tokenizer, habits = load_model(config, factory)
        engine = owned.enter_context(
            PlannerEngine(model, tokenizer, config, habits=habits, is_background=fills)
        )
        if not fills:
            return Member(engine, address)
        slack = Slack(
            reserve_ns=config.slack_reserve_us * 1000,
            floor_ns=round(config.slack_floor_ms * 1e6),
            estimates_ns=engine.rehearse(),
        )
        return FillingMember(engine, address, slack)

    return MemberPlan(
        name=config.name,
        socket_group=config.socket_group,
        device=config.device,
        num_threads=config.num_threads,
        build=build,
    )


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
