"""Writing to an engine that runs in the caller's own process and thread."""

from __future__ import annotations

from types import TracebackType

import numpy.typing as npt

from flashrt_ros.engine.describe import channel_info
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.payload import check_payload, field_views, write_payload


class EmbeddedWriter:
    """A writer of one channel of an embedded engine; the counterpart of ``client.Writer``.

    Args:
        engine: Outlives the writer.
        channel: Name of the channel.
        env_index: Environment written for.

    Raises:
        UnknownChannelError: The model has no such channel.
        NoWriterRingError: Every ring is taken.
    """

    def __init__(self, engine: Engine, channel: str, env_index: int = 0) -> None:
        self._engine = engine
        self._ring = engine.open_writer(channel, env_index)
        self._info = channel_info(self._ring.channel.spec)

    def write(
        self,
        *,
        stamp_ns: int,
        source_sequence: int = 0,
        lifetime_ns: int = 0,
        **values: npt.ArrayLike,
    ) -> int:
        """Check a payload, write it into a loaned slot in place, and commit it.

        Args:
            stamp_ns: Writer's clock.
            source_sequence: Writer's own number.
            lifetime_ns: How long it may be acted on, from its stamp; 0 for as long as
                nothing newer comes.
            **values: Every field of the channel, by name.

        Returns:
            The engine's sequence of the commit.

        Raises:
            FlashrtError: The payload, or the commit, was refused; no slot stays on loan.
        """
        check_payload(self._info, values)
        slot, ticket, _ = self._engine.loan(self._ring)
        memory = self._ring.channel.view(self._ring.first_slot + slot)
        write_payload(field_views(memory, self._info), values)
        return self._engine.commit(
            self._ring,
            slot,
            ticket,
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            lifetime_ns=lifetime_ns,
        )

    def close(self) -> None:
        """Give the ring back. Idempotent."""
        self._engine.close_writer(self._ring)

    def __enter__(self) -> EmbeddedWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
