"""Pinned: restores of pinned capsules while the set around them outgrows the first tier."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import torch
import xxhash

from flashrt_ros.bench.context import FOLDER_PREFIX, Context, megabytes
from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.lru_cache import LruCache
from flashrt_ros.bench.models import StatefulPolicy
from flashrt_ros.bench.result import Floats, Line, LinePanel, Result, Row, at_most
from flashrt_ros.bench.sampling import NO_SAMPLE, Budget, Sample, median, p99, without_collector
from flashrt_ros.bench.stand import Stand
from flashrt_ros.bench.tiers import origin, wait_until_quiet
from flashrt_ros.engine import protocol
from flashrt_ros.nodes.folders import run_folder

MAX_RATIO = 1.25
"""Of a pinned capsule's median at the largest set to that at the smallest."""

MULTIPLES = (1, 2, 5, 10)
"""Sizes of the set, in quotas of the first tier."""

NUM_SLOTS = 8
"""Capsules that the first tier's quota has room for."""

NUM_PINNED = 4
"""Of the set; ``home`` is not one of it, and has a slot more."""

SIZES = {"cpu": 16 << 20, "cuda": 64 << 20}
"""Bytes of a capsule, by device."""

_TINY_BYTES = 1 << 20
_TINY_MULTIPLES = (1, 2)

_HOST_MULTIPLE = 3
"""Quota of the host below a device, in quotas of the device."""

_MARGIN_BYTES = 64 << 10
"""Of a block, above its ballast."""

_MIN_ROUNDS = 3
_WAKING = 3
_RESIDENT = 0

_PAUSE_S = 0.02
"""About what a capsule takes to come from a file."""

_PINNED, _COLD, _PAUSED = "pinned", "pinned, cold", "pinned, paused"
_OURS = (_PINNED, "others")
_THEIRS = ("cache, the same ones", "cache, others")
_NAMES = {
    _PINNED: "pinned capsule",
    _COLD: "pinned capsule, at once after another",
    _PAUSED: f"pinned capsule, after {1e3 * _PAUSE_S:g} ms of nothing",
    "others": "other capsules",
    "cache, the same ones": "cache without pins, those pinned in the engine",
    "cache, others": "cache without pins, the others",
}


_Peer = tuple[str, Callable[[int], str], Callable[[int], object]]
"""What is restored: its name in rows, where a key is now, and the call."""


@dataclass(slots=True)
class Found:
    """What was found for one kind of capsules at one size of the set.

    Attributes:
        times: One for each restore.
        tiers: How many of them came from where.
    """

    times: list[Sample] = field(default_factory=list)
    tiers: Counter[str] = field(default_factory=Counter)

    @property
    def wall_us(self) -> Floats:
        """Times until the bytes were there, us."""
        return np.array([sample.host_ns for sample in self.times]) / 1e3


def run(context: Context) -> Result:
    """Let the set grow; at each size restore every capsule of it in random order, again and again.

    The engine and the cache are asked for the same one in turn, and both rest in between:
    what they move in the background is not in the times, unless they make one wait for it.
    A restore after some milliseconds finds cold caches and a GPU asleep, whether a file was
    read meanwhile or nothing was done. So both are woken before a timing; pinned capsules are
    timed without that as well, after another restore and after a pause.

    Args:
        context: Device, budget and chance.

    Returns:
        A row for each kind of capsule and size of the set; lines over the set.

    Raises:
        WrongResultError: Other bytes came back, or a pinned capsule had been moved.
        BenchError: The engine never rests.
    """
    num_bytes = _TINY_BYTES if context.is_tiny else SIZES[context.device.name]
    multiples = _TINY_MULTIPLES if context.is_tiny else MULTIPLES
    found: dict[int, dict[str, Found]] = {}
    with ShelfOfCapsules(context.device, num_bytes) as shelf:
        for number, multiple in enumerate(multiples):
            budget = Budget(context.budget.share_s(len(multiples) - number))
            context.say(f"{multiple} x the quota: making capsules")
            shelf.grow(multiple * NUM_SLOTS)
            context.say(f"{multiple} x the quota: comparing bytes")
            shelf.check()
            found[multiple] = _measure(context, shelf, budget, f"{multiple} x the quota")
    size = f"{megabytes(num_bytes)} each"
    rows = _rows(found, is_bound=not context.is_tiny)
    largest, smallest = found[multiples[-1]][_PINNED], found[multiples[0]][_PINNED]
    ratio = median(largest.wall_us) / median(smallest.wall_us)
    return context.result(
        "pinned",
        rows,
        [_panel(found, size)],
        f"capsules of {size}, {NUM_SLOTS} in the first tier, {NUM_PINNED} of them pinned: "
        f"at {multiples[-1]} x the quota a pinned one takes {ratio:.2f} times as long",
    )


class ShelfOfCapsules:
    """An engine with capsules in every tier, and a cache with the same bytes.

    Args:
        device: Where they run.
        num_bytes: Of ballast in each capsule.
    """

    def __init__(self, device: Device, num_bytes: int) -> None:
        self._device = device
        self._digests: list[str] = []
        with ExitStack() as exits:
            folder = exits.enter_context(run_folder(FOLDER_PREFIX))
            quota = NUM_SLOTS * (num_bytes + _MARGIN_BYTES)
            self._stand = exits.enter_context(
                Stand(
                    device,
                    StatefulPolicy(num_bytes),
                    # And one for home, which is pinned too.
                    capsule_quota_bytes=quota + num_bytes + _MARGIN_BYTES,
                    capsule_host_quota_bytes=_HOST_MULTIPLE * quota,
                    capsule_disk_quota_bytes=2 * MULTIPLES[-1] * quota,
                    capsule_folder=str(folder / "capsules"),
                )
            )
            self._stand.activate()
            (folder / "cache").mkdir()
            memory = [(device.torch_device, NUM_SLOTS)]
            if self._stand.engine.core.backend.has_own_memory:
                memory.append((torch.device("cpu"), _HOST_MULTIPLE * NUM_SLOTS))
            self._tiers = [tier.name for tier in self._stand.engine.core.store.room.all_tiers]
            lane, layout = self._stand.environment.lane, self._stand.engine.core.layout
            self._lane = device.memory(lane.address, layout.capsule_bytes)
            self._cache = LruCache(self._lane.numel(), memory, folder / "cache")
            # Its one key wakes the cache's Python as well, and moves nothing of the cache's own.
            self._resident = LruCache(self._lane.numel(), memory[:1], folder / "resident")
            self._resident.put(_RESIDENT, self._lane)
            self._exits = exits.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    @property
    def keys(self) -> range:
        """Of the capsules, the pinned ones first."""
        return range(len(self._digests))

    def grow(self, count: int) -> None:
        """Make capsules, each of other bytes, until there are ``count``."""
        for key in range(len(self._digests), count):
            self._stand.scramble(key + 1)
            reply = self._stand.snapshot(_name(key))
            if key < NUM_PINNED:
                self._stand.engine.handle(protocol.Pin(0, reply.capsule.id, True, 0))
            self._cache.put(key, self._lane)
            self._digests.append(self._digest())
        self.rest()

    def check(self) -> None:
        """Restore every capsule and compare what comes with what was there.

        Raises:
            WrongResultError: It is something else.
        """
        if len(set(self._digests)) < len(self._digests):
            raise WrongResultError("capsules are alike, so that comparing them proves nothing")
        for key in self.keys:
            for what, restore in (("the engine", self.restore), ("the cache", self.restore_cached)):
                self._lane.zero_()
                restore(key)
                if self._digest() != self._digests[key]:
                    raise WrongResultError(f"{what} brought other bytes back than were saved")
            self.rest()

    def restore(self, key: int) -> object:
        """Have the engine restore a capsule.

        Args:
            key: Which, from 0.

        Returns:
            :data:`~flashrt_ros.bench.sampling.NO_SAMPLE`, if it did so without a copy.
        """
        return None if self._stand.restore(_name(key)).path == "copy" else NO_SAMPLE

    def wake(self) -> None:
        """Restore what no set is part of, and get what the cache does not hold, a few times."""
        for _ in range(_WAKING):
            self._stand.restore()
            self._lane.copy_(self._resident.get(_RESIDENT))
        self._device.settle()

    def restore_cached(self, key: int) -> None:
        """Copy a tensor of the cache into the lane."""
        self._lane.copy_(self._cache.get(key))

    @property
    def first_tier(self) -> str:
        """Name the fastest tier."""
        return self._tiers[0]

    def tier_of(self, key: int) -> str:
        """Name the tier that a capsule is in."""
        return self._stand.engine.core.store.get(_name(key)).tier

    def cached_tier_of(self, key: int) -> str:
        """Name the tier that the cache has a tensor in."""
        return self._tiers[self._cache.level_of(key)]

    def rest(self) -> None:
        """Let the engine move what it moves in the background, to the end.

        Raises:
            BenchError: It has none.
        """
        self._device.settle()
        wait_until_quiet(self._stand.engine.core.storage.mover)

    def _digest(self) -> str:
        self._device.settle()
        return xxhash.xxh3_128_hexdigest(self._lane.cpu().numpy().data)


def _measure(
    context: Context, shelf: ShelfOfCapsules, budget: Budget, text: str
) -> dict[str, Found]:
    found = {name: Found() for name in _NAMES}
    # A round costs what it costs; the next begins only if it is likely to end in time.
    round_s = 0.0
    number = 0
    with without_collector():
        while number < _MIN_ROUNDS or budget.left_s > round_s:
            number += 1
            begun_s = budget.left_s
            context.say(f"{text}: round {number}")
            for key in context.rng.sample(shelf.keys, len(shelf.keys)):
                _restore_both(context, shelf, key, found)
            round_s = begun_s - budget.left_s
    return found


def _restore_both(
    context: Context, shelf: ShelfOfCapsules, key: int, found: dict[str, Found]
) -> None:
    kind = key >= NUM_PINNED
    ours: _Peer = (_OURS[kind], shelf.tier_of, shelf.restore)
    theirs: _Peer = (_THEIRS[kind], shelf.cached_tier_of, shelf.restore_cached)
    if not kind:
        _restore_one(context, shelf, key, (_COLD, *ours[1:]), found)
        shelf.wake()
        time.sleep(_PAUSE_S)
        _restore_one(context, shelf, key, (_PAUSED, *ours[1:]), found)
    for peer in context.rng.sample((ours, theirs), 2):
        shelf.wake()
        _restore_one(context, shelf, key, peer, found)


def _restore_one(
    context: Context, shelf: ShelfOfCapsules, key: int, peer: _Peer, found: dict[str, Found]
) -> None:
    name, tier_of, restore = peer
    tier = tier_of(key)
    if name in (_PINNED, _COLD, _PAUSED) and tier != shelf.first_tier:
        raise WrongResultError(f"a pinned capsule lies in the tier {tier}")
    sample, answer = context.device.time_wall(lambda: restore(key))
    if answer is NO_SAMPLE:
        raise WrongResultError("a restore copied nothing")
    found[name].times.append(sample)
    found[name].tiers[tier] += 1
    shelf.rest()


def _rows(found: dict[int, dict[str, Found]], *, is_bound: bool) -> list[Row]:
    rows = []
    smallest, largest = min(found), max(found)
    for name, words in _NAMES.items():
        base_us = median(found[smallest][name].wall_us)
        for multiple, kinds in found.items():
            us = kinds[name].wall_us
            has_target = is_bound and name == _PINNED and multiple == largest
            rows.append(
                Row(
                    f"{words}, set of {multiple} x the quota",
                    "us",
                    median(us),
                    p99(us),
                    median(us) / base_us,
                    at_most("ratio", MAX_RATIO) if has_target else None,
                    origin(kinds[name].tiers),
                )
            )
    return rows


def _panel(found: dict[int, dict[str, Found]], size: str) -> LinePanel:
    multiples: Sequence[int] = tuple(found)
    lines = []
    for name, words in _NAMES.items():
        us = [found[multiple][name].wall_us for multiple in multiples]
        medians, highs = [median(values) for values in us], [p99(values) for values in us]
        lines.append(Line(words, multiples, medians, highs, is_ours=name not in _THEIRS))
    return LinePanel(f"a restore, µs, {size}", "set, in quotas of the first tier", lines)


def _name(key: int) -> str:
    return f"capsule_{key}"
