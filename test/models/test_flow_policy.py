"""The flow policy's programs over plain tensors, its graphs on the CPU, its weights file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from flashrt_ros.errors import WeightsError
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    ELAPSED,
    GOAL_SEQUENCE,
    GOAL_SEQUENCE_IN,
    NOISE_COUNTER,
    QUEUE_HEAD,
    QUEUE_LENGTH,
    TICK,
    slot_binding,
)
from flashrt_ros.models.flow_network import (
    FlowNetwork,
    next_history,
    next_tail,
    to_chunk,
    to_flat,
    to_local,
)
from flashrt_ros.models.flow_policy import ARCHITECTURE, PACKAGED_WEIGHTS, FlowPolicy
from flashrt_ros.models.registry import create
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.spec import ArenaLayout, Role

NUM_SLOTS = 3


class Lane:
    """Plain tensors in the place of a lane and its slots."""

    def __init__(self, policy: FlowPolicy) -> None:
        self.policy, self.programs = policy, policy.programs()
        self.buffers = {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            for spec in policy.buffers()
        }
        generator = torch.Generator().manual_seed(1)
        self.slots = {
            "goal.values": torch.rand(NUM_SLOTS, 2, generator=generator) * 0.5,
            "observation.image": torch.randint(
                0, 255, (NUM_SLOTS, 96, 96, 3), generator=generator, dtype=torch.uint8
            ),
            "observation.agent_pos": torch.rand(NUM_SLOTS, 2, generator=generator) * 0.5,
            "noise.values": torch.randn(NUM_SLOTS, 16, 2, generator=generator),
        }

    def bind(self, *, goal: int = 0, observation: int = 0, noise: int = 0) -> None:
        for channel, index in (("goal", goal), ("observation", observation), ("noise", noise)):
            self.buffers[slot_binding(channel)].fill_(index)

    def chunk(self) -> torch.Tensor:
        for key in self.policy.plan().nodes:
            self.programs[key](self.buffers, self.slots)
        return self.buffers[CHUNK].clone()

    def run(self, name: str) -> None:
        self.programs[getattr(self.policy.plan(), name)](self.buffers, self.slots)


@pytest.fixture
def policy() -> FlowPolicy:
    return FlowPolicy.untrained(0)


@pytest.fixture
def lane(policy: FlowPolicy) -> Lane:
    return Lane(policy)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# the plan -------------------------------------------------------------------------------------


def test_plan_has_a_node_per_denoise_step_and_a_program_per_key(policy: FlowPolicy) -> None:
    plan = policy.plan()
    assert plan.steps == (("encode",), *(("denoise", i) for i in range(10)))
    assert policy.programs().keys() == {*plan.nodes, plan.pop, plan.flush}


def test_only_the_commit_node_writes_what_a_capsule_carries(lane: Lane) -> None:
    carried = [spec.name for spec in lane.policy.buffers() if spec.role in (Role.STATE, Role.INPUT)]
    before = {name: lane.buffers[name].clone() for name in carried}
    *early, commit = lane.policy.plan().nodes
    for key in early:
        lane.programs[key](lane.buffers, lane.slots)
    assert all(torch.equal(before[name], lane.buffers[name]) for name in carried)
    lane.programs[commit](lane.buffers, lane.slots)
    assert not torch.equal(before["queue"], lane.buffers["queue"])


def test_commit_fills_queue_history_tail_and_inputs(lane: Lane) -> None:
    lane.bind(goal=1, observation=2, noise=1)
    lane.buffers[GOAL_SEQUENCE_IN].fill_(7)
    chunk = lane.chunk()
    buffers, slots = lane.buffers, lane.slots
    assert chunk.shape == (16, 2)
    assert bool(((chunk >= 0) & (chunk <= 0.512)).all())
    assert torch.equal(buffers["queue"], chunk)
    assert torch.equal(buffers["tail"], next_tail(chunk[None])[0])
    assert torch.equal(buffers["history"][0, 16:18], slots["observation.agent_pos"][2])
    assert buffers["history"][:, -1].tolist() == [1.0, 0.0]
    assert [int(buffers[n]) for n in (QUEUE_HEAD, QUEUE_LENGTH, NOISE_COUNTER, GOAL_SEQUENCE)] == [
        0,
        8,
        1,
        7,
    ]
    for field, name in lane.policy.inputs().items():
        index = int(buffers[slot_binding(field.partition(".")[0])])
        assert torch.equal(buffers[name], slots[field][index])


def test_inputs_cover_every_field_and_name_input_buffers(policy: FlowPolicy) -> None:
    fields = {f"{c.name}.{part.name}" for c in policy.channels() for part in c.fields}
    roles = {spec.name: spec.role for spec in policy.buffers()}
    assert policy.inputs().keys() == fields | {"noise.values"}
    assert {roles[name] for name in policy.inputs().values()} == {Role.INPUT}


@pytest.mark.parametrize(("elapsed", "head"), [(0, 0), (3, 3), (8, 8), (40, 8)])
def test_commit_skips_the_actions_whose_time_went_by(lane: Lane, elapsed: int, head: int) -> None:
    lane.buffers[ELAPSED].fill_(elapsed)
    lane.chunk()
    assert int(lane.buffers[QUEUE_HEAD]) == head


def test_pop_takes_actions_in_order_and_flush_empties(lane: Lane) -> None:
    chunk = lane.chunk()
    for step in range(3):
        lane.run("pop")
        assert torch.equal(lane.buffers[ACTION], chunk[step])
    assert int(lane.buffers[TICK]) == 3
    assert int(lane.buffers[QUEUE_HEAD]) == 3
    lane.run("flush")
    assert (int(lane.buffers[QUEUE_HEAD]), int(lane.buffers[QUEUE_LENGTH])) == (0, 0)


@pytest.mark.parametrize("head", [-(1 << 62), -1, 16, 1 << 62])
def test_pop_with_a_damaged_head_stays_inside_the_queue(lane: Lane, head: int) -> None:
    lane.chunk()
    lane.buffers[QUEUE_HEAD].fill_(head)
    lane.run("pop")
    assert lane.buffers[ACTION].tolist() in lane.buffers["queue"].tolist()


# what a chunk depends on ----------------------------------------------------------------------


def test_equal_state_and_inputs_give_equal_bytes(policy: FlowPolicy) -> None:
    first, second = Lane(policy), Lane(policy)
    assert torch.equal(first.chunk(), second.chunk())
    assert torch.equal(first.chunk(), second.chunk())


@pytest.mark.parametrize("channel", ["goal", "observation", "noise"])
def test_every_input_matters(policy: FlowPolicy, channel: str) -> None:
    first, second = Lane(policy), Lane(policy)
    second.bind(**{channel: 1})
    assert not torch.equal(first.chunk(), second.chunk())


@pytest.mark.parametrize("name", ["history", "tail"])
def test_history_matters(policy: FlowPolicy, name: str) -> None:
    first, second = Lane(policy), Lane(policy)
    first.chunk()
    second.chunk()
    second.buffers[name].zero_()
    assert not torch.equal(first.chunk(), second.chunk())


def test_every_row_of_history_matters(policy: FlowPolicy) -> None:
    first, second = Lane(policy), Lane(policy)
    for either in (first, second):
        either.chunk()
        either.chunk()
    second.buffers["history"][1].zero_()
    assert not torch.equal(first.chunk(), second.chunk())


def test_score_prefers_the_goal_and_then_the_shorter_way(lane: Lane) -> None:
    lane.chunk()
    start, goal = lane.buffers["agent_pos"], lane.buffers["goal"]
    share = torch.linspace(1 / 16, 1, 16)[:, None]
    straight = start + share * (goal - start)
    detour = straight + torch.sin(share * torch.pi) * 0.1
    short = start + share * (goal - start) * 0.5
    scores = [lane.policy.score(chunk, lane.buffers) for chunk in (straight, detour, short)]
    assert scores[0] > scores[1] > scores[2]


# on the backend -------------------------------------------------------------------------------


def test_graphs_replay_the_bytes_of_eager_execution(policy: FlowPolicy, lane: Lane) -> None:
    plan, programs = policy.plan(), policy.programs()
    with (
        CpuBackend() as backend,
        backend.create_arena(ArenaLayout.of(policy.buffers()), num_lanes=2) as arena,
    ):
        arena.seal()
        keys = (*plan.nodes, plan.pop, plan.flush)
        first = {key: backend.capture(programs[key], key, arena, 0, lane.slots) for key in keys}
        graphs = {key: graph.rebase(1) for key, graph in first.items()}
        views = arena.views(1)
        for turn in range(3):
            lane.bind(goal=turn, observation=turn, noise=turn)
            for channel in ("goal", "observation", "noise"):
                views[slot_binding(channel)].fill_(turn)
            for key in (*plan.nodes, plan.pop):
                programs[key](lane.buffers, lane.slots)
                graphs[key].replay()
            for name, view in views.items():
                assert torch.equal(view, lane.buffers[name]), name
        roles = {key: graph.written_roles for key, graph in first.items()}
        for graph in (*graphs.values(), *first.values()):
            graph.close()
    assert all(roles[key] == {Role.SCRATCH} for key in plan.nodes[:-1])
    assert roles[plan.commit] == {Role.STATE, Role.INPUT, Role.OUTPUT}


# the network ----------------------------------------------------------------------------------


def test_frame_is_exact_for_exact_corners() -> None:
    network = FlowNetwork()
    angle = torch.tensor([0.0, 1.0, -2.5])
    rotation = torch.stack(
        [torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)], -1
    ).view(-1, 2, 2)
    corners = torch.einsum("bij,kj->bki", rotation, network.template) + 0.2
    frame = network.frame(corners.flatten(1))
    expected = torch.stack([torch.full((3,), 0.2)] * 2 + [angle.cos(), angle.sin()], -1)
    torch.testing.assert_close(frame, expected)
    torch.testing.assert_close(to_local(frame, corners) * 0.1, network.template.expand(3, 8, 2))


def test_to_flat_is_the_inverse_of_to_chunk() -> None:
    angle = torch.tensor([0.3, 2.0])
    frame = torch.stack([torch.rand(2), torch.rand(2), angle.cos(), angle.sin()], -1)
    agent, flat = torch.rand(2, 2), torch.randn(2, 32)
    chunk = to_chunk(frame, agent, flat)
    torch.testing.assert_close(to_flat(frame, agent, chunk), flat, atol=1e-5, rtol=1e-5)


def test_next_history_drops_the_oldest_row() -> None:
    history = torch.zeros(1, 2, 19)
    for value in (1.0, 2.0, 3.0):
        history = next_history(history, torch.full((1, 16), value), torch.full((1, 2), value))
    assert history[0, :, 0].tolist() == [3.0, 2.0]
    assert history[0, :, -1].tolist() == [1.0, 1.0]


# weights --------------------------------------------------------------------------------------


def test_packaged_weights_are_small_and_load_through_the_registry() -> None:
    assert PACKAGED_WEIGHTS.stat().st_size < 4_000_000
    policy = create("flow_policy")
    assert isinstance(policy, FlowPolicy)
    assert policy.weights_digest() == FlowPolicy.load(PACKAGED_WEIGHTS).weights_digest()


def test_save_and_load_keep_every_weight(policy: FlowPolicy, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    policy.save(path, {"seed": 3})
    assert FlowPolicy.load(path).weights_digest() == policy.weights_digest()
    assert Lane(FlowPolicy.load(path)).chunk().tolist() == Lane(policy).chunk().tolist()
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata == {"architecture": ARCHITECTURE, "training": json.dumps({"seed": 3})}


def test_untrained_depends_on_its_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = FlowPolicy.untrained(1).weights_digest()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    assert first == FlowPolicy.untrained(1).weights_digest()
    assert first != FlowPolicy.untrained(2).weights_digest()


def _tensors() -> dict[str, torch.Tensor]:
    return {name: value.contiguous() for name, value in FlowNetwork().state_dict().items()}


def _write(path: Path, tensors: dict[str, torch.Tensor], architecture: str = ARCHITECTURE) -> Path:
    safetensors.torch.save_file(tensors, path, metadata={"architecture": architecture})
    return path


def test_what_is_made_at_the_load_does_not_depend_on_the_process_s_threads() -> None:
    before = torch.get_num_threads()
    made = []
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            made.append(torch.cat(FlowPolicy.untrained(3)._time_embeddings))
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, made[0]) for one in made)
    assert not torch.equal(torch.cat(FlowPolicy.untrained(4)._time_embeddings), made[0])


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is missing"):
        FlowPolicy.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 2000])
def test_cut_weights_are_refused(policy: FlowPolicy, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "weights.safetensors"
    policy.save(path, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match="can't be read"):
        FlowPolicy.load(path)


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    torch.save(_tensors(), path)
    with pytest.raises(WeightsError, match="can't be read"):
        FlowPolicy.load(path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "weights.safetensors", _tensors(), "other/1")
    with pytest.raises(WeightsError, match=r"another architecture.*expected flow_policy/1"):
        FlowPolicy.load(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = _tensors()
    del tensors["expert_in.bias"]
    with pytest.raises(WeightsError, match=r"expert_in\.bias"):
        FlowPolicy.load(_write(tmp_path / "weights.safetensors", tensors))


@pytest.mark.parametrize("change", ["shape", "dtype", "nan"])
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, change: str) -> None:
    tensors = _tensors()
    value = tensors["time.bias"]
    tensors["time.bias"] = {
        "shape": value[:-1].clone(),
        "dtype": value.double(),
        "nan": torch.full_like(value, torch.nan),
    }[change]
    with pytest.raises(WeightsError, match=r"time\.bias"):
        FlowPolicy.load(_write(tmp_path / "weights.safetensors", tensors))
