"""Graphs over a batch, on every backend: bytes, mask, independence of rows, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from flashrt_ros.errors import (
    BackendError,
    CaptureError,
    LanePoisonedError,
    SealedArenaError,
    SpecError,
    UnknownShapeKeyError,
)
from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.batch import ROW_MASK, Batch, with_row_mask
from flashrt_ros.runtime.batch_graph import BatchedGraphSet, BatchedPlan
from flashrt_ros.runtime.batch_programs import over_rows
from flashrt_ros.runtime.spec import (
    ArenaLayout,
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

# vmap calls an operator that it has no rule for (here the attention) once for each row.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

NUM_ROWS = 4
NUM_SLOTS = 6
FIRST_LANE = 1
KEY: ShapeKey = ("p",)
KEPT = (Role.STATE, Role.INPUT, Role.OUTPUT)
LAYOUT = ArenaLayout.of(
    with_row_mask(
        (
            BufferSpec("memory", (4, 8), "float32", Role.STATE),
            BufferSpec("count", (1,), "int64", Role.STATE),
            BufferSpec("goal", (8,), "float32", Role.INPUT),
            BufferSpec("goal_slot", (1,), "int64", Role.BINDING),
            BufferSpec("out", (4, 8), "float32", Role.OUTPUT),
            BufferSpec("hidden", (4, 8), "float32", Role.SCRATCH),
            BufferSpec("image", (1, 3, 16, 16), "float32", Role.SCRATCH),
        )
    )
)
GOAL = ChannelSpec("goal", ChannelRole.GOAL, (FieldSpec("values", (8,), "float32"),))

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
MIXER = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)).eval()


class Rows:
    """A batch between two other lanes, full of numbers, and a slot for each row."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.arena = backend.create_arena(LAYOUT, num_lanes=NUM_ROWS + 2)
        self.arena.seal()
        self.block = backend.allocate_host_block(NUM_SLOTS * GOAL.slot_bytes)
        self.slots = backend.import_slots(self.block.address, NUM_SLOTS, GOAL)
        self.batch = Batch(backend, self.arena, range(FIRST_LANE, FIRST_LANE + NUM_ROWS))
        self.fill(0)

    def fill(self, seed: int, rows: Sequence[int] = range(NUM_ROWS)) -> None:
        """Give rows numbers that depend on the seed and the row, and slots of their own."""
        for row in rows:
            generator = torch.Generator().manual_seed(seed * 1000 + row)
            values = torch.randn(8, generator=generator)
            with self.backend.ordered():
                for name, view in self.batch.views.items():
                    if view.is_floating_point():
                        view[row].copy_(torch.randn(view.shape[1:], generator=generator))
                    elif name == "count":
                        view[row].fill_(seed % 4)
                self.batch.views["goal_slot"][row].fill_(NUM_SLOTS - 1 - row)
                self.slots["goal.values"][NUM_SLOTS - 1 - row].copy_(values)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy every buffer of the batch to the host."""
        return self.snapshot_of(self.batch)

    def snapshot_of(self, batch: Batch) -> dict[str, torch.Tensor]:
        with self.backend.ordered():
            return {name: view.to("cpu", copy=True) for name, view in batch.views.items()}

    def get(self, name: str) -> torch.Tensor:
        """Copy one buffer of the batch to the host."""
        with self.backend.ordered():
            return self.batch.views[name].to("cpu", copy=True)

    def put(self, saved: dict[str, torch.Tensor]) -> None:
        with self.backend.ordered():
            for name, view in self.batch.views.items():
                view.copy_(saved[name])

    def outside(self) -> list[torch.Tensor]:
        others = (0, NUM_ROWS + 1)
        with self.backend.ordered():
            return [
                view.to("cpu", copy=True)
                for lane in others
                for view in self.arena.views(lane).values()
            ]

    def eager(self, program: Program) -> dict[str, torch.Tensor]:
        """Run a program over the batch without capture; put the batch back."""
        before = self.snapshot()
        with self.backend.ordered(), torch.no_grad():
            program(self.batch.views, self.slots)
        after = self.snapshot()
        self.put(before)
        return after

    def close(self) -> None:
        self.arena.close()
        self.block.close()


@pytest.fixture(autouse=True)
def weights_on_the_device(backend: Backend) -> None:
    for module in (ENCODER, MIXER):
        module.to(backend.device)
    if backend.device.type == "cuda":
        torch.cuda.synchronize()


@pytest.fixture
def rows(backend: Backend) -> Iterator[Rows]:
    rows = Rows(backend)
    yield rows
    rows.close()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bytes: NaN equals itself, and 0 is not -0."""
    return torch.equal(
        left.contiguous().reshape(-1).view(torch.uint8),
        right.contiguous().reshape(-1).view(torch.uint8),
    )


# programs ----------------------------------------------------------------------------------------


def encodes(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(ENCODER(buffers["image"]).view(4, 8))


def mixes(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(MIXER(buffers["memory"]))
    buffers["count"].add_(1)
    buffers["out"].copy_(buffers["memory"].softmax(-1))


def attends(buffers: Buffers, slots: Slots) -> None:
    q = buffers["memory"].view(1, 4, 2, 4).transpose(1, 2)
    out = nn.functional.scaled_dot_product_attention(q, q, q * 2.0, is_causal=True)
    buffers["out"].copy_(out.transpose(1, 2).reshape(4, 8))


def reads_slots(buffers: Buffers, slots: Slots) -> None:
    chosen = slots["goal.values"].index_select(0, buffers["goal_slot"])[0]
    buffers["goal"].copy_(chosen)
    buffers["hidden"].copy_((chosen * buffers["memory"]).flip(0))


def selects(buffers: Buffers, slots: Slots) -> None:
    values, order = buffers["memory"].topk(3, dim=-1)
    row = buffers["memory"].index_select(0, buffers["count"] % 4)
    buffers["out"].copy_(torch.where(buffers["memory"] > 0, values[:, :1] + order[:, 1:2], row))


def mixes_whole(buffers: Buffers, slots: Slots) -> None:
    """Written for a batch, with views that reach over its lanes in every way."""
    memory = buffers["memory"]
    memory.flatten(0, 1)[::2].add_(1.0) if memory.is_contiguous() else memory[:, ::2].add_(1.0)
    memory.transpose(0, 2)[1:3].mul_(2.0)
    memory.diagonal(dim1=0, dim2=1).sub_(1.0)
    buffers["out"][1:].copy_(MIXER(memory)[1:])
    buffers["count"][:, 0].add_(buffers["goal_slot"].squeeze(1))
    index = buffers["goal_slot"].view(-1)
    torch.index_select(slots["goal.values"], 0, index, out=buffers["goal"])


PROGRAMS = [
    *(
        pytest.param(over_rows(program), id=program.__name__)
        for program in (encodes, mixes, attends, reads_slots, selects)
    ),
    pytest.param(mixes_whole, id="mixes_whole"),
]


# bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_replay_is_byte_equal_to_the_program(rows: Rows, program: Program) -> None:
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        for seed in range(1, 4):  # other numbers than those it was captured over
            rows.fill(seed)
            outside, before = rows.outside(), rows.snapshot()
            expected = rows.eager(program)
            graphs.replay(KEY)
            rows.backend.synchronize()
            changed = [name for name in expected if not same(expected[name], before[name])]
            assert changed
            for name, value in rows.snapshot().items():
                assert name == ROW_MASK or same(value, expected[name]), name
            assert all(map(same, rows.outside(), outside))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_replay_depends_on_private_memory(rows: Rows, program: Program) -> None:
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        before = rows.snapshot()
        results = []
        for fill in (0x00, 0xFF, 0x3F):
            rows.put(before)
            with rows.backend.ordered():
                for tensor in graphs.graph(KEY).private_tensors():
                    tensor.fill_(fill)
            graphs.replay(KEY)
            rows.backend.synchronize()
            results.append(rows.snapshot())
        for other in results[1:]:
            assert all(same(other[name], view) for name, view in results[0].items())


def test_capture_leaves_every_lane_as_it_was(rows: Rows) -> None:
    before, outside = rows.snapshot(), rows.outside()
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots):
        pass
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())
    assert all(map(same, rows.outside(), outside))


def test_each_row_reads_its_own_slot_in_place(rows: Rows) -> None:
    with BatchedGraphSet(rows.batch, {KEY: over_rows(reads_slots)}, rows.slots) as graphs:
        reads = graphs.graph(KEY).slot_reads()
        assert {(read.field, read.binding) for read in reads} == {("goal.values", "goal_slot")}
        assert reads[0].num_rows == NUM_SLOTS
        order = [3, 3, 0, 5]
        with rows.backend.ordered():
            for row, slot in enumerate(order):
                rows.batch.views["goal_slot"][row].fill_(slot)
        graphs.replay(KEY)
        with rows.backend.ordered():
            expected = rows.slots["goal.values"][order].cpu()
        assert torch.equal(rows.get("goal"), expected)


@pytest.mark.parametrize("program", [mixes, reads_slots, encodes])
def test_rows_are_what_the_lane_graph_makes_of_them_but_for_rounding(
    rows: Rows, program: Program
) -> None:
    first = rows.backend.capture(program, KEY, rows.arena, FIRST_LANE, rows.slots)
    before = rows.snapshot()
    for lane in rows.batch.lanes:
        first.rebase(lane).replay()
    rows.backend.synchronize()
    alone = rows.snapshot()
    rows.put(before)
    with BatchedGraphSet(rows.batch, {KEY: over_rows(program)}, rows.slots) as graphs:
        graphs.replay(KEY)
        batched = rows.snapshot()
    # a convolution on CUDA rounds its factors to TF32, in another order for another shape
    tolerance = (1e-5, 1e-6) if rows.backend.name == "cpu" else (1e-2, 1e-2)
    for name, value in batched.items():
        if name != ROW_MASK:
            torch.testing.assert_close(value, alone[name], rtol=tolerance[0], atol=tolerance[1])


def test_a_graph_over_a_batch_moves_to_other_lanes(rows: Rows) -> None:
    program = over_rows(mixes)
    graph = rows.backend.capture(
        program, KEY, rows.arena, FIRST_LANE, rows.slots, num_rows=NUM_ROWS
    )
    later = Batch(rows.backend, rows.arena, range(2, 2 + NUM_ROWS))
    before = rows.snapshot_of(later)
    with rows.backend.ordered(), torch.no_grad():
        program(later.views, rows.slots)
    expected = rows.snapshot_of(later)
    with rows.backend.ordered():
        for name, view in later.views.items():
            view.copy_(before[name])
    graph.rebase(2).replay()
    assert all(same(value, expected[name]) for name, value in rows.snapshot_of(later).items())
    with pytest.raises(SpecError):
        graph.rebase(3)


# mask and independence ---------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_outside_the_mask_keep_state_input_and_output(rows: Rows, program: Program) -> None:
    with rows.backend.ordered():
        rows.batch.views["memory"][2, 0, 0] = float("nan")
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        before, expected = rows.snapshot(), rows.eager(program)
        graphs.replay(KEY, [3, 1])
        for name, value in rows.snapshot().items():
            if LAYOUT.by_name[name].spec.role in KEPT:
                for row in range(NUM_ROWS):
                    wanted = expected if row in (1, 3) else before
                    assert same(value[row], wanted[name][row]), (name, row)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_row_depends_on_what_other_rows_hold(backend: Backend, data: st.DataObject) -> None:
    """Over random histories: masks, restores, and other rows full of anything."""
    program = over_rows(_all_programs)
    subject = data.draw(st.integers(0, NUM_ROWS - 1), "row")
    masks = data.draw(st.lists(st.sets(st.integers(0, NUM_ROWS - 1)), min_size=1, max_size=4))
    is_in = [subject in mask for mask in masks]
    others = [row for row in range(NUM_ROWS) if row != subject]
    junk = data.draw(st.sampled_from([0.0, 1e30, float("inf"), float("nan")]))
    rows = Rows(backend)
    kept = [name for name, place in LAYOUT.by_name.items() if place.spec.role in KEPT]
    results = []
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        for run in (1, 2):
            rows.fill(7, others)
            rows.fill(5, [subject])
            if run == 2:
                with backend.ordered():
                    for view in rows.batch.views.values():
                        if view.is_floating_point():
                            for row in others:
                                view[row].fill_(junk)
                    for row in others:
                        rows.slots["goal.values"][NUM_SLOTS - 1 - row].fill_(junk)
            for at, mask in enumerate(masks):
                # the second run has other companions in its masks
                companions = mask if run == 1 else set(others[at % 2 :])
                chosen = (companions - {subject}) | ({subject} if is_in[at] else set())
                graphs.replay(KEY, sorted(chosen))
            now = rows.snapshot()
            results.append([now[name][subject] for name in kept])
    rows.close()
    assert all(map(same, *results))


def test_a_program_that_mixes_rows_is_seen_to(rows: Rows) -> None:
    """The control of the test before."""

    def centres(buffers: Buffers, slots: Slots) -> None:
        buffers["out"].copy_(buffers["memory"] - buffers["memory"].mean(0))

    with BatchedGraphSet(rows.batch, {KEY: centres}, rows.slots) as graphs:
        graphs.replay(KEY)
        first = rows.snapshot()["out"]
        rows.fill(9, [3])
        graphs.replay(KEY)
        assert not same(rows.get("out")[0], first[0])


def _all_programs(buffers: Buffers, slots: Slots) -> None:
    for program in (reads_slots, mixes, attends, selects):
        program(buffers, slots)


def test_a_row_is_reset_between_replays_and_runs_the_same_again(rows: Rows) -> None:
    with (
        BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
        rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
    ):
        rows.batch.save(1, home.address)
        first = [_step(rows, graphs) for _ in range(3)]
        rows.batch.load(1, home.address)
        second = [_step(rows, graphs) for _ in range(3)]
        third = [_step(rows, graphs) for _ in range(3)]
    for before, after, never in zip(first, second, third, strict=True):
        assert same(before[1], after[1])
        assert not same(before[0], after[0])  # the other rows went on
        assert not same(before[1], never[1])  # the control: without the reset it differs


def test_a_reset_touches_no_other_row(rows: Rows) -> None:
    results = []
    for is_reset in (False, True):
        rows.fill(1)
        with (
            BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
            rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
        ):
            rows.batch.save(2, home.address)
            _step(rows, graphs)
            if is_reset:
                rows.batch.load(2, home.address)
            results.append(_step(rows, graphs))
    left, right = results
    assert [same(left[row], right[row]) for row in range(NUM_ROWS)] == [True, True, False, True]


def _step(rows: Rows, graphs: BatchedGraphSet) -> torch.Tensor:
    graphs.replay(KEY)
    return rows.get("memory")


# refusals ----------------------------------------------------------------------------------------


def to_host(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].fill_(buffers["goal"].sum().item())


def alike_for_all(buffers: Buffers, slots: Slots) -> None:
    total = torch.zeros(8, device=buffers["goal"].device)
    total += buffers["goal"]


def by_number(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"].copy_(slots["goal.values"][1])


def by_a_computed_index(buffers: Buffers, slots: Slots) -> None:
    index = buffers["goal_slot"] + 1
    buffers["goal"].copy_(slots["goal.values"].index_select(0, index)[0])


def of_one_row_for_all(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"].copy_(slots["goal.values"].index_select(0, buffers["goal_slot"][0]))


def past_the_last_row(buffers: Buffers, slots: Slots) -> None:
    memory = buffers["memory"]
    more = memory.as_strided((NUM_ROWS + 1, 8), (memory.stride(0), 1), memory.storage_offset())
    more.add_(1.0)


def past_the_buffer(buffers: Buffers, slots: Slots) -> None:
    memory = buffers["memory"]
    wide = memory.as_strided((NUM_ROWS, 40), (memory.stride(0), 1), memory.storage_offset())
    wide.add_(1.0)


def random_numbers(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(torch.randn(4, 8, device=buffers["out"].device))


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (over_rows(to_host), "Tensor.item"),
        (over_rows(alike_for_all), "it raised RuntimeError"),
        (over_rows(by_number), "goal.values"),
        (over_rows(by_a_computed_index), "index_select"),
        (of_one_row_for_all, "index_select"),
        (past_the_last_row, "touches lane 5 of a program that runs over lanes 1 to 4"),
        (past_the_buffer, "past the end of buffer 'memory'"),
        (over_rows(random_numbers), "randn"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_capture_refuses(rows: Rows, program: Program, found: str) -> None:
    before, outside = rows.snapshot(), rows.outside()
    with pytest.raises(CaptureError, match=found) as caught:
        BatchedGraphSet(rows.batch, {KEY: program}, rows.slots)
    assert caught.value.source
    assert __file__ in caught.value.source
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())
    assert all(map(same, rows.outside(), outside))
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs:
        graphs.replay(KEY)  # the backend is still usable


def test_a_program_over_one_lane_may_not_touch_the_batch(rows: Rows) -> None:
    whole = rows.batch.views["memory"]

    def program(buffers: Buffers, slots: Slots) -> None:
        whole.add_(1.0)

    with pytest.raises(CaptureError, match="touches lane 4 of a program that runs over lane 1"):
        rows.backend.capture(program, KEY, rows.arena, FIRST_LANE, rows.slots)


@pytest.mark.parametrize(("lane", "num_rows"), [(0, 7), (0, 0), (-1, 2), (5, 2)])
def test_lanes_that_are_not_there_are_refused(rows: Rows, lane: int, num_rows: int) -> None:
    with pytest.raises(SpecError):
        rows.backend.capture(over_rows(mixes), KEY, rows.arena, lane, rows.slots, num_rows=num_rows)


def test_an_arena_that_is_not_sealed_is_refused(backend: Backend) -> None:
    with (
        backend.create_arena(LAYOUT, num_lanes=2) as arena,
        pytest.raises(SealedArenaError),
    ):
        backend.capture(over_rows(mixes), KEY, arena, 0, {}, num_rows=2)


def test_unknown_taken_and_evicted_keys(rows: Rows) -> None:
    graphs = BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots)
    before = rows.snapshot()
    with pytest.raises(UnknownShapeKeyError, match=r"4 rows.*\('q',\)"):
        graphs.replay(("q",))
    with pytest.raises(SpecError, match="already"):
        graphs.capture(KEY, over_rows(encodes))
    plan = BatchedPlan(graphs, [KEY])
    graphs.evict(KEY)
    with pytest.raises(UnknownShapeKeyError, match="empty"):
        plan.replay()
    graphs.close()
    graphs.close()
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())


@pytest.mark.parametrize("chosen", [[4], [-1], [1, 1]])
def test_a_mask_of_other_rows_runs_nothing(rows: Rows, chosen: list[int]) -> None:
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs:
        before = rows.snapshot()
        for replays in (graphs.replay, _replay_plan(graphs)):
            with pytest.raises(SpecError):
                replays(KEY, chosen)
        assert all(same(value, before[name]) for name, value in rows.snapshot().items())


def _replay_plan(graphs: BatchedGraphSet) -> Callable[[ShapeKey, list[int]], None]:
    return lambda key, chosen: BatchedPlan(graphs, [key]).replay(chosen)


def test_a_plan_needs_nodes_and_writes_state_last(rows: Rows) -> None:
    programs: dict[ShapeKey, Program] = {
        ("hidden",): over_rows(_fills_hidden),
        ("state",): over_rows(mixes),
    }
    with BatchedGraphSet(rows.batch, programs, rows.slots) as graphs:
        assert BatchedPlan(graphs, [("hidden",), ("state",)]).nodes == (("hidden",), ("state",))
        with pytest.raises(SpecError, match="no nodes"):
            BatchedPlan(graphs, [])
        with pytest.raises(SpecError, match="count, memory"):
            BatchedPlan(graphs, [("state",), ("hidden",)])
        with pytest.raises(UnknownShapeKeyError):
            BatchedPlan(graphs, [("hidden",), ("other",)])


def _fills_hidden(buffers: Buffers, slots: Slots) -> None:
    buffers["hidden"].copy_(buffers["memory"] + 1.0)


def test_a_plan_runs_its_nodes_under_one_mask(rows: Rows) -> None:
    programs: dict[ShapeKey, Program] = {
        ("hidden",): over_rows(_fills_hidden),
        ("commit",): over_rows(_commits_hidden),
    }
    with BatchedGraphSet(rows.batch, programs, rows.slots) as graphs:
        before = rows.snapshot()["memory"]
        BatchedPlan(graphs, [("hidden",), ("commit",)]).replay([0, 2])
        after = rows.get("memory")
        assert [same(after[row], before[row] + 1.0) for row in range(4)] == [True, False] * 2
        assert [same(after[row], before[row]) for row in range(4)] == [False, True] * 2


def _commits_hidden(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].copy_(buffers["hidden"])


def test_a_replay_that_fails_leaves_every_row_whole(rows: Rows) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        mixes(buffers, slots)
        reads_slots(buffers, slots)

    if rows.backend.name != "cpu":
        pytest.skip("a device does not check an index")
    with BatchedGraphSet(rows.batch, {KEY: over_rows(program)}, rows.slots) as graphs:
        before = rows.snapshot()
        rows.batch.views["goal_slot"][2].fill_(NUM_SLOTS)
        with pytest.raises(BackendError, match="index"):
            graphs.replay(KEY)
        assert rows.batch.poisoned_rows == ()
        for name, value in rows.snapshot().items():
            if LAYOUT.by_name[name].spec.role in KEPT:
                assert same(value, before[name])


def test_a_poisoned_row_is_refused_until_it_is_loaded(rows: Rows) -> None:
    with (
        BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
        rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
    ):
        rows.batch.save(1, home.address)
        torn: Any = _Torn()
        with pytest.raises(BackendError):
            rows.batch.replay(torn, [1])
        before = rows.snapshot()
        for replays in (graphs.replay, _replay_plan(graphs)):
            with pytest.raises(LanePoisonedError, match="row 1"):
                replays(KEY, [0, 1])
        assert all(same(value, before[name]) for name, value in rows.snapshot().items())
        graphs.replay(KEY, [0, 2, 3])
        rows.batch.load(1, home.address)
        graphs.replay(KEY)


class _Torn:
    key = KEY
    written_roles = frozenset((Role.STATE,))

    def replay(self) -> None:
        raise BackendError("cut", is_torn=True)
