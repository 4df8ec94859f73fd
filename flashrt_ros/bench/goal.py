"""Goal: a payload handed over in a slot, beside one that a ROS topic carries."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bench.checksums import checksum, read_checksum
from flashrt_ros.bench.context import Cast, Context, megabytes
from flashrt_ros.bench.devices import MIN_CORES, num_cores, time_host, time_reported
from flashrt_ros.bench.engines import engine_parameters, hired, why_no_ros
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.models import goal_factory
from flashrt_ros.bench.result import Line, LinePanel, Result, Row, absent, at_most
from flashrt_ros.bench.sampling import Budget, Case, Plan, Samples, lost, median, p99
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.engine import linux
from flashrt_ros.engine.client import EngineClient, Writer
from flashrt_ros.engine.protocol import Output
from flashrt_ros.nodes.commands import python_module

if TYPE_CHECKING:
    from flashrt_ros.bench.topic_link import TopicLink

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Payloads, bytes."""

_TINY_SIZES = (4 << 10,)

MAX_COMMIT_US = 25.0
"""Median of a commit from Python, whatever the size of the payload; from so many cores up."""

MAX_COMMIT_RATIO = 1.5
"""Of a commit in pings of the same engine, to the fewest at any payload: flat, but for noise."""

_ANSWER_S = 10.0
_WAKING = 3
_WORDS = {
    "hand_over": "goal by slot, write and commit",
    "slot": "goal by slot, write to the end of its plan",
    "topic": "goal by topic, write to consumed",
}
_LABELS = {
    "hand_over": "by slot: write and commit",
    "slot": "by slot: to the end of its plan",
    "topic": "by topic: to its consumer",
    "commit": "the commit alone",
}

Payload = npt.NDArray[np.int64]
"""Of a goal, ``int64[n]``."""


def run(context: Context) -> Result:
    """Sweep the payload.

    Args:
        context: Device, budget, chance, and who starts processes.

    Returns:
        Rows for each payload and way; lines over the payload.

    Raises:
        WrongResultError: A goal arrived with other bytes than were written.
        BenchError: A process did not do its part.
    """
    sizes = _TINY_SIZES if context.is_tiny else SIZES
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _LABELS}
    found: list[tuple[int, dict[str, Samples], int]] = []
    with _topics(context, sizes) as link:
        for number, size in enumerate(sizes):
            seconds = context.budget.share_s(len(sizes) - number)
            samples, copies = _measure(context, size, seconds, link)
            found.append((size, samples, copies))
            for name, values in points.items():
                if name in samples:
                    us = samples[name].host_us
                    values.append((size / 1024, median(us), p99(us)))
    # Over one size a commit is as flat as itself.
    flat = min(_in_pings(samples) for _, samples, _ in found) if len(found) > 1 else None
    rows = [row for part in found for row in _rows(*part, flat)]
    lines = []
    for name, values in points.items():
        if values:
            x, middle, high = zip(*values, strict=True)
            lines.append(Line(_LABELS[name], x, middle, high, is_ours=name != "topic"))
    panel = LinePanel("a goal from its write to its use, µs", "payload, KB", lines)
    summary = "a goal is written where the graph reads it; no copy in between"
    return context.result("goal", rows, [panel], summary)


@contextmanager
def _topics(context: Context, sizes: tuple[int, ...]) -> Iterator[TopicLink | None]:
    """Open the topics, or give None where there is no ROS."""
    if why_no_ros():
        yield None
        return
    from flashrt_ros.bench.topic_link import TopicLink

    with ros_domain(), TopicLink(f"bench_{secrets.token_hex(3)}", sizes) as link:
        yield link


def _measure(
    context: Context, size: int, seconds: float, link: TopicLink | None
) -> tuple[dict[str, Samples], int]:
    label = megabytes(size)
    budget = Budget(seconds)
    context.say(f"goals of {label}: starting an engine")
    others = []
    if link is not None:
        module = "flashrt_ros.bench.topic_consumer"
        others.append(("consumer", python_module(module, str(size), link.prefix)))
    cast = Cast(engine_parameters(context), goal_factory(size), others=others)
    with ExitStack() as exits:
        client, crew = exits.enter_context(hired(context, cast))
        client.activate(tick_source="step")
        client.subscribe(chunks=True)
        writer = client.open_writer("goal")
        observer = client.open_writer("observation")
        observer.write(stamp_ns=1, position=np.zeros(2, np.float32))
        slot = SlotLink(client, writer)
        payload = np.random.default_rng(size).integers(-(2**62), 2**62, size // 8)
        context.say(f"goals of {label}: comparing bytes")
        _check_sum("a slot", slot.send(payload)[1], payload)
        copies = slot.num_copies(payload)
        cases = {
            "hand_over": Case(lambda: slot.hand_over(payload), time_host),
            "slot": Case(lambda: slot.send(payload)[0], time_reported),
            "commit": Case(slot.commit, time_host, slot.wake),
            "ping": Case(client.ping, time_host, slot.wake),
        }
        if link is not None:
            link.wait_for(size, crew)
            total = link.send(payload)[1]
            if total is None:
                raise BenchError(
                    f"the first goal of {label} by topic was not answered in time: its consumer "
                    "runs, so look whether the middleware carries messages of that size"
                )
            _check_sum("a topic", total, payload)
            cases["topic"] = Case(lambda: link.send(payload)[0], time_reported)
        plan = Plan(budget.left_s, min_rounds=5)
        return context.measure(cases, plan, f"goals of {label}"), copies


class SlotLink:
    """Sends goals through slots, and waits for the chunk that each is in.

    Args:
        client: Of an engine with a ``GoalPolicy``, active, ticked by steps, its chunks
            subscribed to.
        writer: Of the goal.
    """

    def __init__(self, client: EngineClient, writer: Writer) -> None:
        self._client = client
        self._writer = writer
        self._horizon = client.model.execute_horizon
        self._stamp_ns = 1

    def send(self, payload: Payload) -> tuple[int, int]:
        """Write a goal and have it used; returns the ns that took, and the chunk's sum.

        Raises:
            BenchError: No chunk came.
        """
        begun_ns = time.monotonic_ns()
        self.hand_over(payload)
        self._client.step(0)
        chunk = self._chunk()
        # Empties the queue, so that the next step has a chunk to make.
        self._client.step(self._horizon)
        return chunk.produced_ns - begun_ns, read_checksum(bytes(self._client.payload(chunk)))

    def num_copies(self, payload: Payload) -> int:
        """Send a goal and count the copies between its write and the graph's one read.

        Returns:
            0, if the memory that the captured graph read is that which was written.

        Raises:
            BenchError: No chunk came.
        """
        values: Any = self._writer.loan().fields["values"]
        written = linux.locate(int(values.ctypes.data))
        self.hand_over(payload)
        self._client.step(0)
        seen = self._client.inspect()
        self._chunk()
        self._client.step(self._horizon)
        read = (seen.read_device, seen.read_inode, seen.read_offset)
        return seen.goal_transport_copies + (read != written)

    def wake(self) -> None:
        """Commit and ping before a timing: a large payload leaves cold caches to what follows."""
        for _ in range(_WAKING):
            self.commit()
            self._client.ping()

    def commit(self) -> None:
        """Hand over the slot on loan, whatever is in it, and take the next."""
        self._stamp_ns += 1
        loan = self._writer.loan()
        self._writer.commit(loan, stamp_ns=self._stamp_ns, loan_next=True)

    def hand_over(self, payload: Payload) -> None:
        """Write a goal into the slot on loan, commit it and take the next."""
        self._stamp_ns += 1
        loan = self._writer.loan()
        values: Any = loan.fields["values"]
        values[:] = payload
        self._writer.commit(loan, stamp_ns=self._stamp_ns, loan_next=True)

    def _chunk(self) -> Output:
        deadline = time.monotonic() + _ANSWER_S
        last = "nothing"
        while time.monotonic() < deadline:
            message = self._client.receive(_ANSWER_S)
            if isinstance(message, Output):
                self._client.release(message)
                return message
            last = last if message is None else type(message).__name__
        state = self._client.status().state
        raise BenchError(
            f"a step of an engine that is {state} brought no chunk within {_ANSWER_S:g} s, the "
            f"last message was {last}: give the bench more cores, or the engine less to do"
        )


def _check_sum(what: str, found: int, payload: Payload) -> None:
    expected = checksum(payload)
    if found != expected:
        raise WrongResultError(f"{what} carried a goal with sum {found}, not {expected}")


def _in_pings(samples: dict[str, Samples]) -> float:
    """Return a commit's time over a ping's: engines differ, by where they run and what beside."""
    return median(samples["commit"].host_us) / median(samples["ping"].host_us)


def _rows(size: int, samples: dict[str, Samples], copies: int, flat: float | None) -> list[Row]:
    label = megabytes(size)
    rows = []
    base_us = median(samples["hand_over"].host_us)
    for name, words in _WORDS.items():
        if name not in samples:
            rows.append(absent(f"{words}, {label}", "us", why_no_ros()))
            continue
        us = samples[name].host_us
        ratio = median(us) / base_us
        note = lost(us)
        rows.append(Row(f"{words}, {label}", "us", median(us), p99(us), ratio, note=note))
    us = samples["ping"].host_us
    rows.append(Row(f"ping, {label}", "us", median(us), p99(us)))
    us = samples["commit"].host_us
    is_bound = num_cores() >= MIN_CORES
    target = at_most("median", MAX_COMMIT_US) if is_bound else None
    note = "" if is_bound else f"target from {MIN_CORES} cores up"
    rows.append(Row(f"commit, {label}", "us", median(us), p99(us), target=target, note=note))
    pings = _in_pings(samples)
    to_flat = None if flat is None else pings / flat
    target = None if flat is None else at_most("ratio", MAX_COMMIT_RATIO)
    rows.append(Row(f"commit in pings, {label}", "times", pings, None, to_flat, target))
    name = f"copies between write and read, {label}"
    rows.append(Row(name, "copies", float(copies), target=at_most("median", 0)))
    return rows
