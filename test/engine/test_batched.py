from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import batched_figures, protocol
from flashrt_ros.engine.batched import BatchedEngine
from flashrt_ros.engine.batched_rows import RowCapsule
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.errors import (
    CapsuleNotFoundError,
    CaptureError,
    ConfigError,
    FingerprintMismatchError,
    FlashrtError,
    LanePoisonedError,
    NonFiniteError,
    NotActiveError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
    SpecError,
    StepTimeoutError,
    UnknownChannelError,
    UnknownEnvironmentError,
)
from flashrt_ros.models.base import Buffers, PolicyModel, Program, Slots
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.models.minimal import EXECUTE_HORIZON, MinimalPolicy
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.spec import ShapeKey

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

N = 4
ALL = range(N)
Actions = npt.NDArray[np.float32]


def goals(seed: int, count: int = N) -> Actions:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 2)).astype(np.float32)


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with make_backend(request.param) as backend:
        yield backend


@pytest.fixture
def engine(backend: Backend) -> Iterator[BatchedEngine]:
    with BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as engine:
        yield engine


def feed(engine: BatchedEngine, seed: int = 0) -> None:
    engine.write("goal", values=goals(seed))
    engine.write("observation", position=goals(seed + 100))


def run(engine: BatchedEngine, count: int) -> list[Actions]:
    """Step with observations that follow the actions, as an environment's would."""
    actions = []
    for _ in range(count):
        actions.append(engine.step())
        engine.write("observation", position=actions[-1] * np.float32(0.5))
    return actions


def payload_of(model: PolicyModel, channel: str, rng: np.random.Generator) -> dict[str, Any]:
    spec = next(spec for spec in model.channels() if spec.name == channel)
    return {
        part.name: rng.integers(0, 256, part.shape, np.uint8)
        if part.dtype == "uint8"
        else rng.uniform(0.0, 0.5, part.shape).astype(part.dtype)
        for part in spec.fields
    }


@pytest.mark.parametrize(
    "make", [MinimalPolicy, lambda: FlowPolicy.load()], ids=["minimal", "flow"]
)
def test_environments_do_what_an_engine_alone_does_but_for_rounding(
    make: Callable[[], PolicyModel], backend: Backend
) -> None:
    model, count = make(), 3
    payloads = {
        name: [payload_of(model, name, np.random.default_rng(row)) for row in range(count)]
        for name in ("goal", "observation")
    }
    # a convolution on CUDA rounds its factors to TF32, in another order for another shape
    rtol, atol = (1e-4, 1e-6) if backend.name == "cpu" else (1e-2, 2e-3)
    with BatchedEngine(model, num_environments=count, seed=11, backend=backend) as engine:
        for name, rows in payloads.items():
            engine.write(name, **{field: np.stack([p[field] for p in rows]) for field in rows[0]})
        batched = [engine.step() for _ in range(2 * model.execute_horizon + 1)]
    for row in range(count):
        config = EngineConfig(
            device=backend.name, num_standby_lanes=0, num_branch_lanes=0, seed=11 + row
        )
        with Engine(make(), config) as alone:
            for name, rows in payloads.items():
                EmbeddedWriter(alone, name).write(stamp_ns=1, **rows[row])
            alone.handle(protocol.Activate(0, 0, "step", 0.0))
            for actions in batched:
                stepped = alone.step(protocol.Step(0, 0, 1, -1, 0, 0))
                expected = np.frombuffer(stepped.actions[0].values, np.float32)
                np.testing.assert_allclose(actions[row], expected, rtol=rtol, atol=atol)


def test_a_chunk_is_made_when_an_environment_is_due(engine: BatchedEngine) -> None:
    feed(engine)
    assert engine.due.all()
    run(engine, EXECUTE_HORIZON - 1)
    assert not engine.due.any()
    first = engine.chunks()
    run(engine, 1)
    assert engine.due.all()
    np.testing.assert_array_equal(engine.chunks(), first)
    run(engine, 1)
    assert (engine.chunks() != first).any(axis=(1, 2)).all()
    assert engine.ticks.tolist() == [EXECUTE_HORIZON + 1] * N


def test_a_threshold_makes_chunks_earlier(backend: Backend) -> None:
    with BatchedEngine(
        MinimalPolicy(), num_environments=2, replan_threshold=2, backend=backend
    ) as engine:
        engine.write("goal", values=goals(0, 2))
        engine.write("observation", position=goals(1, 2))
        due = [bool(engine.due.all()) for _ in range(5) if engine.step() is not None]
    assert due == [False, True, False, True, False]


def test_the_same_environments_give_the_same_bytes(engine: BatchedEngine, backend: Backend) -> None:
    with BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as other:
        results = []
        for subject in (engine, other):
            feed(subject)
            results.append(np.stack(run(subject, 10)).tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("count", [3, 8])
def test_no_environment_of_a_network_depends_on_another(count: int, backend: Backend) -> None:
    model, subject = FlowPolicy.load(), 1
    chunks = []
    with BatchedEngine(model, num_environments=count, backend=backend) as engine:
        for others in (10, 20):
            engine.reset(seeds=[1 if row == subject else others + row for row in range(count)])
            for name in ("goal", "observation"):
                rows = [
                    payload_of(model, name, np.random.default_rng(1 if row == subject else others))
                    for row in range(count)
                ]
                stacked = {field: np.stack([row[field] for row in rows]) for field in rows[0]}
                engine.write(name, **stacked)
            for _ in range(model.execute_horizon + 1):
                engine.step()
            chunks.append(engine.chunks())
    assert chunks[0][subject].tobytes() == chunks[1][subject].tobytes()
    assert chunks[0][0].tobytes() != chunks[1][0].tobytes()  # the control


# resets and capsules -----------------------------------------------------------------------------


def test_one_environment_is_reset_and_begins_again(engine: BatchedEngine, backend: Backend) -> None:
    with BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as control:
        first = []
        for subject in (engine, control):
            feed(subject)
            first = run(subject, 6)
        engine.reset([2])
        assert engine.ticks.tolist() == [6, 6, 0, 6]
        for subject in (engine, control):
            subject.write("goal", [2], values=goals(0)[[2]])
            subject.write("observation", [2], position=goals(100)[[2]])
        again, went_on = run(engine, 6), run(control, 6)
    for tick in range(6):
        assert again[tick][2].tobytes() == first[tick][2].tobytes()
        for row in (0, 1, 3):  # the others did not notice
            assert again[tick][row].tobytes() == went_on[tick][row].tobytes()
    assert went_on[0][2].tobytes() != first[0][2].tobytes()  # the control was not reset


def test_a_reset_drops_what_was_written(engine: BatchedEngine) -> None:
    feed(engine)
    engine.reset([1, 3])
    with pytest.raises(StepTimeoutError, match=r"goal of \[1, 3\]; observation of \[1, 3\]"):
        engine.step()
    engine.step([0, 2])
    engine.write("goal", [1, 3], values=goals(1, 2))
    with pytest.raises(StepTimeoutError, match=r"none for observation of \[1, 3\]"):
        engine.step([1, 3])
    engine.write("observation", [1, 3], position=goals(1, 2))
    engine.step()
    engine.reset(np.array([False, True, False, False]), keep_goal=True)
    with pytest.raises(StepTimeoutError, match=r"none for observation of \[1\]"):
        engine.step()


def test_a_seed_is_the_noise_of_an_episode(engine: BatchedEngine) -> None:
    chunks = []
    for seeds in ([5, 5, 6, 7], [5, 5, 8, 7], None):
        engine.reset(seeds=seeds)
        engine.write("goal", values=np.tile(goals(0, 1), (N, 1)))
        engine.write("observation", position=np.tile(goals(1, 1), (N, 1)))
        engine.step()
        chunks.append(engine.chunks())
    assert chunks[0][0].tobytes() == chunks[0][1].tobytes()
    assert chunks[0][0].tobytes() != chunks[0][2].tobytes()
    assert [a.tobytes() == b.tobytes() for a, b in zip(*chunks[:2], strict=True)] == [
        True,
        True,
        False,
        True,
    ]
    assert len({chunk.tobytes() for chunk in chunks[2]}) == N


def test_an_environment_is_restored_with_its_goal(engine: BatchedEngine) -> None:
    feed(engine)
    run(engine, 3)
    (capsule,) = engine.snapshot([1])
    position = goals(7)
    engine.write("observation", position=position)
    uninterrupted = [engine.step()[1].tobytes() for _ in range(6)]
    engine.write("goal", values=goals(9))
    never = [engine.step()[1].tobytes() for _ in range(6)]
    engine.restore([1], [capsule])
    with pytest.raises(StepTimeoutError, match=r"none for observation of \[1\]"):
        engine.step()
    engine.write("observation", [1], position=position[[1]])
    assert [engine.step()[1].tobytes() for _ in range(6)] == uninterrupted
    assert never != uninterrupted  # the control


def test_one_capsule_serves_several_environments(engine: BatchedEngine) -> None:
    feed(engine)
    run(engine, 5)
    (capsule,) = engine.snapshot([3])
    engine.restore(None, [capsule] * N, seeds=[1, 1, 2, 3])
    engine.write("observation", position=np.tile(goals(5, 1), (N, 1)))
    actions = [engine.step() for _ in range(8)]
    assert len({row.tobytes() for row in actions[0]}) == 1  # of the queue they brought
    last = [row.tobytes() for row in actions[-1]]
    assert last[0] == last[1]
    assert len(set(last)) == 3


def test_a_capsule_outlives_its_engine_and_serves_one_alike(backend: Backend) -> None:
    with BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as first:
        feed(first)
        run(first, 5)
        capsules = first.snapshot()
        first.write("observation", position=goals(3))
        expected = [first.step().tobytes() for _ in range(6)]
    with BatchedEngine(MinimalPolicy(), num_environments=N, seed=77, backend=backend) as second:
        second.restore(ALL, capsules)
        second.write("observation", position=goals(3))
        assert [second.step().tobytes() for _ in range(6)] == expected


def test_capsules_that_do_not_fit_change_nothing(engine: BatchedEngine, backend: Backend) -> None:
    feed(engine)
    run(engine, 2)
    capsules = engine.snapshot()
    with BatchedEngine(MinimalPolicy(), num_environments=2, backend=backend) as other:
        (foreign,) = other.snapshot([0])
    (closed,) = engine.snapshot([0])
    closed.block.close()
    before = state(engine)
    cases: list[tuple[type[FlashrtError], list[RowCapsule], list[int] | None]] = [
        (FingerprintMismatchError, [*capsules[:3], foreign], None),
        (CapsuleNotFoundError, [*capsules[:3], closed], None),
        (SpecError, capsules[:3], None),
        (SpecError, capsules, [1]),
        (PayloadRangeError, capsules, [0, 1, 2, -1]),
    ]
    for error, given_capsules, seeds in cases:
        with pytest.raises(error):
            engine.restore(None, given_capsules, seeds=seeds)
        assert state(engine) == before
    engine.step()


def state(engine: BatchedEngine) -> list[bytes]:
    """Bytes and counters of every environment."""
    read, size = engine._parts.backend.read, engine._parts.layout.capsule_bytes
    capsules = engine.snapshot()
    return [read(c.block.address, size) + repr(c.position).encode() for c in capsules]


VERBS = st.tuples(
    st.sampled_from(["step", "step", "reset", "save", "load", "goal", "observe"]),
    st.sets(st.integers(0, N - 1), min_size=1),
    st.integers(0, 50),
)
HISTORIES = st.lists(VERBS, min_size=5, max_size=30)
History = list[tuple[str, set[int], int]]


@settings(max_examples=25, deadline=None)
@given(history=HISTORIES, subject=st.integers(0, N - 1))
def test_an_environment_lives_as_if_it_were_alone(history: History, subject: int) -> None:
    """What others are put through shows in no byte of one that is put through the same."""
    with make_backend("cpu") as backend:
        assert live(backend, history, set(ALL), subject) == live(
            backend, history, {subject}, subject
        )


@pytest.mark.gpu
@settings(max_examples=5, deadline=None)
@given(history=HISTORIES, subject=st.integers(0, N - 1))
def test_an_environment_lives_as_if_it_were_alone_on_cuda(history: History, subject: int) -> None:
    with make_backend("cuda") as backend:
        assert live(backend, history, set(ALL), subject) == live(
            backend, history, {subject}, subject
        )


def live(backend: Backend, history: History, present: set[int], subject: int) -> list[bytes]:
    """Put the environments that are present through a history; return the subject's bytes."""
    seen: list[bytes] = []
    saved: dict[int, RowCapsule] = {}
    with BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as engine:
        everyone = sorted(present)
        engine.write("goal", everyone, values=goals(0)[everyone])
        engine.write("observation", everyone, position=goals(1)[everyone])
        for verb, meant, seed in history:
            rows = sorted(meant & present)
            if verb == "step":
                actions = engine.step(rows)
                seen.append(actions[subject].tobytes())
            elif verb == "goal":
                engine.write("goal", rows, values=goals(seed)[rows])
            elif verb == "save":
                saved.update(zip(rows, engine.snapshot(rows), strict=True))
            elif verb == "reset":
                engine.reset(rows, seeds=[seed + row for row in rows], keep_goal=True)
            elif verb == "load":
                known = [row for row in rows if row in saved]
                engine.restore(known, [saved[row] for row in known], keep_goal=True)
            if verb in ("observe", "reset", "load"):
                engine.write("observation", rows, position=goals(seed)[rows])
        seen += [state(engine)[subject], engine.chunks()[subject].tobytes()]
    return seen


# inputs ------------------------------------------------------------------------------------------


def test_inputs_are_written_in_place(engine: BatchedEngine) -> None:
    feed(engine)
    expected = engine.step()
    engine.reset()
    views = engine.inputs.views("goal")
    assert views["values"].shape == (N, 2)
    views["values"][...] = goals(0)
    engine.inputs.views("observation")["position"][...] = goals(100)
    engine.commit("goal")
    engine.commit("observation")
    np.testing.assert_array_equal(engine.step(), expected)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"values": goals(0, 3)}, PayloadShapeError),
        ({"values": goals(0)[:, :1]}, PayloadShapeError),
        ({"value": goals(0)}, PayloadShapeError),
        ({"values": goals(0).astype(np.float64)}, PayloadTypeError),
        ({"values": goals(0) * np.float32("nan")}, NonFiniteError),
        ({"values": goals(0) + 5}, PayloadRangeError),
    ],
)
def test_a_payload_that_is_refused_is_not_written(
    engine: BatchedEngine, values: dict[str, Any], error: type[FlashrtError]
) -> None:
    feed(engine)
    before = engine.inputs.views("goal")["values"].copy()
    with pytest.raises(error):
        engine.write("goal", **values)
    np.testing.assert_array_equal(engine.inputs.views("goal")["values"], before)
    engine.step()


def test_what_is_refused_in_place_acts_no_longer(engine: BatchedEngine) -> None:
    feed(engine)
    engine.inputs.views("goal")["values"][2] = np.inf
    engine.commit("goal", [0, 1])
    with pytest.raises(NonFiniteError):
        engine.commit("goal", [2])
    with pytest.raises(StepTimeoutError, match=r"goal of \[2\]"):
        engine.step()
    engine.step([0, 1, 3])


def test_what_was_submitted_is_waited_for_where_a_step_is_cut_short(
    engine: BatchedEngine, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that writes its next observation must find no graph reading the last."""
    feed(engine)
    waits: list[str] = []
    monkeypatch.setattr(engine._parts.plan, "replay", _interrupted)
    monkeypatch.setattr(backend, "synchronize", lambda: waits.append("waited"))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert waits == ["waited"]
    assert engine.ticks.tolist() == [0] * N


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([4], UnknownEnvironmentError),
        ([-1], UnknownEnvironmentError),
        ([[0]], UnknownEnvironmentError),
        ([0.5], UnknownEnvironmentError),
        (np.array([True, False]), UnknownEnvironmentError),
        ([1, 1], SpecError),
    ],
)
def test_other_environments_are_refused(
    engine: BatchedEngine, rows: Any, error: type[FlashrtError]
) -> None:
    feed(engine)
    before = state(engine)
    verbs: list[Callable[[], object]] = [
        lambda: engine.step(rows),
        lambda: engine.reset(rows),
        lambda: engine.snapshot(rows),
        lambda: engine.restore(rows, engine.snapshot([0])),
        lambda: engine.write("goal", rows, values=goals(0)[:1]),
        lambda: engine.commit("goal", rows),
    ]
    for verb in verbs:
        with pytest.raises(error):
            verb()
    assert state(engine) == before


def test_no_environment_at_all_is_none(engine: BatchedEngine) -> None:
    feed(engine)
    before = state(engine)
    engine.reset([])
    engine.write("goal", [], values=goals(0)[:0])
    assert engine.snapshot(np.zeros(N, np.bool_)) == []
    engine.step([])
    assert state(engine) == before


def test_an_unknown_channel_is_refused(engine: BatchedEngine) -> None:
    with pytest.raises(UnknownChannelError, match="goal, observation"):
        engine.write("image", pixels=[0])
    with pytest.raises(UnknownChannelError):
        engine.inputs.views("image")


def test_other_threads_are_refused(engine: BatchedEngine) -> None:
    feed(engine)
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match="thread count"):
            engine.step()
    finally:
        torch.set_num_threads(1)
    engine.step()


def test_a_torn_environment_is_refused_until_it_is_reset(
    engine: BatchedEngine, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(engine)
    (capsule,) = engine.snapshot([0])
    graph = type(engine._parts.graphs.graph(("pop",)))
    with monkeypatch.context() as patch:
        patch.setattr(graph, "replay", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine._parts.graphs.replay(("pop",), [0, 2])
    for verb in (engine.step, engine.snapshot):
        with pytest.raises(LanePoisonedError, match="row 0"):
            verb()
    engine.step([1, 3])
    engine.restore([0], [capsule])
    engine.reset([2])
    feed(engine)
    engine.step()


def _interrupted(graph: object) -> None:
    raise KeyboardInterrupt


def test_a_closed_engine_is_refused(backend: Backend) -> None:
    engine = BatchedEngine(MinimalPolicy(), num_environments=2, backend=backend)
    engine.close()
    engine.close()
    for verb in (engine.step, engine.reset):
        with pytest.raises(NotActiveError, match="closed"):
            verb()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_environments": 0}, ConfigError),
        ({"replan_threshold": EXECUTE_HORIZON}, ConfigError),
        ({"num_threads": 0}, ConfigError),
        ({"seed": -1}, PayloadRangeError),
        ({"seed": 2**63 - 2}, PayloadRangeError),
        ({"programs": {("other",): lambda buffers, slots: None}}, SpecError),
    ],
)
def test_parameters_out_of_range_are_refused(
    options: dict[str, Any], error: type[FlashrtError]
) -> None:
    with pytest.raises(error):
        BatchedEngine(MinimalPolicy(), **{"num_environments": N, **options})


# programs written for a batch --------------------------------------------------------------------


def steps_whole(buffers: Buffers, slots: Slots) -> None:
    pull = buffers["goal_latched"][:, None] - buffers["path"]
    buffers["path"].add_(0.3 * pull + 0.1 * buffers["momentum"][:, None])


def test_a_program_written_for_a_batch_takes_the_place_of_the_models(backend: Backend) -> None:
    own: dict[ShapeKey, Program] = {("step", index): steps_whole for index in range(3)}
    with (
        BatchedEngine(MinimalPolicy(), num_environments=N, backend=backend) as lifted,
        BatchedEngine(MinimalPolicy(), num_environments=N, programs=own, backend=backend) as engine,
    ):
        assert engine.fingerprint.digest != lifted.fingerprint.digest
        for subject in (engine, lifted):
            feed(subject)
        for left, right in zip(run(engine, 6), run(lifted, 6), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5)


def test_a_program_that_is_refused_names_itself(backend: Backend) -> None:
    def to_host(buffers: Buffers, slots: Slots) -> None:
        buffers["path"].fill_(buffers["path"].sum().item())

    with pytest.raises(CaptureError, match="item") as caught:
        BatchedEngine(
            MinimalPolicy(), num_environments=N, programs={("step", 1): to_host}, backend=backend
        )
    assert __file__ in caught.value.source


# docs --------------------------------------------------------------------------------------------


def test_the_example_of_the_docs_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    assert names["position"].shape == (16, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_figures_are_checked_and_printed(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "minimal", "--environments", "2", "--seconds", "0.01"]
    batched_figures.main([*words, "--device", device])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("minimal, torch")
    assert lines[1].split() == ["n", "batched", "n", "single", "ratio", "pop", "reset", "differs"]
    assert lines[2].split()[0] == "2"
