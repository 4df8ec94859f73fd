"""A set of prefixes that outgrows the first tier, some of them pinned, for the bench ``ttft``."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from flashrt_ros.bench.context import FOLDER_PREFIX, Context
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.result import Bar, BarPanel, Floats, Row, at_most
from flashrt_ros.bench.sampling import Budget, median, p99, without_collector
from flashrt_ros.bench.stand import engine_config
from flashrt_ros.bench.tiers import QUIET_S, origin, wait_until_quiet
from flashrt_ros.bench.ttft_clock import timer_for
from flashrt_ros.bench.ttft_models import SUFFIX, random_tokens
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.capsule.capsule import Capsule, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine.storage import Storage
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.nodes.folders import run_folder
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.spec import ArenaLayout

MAX_RATIO = 1.25
"""Of the time to the first token after a pinned prefix, in the whole set to a set that fits."""

_MIN_ROUNDS = 3
_MOST_ROUNDS = 12
_NUM_OTHERS = 8
"""Prefixes beside the pinned ones that a round asks for."""

_MEMORY_SHARE = 4
"""The set takes at most one of so many parts of the host's free memory."""

_PINNED, _OTHERS = "pinned prefixes", "other prefixes"
_APPENDED_SEED, _HOME_SEED, _FIRST_SEED = 1, 2, 1000
"""Of what follows a prefix of the set, of the prefix outside it, and of the set's first."""


@dataclass(slots=True)
class Found:
    """What was found for one kind of prefixes in a set of one size.

    Attributes:
        ms: Times to the first token.
        tiers: How many of the prefixes lay where.
    """

    ms: list[float] = field(default_factory=list)
    tiers: Counter[str] = field(default_factory=Counter)

    @property
    def times(self) -> Floats:
        """Times as an array."""
        return np.array(self.ms)


class PrefixSet:
    """A capsule store with prefixes in every tier, beside a stand whose lane they come to.

    Args:
        stand: Its captured session is used.
        size: Prefixes, once it is full.
    """

    def __init__(self, stand: TextStand, size: int) -> None:
        self._stand = stand
        self._session = stand.captured
        self._length = stand.scale.set_prefix
        self._suffix = random_tokens(SUFFIX, stand.scale, seed=_APPENDED_SEED)
        self._logits: list[bytes] = []
        layout = _short(stand)
        block = layout.capsule_bytes
        with ExitStack() as undo:
            folder = undo.enter_context(run_folder(FOLDER_PREFIX))
            config = engine_config(
                stand.device,
                capsule_quota_bytes=stand.scale.set_quota * block,
                capsule_host_quota_bytes=size * block,
                capsule_disk_quota_bytes=2 * size * block,
                capsule_folder=str(folder / "capsules"),
            )
            self._fingerprint = Fingerprint.of({"bench": "ttft", "layout": layout.digest()})
            self._storage = Storage(
                config,
                layout,
                stand.device.backend,
                self._fingerprint,
                clock_ns=time.monotonic_ns,
            )
            undo.callback(self._storage.close)
            self._home = stand.capsule_of(random_tokens(self._length, stand.scale, seed=_HOME_SEED))
            undo.callback(self._home.close)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything. Idempotent."""
        self._stand.device.settle()
        self._undo.close()

    @property
    def first_tier(self) -> str:
        """Name the fastest tier."""
        return self._storage.store.room.tiers[0].name

    @property
    def num_pinned(self) -> int:
        """Prefixes that are pinned, the first ones."""
        return self._stand.scale.set_pinned

    def grow(self, count: int) -> None:
        """Compute prefixes and freeze them; the first are pinned.

        Args:
            count: Prefixes that there are afterwards.

        Raises:
            BenchError: The store makes no room, or moves capsules without an end.
        """
        session = self._session
        for key in range(len(self._logits), count):
            session.reset()
            session.append(random_tokens(self._length, self._stand.scale, seed=_FIRST_SEED + key))
            self._until(partial(self._freeze, key))
            session.append(self._suffix)
            self._logits.append(session.logits().tobytes())
        self.rest()

    def check(self) -> None:
        """Restore every prefix and compare the first logits with those after computing it.

        Raises:
            WrongResultError: They are others, or all alike.
        """
        if len(set(self._logits)) < len(self._logits):
            raise WrongResultError("prefixes are alike, so that comparing them proves nothing")
        for key, expected in enumerate(self._logits):
            self.first_token(key)
            if self._session.logits().tobytes() != expected:
                raise WrongResultError("a prefix of the set gave other logits than when computed")
            self.rest()

    def first_token(self, key: int) -> int:
        """Bring a prefix back, from whatever tier, and append the suffix.

        Args:
            key: Which prefix, from 0.

        Returns:
            The token after the suffix.

        Raises:
            BenchError: The store makes no room.
        """
        self._until(partial(self._use, key))
        self._restore(self._storage.store.get(_name(key)))
        self._session.append(self._suffix)
        return self._session.next_token

    def wake(self) -> None:
        """Do the same with a prefix that is no part of the set."""
        self._session.restore(self._home)
        self._session.append(self._suffix)
        self._stand.device.settle()

    def tier_of(self, key: int) -> str:
        """Name the tier that a prefix is in."""
        return self._storage.store.get(_name(key)).tier

    def rest(self) -> None:
        """Let everything be moved that is to be moved in the background.

        Raises:
            BenchError: It has no end.
        """
        self._stand.device.settle()
        wait_until_quiet(self._storage.mover)

    def _freeze(self, key: int) -> None:
        session = self._session
        num_bytes = session.layout.used_bytes(self._length)

        def fill(block: Block) -> None:
            session.backend.copy(block.address, session.lane.address, num_bytes)

        self._storage.store.create(
            fill,
            position=Position(num_positions=self._length),
            fingerprint=self._fingerprint,
            parent="",
            num_bytes=num_bytes,
            name=_name(key),
            pinned=key < self.num_pinned,
        )

    def _use(self, key: int) -> None:
        store = self._storage.store
        store.require_memory(store.get(_name(key)))

    def _restore(self, capsule: Capsule) -> None:
        self._session.restore(
            SessionCapsule(
                block=capsule.block,
                num_bytes=capsule.num_bytes,
                position=capsule.position.num_positions,
                tail=(),
                temperature=0.0,
                seed=0,
            )
        )

    def _until(self, attempt: Callable[[], None]) -> None:
        """Try until the store has what it takes."""
        end = Budget(QUIET_S)
        while end.left_s:
            try:
                attempt()
            except NotYet:
                self._storage.mover.wait(QUIET_S)
            else:
                return
        raise BenchError("the capsule store makes no room")


def run(context: Context, stand: TextStand, seconds: float) -> tuple[list[Row], list[BarPanel]]:
    """Time first tokens after pinned and other prefixes, in a set that fits and in the whole one.

    Args:
        context: Device and chance.
        stand: Its captured session is used, and left on some text.
        seconds: Of sampling; the prefixes are computed beside it.

    Returns:
        A row for each kind of prefix in each set, and their bars.

    Raises:
        WrongResultError: Other logits came back, or a pinned prefix had been moved.
        BenchError: Capsules are moved without an end.
    """
    budget = Budget(seconds)
    scale = stand.scale
    size = _size(stand)
    sizes = (scale.set_quota, size)
    found: dict[int, dict[str, Found]] = {}
    with PrefixSet(stand, size) as prefix_set:
        for number, count in enumerate(sizes):
            text = f"set of {count} prefixes"
            context.say(f"{text}: computing them")
            prefix_set.grow(count)
            context.say(f"{text}: comparing logits")
            prefix_set.check()
            share = Budget(budget.share_s(len(sizes) - number))
            found[count] = _measure(context, prefix_set, count, share, text)
    return _rows(stand, found)


def _measure(
    context: Context, prefix_set: PrefixSet, count: int, budget: Budget, text: str
) -> dict[str, Found]:
    found = {_PINNED: Found(), _OTHERS: Found()}
    pinned, others = range(prefix_set.num_pinned), range(prefix_set.num_pinned, count)
    with without_collector():
        for number in range(_MOST_ROUNDS):
            if number >= _MIN_ROUNDS and not budget.left_s:
                break
            context.say(f"{text}: round {number + 1}")
            keys = [*pinned, *context.rng.sample(others, min(_NUM_OTHERS, len(others)))]
            context.rng.shuffle(keys)
            for key in keys:
                prefix_set.wake()
                tier = prefix_set.tier_of(key)
                if key in pinned and tier != prefix_set.first_tier:
                    raise WrongResultError(f"a pinned prefix lies in the tier {tier}")
                # What comes from a file is read by another thread.
                timer = timer_for(context.device) if key in pinned else context.device.time_wall
                sample, _ = timer(partial(prefix_set.first_token, key))
                kind = found[_PINNED if key in pinned else _OTHERS]
                kind.ms.append(sample.host_ns / 1e6)
                kind.tiers[tier] += 1
                prefix_set.rest()
    return found


def _rows(stand: TextStand, found: dict[int, dict[str, Found]]) -> tuple[list[Row], list[BarPanel]]:
    rows, bars = [], []
    smallest, largest = min(found), max(found)
    for name in (_PINNED, _OTHERS):
        base_ms = median(found[smallest][name].times)
        for count, kinds in found.items():
            ms = kinds[name].times
            is_bound = name == _PINNED and count == largest
            rows.append(
                Row(
                    f"first token, {name}, set of {count}",
                    "ms",
                    median(ms),
                    p99(ms),
                    median(ms) / base_ms,
                    at_most("ratio", MAX_RATIO) if is_bound else None,
                    f"{origin(kinds[name].tiers)}{_clock(stand, name)}",
                )
            )
            label = f"{name}, {count}"
            bars.append(Bar(label, median(ms), p99(ms), is_ours=name == _PINNED))
    scale = stand.scale
    title = f"first token, ms: sets of prefixes of {scale.set_prefix}, {scale.set_quota} fit"
    return rows, [BarPanel(title, bars)]


def _clock(stand: TextStand, name: str) -> str:
    """Say where a row's clock is another than that of the others."""
    return ", by the host's clock" if name == _OTHERS and stand.device.name == "cpu" else ""


def _size(stand: TextStand) -> int:
    """Return how many prefixes the set has: fewer where the host's memory is short."""
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = free_bytes // _MEMORY_SHARE // _short(stand).capsule_bytes
    return max(stand.scale.set_quota + 1, min(stand.scale.set_size, most))


def _short(stand: TextStand) -> ArenaLayout:
    """Return the layout of a lane with no more positions than a prefix of the set.

    What comes before them lies where it lies in the stand's lane.
    """
    specs = [
        dataclasses.replace(spec, shape=(stand.scale.set_prefix, *spec.shape[1:]))
        if spec.grows
        else spec
        for spec in stand.model.buffers()
    ]
    return ArenaLayout.of(specs)


def _name(key: int) -> str:
    return f"prefix_{key}"
