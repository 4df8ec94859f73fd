from __future__ import annotations

import ctypes
import gc
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.errors import BackendError, SealedArenaError, SpecError
from flashrt_ros.runtime.arena import DTYPES, Arena, Block
from flashrt_ros.runtime.spec import ITEM_BYTES, PAGE_BYTES, ArenaLayout, BufferSpec, Role

LAYOUT = ArenaLayout.of(
    [
        BufferSpec("a", (3,), "float32", Role.STATE),
        BufferSpec("b", (5, 2), "int64", Role.INPUT),
        BufferSpec("c", (7,), "bool", Role.SCRATCH),
    ]
)

specs = st.lists(
    st.builds(
        BufferSpec,
        name=st.text("abcdefgh", min_size=1, max_size=6),
        shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
        dtype=st.sampled_from(sorted(ITEM_BYTES)),
        role=st.sampled_from(list(Role)),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda spec: spec.name,
)


def test_dtypes_are_those_of_the_spec() -> None:
    assert set(DTYPES) == set(ITEM_BYTES)
    assert all(DTYPES[name].itemsize == size for name, size in ITEM_BYTES.items())


def test_block_is_zeroed_aligned_and_of_the_size_asked_for() -> None:
    with Block(1000) as block:
        assert block.address % PAGE_BYTES == 0
        assert bytes(block.view()) == bytes(1000)


def test_block_view_and_tensor_are_the_same_memory() -> None:
    with Block(64) as block:
        tensor = block.tensor("int32", (2, 2), 16)
        tensor.fill_(7)
        assert bytes(block.view()[16:20]) == (7).to_bytes(4, "little")
        assert tensor.data_ptr() == block.address + 16


@pytest.mark.parametrize("size", [0, -1])
def test_block_of_no_bytes_is_refused(size: int) -> None:
    with pytest.raises(SpecError, match="positive size"):
        Block(size)


def test_block_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BackendError, match="could not be allocated"):
        Block(1 << 60)


def test_block_outlives_close_while_a_tensor_is_over_it() -> None:
    block = Block(1 << 16)
    tensor = block.tensor("uint8", (1 << 16,))
    block.close()
    block.close()
    gc.collect()
    tensor.fill_(3)
    assert int(tensor.sum()) == 3 << 16
    with pytest.raises(BackendError, match="closed"):
        block.view()


def test_lanes_lie_at_a_constant_pitch() -> None:
    with Arena(LAYOUT, num_lanes=3) as arena:
        assert [arena.lane_address(lane) - arena.address for lane in range(3)] == [
            0,
            LAYOUT.lane_bytes,
            2 * LAYOUT.lane_bytes,
        ]


def test_views_have_storages_of_their_own_that_end_with_the_buffer() -> None:
    with Arena(LAYOUT, num_lanes=2) as arena:
        views = arena.views(1)
        assert {view.untyped_storage().data_ptr() for view in views.values()} == {
            arena.lane_address(1) + place.offset for place in LAYOUT.placements
        }
        for name, view in views.items():
            assert view.untyped_storage().nbytes() == LAYOUT.by_name[name].spec.num_bytes


def test_views_are_the_same_tensors_at_every_call() -> None:
    with Arena(LAYOUT, num_lanes=1) as arena:
        assert arena.views(0)["a"] is arena.views(0)["a"]


@pytest.mark.parametrize("lane", [-1, 2])
def test_unknown_lane_is_refused(lane: int) -> None:
    with Arena(LAYOUT, num_lanes=2) as arena, pytest.raises(SpecError, match="0 to 1"):
        arena.views(lane)


def test_arena_without_lanes_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one"):
        Arena(LAYOUT, num_lanes=0)


def test_lanes_can_be_added_until_sealed_and_keep_their_bytes() -> None:
    with Arena(LAYOUT, num_lanes=1) as arena:
        ctypes.memset(arena.address, 5, LAYOUT.lane_bytes)
        arena.add_lanes(2)
        assert arena.num_lanes == 3
        assert ctypes.string_at(arena.lane_address(0), 8) == b"\5" * 8
        assert ctypes.string_at(arena.lane_address(2), 8) == bytes(8)


def test_sealed_arena_takes_no_more_lanes() -> None:
    with Arena(LAYOUT, num_lanes=1) as arena:
        arena.seal()
        arena.seal()
        address = arena.address
        with pytest.raises(SealedArenaError, match="a sealed arena"):
            arena.add_lanes(1)
        assert (arena.num_lanes, arena.address) == (1, address)


def test_arena_with_views_takes_no_more_lanes() -> None:
    with Arena(LAYOUT, num_lanes=1) as arena:
        arena.views(0)
        with pytest.raises(SealedArenaError, match="an arena with views"):
            arena.add_lanes(1)


def test_adding_no_lanes_is_refused() -> None:
    with Arena(LAYOUT, num_lanes=1) as arena, pytest.raises(SpecError, match="positive"):
        arena.add_lanes(0)


def test_closed_arena_gives_no_views_but_keeps_those_it_gave() -> None:
    arena = Arena(LAYOUT, num_lanes=1)
    view = arena.views(0)["a"]
    arena.close()
    arena.close()
    gc.collect()
    view.fill_(1.0)
    with pytest.raises(BackendError, match="closed"):
        arena.views(0)


@settings(max_examples=50, deadline=None)
@given(specs, st.integers(1, 4))
def test_no_two_buffers_of_any_lanes_share_a_byte(
    declared: list[BufferSpec], num_lanes: int
) -> None:
    layout = ArenaLayout.of(declared)
    with Arena(layout, num_lanes=num_lanes) as arena:
        spans = sorted(
            (view.data_ptr(), view.data_ptr() + view.numel() * view.itemsize)
            for lane in range(num_lanes)
            for view in arena.views(lane).values()
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert arena.address <= spans[0][0]
        assert spans[-1][1] <= arena.address + arena.num_bytes
        assert all(start % 256 == 0 for start, _ in spans)


@settings(max_examples=50, deadline=None)
@given(specs)
def test_a_capsule_is_exactly_state_and_input(declared: list[BufferSpec]) -> None:
    layout = ArenaLayout.of(declared)
    with Arena(layout, num_lanes=1) as arena:
        for name, view in arena.views(0).items():
            kept = layout.by_name[name].spec.role in (Role.STATE, Role.INPUT)
            inside = view.data_ptr() - arena.address < layout.capsule_bytes
            assert kept == inside


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(2, 3), st.data())
def test_writing_one_buffer_changes_no_other_byte(
    declared: list[BufferSpec], num_lanes: int, data: st.DataObject
) -> None:
    layout = ArenaLayout.of(declared)
    with Arena(layout, num_lanes=num_lanes) as arena:
        lane = data.draw(st.integers(0, num_lanes - 1))
        name = data.draw(st.sampled_from([spec.name for spec in declared]))
        view = arena.views(lane)[name]
        view.view(torch.uint8).fill_(1)
        whole = ctypes.string_at(arena.address, arena.num_bytes)
        assert sum(whole) == view.numel() * view.itemsize


def test_what_grows_lies_last_in_the_capsule_and_is_copied_as_far_as_it_is_used() -> None:
    layout = ArenaLayout.of(
        [
            BufferSpec("cache", (128, 2, 16), "float16", Role.STATE, grows=True),
            BufferSpec("scratch", (4,), "float32", Role.SCRATCH),
            BufferSpec("count", (1,), "int64", Role.STATE),
            BufferSpec("goal", (4,), "float32", Role.INPUT),
        ]
    )

    assert [place.spec.name for place in layout.placements] == ["count", "goal", "cache", "scratch"]
    assert layout.used_bytes(0) == layout.state_bytes + layout.input_bytes
    assert layout.used_bytes(3) == layout.by_name["cache"].offset + 3 * 64
    assert layout.used_bytes(128) == layout.capsule_bytes == layout.by_name["scratch"].offset
    for beyond in (-1, 129):
        with pytest.raises(SpecError, match="no such number of positions"):
            layout.used_bytes(beyond)


def test_a_layout_refuses_two_buffers_that_grow() -> None:
    cache = [BufferSpec(name, (8, 4), "float32", Role.STATE, grows=True) for name in "ab"]
    with pytest.raises(SpecError, match="several buffers of a layout grow"):
        ArenaLayout.of(cache)


def test_only_state_grows() -> None:
    with pytest.raises(SpecError, match="is no STATE"):
        BufferSpec("goal", (4,), "float32", Role.INPUT, grows=True)
