"""The order of what a device does: three streams, and the marks between them.

Everything that writes STATE or INPUT (commit nodes, pops, restores, bindings) runs on the
*state* stream, so that one stream alone decides what a lane holds. The nodes of a plan
before its commit run on the *plan* stream, snapshots and refills on the *copy* stream.
Each waits for the others exactly where it reads what they write.
"""

from __future__ import annotations

import torch

from flashrt_ros.runtime.backend import Fence
from flashrt_ros.runtime.cuda_driver import Driver

_NUM_EVENTS = 64
"""Marks of a stream that can be told apart; older ones count as the oldest of these."""

PLAN_PRIORITY, STATE_PRIORITY, BACKGROUND_PRIORITY = -2, -3, 0
"""Of the streams; torch takes a smaller number as more urgent, the driver rounds to what it has."""

_NUM_POOLED = 32
"""Streams of a priority that torch has; it hands them out in turn, again and again."""

_taken: set[int] = set()
"""Handles of the streams of open backends: what one submits must not get into a capture of another
thread's, nor wait for what it has nothing to do with."""


class Stream:
    """A stream, and numbered marks along it.

    Owns its events. A mark's event is used again 64 marks later: waiting for an old mark
    may then wait for a newer one, never for less.

    Args:
        driver: Calls.
        device: The stream's.
        priority: Smaller is more urgent.
    """

    def __init__(self, driver: Driver, device: torch.device, priority: int) -> None:
        self._driver = driver
        self.torch = _draw(device, priority)
        self.handle = int(self.torch.cuda_stream)
        _taken.add(self.handle)
        self._events = [driver.create_event() for _ in range(_NUM_EVENTS)]
        self._num_marks = 0
        self._num_passed = 0
        self._seen: dict[Stream, int] = {}

    @property
    def num_marks(self) -> int:
        """Marks made so far; the number of the newest."""
        return self._num_marks

    def mark(self) -> None:
        """Mark what was submitted so far."""
        self._num_marks += 1
        self._driver.record(self._event(self._num_marks), self.handle)

    def follow(self, other: Stream) -> None:
        """Have what is submitted from now on wait for the other stream's last mark."""
        last = other._num_marks
        if self._seen.get(other, 0) == last:
            return
        self._seen[other] = last
        if not other.has_passed(last):
            self._driver.order(self.handle, other._event(last))

    def has_passed(self, mark: int) -> bool:
        """Tell whether the device has come past a mark.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        if mark > self._num_passed and self._driver.is_done(self._event(mark)):
            self._num_passed = mark
        return mark <= self._num_passed

    def wait(self, mark: int) -> None:
        """Return when the device has come past a mark.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        if mark > self._num_passed:
            self._driver.wait_event(self._event(mark))
            self._num_passed = max(self._num_passed, mark)

    def close(self) -> None:
        """Free the events; idempotent. Everything submitted must have completed."""
        if self._events:
            _taken.discard(self.handle)
        while self._events:
            self._driver.destroy_event(self._events.pop())

    def _event(self, mark: int) -> int:
        return self._events[mark % _NUM_EVENTS]


def _draw(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Take a stream that no open backend has, as long as there are such."""
    for _ in range(_NUM_POOLED):
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        if int(stream.cuda_stream) not in _taken:
            break
    return stream


class StreamFence(Fence):
    """A mark of a stream."""

    __slots__ = ("_mark", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._mark = stream.num_marks

    @property
    def is_done(self) -> bool:
        """Whether the device has come past it."""
        return self._stream.has_passed(self._mark)

    def wait(self) -> None:
        """Return when the device has come past it."""
        self._stream.wait(self._mark)


class AllFence(Fence):
    """Several fences as one."""

    __slots__ = ("_fences",)

    def __init__(self, fences: tuple[Fence, ...]) -> None:
        self._fences = fences

    @property
    def is_done(self) -> bool:
        """Whether the device has come past all of them."""
        return all(fence.is_done for fence in self._fences)

    def wait(self) -> None:
        """Return when the device has come past all of them."""
        for fence in self._fences:
            fence.wait()


class Streams:
    """The three streams of a backend, and who waits for whom.

    Args:
        driver: Calls.
        device: Where they run.
        is_background: Whether all three give way to the plan and state streams of others.
    """

    def __init__(
        self, driver: Driver, device: torch.device, *, is_background: bool = False
    ) -> None:
        self._driver = driver
        plan, state = PLAN_PRIORITY, STATE_PRIORITY
        if is_background:
            plan = state = BACKGROUND_PRIORITY
        self.plan = Stream(driver, device, plan)
        self.state = Stream(driver, device, state)
        self.copy = Stream(driver, device, BACKGROUND_PRIORITY)
        self._last = self.state

    def before_plan(self) -> Stream:
        """Prepare to submit a graph that writes neither STATE nor INPUT."""
        self.plan.follow(self.state)
        return self.plan

    def before_state(self, *, beside: bool = False) -> Stream:
        """Prepare to submit what writes STATE or INPUT; ``beside`` lets plan nodes go on."""
        self.state.follow(self.copy)
        if not beside:
            self.state.follow(self.plan)
        return self.state

    def before_copy(self) -> Stream:
        """Prepare to submit a copy of STATE or INPUT that plan nodes don't wait for."""
        self.copy.follow(self.state)
        return self.copy

    def submitted(self, stream: Stream) -> None:
        """Mark what was just submitted to a stream."""
        stream.mark()
        self._last = stream

    def fence(self) -> Fence:
        """Return the mark of what was submitted last."""
        return StreamFence(self._last)

    def fence_all(self) -> Fence:
        """Return the marks of what was submitted last to each stream."""
        return AllFence(tuple(map(StreamFence, (self.plan, self.state, self.copy))))

    def synchronize(self) -> None:
        """Return when everything submitted has completed."""
        for stream in (self.plan, self.state, self.copy):
            self._driver.synchronize(stream.handle)

    def close(self) -> None:
        """Free the streams' events; idempotent. Everything submitted must have completed."""
        for stream in (self.plan, self.state, self.copy):
            stream.close()
