"""Random histories of verbs, ticks, steps and writes while a device lags behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes

_POINTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
_ASKED = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("step"), st.integers(0, 5)),
    st.tuples(st.just("goal"), _POINTS, _POINTS),
    st.tuples(st.just("observe"), _POINTS, _POINTS),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("snapshot"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("restore"), st.sampled_from(["a", "b", "home"])),
    st.tuples(st.just("reset"), st.none() | st.integers(0, 3)),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("fork"), st.integers(1, 2)),
    st.tuples(st.just("branch"), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("select"), st.integers(0, 3)),
)


def ask(rig: Any, what: str, *arguments: Any) -> None:
    """Do one thing of a history."""
    engine = rig.engine
    branches = sorted(engine.core.branches)
    if what == "work":
        rig.work(*arguments)
    elif what == "turn":
        for _ in range(*arguments):
            rig.turn()
    elif what == "run":
        for _ in range(*arguments):
            rig.work(2)
            rig.turn()
    elif what == "tick":
        rig.tick()
    elif what == "step":
        rig.begin_step(*arguments)
    elif what in ("goal", "observe"):
        rig.write("goal" if what == "goal" else "observation", *arguments)
    elif what == "interrupt":
        rig.interrupt()
    elif what == "resume":
        engine.handle(protocol.Resume(7, 0, *arguments))
    elif what == "snapshot":
        rig.snapshot(*arguments)
    elif what == "restore":
        rig.restore(*arguments)
    elif what == "reset":
        rig.restore("home", reset=True, seed=arguments[0])
    elif what == "rollback":
        engine.handle(protocol.Rollback(1, 0, 1, ""))
    elif what == "fork":
        engine.handle(protocol.Fork(5, 0, "", arguments[0], ()))
    elif branches and what == "branch":
        rig.begin_step(arguments[1], branches[arguments[0] % len(branches)])
    elif branches:
        engine.handle(protocol.Select(1, 0, branches[arguments[0] % len(branches)], False))


@pytest.mark.parametrize("source", ["timer", "step"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replan_threshold": 2, "retarget": True, "rollback_every_ticks": 1},
        {"has_own_memory": True, "capsule_quota_bytes": 2 * BLOCK_BYTES},
        {"staged_channels": ("goal", "observation"), "num_standby_lanes": 0},
    ],
    ids=["plain", "ahead", "tiers", "staged"],
)
@settings(max_examples=60, deadline=None)
@given(order=st.integers(0, 99), asked=st.lists(_ASKED, max_size=60))
def test_histories(
    slow_rig: Callable[..., Any],
    source: str,
    options: dict[str, Any],
    order: int,
    asked: list[tuple[Any, ...]],
) -> None:
    rig = slow_rig(**options)
    try:
        rig.backend.driver.random.seed(order)
        rig.start(source)
        rig.feed()
        for what in asked:
            with suppress(FlashrtError):
                ask(rig, *what)
        rig.finish()
        rig.check_counters()
    finally:
        rig.engine.close()
