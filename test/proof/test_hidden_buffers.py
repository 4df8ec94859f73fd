"""State hidden in a buffer that no capsule carries, or in a slot, is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from flashrt_ros.models.base import CHUNK, Buffers, Program, Slots, slot_binding
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName
from flashrt_ros.runtime.spec import Role, ShapeKey
from test.proof.changed_policy import (
    CARRIED,
    COMMIT,
    DEVICES,
    LATCH,
    POP,
    Changed,
    both,
    carry,
    changed,
    the_finding,
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("role", [Role.SCRATCH, Role.OUTPUT, Role.BINDING])
def test_state_hidden_in_another_role_is_named(role: Role, device: str) -> None:
    finding = the_finding(changed(carry(role), after=CARRIED, device=device))
    assert (finding.check, finding.subject) == (CheckName.POISON, "carry")
    assert "read before it is written" in finding.message


def test_state_taken_from_the_last_output_is_named() -> None:
    proof = changed(after={LATCH: lambda b: b["path"].add_(0.1 * b[CHUNK][-1])})
    finding = the_finding(proof)
    assert (finding.check, finding.subject) == (CheckName.POISON, CHUNK)


def test_state_that_swallows_nan_is_named() -> None:
    proof = changed(
        carry(Role.SCRATCH),
        after={
            LATCH: lambda b: b["path"].add_(0.1 * torch.nan_to_num(b["carry"], nan=0.0)),
            COMMIT: CARRIED[COMMIT],
        },
    )
    assert the_finding(proof).subject == "carry"


class GoalReadAtPop(Changed):
    """Reads the goal's slot at every tick, where only the latch may."""

    def programs(self) -> Mapping[ShapeKey, Program]:
        def late(buffers: Buffers, slots: Slots) -> None:
            goal = slots["goal.values"].index_select(0, buffers[slot_binding("goal")])[0]
            buffers["action"].add_(0.01 * goal)

        programs = dict(super().programs())
        programs[POP] = both(programs[POP], late)
        return programs


def test_a_slot_read_outside_the_latch_is_named() -> None:
    proof = prove(GoalReadAtPop)
    assert {finding.check for finding in proof.findings} == {CheckName.POISON}
    assert {finding.subject for finding in proof.findings} == {
        slot_binding("goal"),
        "slots of channel 'goal'",
    }
