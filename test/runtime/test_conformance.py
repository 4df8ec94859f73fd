"""What every backend promises; a backend joins by a line in conftest.BACKENDS."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import (
    BackendError,
    SealedArenaError,
    SpecError,
)
from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.spec import (
    ArenaLayout,
    BufferSpec,
    Role,
)

torch.manual_seed(0)
ENCODER = nn.Sequential(
    nn.Conv2d(3, 8, 3, 2, 1),
    nn.GroupNorm(2, 8),
    nn.SiLU(),
    nn.Conv2d(8, 4, 3, 2, 1),
    nn.GELU(),
    nn.Flatten(),
    nn.Linear(64, 32),
    nn.LayerNorm(32),
).eval()
TRANSFORMER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
RECURRENT = nn.GRU(8, 8, batch_first=True).eval()
MEMORY = nn.LSTM(8, 8, batch_first=True).eval()
NORM = nn.BatchNorm1d(8).eval()
TABLE = nn.Embedding(16, 8)


def mlp(buffers: Buffers, slots: Slots) -> None:
    hidden = torch.tanh(buffers["memory"] @ TABLE.weight.t())
    buffers["out"].copy_(hidden @ TABLE.weight + buffers["goal"])


def encoder(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(ENCODER(buffers["image"]).view(4, 8))


def transformer(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(TRANSFORMER(buffers["memory"][None])[0])


def recurrent(buffers: Buffers, slots: Slots) -> None:
    out, last = RECURRENT(buffers["memory"][None])
    buffers["out"].copy_(out[0])
    buffers["goal"].copy_(last[0, 0])


def recurrent_fused(buffers: Buffers, slots: Slots) -> None:
    out, (_, cell) = MEMORY(buffers["memory"][None])
    buffers["out"].copy_(out[0] + cell[0])


def attention(buffers: Buffers, slots: Slots) -> None:
    q = buffers["memory"].view(1, 4, 2, 4).transpose(1, 2)
    out = functional.scaled_dot_product_attention(q, q, q * 2.0, is_causal=True)
    buffers["out"].copy_(out.transpose(1, 2).reshape(4, 8))


def updates_state(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(buffers["goal"])
    buffers["count"].add_(1)
    buffers["out"].copy_(buffers["memory"])


def writes_a_constant(buffers: Buffers, slots: Slots) -> None:
    """Each run begins at zero; a tape that ran zeros() once would add up."""
    total = torch.zeros(8, device=buffers["goal"].device)
    scale = torch.arange(1.0, 5.0, device=total.device)
    ones = torch.ones_like(total)
    for row in range(4):
        total += buffers["memory"][row] * scale[row] + ones
    scale.add_(total[:4])
    buffers["goal"].copy_(total)
    buffers["out"][:, 0].copy_(scale)


def writes_through_views(buffers: Buffers, slots: Slots) -> None:
    hidden = buffers["hidden"]
    hidden[1:3, ::2] = buffers["memory"][:2, 4:]
    hidden.t()[3].fill_(2.0)
    hidden.view(-1)[-3:].sub_(1.0)
    buffers["out"].copy_(hidden.flip(0))


def converts(buffers: Buffers, slots: Slots) -> None:
    wide = buffers["memory"].to(torch.float64).softmax(-1)
    half = wide.to(torch.bfloat16) * buffers["goal"].to(torch.bfloat16)
    buffers["out"].copy_(half.float() + buffers["count"].float())


def selects(buffers: Buffers, slots: Slots) -> None:
    values, order = buffers["memory"].topk(3, dim=-1)
    chosen = buffers["memory"].gather(1, order[:, :1]) + values.sum(-1, keepdim=True)
    mask = buffers["memory"] > 0
    out = torch.where(mask, buffers["memory"], chosen.expand(4, 8)).masked_fill(~mask, -1.0)
    buffers["out"].copy_(out + TABLE(order.view(-1)[:4]))


def joins(buffers: Buffers, slots: Slots) -> None:
    halves = buffers["memory"].chunk(2, dim=1)
    joined = torch.cat([halves[1], halves[0]], dim=1)
    stacked = torch.stack([joined, buffers["memory"]]).mean(0)
    torch.add(stacked, 1.0, out=buffers["out"])


def reshapes_in_place(buffers: Buffers, slots: Slots) -> None:
    row = buffers["memory"][0].clone()
    row.unsqueeze_(0)
    buffers["out"].copy_(row.expand(4, 8))


def runs_in_inference_mode(buffers: Buffers, slots: Slots) -> None:
    with torch.inference_mode():
        out = NORM(buffers["memory"])
        out.add_(torch.arange(8.0, device=out.device))
        buffers["out"].copy_(out)


def runs_in_autocast(buffers: Buffers, slots: Slots) -> None:
    with torch.autocast(buffers["memory"].device.type, dtype=torch.bfloat16):
        buffers["out"].copy_(buffers["memory"] @ TABLE.weight[:8])


def works_on_lists(buffers: Buffers, slots: Slots) -> None:
    doubled = torch._foreach_mul([buffers["memory"], buffers["hidden"]], 2.0)
    torch._foreach_add_([buffers["out"], buffers["goal"]], 1.0)
    buffers["out"].add_(doubled[0] - doubled[1])


def transforms(buffers: Buffers, slots: Slots) -> None:
    spectrum = torch.fft.rfft(buffers["memory"])
    power = torch.view_as_real(spectrum * spectrum.conj()).sum(-1)
    buffers["out"][:, :5].copy_(power + spectrum.conj().imag.clone())


def writes_nothing_here_and_there(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"][:0].copy_(buffers["memory"][0, :0])
    empty = torch.cat([buffers["goal"][:0], buffers["goal"][8:]])
    buffers["goal"].add_(empty.sum() + 1.0)


def checks(buffers: Buffers, slots: Slots) -> None:
    torch._assert_async(buffers["goal"].sum() < 1e6)
    buffers["goal"].add_(1.0)


def reads_slots(buffers: Buffers, slots: Slots) -> None:
    goal = slots["goal.values"].index_select(0, buffers["goal_slot"])[0]
    mask = slots["goal.mask"].index_select(0, buffers["goal_slot"])[0]
    buffers["hidden"].copy_(torch.where(mask, goal, -goal).expand(4, 8))


MODULES = (ENCODER, TRANSFORMER, RECURRENT, MEMORY, NORM, TABLE)


@pytest.fixture(autouse=True)
def weights_on_the_device(backend: Backend) -> None:
    for module in MODULES:
        module.to(backend.device)
    if backend.device.type == "cuda":
        torch.cuda.synchronize()


PROGRAMS = [
    pytest.param(program, id=program.__name__)
    for program in (
        mlp,
        encoder,
        transformer,
        recurrent,
        recurrent_fused,
        attention,
        updates_state,
        writes_a_constant,
        writes_through_views,
        converts,
        selects,
        joins,
        reshapes_in_place,
        runs_in_inference_mode,
        runs_in_autocast,
        works_on_lists,
        transforms,
        writes_nothing_here_and_there,
        checks,
        reads_slots,
    )
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_replay_is_byte_equal_to_the_program(world: Any, program: Program) -> None:
    graph = world.capture(program)
    for seed in range(3, 6):  # other numbers than those it was captured over
        world.fill(0, seed=seed)
        world.set("goal_slot", seed % 3)
        before = world.bytes_of(0)
        expected = world.eager(program)
        assert expected != before
        assert world.replayed(graph) == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_replays_over_the_same_bytes_are_identical(world: Any, program: Program) -> None:
    graph = world.capture(program)
    assert world.replayed(graph) == world.replayed(graph)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_replay_depends_on_private_memory(world: Any, program: Program) -> None:
    graph = world.capture(program)
    expected = world.replayed(graph)
    for fill in (0x00, 0xFF, 0x3F):
        world.poison(graph, fill)
        assert world.replayed(graph) == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_replay_on_a_lane_touches_that_lane_only(world: Any, program: Program) -> None:
    graph = world.capture(program)
    for lane in range(1, world.arena.num_lanes):
        rebased = graph.rebase(lane)
        expected = world.eager(program, lane)
        before = world.all_bytes()
        slots = bytes(world.slot_block.view())
        rebased.replay()
        world.backend.synchronize()
        after = world.all_bytes()
        assert after[lane] == expected
        assert [i for i in range(3) if after[i] != before[i]] == [lane]
        assert bytes(world.slot_block.view()) == slots


def test_replays_move_the_state_on(world: Any) -> None:
    graph = world.capture(updates_state)
    for _ in range(3):
        expected = world.eager(updates_state)
        graph.replay()
        world.backend.synchronize()
        assert world.bytes_of(0) == expected
    assert world.get("count") == [3]


def test_capture_and_rebase_put_every_lane_back(world: Any) -> None:
    before = world.all_bytes()
    graph = world.capture(updates_state)
    for lane in (1, 2):
        graph.rebase(lane)
    graph.replay()
    world.put_bytes(before[0])
    assert world.all_bytes() == before


def test_capture_leaves_the_lane_as_it_was(world: Any) -> None:
    before = world.all_bytes()
    world.capture(updates_state, lane=1)
    assert world.all_bytes() == before


def test_capture_on_any_lane_gives_the_same_graph(world: Any) -> None:
    graph = world.capture(updates_state, lane=2)
    assert graph.lane == 2
    assert world.replayed(graph.rebase(0)) == world.eager(updates_state, 0)


def test_unsealed_arena_is_refused(world: Any) -> None:
    layout = ArenaLayout.of([BufferSpec("memory", (4,), "float32", Role.STATE)])
    with world.backend.create_arena(layout, num_lanes=1) as arena:
        with pytest.raises(SealedArenaError, match="sealed"):
            world.backend.capture(updates_state, ("p",), arena, 0, {})
        arena.seal()
        with pytest.raises(SealedArenaError):
            arena.add_lanes(1)


def test_unknown_lane_is_refused(world: Any) -> None:
    with pytest.raises(SpecError, match="no lane 3"):
        world.capture(updates_state, lane=3)
    with pytest.raises(SpecError, match="no lane -1"):
        world.capture(updates_state).rebase(-1)


def test_graph_knows_what_it_writes(world: Any) -> None:
    graph = world.capture(updates_state)
    assert graph.written_buffers == {"memory", "count", "out"}
    assert graph.written_roles == {Role.STATE, Role.OUTPUT}
    assert world.capture(reads_slots).written_roles == {Role.SCRATCH}
    assert graph.key == ("p",)
    assert graph.num_ops >= 4


def test_copy_moves_a_capsule_between_block_and_lane(world: Any) -> None:
    num_bytes = world.layout.capsule_bytes
    with world.backend.allocate_block(num_bytes) as block:
        world.backend.copy(block.address, world.arena.lane_address(0), num_bytes)
        world.backend.copy(world.arena.lane_address(1), block.address, num_bytes)
        world.backend.synchronize()
    assert world.bytes_of(1)[:num_bytes] == world.bytes_of(0)[:num_bytes]
    assert world.bytes_of(1)[num_bytes:] != world.bytes_of(0)[num_bytes:]


def test_restored_lane_replays_to_the_same_bytes_and_another_does_not(world: Any) -> None:
    graph = world.capture(updates_state)
    saved = world.bytes_of(0)
    graph.replay()
    expected = world.bytes_of(0)
    graph.replay()
    moved_on = world.bytes_of(0)
    world.put_bytes(saved)
    graph.replay()
    assert world.bytes_of(0) == expected
    assert moved_on != expected  # without the restore


def test_random_histories_equal_the_programs(world: Any) -> None:
    programs: Mapping[str, Program] = {
        "update": updates_state,
        "constant": writes_a_constant,
        "views": writes_through_views,
        "slots": reads_slots,
        "joins": joins,
    }
    graphs = {
        (name, lane): graph.rebase(lane)
        for name, program in programs.items()
        for graph in [world.capture(program, (name,))]
        for lane in range(3)
    }
    choose = random.Random(5)
    for _ in range(60):
        name, lane = choose.choice(list(programs)), choose.randrange(3)
        world.set("goal_slot", choose.randrange(4), lane)
        expected = world.all_bytes()
        expected[lane] = world.eager(programs[name], lane)
        graphs[name, lane].replay()
        world.backend.synchronize()
        assert world.all_bytes() == expected


def test_closed_graph_refuses_and_its_siblings_go_on(world: Any) -> None:
    graph = world.capture(updates_state)
    sibling = graph.rebase(1)
    graph.close()
    graph.close()
    with pytest.raises(BackendError, match="closed"):
        graph.replay()
    with pytest.raises(BackendError, match="closed"):
        graph.rebase(2)
    sibling.replay()
    assert graph.private_tensors() == ()
