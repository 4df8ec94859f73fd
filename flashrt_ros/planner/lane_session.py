"""A session whose nodes are submitted, and whose token is read once the device has come past it."""

from __future__ import annotations

import ctypes
import struct

from flashrt_ros.models.hybrid_lm import LOG_PROBABILITY, NEXT_TOKEN, HybridLm
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.planner.lending import BlockPool
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing

_NEVER = (-1,)
"""Tokens that end a text: none. With some named, a session takes one token in at a time."""


class LaneSession(HybridSession):
    """A session of a planner engine's lane, whose ``submit_`` calls never wait for the device.

    Owns the host memory that a token is copied to, and the blocks of its snapshots, besides
    what its base owns: nothing is allocated for a plan that another one was made before.

    Args:
        model: As of the base.
        graphs: As of the base.
        lane: As of the base.
        noise: As of the base.

    Raises:
        BackendError: There is no memory.
    """

    _known: int | None = None

    def __init__(self, model: HybridLm, graphs: GraphSet, lane: Lane, noise: NoiseRing) -> None:
        super().__init__(model, graphs, lane, noise)
        token, score = (self.layout.by_name[name] for name in (NEXT_TOKEN, LOG_PROBABILITY))
        first = min(token.offset, score.offset)
        end = max(place.offset + place.spec.num_bytes for place in (token, score))
        self._read_address = lane.address + first
        self._num_read_bytes = end - first
        self._token_at, self._score_at = token.offset - first, score.offset - first
        self._pool = BlockPool(self.backend, self.layout.capsule_bytes)
        try:
            self._told = self.backend.allocate_host_block(self._num_read_bytes)
        except BaseException:
            super().close()
            raise

    @property
    def next_token(self) -> int:
        """Token that follows what the lane holds; waits for the device unless it is known."""
        return super().next_token if self._known is None else self._known

    def submit_decode(self, token: int) -> None:
        """Take in the token that was chosen last, and choose the one after it.

        Args:
            token: What :meth:`chosen` gave for it; what the lane holds is taken in.

        Raises:
            PayloadShapeError: The lane has no room for one more. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: The replay failed.
        """
        self._known = token
        try:
            self.decode(1, stop=_NEVER)
        finally:
            self._known = None

    def submit_choose(self) -> None:
        """Choose the next token again, as sampling and bias are now.

        Raises:
            PayloadShapeError: The text is empty. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: The replay failed.
        """
        self._known = 0  # what it returns is read later
        try:
            self.choose()
        finally:
            self._known = None

    def submit_reading(self) -> None:
        """Have the next token and its probability copied to the host, after what was submitted."""
        self.backend.copy(self._told.address, self._read_address, self._num_read_bytes)

    def chosen(self) -> tuple[int, float]:
        """Return the token that :meth:`submit_reading` found, and its log-probability.

        The device must have come past it.
        """
        data = ctypes.string_at(self._told.address, self._num_read_bytes)
        token: int = struct.unpack_from("<q", data, self._token_at)[0]
        log_probability: float = struct.unpack_from("<f", data, self._score_at)[0]
        return token, log_probability

    def close(self) -> None:
        """Free what it owns; idempotent. Everything submitted must have completed."""
        self._told.close()
        self._pool.close()
        super().close()

    def _allocate(self, num_bytes: int) -> Block:
        return self._pool.lend()
