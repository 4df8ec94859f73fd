"""Slots are read by the latch node alone: afterwards they may be a writer's again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.errors import SpecError
from flashrt_ros.models.base import Buffers, Program, Slots, slot_binding
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName
from flashrt_ros.runtime.spec import ShapeKey

STEP: ShapeKey = ("step", 0)
COMMIT: ShapeKey = ("commit",)


class ReadsLate(MinimalPolicy):
    """Reads its goal's slot once more, in a node behind the latch."""

    def __init__(self, key: ShapeKey) -> None:
        self._key = key

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        own = programs[self._key]

        def program(buffers: Buffers, slots: Slots) -> None:
            goal = slots["goal.values"].index_select(0, buffers[slot_binding("goal")])
            buffers["goal_latched"].copy_(goal[0])
            own(buffers, slots)

        programs[self._key] = program
        return programs


@pytest.mark.parametrize("key", [STEP, COMMIT])
def test_a_slot_read_behind_the_latch_is_found(key: ShapeKey) -> None:
    finding, *others = prove(lambda: ReadsLate(key), num_ticks=12).findings
    assert finding.check is CheckName.CAPTURE
    assert str(key) in finding.message
    assert "goal_slot" in finding.message
    assert not others


@pytest.mark.parametrize("key", [STEP, COMMIT])
def test_an_engine_refuses_it(key: ShapeKey) -> None:
    with pytest.raises(SpecError, match=r"reads slots after the latch node.*goal_slot"):
        Engine(ReadsLate(key), EngineConfig())


def test_the_latch_and_a_retarget_may_read() -> None:
    with Engine(ReadsLate(("latch",)), EngineConfig(retarget=True)):
        pass
