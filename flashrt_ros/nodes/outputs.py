"""Reads actions, chunks and events from the engine and publishes them, in a thread of its own."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

import numpy as np

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import EngineGoneError, FlashrtError
from flashrt_ros.nodes.fence import Fence

_WAIT_S = 0.5

ActionHandler = Callable[[protocol.Provenance, int, tuple[float, ...]], None]
"""Takes what it was made from, its place in the chunk and one value per joint."""

ChunkHandler = Callable[[protocol.Provenance, bytes, int], None]
"""Takes what it was made from, ``float32[H, A]`` as bytes and its age in ns."""

MOVES = frozenset(
    {
        protocol.EventKind.RESTORE,
        protocol.EventKind.SELECT,
        protocol.EventKind.ROLLBACK,
        protocol.EventKind.RESET,
        protocol.EventKind.INTERRUPT,
        protocol.EventKind.RESUME,
    }
)
"""Events that begin a new generation of their environment."""


class OutputReader:
    """A subscription and the thread that serves it until :meth:`close`.

    Actions and chunks pass the fence or are dropped; events always pass, and those
    that move an environment raise the fence first, so that a reset asked for by
    another client counts here too.

    Args:
        client: Taken over; closed at the end.
        env_index: Environment to listen to.
        fence: Decides what is stale.
        on_event: Publishes an event.
        on_gone: Called once when the connection ends unasked.
        on_action: Publishes an action, called while the fence can't move; None asks for none.
        on_chunk: Publishes a chunk, called while the fence can't move; None asks for none.
        on_error: Told the traceback of a handler that failed; the next message is served.

    Attributes:
        num_missed: Outputs that newer ones replaced before they came.
        goal_sequence: The engine's number of the goal that the newest output was made under.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        env_index: int,
        fence: Fence,
        on_event: Callable[[protocol.Event], None],
        on_gone: Callable[[FlashrtError], None],
        on_action: ActionHandler | None = None,
        on_chunk: ChunkHandler | None = None,
        on_error: Callable[[str], None],
    ) -> None:
        self._client = client
        self._fence = fence
        self._on_action = on_action
        self._on_chunk = on_chunk
        self._on_event = on_event
        self._on_gone = on_gone
        self._on_error = on_error
        self._is_closed = threading.Event()
        self.num_missed = 0
        self.goal_sequence = 0
        client.subscribe(
            env_index=env_index,
            actions=on_action is not None,
            chunks=on_chunk is not None,
            events=True,
        )
        self._thread = threading.Thread(target=self._read, name="outputs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Join the thread, then close the connection; idempotent."""
        self._is_closed.set()
        if self._thread is not threading.current_thread():
            self._client.interrupt_wait()
            self._thread.join(2.0)
        self._client.close()

    def _read(self) -> None:
        while not self._is_closed.is_set():
            try:
                message = self._client.receive(_WAIT_S)
                if message is not None:
                    self._serve(message)
            except EngineGoneError as error:
                if not self._is_closed.is_set():
                    self._on_gone(error)
                return
            except Exception:  # noqa: BLE001 - the boundary of the reader thread
                if self._is_closed.is_set():
                    return
                self._on_error(f"an output could not be published\n{traceback.format_exc()}")

    def _serve(self, message: protocol.Output | protocol.Event) -> None:
        if isinstance(message, protocol.Event):
            if message.kind in MOVES:
                self._fence.note(message.env_index, message.generation)
            try:
                self._on_event(message)
            finally:
                self._fence.tell(message.env_index, message.generation)
            return
        try:
            self._output(message)
        finally:
            self._client.release(message)

    def _output(self, output: protocol.Output) -> None:
        made = output.provenance
        payload = bytes(self._client.payload(output))
        self.num_missed += output.missed
        if made.branch < 0:
            self.goal_sequence = made.goal_sequence

        def publish() -> None:
            if output.kind == protocol.OutputKind.ACTION and self._on_action is not None:
                values = np.frombuffer(payload, np.float32).astype(np.float64)
                self._on_action(made, output.index, tuple(values.tolist()))
            elif output.kind == protocol.OutputKind.CHUNK and self._on_chunk is not None:
                self._on_chunk(made, payload, time.monotonic_ns() - output.produced_ns)

        # The tick in which the first action of its chunk acts: a chunk is committed before the tick
        # that pops it is counted, and an action left over in the queue belongs to an older one.
        is_chunk = output.kind == protocol.OutputKind.CHUNK
        tick = made.tick + 1 if is_chunk else made.tick - output.index
        self._fence.pass_through(made.engine_epoch, made.env_index, made.generation, tick, publish)
