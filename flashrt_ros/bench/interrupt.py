"""Interrupt: from a new goal to its first action, beside waiting for the chunk, and a topic."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from flashrt_ros.bench.context import Cast, Context
from flashrt_ros.bench.devices import MIN_CORES, num_cores, time_reported
from flashrt_ros.bench.engines import engine_parameters, hired, why_no_ros
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, absent, at_most
from flashrt_ros.bench.sampling import Case, Plan, Samples, lost, median, p99
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import Output, OutputKind
from flashrt_ros.models.flow_network import EXECUTE_HORIZON, IMAGE_PX, NUM_STEPS
from flashrt_ros.nodes.commands import python_module

RATE_HZ = 50.0
"""Of the ticks."""

NUM_NODES = NUM_STEPS + 3
"""Of the flow policy's plan: latch, encode, denoise steps, commit."""

_ANSWER_S = 10.0
_BUSY_POLL_US = 20_000
_WORDS = {
    "interrupt": "interrupt to first action of its goal",
    "commit": "goal to its first action, the chunk is finished first",
    "topic": "goal by topic to a policy node, to its first action",
}


def run(context: Context) -> Result:
    """Give goals at random moments, to an engine that ticks and to a node that does.

    Args:
        context: Device, budget, chance, and who starts processes.

    Returns:
        A row for each way to a first action, and their bars.

    Raises:
        WrongResultError: The first action under a goal was no first action of its chunk, or
            the goal was copied on its way.
        BenchError: A process did not do its part.
    """
    has_ros = not why_no_ros()
    parameters = engine_parameters(
        context, model="flow_policy", weights="", busy_poll_us=_BUSY_POLL_US
    )
    context.say("starting an engine")
    with ExitStack() as exits:
        others = []
        link: Any = None
        if has_ros:
            from flashrt_ros.bench.interrupt_link import InterruptLink

            exits.enter_context(ros_domain())
            link = exits.enter_context(InterruptLink(f"bench_{secrets.token_hex(3)}"))
            module = "flashrt_ros.bench.goal_node"
            config = msgspec.json.encode({**parameters, "name": "peer"}).decode()
            others.append(("peer", python_module(module, config, link.prefix, str(RATE_HZ))))
        client, crew = exits.enter_context(hired(context, Cast(parameters, others=others)))
        driver = Driver(client, context.rng.uniform)
        context.say("comparing provenance")
        _check(driver)
        cases = {
            "interrupt": Case(driver.interrupt, time_reported, driver.settle),
            "commit": Case(driver.commit, time_reported, driver.settle),
        }
        if link is not None:
            link.wait_for(crew)
            cases["topic"] = Case(link.send, time_reported, driver.pause)
        plan = Plan(context.budget.left_s, min_rounds=3, warm_up=1)
        samples = context.measure(cases, plan, "goals at random moments")
        plan_us = client.status().replay_p99_us
    rows = _rows(samples, plan_us)
    bars = [
        Bar(_WORDS[name], median(part.host_us), p99(part.host_us), name == "interrupt")
        for name, part in sorted(samples.items(), key=lambda item: list(_WORDS).index(item[0]))
    ]
    limit = _bound_us(plan_us) if _is_bound(plan_us) else None
    panel = BarPanel("from a new goal to its first action, µs", bars, limit)
    summary = f"ticks at {RATE_HZ:g} Hz, a chunk of {EXECUTE_HORIZON} actions at a time"
    return context.result("interrupt", rows, [panel], summary, has_sizes=False)


class Driver:
    """Gives goals to an engine that ticks, and waits for their first actions.

    Args:
        client: Of an engine over the flow policy, not active.
        uniform: Draws a number between two.

    Attributes:
        last: First action under the newest goal.
    """

    last: Output

    def __init__(self, client: EngineClient, uniform: Callable[[float, float], float]) -> None:
        self._client = client
        self._uniform = uniform
        self._goal = client.open_writer("goal")
        self._number = 0
        self._depth = 0
        image = np.zeros((IMAGE_PX, IMAGE_PX, 3), np.uint8)
        agent = np.full(2, 0.25, np.float32)
        self._observation = client.open_writer("observation")
        self._observation.write(stamp_ns=1, image=image, agent_pos=agent)
        client.subscribe(actions=True)
        client.activate(tick_source="timer", rate_hz=RATE_HZ)
        self.commit()

    def interrupt(self) -> int:
        """Interrupt with a goal; returns the ns until its first action was made."""
        begun_ns = time.monotonic_ns()
        self._number += 1
        goal = self._goal.prepare(
            stamp_ns=self._number, source_sequence=self._number, values=self._values()
        )
        self._client.interrupt(goal=goal)
        self._depth += 1
        return self.first_action().produced_ns - begun_ns

    def commit(self) -> int:
        """Hand a goal over and no more; returns the ns until its first action was made."""
        begun_ns = time.monotonic_ns()
        self._number += 1
        self._goal.write(stamp_ns=self._number, source_sequence=self._number, values=self._values())
        return self.first_action().produced_ns - begun_ns

    def settle(self) -> None:
        """Resume what was interrupted, under the goal there is, and wait for a random moment."""
        while self._depth:
            self._client.resume(keep_goal=True)
            self._depth -= 1
        self.pause()

    def pause(self) -> None:
        """Wait for a random moment of a chunk."""
        time.sleep(self._uniform(0.0, EXECUTE_HORIZON / RATE_HZ))

    def first_action(self) -> Output:
        """Wait for the first action under the newest goal.

        Raises:
            BenchError: None came.
        """
        deadline = time.monotonic() + _ANSWER_S
        last = "no action came"
        while time.monotonic() < deadline:
            message = self._client.receive(_ANSWER_S)
            if not isinstance(message, Output):
                continue
            self._client.release(message)
            made = message.provenance
            if message.kind == OutputKind.ACTION and made.goal_source_sequence == self._number:
                self.last = message
                return message
            last = f"the last output was under goal {made.goal_source_sequence}"
        raise BenchError(
            f"no action under goal {self._number} within {_ANSWER_S:g} s, {last}: give the bench "
            f"more cores, a plan has to keep up with {RATE_HZ:g} ticks a second"
        )

    def num_copies(self) -> int:
        """Count the copies of the newest goal on its way to the graph."""
        return self._client.inspect().goal_transport_copies

    def _values(self) -> tuple[float, float]:
        return (0.1 + 0.3 * (self._number % 2), 0.25)


def _check(driver: Driver) -> None:
    """An interrupt's first action is the first of a chunk under the goal it carried."""
    driver.settle()
    driver.interrupt()
    if driver.last.index != 0:
        raise WrongResultError(
            f"the first action after an interrupt was number {driver.last.index} of its chunk"
        )
    copies = driver.num_copies()
    if copies:
        raise WrongResultError(f"the goal of an interrupt was copied {copies} times")


def _bound_us(plan_us: float) -> float:
    """One tick and one plan node."""
    return 1e6 / RATE_HZ + plan_us / NUM_NODES


def _is_bound(plan_us: float) -> bool:
    return plan_us < 1e6 / RATE_HZ and num_cores() >= MIN_CORES


def _rows(samples: dict[str, Samples], plan_us: float) -> list[Row]:
    rows = []
    ours_us = median(samples["interrupt"].host_us)
    fits = _is_bound(plan_us)
    for name, words in _WORDS.items():
        if name not in samples:
            rows.append(absent(words, "us", why_no_ros()))
            continue
        us = samples[name].host_us
        is_ours = name == "interrupt"
        note = lost(us)
        if is_ours and not fits:
            note = f"target from {MIN_CORES} cores up, for plans shorter than a tick"
        rows.append(
            Row(
                words,
                "us",
                median(us),
                p99(us),
                median(us) / ours_us,
                at_most("p99", round(_bound_us(plan_us))) if is_ours and fits else None,
                note,
            )
        )
    rows.append(Row("one tick and one plan node", "us", _bound_us(plan_us)))
    rows.append(Row("plan, p99", "us", plan_us))
    return rows
