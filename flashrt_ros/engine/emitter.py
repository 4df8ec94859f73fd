"""Events of environments, the same from every kind of engine."""

from __future__ import annotations

from flashrt_ros.engine.protocol import Event, EventKind
from flashrt_ros.engine.served import Sink
from flashrt_ros.engine.timeline import Environment


class Emitter:
    """What publishes events; a base, so that an event costs no further call.

    Attributes:
        epoch: Of the engine, told with every event.
        sink: Where they go.
    """

    __slots__ = ()

    epoch: int
    sink: Sink

    def emit(
        self,
        kind: EventKind,
        env: Environment,
        *,
        capsule_id: str = "",
        duration_ns: int = 0,
        detail: str = "",
    ) -> None:
        """Publish an event of an environment."""
        self.sink.event(
            Event(
                kind=int(kind),
                engine_epoch=self.epoch,
                env_index=env.env_index,
                generation=env.generation,
                tick=env.position.tick,
                capsule_id=capsule_id,
                duration_ns=duration_ns,
                detail=detail,
            )
        )
