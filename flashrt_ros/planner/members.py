"""Planner engines as members of a process: what each is built from, and beside whom it may run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.host import FillingMember, Member
from flashrt_ros.engine.host_channels import Commons
from flashrt_ros.engine.host_process import MemberPlan
from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.errors import ConfigError, UnknownModelError
from flashrt_ros.models.factories import load_factory
from flashrt_ros.planner.config import NO_HABITS, Habits, PlannerConfig, PrefixText

if TYPE_CHECKING:
    from flashrt_ros.models.hybrid_lm import HybridLm
    from flashrt_ros.planner.vocabulary import Tokenizer

PACKAGED = "planner_lm"
"""Name of the model that ships."""


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
