"""Service: what a reset costs as a ROS service and from a client, beside empty calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from flashrt_ros.bench.context import Cast, Context, megabytes
from flashrt_ros.bench.devices import time_host
from flashrt_ros.bench.engines import engine_parameters, hired, why_no_ros
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.models import stateful_factory
from flashrt_ros.bench.result import Bar, BarPanel, Floats, Result, Row, absent, at_most
from flashrt_ros.bench.sampling import NO_SAMPLE, Case, Plan, Samples, median, p99
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.models.minimal import EXECUTE_HORIZON, NUM_STEPS
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.parameters import Value

MAX_SERVICE_US = 100.0
"""What ``~/reset`` may add to an empty service, beyond the engine's verb."""

MAX_VERB_US = 30.0
"""What a reset may add to a ping; by copy, beyond the copy."""

_SIZE = 16 << 20
_TINY_SIZE = 1 << 20
_WORK = {"cpu": 4, "cuda": 64}
"""Matrix products in each node of the plan that keeps the engine busy."""

_ENGINE_POLL_US = {"cpu": BUSY_POLL_US, "cuda": 100_000}
"""How long the engine looks for the next message; on a GPU from one call to the next, so that it
stays awake, as a robot's engine is kept awake by its messages.

Not where cores are few and shared: there it would spend its share of one on looking, and be
made to wait when it is needed.
"""

_CALLER_POLL_US = {"cpu": BUSY_POLL_US, "cuda": 200}
"""How long node and client look for an answer; on a GPU longer than a ping takes at this pace."""

_BUSY_HZ = {"cpu": 100.0, "cuda": 500.0}
"""A plan for each tick, and one takes most of the time between two."""

_PACE_S = {"cpu": 0.03, "cuda": 0.012}
"""Between two calls: longer than the refill of the lane that a reset has left."""

_JOINTS = "joints"
"""``ONLY_JOINTS`` of the publisher, which imports rclpy."""

_NODE: dict[str, Value] = {"cameras": [""], "joint_field": "position", "tick_source": "step"}
_SETTLE_S = 0.01
_QUIET, _BUSY = 0, 1


def run(context: Context) -> Result:
    """Compare calls at one pace, in random order.

    Args:
        context: Device, budget, chance, and who starts processes.

    Returns:
        A row for each call and what it adds to an empty one; bars.

    Raises:
        WrongResultError: A reset left another state than the home capsule's.
        BenchError: A process did not do its part.
    """
    size = _TINY_SIZE if context.is_tiny else _SIZE
    has_ros = not why_no_ros()
    parameters = engine_parameters(
        context,
        num_environments=2,
        num_standby_lanes=1,
        replan_threshold=EXECUTE_HORIZON,
        capsule_quota_bytes=6 * size,
        capsule_host_quota_bytes=0,
        busy_poll_us=_ENGINE_POLL_US[context.device.name],
    )
    factory = stateful_factory(size, _WORK[context.device.name])
    node = {**_NODE, "busy_poll_us": _CALLER_POLL_US[context.device.name]}
    cast = Cast(parameters, factory)
    if has_ros:
        # Fed as a robot's is: what an idle node runs at a reset is in no cache any more, and
        # nothing would be dropped.
        joints = python_module("flashrt_ros.bench.robot_publisher", _JOINTS)
        cast = replace(cast, policy_node=node, others=[(_JOINTS, joints)])
    context.say("starting an engine")
    with ExitStack() as exits:
        if has_ros:
            exits.enter_context(ros_domain())
        client, crew = exits.enter_context(
            hired(context, cast, busy_poll_us=_CALLER_POLL_US[context.device.name])
        )
        # The other environment keeps the engine busy, and is not reset.
        busy = exits.enter_context(_Neighbour(client, _BUSY_HZ[context.device.name]))
        client.activate(tick_source="step")
        context.say("comparing states")
        client.snapshot("other", pinned=True)
        _check(client)
        cases = _cases(client, busy)
        # At the same pace as what it is compared with: a copy in a loop finds its bytes in a cache.
        raw_copy = exits.enter_context(_raw_copy(context, size))
        cases["raw"] = Case(raw_copy, time_host, busy.rest)
        cases["raw_whole"] = Case(raw_copy, context.device.time_wall, busy.rest)
        if has_ros:
            from flashrt_ros.bench.service_link import ServiceLink

            link = exits.enter_context(ServiceLink(crew))
            cases["trigger"] = Case(link.caller("policy_node/ping"), time_host, busy.rest)
            reset = link.caller("policy_node/reset")
            _check_service(client, reset)
            cases["service"] = Case(
                lambda: None if "by flip" in reset() else NO_SAMPLE, time_host, busy.rest
            )
        plan = Plan(
            context.budget.left_s,
            min_rounds=5,
            max_rounds=1000,
            pace_s=_PACE_S[context.device.name],
        )
        samples = context.measure(cases, plan, f"calls, {megabytes(size)} of state")
        node_us = busy.node_us()
    rows = _rows(samples, size, node_us)
    panel = _panel(samples)
    summary = f"a reset of {megabytes(size)} of state, beside calls that do nothing"
    return context.result("service", rows, [panel], summary)


class _Neighbour:
    """The engine's second environment: busy when it is asked to be.

    Args:
        client: Of an engine with two environments.
        rate_hz: Of its ticks while it is busy.
    """

    def __init__(self, client: EngineClient, rate_hz: float) -> None:
        self._client = client
        self._rate_hz = rate_hz
        self._is_busy = False
        self._writers = [
            client.open_writer("goal", _BUSY),
            client.open_writer("observation", _BUSY),
        ]
        self._writers[0].write(stamp_ns=1, values=np.zeros(2, np.float32))
        self._writers[1].write(stamp_ns=1, position=np.zeros(2, np.float32))
        self._nodes_us: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rest()

    def work(self) -> None:
        """Keep the engine busy from here on."""
        if not self._is_busy:
            self._client.activate(env_index=_BUSY, tick_source="timer", rate_hz=self._rate_hz)
            self._is_busy = True
            time.sleep(_SETTLE_S)

    def rest(self) -> None:
        """Leave the engine idle from here on."""
        if self._is_busy:
            self._note()
            self._client.deactivate(env_index=_BUSY)
            self._is_busy = False
            time.sleep(_SETTLE_S)

    def node_us(self) -> float:
        """Return the time of one plan node, as the engine measured it; a median."""
        return float(np.median(self._nodes_us)) if self._nodes_us else np.nan

    def _note(self) -> None:
        # Latch and commit are short; the steps are alike and take nearly all of the time.
        plan_us = self._client.status(env_index=_BUSY).replay_p50_us
        self._nodes_us.append(plan_us / NUM_STEPS)


def _check(client: EngineClient) -> None:
    """A reset must bring a capsule's state back, by flip and by copy."""
    _compare(client, client.reset, "a reset by flip")
    _compare(client, lambda: client.reset("other"), "a reset by copy")


def _check_service(client: EngineClient, reset: Callable[[], object]) -> None:
    """So must the service."""
    client.reset()
    _compare(client, reset, "~/reset")


def _compare(client: EngineClient, reset: Callable[[], object], what: str) -> None:
    before = client.inspect().state_digest
    client.reseed(1234)
    if client.inspect().state_digest == before:
        raise WrongResultError(
            "reseeding changed nothing, so that a comparison would prove nothing"
        )
    reset()
    if client.inspect().state_digest != before:
        raise WrongResultError(f"{what} left another state than that of its capsule")


def _cases(client: EngineClient, busy: _Neighbour) -> dict[str, Case]:
    def by(path: str, capsule: str) -> Callable[[], object]:
        return lambda: None if client.reset(capsule).path == path else NO_SAMPLE

    return {
        "ping": Case(client.ping, time_host, busy.rest),
        "flip": Case(by("flip", "home"), time_host, busy.rest),
        "copy": Case(by("copy", "other"), time_host, busy.rest),
        "busy": Case(by("flip", "home"), time_host, busy.work),
        "busy_ping": Case(client.ping, time_host, busy.work),
    }


@contextmanager
def _raw_copy(context: Context, size: int) -> Iterator[Callable[[], object]]:
    """Give a raw copy of as many bytes, in this process."""
    device = context.device
    with device.backend.allocate_block(size) as one, device.backend.allocate_block(size) as other:
        yield device.raw_copy(one.address, other.address, size)


def _rows(samples: dict[str, Samples], size: int, node_us: float) -> list[Row]:
    label = megabytes(size)
    us = {name: sample.host_us for name, sample in samples.items()}
    for name in sorted({"flip", "busy", "copy", "service"} & set(us)):
        if np.isnan(median(us[name])):
            raise BenchError(
                f"no sample of '{name}' went the way that it is to be timed on: the refill of the "
                "standby lane is slower than the pace"
            )
    rows: list[Row] = []

    def timed(name: str, words: str, ratio_to: str) -> None:
        ratio = median(us[name]) / median(us[ratio_to])
        rows.append(Row(words, "us", median(us[name]), p99(us[name]), ratio))

    def added(words: str, values: Floats, bound: float) -> None:
        target = at_most("median", bound)
        rows.append(Row(words, "us", median(values), p99(values), target=target))

    if "service" in us:
        timed("trigger", "empty Trigger, ~/ping", "trigger")
        timed("service", "~/reset", "trigger")
        service = us["service"] - us["trigger"]
        words = "~/reset, added to an empty Trigger beyond"
        added(f"{words} the verb", service - (us["flip"] - us["ping"]), MAX_SERVICE_US)
        beyond = service - us["flip"]
        rows.append(Row(f"{words} a client's whole reset", "us", median(beyond), p99(beyond)))
    else:
        rows.append(absent("~/reset", "us", why_no_ros()))
    timed("ping", "ping, client", "ping")
    timed("flip", f"reset by flip, client, {label}", "ping")
    added("reset by flip, added to a ping", us["flip"] - us["ping"], MAX_VERB_US)
    timed("copy", f"reset by copy, client, {label}", "ping")
    # The engine answers once the copy is on its way: beside it stands one put on its way.
    timed("raw", f"raw copy, to its return, {label}", "raw")
    timed("raw_whole", f"raw copy, to its end, {label}", "raw")
    added(
        "reset by copy, added to a ping and the copy",
        us["copy"] - us["ping"] - us["raw"],
        MAX_VERB_US,
    )
    timed("busy_ping", "ping, busy engine", "ping")
    timed("busy", "reset by flip, busy engine", "ping")
    rows.append(Row("one plan node of the busy engine", "us", node_us))
    added("reset by flip, busy engine, added to an idle one", us["busy"] - us["flip"], node_us)
    return rows


def _panel(samples: dict[str, Samples]) -> BarPanel:
    words: dict[str, tuple[str, bool]] = {
        "ping": ("client: ping", False),
        "flip": ("client: reset by flip", True),
        "copy": ("client: reset by copy", True),
        "busy_ping": ("busy: ping", False),
        "busy": ("busy: reset by flip", True),
        "trigger": ("service: empty Trigger", False),
        "service": ("service: ~/reset", True),
    }
    bars: list[Any] = [
        Bar(label, median(samples[name].host_us), p99(samples[name].host_us), is_ours)
        for name, (label, is_ours) in words.items()
        if name in samples
    ]
    return BarPanel("µs a call", bars)
