"""A recorded history, and a walk along it: ticks as an engine runs them, all from STATE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.models.base import (
    ELAPSED,
    GOAL_SEQUENCE,
    GOAL_SEQUENCE_IN,
    NOISE_COUNTER,
    NOISE_SEED,
    NOISE_SLOT,
    QUEUE_HEAD,
    QUEUE_LENGTH,
    TICK,
    PolicyModel,
    slot_binding,
)
from flashrt_ros.proof.rig import NUM_NOISE_SLOTS, Frame, Rig
from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.noise import NOISE_FIELD, draw_normal
from flashrt_ros.runtime.plan import PlanRun
from flashrt_ros.runtime.spec import FieldSpec, ShapeKey

_ABANDON_RATE = 0.15
_FLUSH_RATE = 0.2

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Cue:
    """What one plan of a history is given, and how it runs.

    Attributes:
        payloads: Values by ``"channel.field"``.
        rows: Slot index by channel.
        noise_row: Slot index of the noise.
        noise: What is given where noise is held fixed, or None.
        goal_sequence: Engine's number of the goal.
        threshold: Queued actions at or below which the plan starts.
        nodes_per_tick: Plan nodes submitted before a tick's pop.
        abandon_at: Node before which the plan is abandoned, -1 for never.
        is_flushed: Whether the queue is emptied before, as an interrupt does.
    """

    payloads: Mapping[str, torch.Tensor]
    rows: Mapping[str, int]
    noise_row: int
    noise: torch.Tensor | None
    goal_sequence: int
    threshold: int
    nodes_per_tick: int
    abandon_at: int
    is_flushed: bool


class History:
    """Random goals and observations, the same for the same seed on every host.

    Args:
        model: Declares the channels.
        seed: Of the draws.
    """

    def __init__(self, model: PolicyModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._cues: dict[int, Cue] = {}

    def cue(self, ordinal: int) -> Cue:
        """Return what plan number ``ordinal`` is given."""
        if ordinal not in self._cues:
            self._cues[ordinal] = self._draw(ordinal)
        return self._cues[ordinal]

    def _draw(self, ordinal: int) -> Cue:
        model = self._model
        random = np.random.Generator(np.random.Philox(key=self._seed, counter=ordinal << 64))
        num_nodes = len(model.plan().nodes)
        channels = model.channels()
        noise = None
        if model.noise_shape is not None:
            noise = torch.from_numpy(draw_normal(self._seed, ordinal, model.noise_shape).copy())
        return Cue(
            payloads={
                f"{spec.name}.{part.name}": _draw_field(random, part)
                for spec in channels
                for part in spec.fields
            },
            rows={spec.name: int(random.integers(spec.num_slots)) for spec in channels},
            noise_row=int(random.integers(NUM_NOISE_SLOTS)),
            noise=noise,
            goal_sequence=ordinal + 1,
            threshold=int(random.integers(model.execute_horizon)),
            nodes_per_tick=int(random.integers(1, num_nodes + 1)),
            abandon_at=int(random.integers(1, num_nodes))
            if random.random() < _ABANDON_RATE
            else -1,
            is_flushed=random.random() < _FLUSH_RATE,
        )


def _draw_field(random: np.random.Generator, part: FieldSpec) -> torch.Tensor:
    dtype = DTYPES[part.dtype]
    if dtype.is_floating_point:
        low = -1.0 if part.low is None else part.low
        high = 1.0 if part.high is None else part.high
        return torch.from_numpy(random.uniform(low, high, part.shape)).to(dtype)
    if dtype is torch.bool:
        return torch.from_numpy(random.integers(2, size=part.shape)).to(dtype)
    low = 0 if part.low is None else part.low
    high = torch.iinfo(torch.uint8 if dtype is torch.uint8 else torch.int8).max
    high = high if part.high is None else part.high
    return torch.from_numpy(random.integers(int(low), int(high) + 1, part.shape)).to(dtype)


class Observer(Protocol):
    """Looks on while a walk replays."""

    def before(self, key: ShapeKey) -> None:
        """Take note that a graph is about to be replayed."""

    def after(self, key: ShapeKey) -> None:
        """Take note that a graph was replayed."""


class Walk:
    """Ticks of one lane along a history.

    When a plan starts and which noise it is given come from STATE, as they do after a
    restore; what was latched comes from the history. A walk holds a plan in flight and
    a place in the history, and no other state.

    Args:
        rig: The instance.
        lane: Index of the lane; at a boundary.
        history: Where inputs come from.
        ordinal: Place in the history of the next plan.
        is_noise_fixed: Take noise from the history, whatever STATE says.
        observer: Told of every replay.

    Attributes:
        ordinal: Place in the history of the next plan.
        noises: Noise of every plan begun, as bytes.
        commits: Plans committed.
    """

    def __init__(
        self,
        rig: Rig,
        lane: int,
        history: History,
        *,
        ordinal: int = 0,
        is_noise_fixed: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.ordinal = ordinal
        self.noises: list[bytes] = []
        self.commits = 0
        self._rig = rig
        self._lane_index = lane
        self._lane = rig.lanes[lane]
        self._history = history
        self._is_noise_fixed = is_noise_fixed
        self._observer = observer
        self._run: PlanRun | None = None
        self._written: frozenset[str] = frozenset()
        self._elapsed = 0
        self._latched: Mapping[str, torch.Tensor] = {}
        self._consumed: Mapping[str, torch.Tensor] = {}
        counters = (TICK, QUEUE_HEAD, QUEUE_LENGTH, NOISE_SEED, NOISE_COUNTER, GOAL_SEQUENCE)
        self.expected = {name: self._counter(name) for name in counters}
        """What the host's own copy of the counters says; an engine relies on it."""

    @property
    def consumed(self) -> Mapping[str, torch.Tensor]:
        """What the last plan that committed was given, by slot field; empty before it."""
        return self._consumed

    def frames(self, count: int) -> list[Frame]:
        """Run ticks; return the boundary after each."""
        found = []
        for _ in range(count):
            self.tick()
            found.append(self.frame())
        return found

    def frame(self) -> Frame:
        """Digest the boundary the lane is at."""
        return self._rig.frame(self._lane_index, self._written)

    def tick(self) -> None:
        """Run what of the plan is due, then pop one action."""
        cue = self._history.cue(self.ordinal)
        if self._run is None and self._remaining() <= cue.threshold:
            self._begin()
        budget = cue.nodes_per_tick
        while self._run is not None and (budget > 0 or self._remaining() <= 0):
            budget -= 1
            self._submit()
        self._replay(self._rig.model.plan().pop)
        self.expected[TICK] += 1
        self.expected[QUEUE_HEAD] += 1
        if self._run is not None:
            self._elapsed += 1
            self._bind(ELAPSED, self._elapsed)

    def settle(self) -> None:
        """Abandon the plan in flight: its boundary is all that is left of the walk."""
        if self._run is not None:
            self._run.abandon()
            self._run = None
            self.ordinal += 1

    def _remaining(self) -> int:
        return self._counter(QUEUE_LENGTH) - self._counter(QUEUE_HEAD)

    def _counter(self, name: str) -> int:
        return self._rig.counter(self._lane_index, name)

    def _bind(self, name: str, value: int) -> None:
        self._rig.bind(self._lane_index, name, value)

    def _begin(self) -> None:
        cue = self._history.cue(self.ordinal)
        if cue.is_flushed:
            self._replay(self._rig.model.plan().flush)
            self.expected.update({QUEUE_HEAD: 0, QUEUE_LENGTH: 0})
        for field, value in cue.payloads.items():
            channel = field.partition(".")[0]
            self._rig.feed(field, cue.rows[channel], value)
            self._bind(slot_binding(channel), cue.rows[channel])
        self._latched = {**cue.payloads, **self._bind_noise(cue)}
        self._elapsed = 0
        self._bind(ELAPSED, 0)
        self._bind(GOAL_SEQUENCE_IN, cue.goal_sequence)
        self._run = PlanRun(self._rig.plan, self._lane)

    def _bind_noise(self, cue: Cue) -> Mapping[str, torch.Tensor]:
        shape, noise = self._rig.model.noise_shape, cue.noise
        if shape is None or noise is None:
            return {}
        if not self._is_noise_fixed:
            seed, counter = self._counter(NOISE_SEED), self._counter(NOISE_COUNTER)
            noise = torch.from_numpy(draw_normal(seed, counter, shape).copy())
        self.noises.append(noise.numpy().tobytes())
        self._rig.feed(NOISE_FIELD, cue.noise_row, noise)
        self._bind(NOISE_SLOT, cue.noise_row)
        return {NOISE_FIELD: noise}

    def _submit(self) -> None:
        run = self._run
        assert run is not None
        cue = self._history.cue(self.ordinal)
        if run.index == cue.abandon_at:
            self.settle()
            self._begin()
            return
        key = self._rig.plan.nodes[run.index]
        is_done = self._watched(key, run.submit_next)
        if is_done:
            self._finish(cue)

    def _finish(self, cue: Cue) -> None:
        length = self._rig.model.execute_horizon
        self._run = None
        self._consumed = self._latched
        self.ordinal += 1
        self.commits += 1
        self.expected[QUEUE_HEAD] = min(self._elapsed, length)
        self.expected[QUEUE_LENGTH] = length
        self.expected[NOISE_COUNTER] += self._rig.model.noise_shape is not None
        self.expected[GOAL_SEQUENCE] = cue.goal_sequence

    def _replay(self, key: ShapeKey) -> None:
        self._watched(key, lambda: self._lane.replay(key))

    def _watched(self, key: ShapeKey, replay: Callable[[], _Result]) -> _Result:
        if self._observer is not None:
            self._observer.before(key)
        result = replay()
        if self._observer is not None:
            self._observer.after(key)
        self._written |= self._rig.written_by(key)
        return result


def first_difference(walk: Walk, frames: Sequence[Frame]) -> tuple[int, str] | None:
    """Run a walk until a boundary differs from those expected.

    Returns:
        Tick, from 1, and the buffer that differs or the error that ended it; None when
        nothing does.

    Raises:
        DeviceLostError: The device's context is gone: nothing can be compared any more.
    """
    for tick, expected in enumerate(frames, start=1):
        try:
            walk.tick()
        except DeviceLostError:
            raise
        except FlashrtError as error:
            return tick, f"error: {error}"
        for name in differing(walk.frame(), expected):
            return tick, name
    return None


def differing(found: Frame, expected: Frame) -> Iterator[str]:
    """Walk the names of the buffers that differ between two boundaries, in layout order."""
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            yield name
