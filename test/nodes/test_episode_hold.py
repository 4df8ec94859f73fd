"""The hold of a participant that is offered as a service: who may still end it, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration

from flashrt_ros.errors import NotActiveError
from flashrt_ros.nodes.episode_part import EpisodePartService
from flashrt_ros.srv import EpisodePart
from test.episode.fakes import Fake

V = EpisodePart.Request


class Node:
    """Keeps what the service gives it, and runs nothing by itself."""

    def create_service(self, kind: Any, name: str, answer: Any, **more: Any) -> None:
        self.answer = answer

    def create_timer(self, period_s: float, look: Callable[[], None]) -> None:
        self.look = look

    def get_logger(self) -> Any:
        class Log:
            def __getattr__(self, name: str) -> Callable[[str], None]:
                return lambda text: None

        return Log()


class Offered:
    """A participant behind its service, and a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("flashrt_ros.nodes.episode_part.time.monotonic", lambda: self.now_s)
        self.node, self.fake = Node(), Fake("sim")
        EpisodePartService(self.node, self.fake)  # type: ignore[arg-type]

    def ask(self, verb: int, token: str = "mine", **fields: Any) -> EpisodePart.Response:
        request = V(verb=verb, token=token, lease=Duration(sec=10), **fields)
        return self.node.answer(request, EpisodePart.Response())

    def bring_back(self, state: int) -> None:
        """Hold, and put a state of before."""
        assert self.ask(V.HOLD).success
        self.fake.kept["key"] = state
        assert self.ask(V.PUT, capsule_id="key").success

    def outlive_lease(self) -> None:
        self.now_s += 11.0
        self.node.look()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Offered:
    return Offered(monkeypatch)


def test_a_revert_of_what_has_settled_by_itself_is_refused(offered: Offered) -> None:
    """Its caller must not believe that it was put back."""
    offered.bring_back(5)
    assert offered.ask(V.RELEASE).success
    offered.outlive_lease()
    assert offered.fake.replaced is None
    reply = offered.ask(V.REVERT)
    assert reply.error_code == NotActiveError.code
    assert "stays" in reply.error_msg
    assert offered.fake.state == 5


def test_a_revert_after_a_revert_by_itself_has_nothing_to_do(offered: Offered) -> None:
    offered.bring_back(5)
    offered.outlive_lease()
    assert offered.fake.state == 0
    assert offered.ask(V.REVERT).success
    assert offered.ask(V.RELEASE).error_code == NotActiveError.code


def test_a_new_hold_ends_one_whose_last_word_was_lost(offered: Offered) -> None:
    offered.bring_back(5)
    assert offered.ask(V.RELEASE).success
    assert offered.ask(V.HOLD, "yours").success
    assert offered.ask(V.REVERT).error_code == NotActiveError.code
    assert offered.fake.is_held, "the hold of another one was ended"
    assert offered.ask(V.REVERT, "yours").success
    assert (offered.fake.state, offered.fake.is_held) == (5, False)


def test_a_hold_that_fails_is_undone(offered: Offered) -> None:
    offered.fake.fail_at("hold", late=True)
    assert not offered.ask(V.HOLD).success
    assert not offered.fake.is_held
    assert offered.ask(V.REVERT).success
