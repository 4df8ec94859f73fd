"""A session whose nodes are submitted, and whose token is read once the device has come past it."""

from __future__ import annotations

import ctypes
import struct

from flashrt_ros.errors import PayloadShapeError
from flashrt_ros.models.hybrid_lm import (
    CHOOSE,
    DECODE,
    LOG_PROBABILITY,
    NEXT_TOKEN,
    HybridLm,
)
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing


class LaneSession(HybridSession):
    """A session of a planner engine's lane; nothing here waits for the device.

    Owns the host memory that a token is copied to, besides what its base owns.

    Args:
        model: As of the base.
        graphs: As of the base.
        lane: As of the base.
        noise: As of the base.

    Raises:
        BackendError: There is no memory.
    """

    def __init__(self, model: HybridLm, graphs: GraphSet, lane: Lane, noise: NoiseRing) -> None:
        super().__init__(model, graphs, lane, noise)
        first, second = (self._layout.by_name[name] for name in (NEXT_TOKEN, LOG_PROBABILITY))
        self._first = min(first.offset, second.offset)
        end = max(place.offset + place.spec.num_bytes for place in (first, second))
        self._num_read_bytes = end - self._first
        self._token_at = first.offset - self._first
        self._score_at = second.offset - self._first
        self._told = self._backend.allocate_host_block(self._num_read_bytes)

    def submit_decode(self, token: int) -> None:
        """Take in the token that was chosen last, and choose the one after it.

        Args:
            token: What :meth:`chosen` gave for it; what the lane holds is taken in.

        Raises:
            PayloadShapeError: The lane has no room for one more. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: The replay failed.
        """
        self._check_room(1, "a text that is decoded")
        self._bind_noise(self._position + 1)
        self._lane.replay(DECODE)
        self._advance([token])

    def submit_choose(self) -> None:
        """Choose the next token again, as sampling and bias are now.

        Raises:
            PayloadShapeError: The text is empty. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: The replay failed.
        """
        if not self._position:
            raise PayloadShapeError("no token can be chosen", expected="at least one before")
        self._bind_noise(self._position)
        self._lane.replay(CHOOSE)

    def submit_reading(self) -> None:
        """Have the next token and its probability copied to the host, after what was submitted."""
        self._backend.copy(
            self._told.address, self._lane.address + self._first, self._num_read_bytes
        )

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
        super().close()
