"""Listens to the engine itself, past ROS, where each action says what it was made from."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from flashrt_ros.demo.waiting import News
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import Output, Provenance
from flashrt_ros.errors import EngineGoneError

_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Heard:
    """An action of a control tick.

    Attributes:
        made: What it was made from.
        index: Its place in its chunk.
        produced_ns: When, CLOCK_MONOTONIC.
        num_missed: Actions before it that were not heard.
    """

    made: Provenance
    index: int
    produced_ns: int
    num_missed: int


class Ear:
    """A subscription to actions, and the thread that keeps them until :meth:`close`.

    Args:
        engine: Name of the engine.
        news: Told of each action.

    Attributes:
        actions: Every action heard, oldest first.
    """

    def __init__(self, engine: str, news: News) -> None:
        self.actions: list[Heard] = []
        self._news = news
        self._is_closed = threading.Event()
        self._client = EngineClient(engine, client="demo/ear")
        self._client.subscribe(actions=True)
        self._thread = threading.Thread(target=self._listen, name="ear", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Join the thread and close the connection. Idempotent."""
        self._is_closed.set()
        self._client.interrupt_wait()
        self._thread.join(2.0)
        self._client.close()

    def _listen(self) -> None:
        while not self._is_closed.is_set():
            try:
                message = self._client.receive(_WAIT_S)
                if not isinstance(message, Output):
                    continue
                heard = Heard(
                    message.provenance, message.index, message.produced_ns, message.missed
                )
                self._client.release(message)
            except EngineGoneError:
                return
            with self._news.change():
                self.actions.append(heard)
