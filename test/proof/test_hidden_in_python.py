"""State hidden in Python, or in memory outside the arena, is named or not captured."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.base import Buffers, PolicyPlan, Program, Slots
from flashrt_ros.models.minimal import ACTION_DIM
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName
from flashrt_ros.runtime.spec import ShapeKey
from test.proof.changed_policy import COMMIT, LATCH, Changed, both, the_finding


class PythonCounter(Changed):
    """Counts its chunks in Python; the graph keeps the count of its capture."""

    def __init__(self) -> None:
        self.num_chunks = 0

    def programs(self) -> Mapping[ShapeKey, Program]:
        def count(buffers: Buffers, slots: Slots) -> None:
            self.num_chunks += 1
            buffers["momentum"].add_(0.01 * self.num_chunks)

        programs = dict(super().programs())
        programs[COMMIT] = both(programs[COMMIT], count)
        return programs


def test_a_counter_in_python_is_named() -> None:
    finding = the_finding(prove(PythonCounter))
    assert (finding.check, finding.subject) == (CheckName.REPLAY, "momentum")
    assert str(COMMIT) in finding.message


class RaisesLater(Changed):
    """Runs once and refuses to run again, as code does that cached something."""

    def programs(self) -> Mapping[ShapeKey, Program]:
        seen: list[int] = []

        def once(buffers: Buffers, slots: Slots) -> None:
            if seen:
                raise RuntimeError("already built")
            seen.append(1)

        programs = dict(super().programs())
        programs[COMMIT] = both(programs[COMMIT], once)
        return programs


def test_a_program_that_runs_only_once_is_named() -> None:
    finding = the_finding(prove(RaisesLater))
    assert finding.check is CheckName.REPLAY
    assert "already built" in finding.message


@pytest.mark.gpu
def test_a_program_that_runs_only_once_is_not_captured_on_a_device() -> None:
    finding = the_finding(prove(RaisesLater, device="cuda"))
    assert finding.check is CheckName.CAPTURE
    assert "already built" in finding.message


class FailsLater(Changed):
    """Reads an index that leaves its range after some chunks."""

    extra = (counter("cursor"),)
    after: Mapping[ShapeKey, Program] = {
        COMMIT: lambda buffers, slots: (
            buffers["momentum"].add_(buffers["path"].index_select(0, buffers["cursor"])[0]),
            buffers["cursor"].add_(4),
        )
    }


def test_a_replay_that_fails_is_reported() -> None:
    proof = prove(FailsLater)
    assert not proof.is_proved
    assert any("could not be run to the end" in finding.message for finding in proof.findings)


class OtherEveryTime(Changed):
    """Has weights that no two instances share."""

    num_made = 0

    def __init__(self) -> None:
        OtherEveryTime.num_made += 1
        self.weight = 0.01 * OtherEveryTime.num_made

    def programs(self) -> Mapping[ShapeKey, Program]:
        weight = torch.tensor(self.weight)
        self.after = {COMMIT: lambda buffers, slots: buffers["momentum"].add_(weight)}
        return super().programs()


def test_an_instance_unlike_the_first_is_named() -> None:
    proof = prove(OtherEveryTime)
    assert {finding.check for finding in proof.findings} == {CheckName.FRESH, CheckName.HISTORIES}
    assert {finding.subject for finding in proof.findings} == {"momentum"}


class HostSideEffect(Changed):
    """Changes a weight whenever it is asked for its plan, as an engine does at each tick."""

    def __init__(self) -> None:
        self.weight = torch.zeros(ACTION_DIM)

    def plan(self) -> PolicyPlan:
        self.weight.add_(0.01)
        return super().plan()

    def programs(self) -> Mapping[ShapeKey, Program]:
        self.after = {COMMIT: lambda buffers, slots: buffers["momentum"].add_(self.weight)}
        return super().programs()


def test_memory_outside_the_arena_is_named() -> None:
    finding = the_finding(prove(HostSideEffect))
    assert finding.check is CheckName.POISON
    assert finding.subject == "momentum"
    assert "outside the arena" in finding.message
    assert str(COMMIT) in finding.message


class MutatedTensor(Changed):
    """Keeps its state in a tensor of its own, changed in place by a program."""

    def __init__(self) -> None:
        self.hidden = torch.zeros(ACTION_DIM)

    def programs(self) -> Mapping[ShapeKey, Program]:
        def mutate(buffers: Buffers, slots: Slots) -> None:
            self.hidden.add_(0.01)
            buffers["momentum"].add_(self.hidden)

        self.after = {COMMIT: mutate}
        return super().programs()


class KeptTensor(Changed):
    """Keeps an intermediate of one program for the next: memory private to a graph."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def programs(self) -> Mapping[ShapeKey, Program]:
        self.after = {COMMIT: lambda buffers, slots: self.kept.append(buffers["path"] * 2)}
        return super().programs()


class HostRead(Changed):
    """Brings a value to the host."""

    after: Mapping[ShapeKey, Program] = {
        COMMIT: lambda buffers, slots: buffers["path"].sum().item()
    }


class EarlyWrite(Changed):
    """Writes STATE before the commit node."""

    after: Mapping[ShapeKey, Program] = {LATCH: lambda buffers, slots: buffers["momentum"].zero_()}


@pytest.mark.parametrize(
    ("model", "subject"),
    [(MutatedTensor, "add_"), (KeptTensor, "mul"), (HostRead, "item"), (EarlyWrite, "minimal")],
)
def test_a_refused_capture_is_reported(model: type[Changed], subject: str) -> None:
    proof = prove(model)
    finding = the_finding(proof)
    assert finding.check is CheckName.CAPTURE
    assert subject in finding.subject
    assert [check.check for check in proof.checks] == [CheckName.CAPTURE]
    assert proof.buffers == ()
