from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from std_srvs.srv import Trigger

from flashrt_ros.nodes.meeting import Meeting

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer


def test_a_node_answers_before_the_first_call(fresh_bench: Bench, fresh_peer: Peer) -> None:
    fresh_bench.policy("__ns:=/robot1")
    client = fresh_peer.node.create_client(Trigger, "robot1/policy_node/ping")
    fresh_peer.until(client.service_is_ready, "the service")
    with Meeting(fresh_peer.node, client) as meeting:
        fresh_peer.until(meeting.look, "an answer of the node")
        assert meeting.answered.is_set()
    future = client.call_async(Trigger.Request())
    fresh_peer.until(future.done, "an answer of the service")


def test_nobody_answers_for_a_service_without_a_node(fresh_peer: Peer) -> None:
    client = fresh_peer.node.create_client(Trigger, "nowhere/ping")
    with Meeting(fresh_peer.node, client) as meeting:
        fresh_peer.spin_some()
        assert not meeting.look()
        assert not meeting.answered.is_set()
