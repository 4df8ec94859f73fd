"""``~/episode/part``: how a simulator or planner of its own process takes part in episodes."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from rclpy.node import Node

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Participant, Taking
from flashrt_ros.errors import (
    BusyError,
    FlashrtError,
    NotActiveError,
    SpecError,
    UnknownEnvironmentError,
)
from flashrt_ros.nodes.conversions import duration_to_ns
from flashrt_ros.nodes.services import serve
from flashrt_ros.srv import EpisodePart

_LOOK_S = 0.25


class EpisodePartService:
    """Offers a participant to whoever coordinates; one hold at a time.

    A hold that its caller leaves behind ends by itself with its lease: what was put and not
    released is reverted, what was released stays.

    Args:
        node: Gets the service.
        participant: Called in the node's executor.
        env_index: Environment that it belongs to.
        is_offered: Whether there is anything to take now.
    """

    def __init__(
        self,
        node: Node,
        participant: Participant,
        *,
        env_index: Callable[[], int] = lambda: 0,
        is_offered: Callable[[], bool] = lambda: True,
    ) -> None:
        self._node = node
        self._participant = participant
        self._env_index = env_index
        self._is_offered = is_offered
        self._token = ""
        self._settled = ""  # hold that ended by itself after its release, last of all
        self._expires = 0.0
        self._is_released = False
        self._lock = threading.Lock()
        self._handlers: dict[int, Callable[[EpisodePart.Request, EpisodePart.Response], None]] = {
            EpisodePart.Request.HOLD: self._hold,
            EpisodePart.Request.TAKE: self._take,
            EpisodePart.Request.CHECK: self._check,
            EpisodePart.Request.PUT: self._put,
            EpisodePart.Request.RELEASE: self._release,
            EpisodePart.Request.SETTLE: self._settle,
            EpisodePart.Request.REVERT: self._revert,
            EpisodePart.Request.DROP: self._drop,
        }
        serve(node, EpisodePart, "~/episode/part", self._answer)
        node.create_timer(_LOOK_S, self._look)

    def _answer(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        if request.env_index != self._env_index():
            raise UnknownEnvironmentError(
                "the participant is of another environment",
                expected=self._env_index(),
                found=request.env_index,
            )
        handler = self._handlers.get(int(request.verb))
        if handler is None:
            raise SpecError(
                "a participant has no such verb", expected="1 to 8", found=int(request.verb)
            )
        with self._lock:
            handler(request, response)

    def _hold(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        if not self._is_offered():
            raise NotActiveError("there is no state to take part with now")
        if not request.token or duration_to_ns(request.lease) <= 0:
            raise SpecError("a hold needs a token and a lease")
        if self._token and self._is_released:  # whose caller has gone, or its last word was lost
            self._settled, self._token = self._token, ""
            self._participant.settle()
        if self._token:
            raise BusyError(
                "another verb over episodes is under way",
                expected=f"its end within {max(0.0, self._expires - time.monotonic()):.1f} s",
                fix="ask again then",
            )
        try:
            self._participant.hold()
        except BaseException:
            self._participant.revert()
            raise
        self._token = request.token
        self._is_released = False
        self._expires = time.monotonic() + duration_to_ns(request.lease) / 1e9

    def _take(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        self._require(request)
        taking = Taking(request.episode, request.persist, request.goal_sequence)
        part = self._participant.take(taking)
        response.kind = part.kind
        response.capsule_id = part.capsule_id
        response.fingerprint = part.fingerprint
        response.state = part.state
        response.facts = [f"{key}={value}" for key, value in part.facts.items()]

    def _check(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        self._require(request)
        self._participant.check(self._part(request))

    def _put(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        self._require(request)
        self._participant.put(self._part(request))

    def _release(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        self._require(request)
        self._participant.release()
        self._is_released = True

    def _settle(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        if self._token and self._token == request.token:
            self._token = ""
            self._participant.settle()

    def _revert(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        if self._token and self._token == request.token:
            self._token = ""
            self._participant.revert()
        elif request.token and request.token == self._settled:
            raise NotActiveError(
                "what was brought back stays: the hold ended by itself",
                fix="restore an episode, or reset; be done within the lease",
            )

    def _drop(self, request: EpisodePart.Request, response: EpisodePart.Response) -> None:
        self._participant.drop(self._part(request))

    def _require(self, request: EpisodePart.Request) -> None:
        if not self._token or self._token != request.token or self._is_released:
            raise NotActiveError(
                "nothing is held for this caller",
                found="a hold that ended, or another's" if request.token else "no token",
                fix="hold first, and be done within the lease",
            )

    def _part(self, request: EpisodePart.Request) -> Part:
        return Part(
            self._participant.name,
            request.kind,
            request.capsule_id,
            request.fingerprint,
            bytes(request.state),
        )

    def end(self) -> None:
        """End the hold that there is, from any thread: the participant is about to leave."""
        with self._lock:
            if self._token:
                self._end_hold("the participant leaves")

    def _look(self) -> None:
        """End a hold whose caller has gone."""
        with self._lock:
            if self._token and time.monotonic() >= self._expires:
                self._end_hold("it was left behind")

    def _end_hold(self, why: str) -> None:
        token, self._token = self._token, ""
        log = self._node.get_logger()
        try:
            if self._is_released:
                self._settled = token
                self._participant.settle()
            else:
                log.error(f"what a verb over episodes did here is reverted: {why}")
                self._participant.revert()
        except FlashrtError as error:
            log.error(f"an episode's hold ended badly: {error.name} ({error.code}): {error}")
        except Exception:  # noqa: BLE001 - the boundary of a callback
            log.error(f"an episode's hold ended badly\n{traceback.format_exc()}")
