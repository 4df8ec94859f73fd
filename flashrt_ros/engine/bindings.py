"""BINDING buffers: written by the host at every latch, in one go."""

from __future__ import annotations

from collections.abc import Mapping

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.spec import ArenaLayout, Role


class Bindings:
    """Writes ``int64[1]`` BINDING buffers of a lane; what is not named is zero.

    Args:
        layout: Of a lane; its BINDING buffers lie side by side.
        backend: Writes, in the order of replays.
    """

    def __init__(self, layout: ArenaLayout, backend: Backend) -> None:
        places = [place for place in layout.placements if place.spec.role is Role.BINDING]
        self._backend = backend
        self._offsets = {
            place.spec.name: place.offset
            for place in places
            if (place.spec.dtype, place.spec.num_items) == ("int64", 1)
        }
        self._start = places[0].offset if places else 0
        last = places[-1] if places else None
        self._num_bytes = last.offset + last.spec.num_bytes - self._start if last else 0

    def write(self, lane: Lane, values: Mapping[str, int]) -> None:
        """Submit all bindings of a lane, for the plan that starts next.

        Args:
            lane: Whose.
            values: By buffer; zero where a name is missing.

        Raises:
            SpecError: A name is no ``int64[1]`` BINDING buffer. Nothing is written.
        """
        image = bytearray(self._num_bytes)
        for name, value in values.items():
            at = self._offset(name) - self._start
            image[at : at + 8] = value.to_bytes(8, "little", signed=True)
        self._backend.write(lane.address + self._start, image)

    def write_one(self, lane: Lane, name: str, value: int) -> None:
        """Submit one binding that no node under way reads.

        Raises:
            SpecError: The name is no ``int64[1]`` BINDING buffer.
        """
        data = value.to_bytes(8, "little", signed=True)
        self._backend.write(lane.address + self._offset(name), data, beside=True)

    def read(self, lane: Lane, name: str) -> int:
        """Return what a binding holds on the device; waits for it.

        Raises:
            SpecError: The name is no ``int64[1]`` BINDING buffer.
        """
        data = self._backend.read(lane.address + self._offset(name), 8)
        return int.from_bytes(data, "little", signed=True)

    def _offset(self, name: str) -> int:
        try:
            return self._offsets[name]
        except KeyError:
            raise SpecError(
                f"'{name}' is no BINDING buffer that the engine can write",
                expected=f"int64[1]: {', '.join(self._offsets)}",
            ) from None
