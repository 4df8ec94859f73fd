"""A proof passes what ships, and names what is hidden in models that hide something."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from flashrt_ros.errors import DeviceLostError, ProofError
from flashrt_ros.models import registry
from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.base import CHUNK, Buffers, PolicyPlan, Program, Slots, slot_binding
from flashrt_ros.models.minimal import ACTION_DIM, MinimalPolicy
from flashrt_ros.proof import prove as prove_module
from flashrt_ros.proof.damage import damages
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName, Finding, Proof, Verdict
from flashrt_ros.proof.rig import Rig
from flashrt_ros.proof.walk import History, Walk
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Inert, Role, ShapeKey

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

PAIR = (ACTION_DIM,)
LATCH, COMMIT, POP = ("latch",), ("commit",), ("pop",)


class Changed(MinimalPolicy):
    """The minimal policy with more buffers, or with more done in one program."""

    extra: tuple[BufferSpec, ...] = ()
    remarked: Mapping[str, Mapping[str, object]] = {}
    after: Mapping[ShapeKey, Program] = {}

    def buffers(self) -> tuple[BufferSpec, ...]:
        specs = (*super().buffers(), *self.extra)
        return tuple(
            BufferSpec(s.name, s.shape, s.dtype, s.role, **self.remarked[s.name])  # type: ignore[arg-type]
            if s.name in self.remarked
            else s
            for s in specs
        )

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        for key, more in self.after.items():
            programs[key] = _both(programs[key], more)
        return programs


def _both(first: Program, second: Program) -> Program:
    def program(buffers: Buffers, slots: Slots) -> None:
        first(buffers, slots)
        second(buffers, slots)

    return program


def changed(
    *extra: BufferSpec,
    after: Mapping[ShapeKey, Callable[[Buffers], object]] | None = None,
    remarked: Mapping[str, Mapping[str, object]] | None = None,
    device: str = "cpu",
) -> Proof:
    """Prove the minimal policy after a change."""
    more = {key: _without_slots(program) for key, program in (after or {}).items()}

    def create() -> Changed:
        model = Changed()
        model.extra, model.after, model.remarked = extra, more, remarked or {}
        return model

    return prove(create, device=device)


def _without_slots(program: Callable[[Buffers], object]) -> Program:
    return lambda buffers, slots: program(buffers)


def the_finding(proof: Proof) -> Finding:
    """Return the only finding."""
    assert not proof.is_proved
    assert len(proof.findings) == 1, proof.findings
    return proof.findings[0]


def carry(role: Role) -> BufferSpec:
    return BufferSpec("carry", PAIR, "float32", role)


CARRIED: Mapping[ShapeKey, Callable[[Buffers], object]] = {
    LATCH: lambda b: b["path"].add_(0.1 * b["carry"]),
    COMMIT: lambda b: b["carry"].copy_(b["path"][-1] - b["path"][0]),
}


# what ships ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(registry.MODELS))
def test_every_model_of_the_registry_is_proved(name: str, device: str) -> None:
    proof = prove(lambda: registry.create(name), device=device)
    assert proof.findings == ()
    assert proof.device == device
    proof.require()
    assert [check.check for check in proof.checks] == list(CheckName)
    assert all(check.passed and check.num_runs > 0 for check in proof.checks)
    state = [b.name for b in registry.create(name).buffers() if b.role is Role.STATE]
    assert [result.buffer for result in proof.buffers] == state


def test_two_proofs_of_one_model_agree() -> None:
    def facts(proof: Proof) -> object:
        return proof.checks, proof.buffers, proof.findings

    assert facts(prove(MinimalPolicy)) == facts(prove(MinimalPolicy))


@pytest.mark.parametrize("device", DEVICES)
def test_declared_state_that_crosses_chunks_is_proved(device: str) -> None:
    # the twin of the tests below: the same programs with the buffer declared
    assert changed(carry(Role.STATE), after=CARRIED, device=device).findings == ()


# hidden state --------------------------------------------------------------------------------


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
        programs[POP] = _both(programs[POP], late)
        return programs


def test_a_slot_read_outside_the_latch_is_named() -> None:
    proof = prove(GoalReadAtPop)
    assert {finding.check for finding in proof.findings} == {CheckName.POISON}
    assert {finding.subject for finding in proof.findings} == {
        slot_binding("goal"),
        "slots of channel 'goal'",
    }


class PythonCounter(Changed):
    """Counts its chunks in Python; the graph keeps the count of its capture."""

    def __init__(self) -> None:
        self.num_chunks = 0

    def programs(self) -> Mapping[ShapeKey, Program]:
        def count(buffers: Buffers, slots: Slots) -> None:
            self.num_chunks += 1
            buffers["momentum"].add_(0.01 * self.num_chunks)

        programs = dict(super().programs())
        programs[COMMIT] = _both(programs[COMMIT], count)
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
        programs[COMMIT] = _both(programs[COMMIT], once)
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


# state that is none --------------------------------------------------------------------------


def verdicts(proof: Proof) -> dict[str, Verdict]:
    return {result.buffer: result.verdict for result in proof.buffers}


def test_a_state_buffer_that_nothing_reads_is_named() -> None:
    proof = changed(carry(Role.STATE), after={COMMIT: CARRIED[COMMIT]})
    finding = the_finding(proof)
    assert (finding.check, finding.subject) == (CheckName.DAMAGE, "carry")
    assert verdicts(proof)["carry"] is Verdict.DEAD


def test_buffers_that_reach_only_each_other_are_named() -> None:
    second = BufferSpec("second", PAIR, "float32", Role.STATE)
    proof = changed(
        carry(Role.STATE),
        second,
        after={COMMIT: lambda b: (b["second"].copy_(b["carry"]), b["carry"].add_(1))},
    )
    assert [finding.subject for finding in proof.findings] == ["carry", "second"]
    assert "second" in proof.findings[0].message


def test_a_state_buffer_that_nothing_reads_passes_with_a_reason() -> None:
    num_chunks = counter("num_chunks", inert=Inert.COUNTER)
    proof = changed(num_chunks, after={COMMIT: lambda b: b["num_chunks"].add_(1)})
    assert proof.findings == ()
    assert verdicts(proof)["num_chunks"] is Verdict.INERT


@pytest.mark.parametrize("reason", list(Inert))
def test_a_buffer_wrongly_marked_inert_is_named(reason: Inert) -> None:
    proof = changed(remarked={"momentum": {"inert": reason}})
    finding = the_finding(proof)
    assert (finding.check, finding.subject) == (CheckName.DAMAGE, "momentum")
    assert reason.value in finding.message
    assert verdicts(proof)["momentum"] is Verdict.MISMARKED


def test_a_buffer_wrongly_marked_as_noise_is_named() -> None:
    finding = the_finding(changed(remarked={"momentum": {"feeds_noise": True}}))
    assert finding.subject == "momentum"
    assert "feeds_noise" in finding.message


def test_an_integer_state_is_damaged_within_what_it_was_seen_to_be() -> None:
    cursor = counter("cursor")
    proof = changed(
        cursor,
        after={
            LATCH: lambda b: b["path"].add_(0.1 * b["path"].index_select(0, b["cursor"])),
            COMMIT: lambda b: b["cursor"].copy_((b["cursor"] + 1) % 8),
        },
    )
    assert proof.findings == ()
    result = next(result for result in proof.buffers if result.buffer == "cursor")
    assert "error" not in result.reached


# what the engine takes for granted -----------------------------------------------------------


def test_a_counter_unlike_the_engines_is_named() -> None:
    finding = the_finding(changed(after={COMMIT: lambda b: b["noise_counter"].add_(1)}))
    assert (finding.check, finding.subject) == (CheckName.COUNTERS, "noise_counter")


def test_an_input_that_does_not_keep_the_goal_is_named() -> None:
    finding = the_finding(changed(after={COMMIT: lambda b: b["goal"].mul_(2)}))
    assert (finding.check, finding.subject) == (CheckName.COUNTERS, "goal")


# parts ---------------------------------------------------------------------------------------


@pytest.fixture(params=DEVICES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with make_backend(request.param) as backend, Rig(MinimalPolicy(), backend=backend) as rig:
        yield rig


def saved_regions(rig: Rig) -> list[tuple[torch.Tensor, ...]]:
    """Copy everything that is neither STATE nor INPUT of lane 0."""
    saved = [region.save() for region in rig.regions(0)]
    rig.backend.synchronize()
    return saved


def test_every_byte_outside_state_and_input_is_poisoned(rig: Rig) -> None:
    rig.initialise(0)
    Walk(rig, 0, History(rig.model, 0)).frames(6)
    before = rig.capsule(0)
    rig.poison(0, 0xFF)
    assert rig.capsule(0) == before
    for name, place in rig.layout.by_name.items():
        is_kept = place.spec.role in (Role.STATE, Role.INPUT)
        value = rig.value(0, name).reshape(-1).view(torch.uint8)
        assert is_kept or bool((value == 0xFF).all()), name
    assert all(bool((part == 0xFF).all()) for parts in saved_regions(rig) for part in parts)
    names = [region.name for region in rig.regions(0)]
    assert {"noise ring", "slots of channel 'goal'", "lane 1"} <= set(names)
    private = [name for name in names if name.startswith("private memory of ")]
    assert all(sum(str(key) in name for name in private) == 1 for key in rig.programs)
    assert len(names) == len(set(names))


def test_what_is_put_back_is_what_was_there(rig: Rig) -> None:
    rig.initialise(0)
    history = History(rig.model, 0)
    walk = Walk(rig, 0, history)
    walk.frames(6)
    walk.settle()
    capsule, saved = rig.capsule(0), saved_regions(rig)
    expected = Walk(rig, 0, history, ordinal=walk.ordinal).frames(8)
    rig.poison(0, 0x3F)
    for region, parts in zip(rig.regions(0), saved, strict=True):
        region.load(parts)
    for parts, before in zip(saved_regions(rig), saved, strict=True):
        assert all(map(torch.equal, parts, before))
    rig.restore(0, capsule)
    assert Walk(rig, 0, history, ordinal=walk.ordinal).frames(8) == expected


def test_a_walk_without_the_restore_differs(rig: Rig) -> None:
    # control: the comparison on which every check rests can fail
    history = History(rig.model, 0)
    rig.initialise(0)
    frames = Walk(rig, 0, history).frames(8)
    assert Walk(rig, 0, history).frames(8) != frames
    rig.initialise(0)
    assert Walk(rig, 0, history).frames(8) == frames


def test_a_lane_is_copied_to_the_last_byte(rig: Rig) -> None:
    rig.initialise(0)
    rig.initialise(1)
    assert rig.differing(0, 1) == []
    Walk(rig, 0, History(rig.model, 0)).frames(6)
    assert CHUNK in rig.differing(0, 1)
    rig.copy_lane(1, 0)
    assert rig.differing(0, 1) == []
    assert rig.differing(1, 0) == []


class LosesTheDevice(CpuBackend):
    """A backend whose device is lost at its thousandth reading."""

    num_reads = 0

    def read(self, address: int, num_bytes: int) -> bytes:
        self.num_reads += 1
        if self.num_reads > 1000:
            raise DeviceLostError("the device is lost")
        return super().read(address, num_bytes)


def test_a_device_that_is_lost_ends_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_module, "make_backend", lambda device: LosesTheDevice())
    with pytest.raises(DeviceLostError):
        prove(MinimalPolicy)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_damage_is_finite_and_differs(dtype: str) -> None:
    layout = ArenaLayout.of([BufferSpec("state", (3,), dtype, Role.STATE)])
    place = layout.placements[0]
    now = bytes(layout.capsule_bytes)
    other = bytes([1]) + now[1:]
    found = list(damages(place, now, [other]))
    assert len(found) >= 2 or dtype == "bool"
    for label, value in found:
        assert value.shape == (3,), label
        assert bool(torch.isfinite(value.to(torch.float64)).all())
        assert value.view(torch.uint8).numpy().tobytes() != now[: place.spec.num_bytes]


def test_a_failed_proof_raises_with_the_buffers_name() -> None:
    proof = changed(carry(Role.SCRATCH), after=CARRIED)
    with pytest.raises(ProofError, match="'carry'"):
        proof.require()


def test_a_proof_is_written_as_json(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    prove(MinimalPolicy, num_ticks=6, seed=3).write(file)
    plain = json.loads(file.read_text())
    assert plain["proved"] is True
    assert (plain["device"], plain["num_ticks"], plain["seed"]) == ("cpu", 6, 3)
    assert plain["findings"] == []
    assert {buffer["verdict"] for buffer in plain["buffers"]} == {"inert", "matters", "noise"}
