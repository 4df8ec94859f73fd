"""Several planners on one topic: real engine, node and DDS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from std_msgs.msg import String

from flashrt_ros.msg import ExecutionEvent, Subgoal

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "planner_node"


class Planners:
    """Senders of goals, and what became of each."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self.accepted = peer.listen(Subgoal, f"{NODE}/accepted")
        self.diagnostics = peer.listen(DiagnosticArray, "/diagnostics")
        self._goals = peer.publisher(Subgoal, "subgoal")
        self._instructions = peer.publisher(String, "instruction")
        self._sequences: dict[str, int] = {}

    def begin(self) -> None:
        """Let everybody number from the start again; nobody holds the channel."""
        self._sequences.clear()
        assert self.peer.change(NODE, "deactivate")
        assert self.peer.change(NODE, "activate")

    def send(self, planner: str, *, sequence: int = 0, channel: str = "") -> str:
        """Send a goal; returns the event that says what became of it."""
        number = sequence or self._sequences.get(planner, 0) + 1
        self._sequences[planner] = number
        goal = Subgoal(planner=planner, sequence=number, values=[0.5, -0.5], channel=channel)
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        self.events.clear()
        self._goals.publish(goal)
        return self._event(f" planner={planner} ")

    def say(self, words: str) -> str:
        self.events.clear()
        self._instructions.publish(String(data=words))
        return self._event(" topic=instruction ")

    def until(self, planner: str, text: str) -> str:
        """Send goals of a planner until one has become of what is wanted."""
        found: list[str] = []

        def sent() -> bool:
            found.append(self.send(planner))
            return text in found[-1]

        self.peer.until(sent, f"{text!r} for a goal of {planner}")
        return found[-1]

    def fact(self, key: str) -> str:
        self.diagnostics.clear()
        found = self.peer.until(
            lambda: [s for d in self.diagnostics for s in d.status if s.name == NODE]
        )
        return str({pair.key: pair.value for pair in found[-1].values}.get(key, ""))

    def _event(self, text: str) -> str:
        def found() -> list[str]:
            return [
                e.detail
                for e in self.events
                if e.kind == ExecutionEvent.GOAL and f"{text}" in f"{e.detail} "
            ]

        return str(self.peer.until(found, f"an event with {text!r}")[0])


@pytest.fixture(scope="module")
def planners(bench: Bench, peer: Peer) -> Planners:
    bench.engine()
    bench.planner(
        # Longer than a busy machine takes from one goal to the next.
        planners=["operator priority=10 lease_s=3", "instruction priority=20 lease_s=0"],
        lease_s=2.0,
        max_planners=3,
        named_goals=["go left = -0.5 0.25"],
        goal_schema=["goal.values shape=2 low=-0.9 high=0.9 frame=table units=m"],
    )
    peer.bring_up(NODE)
    return Planners(peer)


@pytest.fixture(autouse=True)
def fresh(planners: Planners) -> None:
    planners.begin()


def test_two_planners_hand_the_channel_over(planners: Planners) -> None:
    assert " won=first " in planners.send("nav")
    assert " won=priority over=nav " in planners.send("operator")
    assert planners.fact("goal from").startswith("operator (priority 10")
    refused = planners.send("nav")
    assert "name=BUSY" in refused
    assert "'operator' holds channel 'goal'" in refused
    # The operator falls silent, and the other one is heard again.
    assert planners.until("nav", " won=").split(" won=")[1].startswith("silence over=operator ")
    assert " won=priority over=nav " in planners.send("operator")
    assert int(planners.fact("hand-overs")) >= 3
    assert int(planners.fact("refused: subgoal BUSY")) >= 1


def test_the_last_writer_wins_among_equals(planners: Planners) -> None:
    assert " won=first " in planners.send("a")
    assert " won=newer over=a " in planners.send("b")
    assert " won=newer over=b " in planners.send("a")
    assert " won=holder " in planners.send("a")


def test_a_planner_that_was_restarted_is_heard_again(planners: Planners) -> None:
    assert "accepted" in planners.send("a", sequence=700)
    assert "name=GOAL_EXPIRED" in planners.send("a", sequence=1)
    assert " won=holder restarted=true " in planners.until("a", " won=")
    assert " won=holder sequence=" in planners.send("a")


def test_too_many_planners_are_refused_and_counted(planners: Planners) -> None:
    for name in ("a", "b", "c"):
        planners.send(name)
    if "name=BUSY" in planners.send("d"):  # unless the machine was slower than the leases
        assert int(planners.fact("refused: subgoal BUSY")) >= 1
    planners.until("d", " won=")
    assert int(planners.fact("planners forgotten")) >= 1
    assert planners.fact("planners known") == "3"


def test_words_that_the_yaml_names_are_a_goal(planners: Planners) -> None:
    planners.accepted.clear()
    assert " planner=instruction won=first " in planners.say("Go left")
    planners.peer.until(lambda: planners.accepted)
    assert list(planners.accepted[0].values) == [-0.5, 0.25]
    assert "name=UNSUPPORTED" in planners.say("go right")
    assert "name=PAYLOAD_SHAPE" in planners.say(" ")


def test_a_schema_that_the_model_does_not_fit_fails_configure(
    fresh_bench: Bench, fresh_peer: Peer
) -> None:
    fresh_bench.engine("other/engine")
    node = fresh_bench.planner("__ns:=/other", goal_schema=["goal.values shape=7"])
    assert not fresh_peer.change("/other/planner_node", "configure")
    node.wait_for_line("shape of 'goal.values' is another one in the model")
