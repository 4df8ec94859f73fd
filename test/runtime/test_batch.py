from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flashrt_ros.errors import (
    BackendError,
    LanePoisonedError,
    SealedArenaError,
    SpecError,
)
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.batch import ROW_MASK, Batch, batch_views, lane_views, with_row_mask
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

SPECS = (
    BufferSpec("memory", (4, 8), "float32", Role.STATE),
    BufferSpec("count", (1,), "int64", Role.STATE),
    BufferSpec("goal", (8,), "float32", Role.INPUT),
    BufferSpec("out", (3,), "uint8", Role.OUTPUT),
)
LAYOUT = ArenaLayout.of(with_row_mask(SPECS))


class Failing:
    """A graph whose replay fails as told."""

    key = ("p",)
    written_roles = frozenset((Role.STATE,))

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def replay(self) -> None:
        raise self._error


@pytest.fixture
def arena(backend: Backend) -> Iterator[Arena]:
    """Five sealed lanes full of numbers."""
    with backend.create_arena(LAYOUT, num_lanes=5) as arena:
        arena.seal()
        with backend.ordered():
            for lane in range(5):
                for name, view in arena.views(lane).items():
                    if name != ROW_MASK:
                        view.copy_(torch.arange(view.numel()).view(view.shape) + 10 * lane)
        yield arena


def mask_of(batch: Batch) -> list[bool]:
    with batch.backend.ordered():
        mask: list[bool] = batch.views[ROW_MASK][:, 0].tolist()
    return mask


def test_views_are_the_lanes_in_place(backend: Backend, arena: Arena) -> None:
    views = batch_views(arena, range(1, 4))
    with backend.ordered():
        for name, view in views.items():
            assert view.shape == (3, *LAYOUT.by_name[name].spec.shape)
            assert view.stride(0) * view.itemsize == arena.pitch_bytes(name)
            for row, lane in enumerate(range(1, 4)):
                own = arena.views(lane)[name]
                assert view[row].data_ptr() == own.data_ptr()
                assert torch.equal(view[row], own)
        views["goal"][2].fill_(-1.0)
        assert bool((arena.views(3)["goal"] == -1.0).all())
        assert not bool((arena.views(4)["goal"] == -1.0).any())


def test_a_buffer_lies_at_one_pitch_from_lane_to_lane(arena: Arena) -> None:
    for name in LAYOUT.by_name:
        addresses = [arena.views(lane)[name].data_ptr() for lane in range(5)]
        pitch = arena.pitch_bytes(name)
        assert addresses == [addresses[0] + lane * pitch for lane in range(5)]
    assert arena.pitch_bytes("memory") == LAYOUT.lane_bytes
    first, second = (arena.host_address(lane, "out") for lane in (0, 1))
    assert second - first == arena.pitch_bytes("out")


def test_outputs_are_read_on_the_host(backend: Backend, arena: Arena) -> None:
    batch = Batch(backend, arena, range(1, 4))
    out = batch.read("out")
    assert (out.device.type, out.dtype, out.is_contiguous()) == ("cpu", torch.uint8, True)
    assert out.tolist() == [[lane * 10 + at for at in range(3)] for lane in range(1, 4)]
    with backend.ordered():
        batch.views["out"][1].fill_(7)
    assert out[1].tolist() == [20, 21, 22]  # a copy
    assert batch.read("out")[1].tolist() == [7, 7, 7]
    with pytest.raises(KeyError):
        batch.read("memory")


def test_views_outlive_the_arena(backend: Backend) -> None:
    arena = backend.create_arena(LAYOUT, num_lanes=2)
    arena.seal()
    memory = batch_views(arena, range(2))["memory"]
    batch = Batch(backend, arena, range(2))
    size = LAYOUT.lane_bytes * 2
    with backend.ordered():
        memory.fill_(3.0)
        batch.views["out"].fill_(5)
    backend.synchronize()
    arena.close()
    del arena
    with backend.ordered():
        filler = [torch.zeros(size, dtype=torch.uint8, device=backend.device) for _ in range(20)]
        assert bool((memory == 3.0).all())
    assert bool((batch.read("out") == 5).all())
    assert len(filler) == 20


def test_views_of_a_lane_or_of_a_batch(arena: Arena) -> None:
    assert lane_views(arena, 2, None)["goal"] is arena.views(2)["goal"]
    assert lane_views(arena, 2, 1)["goal"].shape == (1, 8)


@pytest.mark.parametrize(
    "lanes", [range(0), range(3, 2), range(-1, 2), range(3, 6), range(0, 4, 2), range(4, 1, -1)]
)
def test_other_lanes_are_refused(arena: Arena, lanes: range) -> None:
    with pytest.raises(SpecError, match="0 to 4"):
        batch_views(arena, lanes)


def test_an_arena_that_is_open_or_closed_is_refused(backend: Backend) -> None:
    arena = backend.create_arena(LAYOUT, num_lanes=2)
    with pytest.raises(SealedArenaError):
        batch_views(arena, range(2))
    arena.seal()
    arena.close()
    with pytest.raises(BackendError, match="closed"):
        batch_views(arena, range(2))


def test_the_mask_leaves_the_capsule_run_as_it_is() -> None:
    plain = ArenaLayout.of(SPECS)
    assert LAYOUT.capsule_bytes == plain.capsule_bytes
    for name, place in plain.by_name.items():
        if place.spec.role in (Role.STATE, Role.INPUT):
            assert LAYOUT.by_name[name] == place
    with pytest.raises(SpecError, match=ROW_MASK):
        with_row_mask(with_row_mask(SPECS))


def test_a_layout_without_a_mask_is_no_batch(backend: Backend) -> None:
    with backend.create_arena(ArenaLayout.of(SPECS), num_lanes=2) as arena:
        arena.seal()
        with pytest.raises(SpecError, match="with_row_mask"):
            Batch(backend, arena, range(2))


def test_a_selection_is_the_mask(backend: Backend, arena: Arena) -> None:
    batch = Batch(backend, arena, range(1, 5))
    assert batch.select([3, 0]) == (3, 0)
    assert mask_of(batch) == [True, False, False, True]
    assert batch.select(None) == (0, 1, 2, 3)
    assert mask_of(batch) == [True] * 4
    assert batch.select([]) == ()
    assert mask_of(batch) == [False] * 4
    with backend.ordered():
        assert arena.views(0)[ROW_MASK].tolist() == [False]


@pytest.mark.parametrize("rows", [[4], [-1], [0, 0]])
def test_rows_that_are_not_there_or_named_twice_are_refused(
    backend: Backend, arena: Arena, rows: list[int]
) -> None:
    batch = Batch(backend, arena, range(1, 5))
    batch.select([2])
    with pytest.raises(SpecError):
        batch.select(rows)
    assert mask_of(batch) == [False, False, True, False]


def test_a_row_is_saved_and_loaded_alone(backend: Backend, arena: Arena) -> None:
    batch = Batch(backend, arena, range(1, 4))
    with backend.ordered():
        saved = {name: view.clone() for name, view in batch.views.items()}
    with backend.allocate_block(LAYOUT.capsule_bytes) as block:
        batch.save(1, block.address)
        with backend.ordered():
            for view in batch.views.values():
                view.zero_()
        batch.load(1, block.address)
        backend.synchronize()
    with backend.ordered():
        for name, view in batch.views.items():
            role = LAYOUT.by_name[name].spec.role
            for row in range(3):
                is_back = row == 1 and role in (Role.STATE, Role.INPUT)
                expected = saved[name][row] if is_back else torch.zeros_like(view[row])
                assert torch.equal(view[row], expected), (name, row)


def test_a_row_that_is_not_there_is_not_copied(backend: Backend, arena: Arena) -> None:
    batch = Batch(backend, arena, range(1, 4))
    with backend.allocate_block(LAYOUT.capsule_bytes) as block:
        for copies in (batch.save, batch.load):
            for row in (-1, 3):
                with pytest.raises(SpecError, match=f"no row {row}"):
                    copies(row, block.address)


@pytest.mark.parametrize("error", [BackendError("failed", is_torn=True), KeyboardInterrupt()])
def test_a_torn_replay_poisons_its_rows(
    backend: Backend, arena: Arena, error: BaseException
) -> None:
    batch = Batch(backend, arena, range(1, 5))
    graph: object = Failing(error)
    with pytest.raises(type(error)):
        batch.replay(graph, batch.select([0, 2]))  # type: ignore[arg-type]
    assert list(batch.poisoned_rows) == [0, 2]
    assert batch.select([1, 3]) == (1, 3)
    with pytest.raises(LanePoisonedError, match="row 0"):
        batch.select(None)
    with backend.allocate_block(LAYOUT.capsule_bytes) as block:
        with pytest.raises(LanePoisonedError):
            batch.save(2, block.address)
        batch.save(1, block.address)
        batch.load(2, block.address)
    assert list(batch.poisoned_rows) == [0]
    assert batch.select([2, 1]) == (2, 1)


def test_a_replay_that_fails_before_its_first_write_poisons_nothing(
    backend: Backend, arena: Arena
) -> None:
    batch = Batch(backend, arena, range(5))
    graph: object = Failing(BackendError("failed"))
    with pytest.raises(BackendError):
        batch.replay(graph, batch.select(None))  # type: ignore[arg-type]
    assert batch.poisoned_rows == ()
