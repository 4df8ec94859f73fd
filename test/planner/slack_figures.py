"""Ticks of a policy with a planner in their slack, on a clock that other work does not move.

``python test/planner/slack_figures.py [RATE_HZ]`` prints the table of ``docs/planner.md``: the
packaged flow policy and the tiny planner of ``flashrt-ros bench cohost``, on the host, in one
``Host``. Its clock is the thread's CPU time and the time that the loop would have slept.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from flashrt_ros.bench.cohost_planner import make
from flashrt_ros.engine import linux, protocol
from flashrt_ros.engine.address import FOLDER_VARIABLE, EngineSocket
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.host import FillingMember, Host, Member
from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.models.flow_network import IMAGE_PX
from flashrt_ros.models.registry import create
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.engine import PlannerEngine

PHASE_NS = 8_000_000_000
NUM_ROUNDS = 3
PROMPT = b"Go round the block on its far side, and stay there."
CONFIG = PlannerConfig(
    model="random",
    checkpoint="/tiny",
    max_positions=768,
    prefixes=("persona = " + "You move a pusher on a table. " * 8,),
    max_tokens=32,
)


class CpuClock:
    """The thread's CPU time, and what ``poll`` would have slept."""

    def __init__(self) -> None:
        self._slept_ns = 0
        self._armed_ns = 0

    def __call__(self) -> int:
        return self._slept_ns + time.thread_time_ns()

    def set_timer(self, fd: int, deadline_ns: int | None) -> None:
        self._armed_ns = deadline_ns or 0

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        if timeout_ms is None:
            self._slept_ns += max(0, self._armed_ns - self())
        return []

    def look_held(self) -> list[tuple[int, int]]:
        return []

    def register(self, *arguments: object) -> None:
        pass

    unregister = register


class Writing:
    """Plans, one after the other."""

    def __init__(self, planner: PlannerEngine) -> None:
        self.num_tokens = 0
        self._planner = planner
        self._answers: list[protocol.Reply | Exception] = []
        self._seeds = itertools.count()
        self._begin()

    def go_on(self) -> None:
        if self._answers:
            done = self._answers.pop()
            assert isinstance(done, protocol.TurnDone), done
            self.num_tokens += len(done.tokens)
            self._begin()

    def end(self) -> None:
        self._planner.handle(protocol.CancelTurn(0, 0))

    def _begin(self) -> None:
        request = protocol.Instruct(0, 0, PROMPT, temperature=1.0, seed=next(self._seeds))
        self._planner.begin(request, self._answers.append)


def main(rate_hz: float) -> None:
    """Tick alone and beside plans in turn; print a line for each."""
    clock = CpuClock()
    linux.set_timer = clock.set_timer  # the loop's only call of the real clock
    with ExitStack() as exits:
        os.environ[FOLDER_VARIABLE] = exits.enter_context(tempfile.TemporaryDirectory())
        config = EngineConfig(replan_threshold=2, num_standby_lanes=0, num_branch_lanes=0)
        policy = exits.enter_context(Engine(create("flow_policy"), config, clock_ns=clock))
        model, tokenizer = make(Path(CONFIG.checkpoint), CONFIG)
        planner = exits.enter_context(PlannerEngine(model, tokenizer, CONFIG, clock_ns=clock))
        slack = Slack(
            reserve_ns=CONFIG.slack_reserve_us * 1000,
            floor_ns=round(CONFIG.slack_floor_ms * 1e6),
            estimates_ns=planner.rehearse(),
        )
        addresses = [exits.enter_context(EngineSocket(name)) for name in ("policy", "planner")]
        members = (Member(policy, addresses[0]), FillingMember(planner, addresses[1], slack))
        host = exits.enter_context(Host(members, clock_ns=clock))
        host._poll = clock  # type: ignore[assignment]
        image = np.zeros((IMAGE_PX, IMAGE_PX, 3), np.uint8)
        agent = np.full(2, 0.25, np.float32)
        EmbeddedWriter(policy, "goal").write(stamp_ns=1, values=agent)
        EmbeddedWriter(policy, "observation").write(stamp_ns=1, image=image, agent_pos=agent)
        for _, is_loaded in itertools.product(range(NUM_ROUNDS), (False, True)):
            policy.handle(protocol.Activate(0, 0, "timer", rate_hz))
            end_ns = clock() + PHASE_NS
            writing = Writing(planner) if is_loaded else None
            while clock() < end_ns:
                host._turn()
                if writing is not None:
                    writing.go_on()
            status = policy.handle(protocol.GetStatus(0, 0))
            assert isinstance(status, protocol.Status)
            policy.handle(protocol.Deactivate(0, 0))
            num_tokens = writing.num_tokens if writing is not None else 0
            if writing is not None:
                writing.end()
            print(
                f"{'planner in the slack' if is_loaded else 'alone':22s}"
                f"lateness p50 {status.lateness_p50_us:5.1f} p99 {status.lateness_p99_us:5.1f} us, "
                f"plan p50 {status.replay_p50_us:6.0f} p99 {status.replay_p99_us:6.0f} us, "
                f"missed {status.deadline_misses}, "
                f"{num_tokens * 1e9 / PHASE_NS:.0f} tokens/s"
            )
        begun_ns, writing = clock(), Writing(planner)
        while clock() < begun_ns + PHASE_NS // 4:
            planner.advance()
            writing.go_on()
        print(f"planner without ticks: {writing.num_tokens * 4e9 / PHASE_NS:.0f} tokens/s")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 50.0)
