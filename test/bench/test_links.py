"""Links to ROS: what was made is given back where the rest can't be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS; pip install -e '.[ros,test]'")

from rclpy.context import Context
from rclpy.node import Node

from flashrt_ros.bench import ros_link
from flashrt_ros.bench.interrupt_link import InterruptLink
from flashrt_ros.bench.ros_link import RosLink
from flashrt_ros.bench.topic_link import TopicLink
from flashrt_ros.demo.domain import ros_domain


class BrokenError(Exception):
    """Something can't be made."""


def refuse(*arguments: object, **options: object) -> None:
    raise BrokenError


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Context]]:
    """Contexts that links made, in a domain of the test's own."""
    made: list[Context] = []

    def make() -> Context:
        made.append(Context())
        return made[-1]

    monkeypatch.setattr(ros_link, "Context", make)
    with ros_domain():
        yield made


@pytest.mark.parametrize("broken", ["Node", "SingleThreadedExecutor"])
def test_a_link_that_is_not_made_keeps_no_context(
    broken: str, contexts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ros_link, broken, refuse)
    with pytest.raises(BrokenError):
        RosLink("broken")
    assert [context.ok() for context in contexts] == [False]


@pytest.mark.parametrize(
    "make", [lambda: TopicLink("broken", (8,)), lambda: InterruptLink("broken")]
)
@pytest.mark.parametrize("broken", ["create_publisher", "create_subscription"])
def test_a_link_without_its_topics_keeps_no_context(
    make: Callable[[], Any],
    broken: str,
    contexts: list[Context],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if broken == "create_publisher":
        whole = Node.create_publisher
        monkeypatch.setattr(
            Node,
            broken,
            lambda self, kind, *rest, **options: (
                refuse() if "MultiArray" in kind.__name__ else whole(self, kind, *rest, **options)
            ),
        )
    else:
        monkeypatch.setattr(Node, broken, refuse)
    with pytest.raises(BrokenError):
        make()
    assert [context.ok() for context in contexts] == [False]


def test_closing_twice_is_closing_once(contexts: list[Context]) -> None:
    with RosLink("whole") as link:
        assert contexts[0].ok()
        link.close()
    assert not contexts[0].ok()
