"""The cache that pinned capsules are compared with, and what the bench refuses to time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flashrt_ros.bench import pinned
from flashrt_ros.bench.archive_files import ArchiveFiles
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.lru_cache import LruCache
from flashrt_ros.bench.pinned import ShelfOfCapsules
from flashrt_ros.runtime.cpu import CpuBackend

HOST = torch.device("cpu")
SIZE = 64


def value(key: int) -> torch.Tensor:
    return torch.full((SIZE,), key, dtype=torch.uint8)


def filled(folder: Path, count: int, *slots: int) -> LruCache:
    cache = LruCache(SIZE, [(HOST, number) for number in slots], folder)
    for key in range(count):
        cache.put(key, value(key))
    return cache


def levels(cache: LruCache, count: int) -> list[int]:
    return [cache.level_of(key) for key in range(count)]


def test_the_least_recently_used_goes_to_a_file(tmp_path: Path) -> None:
    cache = filled(tmp_path, 2, 2)
    cache.get(0)
    cache.put(2, value(2))
    assert levels(cache, 3) == [0, 1, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_what_is_used_comes_up_through_every_kind_of_memory(tmp_path: Path) -> None:
    cache = filled(tmp_path, 4, 1, 2)
    assert levels(cache, 4) == [2, 1, 1, 0]
    cache.get(1)  # its place is free for the one that goes down: none is pushed to a file
    assert levels(cache, 4) == [2, 0, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    cache.get(0)
    assert levels(cache, 4) == [0, 1, 2, 1]


@pytest.mark.parametrize("slots", [(2,), (1, 2), (2, 3, 4)])
def test_bytes_come_back_from_wherever_they_were(tmp_path: Path, slots: tuple[int, ...]) -> None:
    cache = filled(tmp_path, 12, *slots)
    for key in (0, 11, 5, 5, 0, 7, 3, 1, 0, 2, 4, 6, 8, 10, 9, 11, 0):
        assert torch.equal(cache.get(key), value(key))
        assert cache.level_of(key) == 0


def test_a_restore_that_leaves_bytes_out_is_noticed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_short(self: CpuBackend, dst: int, src: int, num_bytes: int) -> None:
        ctypes.memmove(dst, src, num_bytes - min(num_bytes, 4096))

    monkeypatch.setattr(CpuBackend, "copy", copy_short)
    with pytest.raises(WrongResultError, match="the engine brought other bytes back"):
        pinned.run(make_context())


def test_a_cache_that_mixes_tensors_up_is_noticed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LruCache.get
    monkeypatch.setattr(LruCache, "get", lambda self, key: whole(self, max(0, key - 1)))
    with pytest.raises(WrongResultError, match="the cache brought other bytes back"):
        pinned.run(make_context())


def test_a_pin_that_was_moved_is_noticed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShelfOfCapsules, "tier_of", lambda self, key: "disk")
    with pytest.raises(WrongResultError, match="pinned capsule lies in the tier disk"):
        pinned.run(make_context())


def test_a_load_of_other_bytes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArchiveFiles(tmp_path / "files", 1 << 20) as files:
        files.check()
        monkeypatch.setattr(files, "load", lambda: None)
        with pytest.raises(WrongResultError, match="a load brought other bytes back"):
            files.check()


def test_a_file_that_is_read_in_part_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = 1 << 20
    with ArchiveFiles(tmp_path / "files", 2 * half) as files:

        def load() -> None:
            files._target[:half] = files._source[:half]

        monkeypatch.setattr(files, "load", load)
        with pytest.raises(WrongResultError, match="a load brought other bytes back"):
            files.check()
