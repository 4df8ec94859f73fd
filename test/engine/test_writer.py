"""Writing in place: who may, what is refused, and what stays of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import linux
from flashrt_ros.errors import (
    EngineGoneError,
    LoanError,
    NoFreeSlotError,
    NonFiniteError,
    NoWriterRingError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
    StaleGenerationError,
    UnknownChannelError,
)

Serve = Callable[..., Any]


def values(served: Any) -> list[float]:
    """What the engine's own mapping shows of the newest commit."""
    channel = served.engine.channel
    pending = channel.pending(0)
    return [float(value) for value in np.frombuffer(channel.view(pending), np.float32, 2)]


def test_what_is_written_is_what_the_engine_reads(serve: Serve) -> None:
    served = serve()
    with served.client() as client, client.open_writer("goal") as writer:
        loan = writer.loan()
        assert writer.loan() is loan
        loan.fields["values"][:] = [0.25, -0.5]
        committed = writer.commit(loan, stamp_ns=3, source_sequence=9)
        assert (committed.sequence, committed.next_slot) == (1, -1)
        assert values(served) == [0.25, -0.5]
        assert writer.write(stamp_ns=4, values=[0.0, 1.0]) == 2
        assert values(served) == [0.0, 1.0]
        meta = served.engine.channel.meta(served.engine.channel.pending(0))
        assert (meta.stamp_ns, meta.sequence) == (4, 2)
        pending = served.engine.channel.pending(0)
        assert served.engine.channel.identity(pending)[:2] == writer.identity


def test_a_committed_view_can_not_be_written(serve: Serve) -> None:
    with serve().client() as client:
        writer = client.open_writer("goal")
        loan = writer.loan()
        writer.commit(loan, stamp_ns=0, loan_next=True)
        with pytest.raises(ValueError, match="read-only"):
            loan.fields["values"][0] = 1.0
        writer.loan().fields["values"][0] = 1.0


def test_a_loan_is_committed_once(serve: Serve) -> None:
    with serve().client() as client:
        writer = client.open_writer("goal")
        loan = writer.loan()
        writer.commit(loan, stamp_ns=0)
        for verb in (writer.return_loan, lambda loan: writer.commit(loan, stamp_ns=0)):
            with pytest.raises(LoanError, match="not on loan"):
                verb(loan)
        writer.return_loan(writer.loan())


def test_no_free_slot_is_an_answer_and_the_writer_goes_on(serve: Serve) -> None:
    served = serve()
    channel = served.engine.channel
    with served.client() as client:
        writer = client.open_writer("goal")
        held: list[int] = []
        for _ in range(channel.spec.num_ring_slots - 1):
            writer.write(stamp_ns=0, values=[0.0, 0.0])
            served.on_loop(lambda: held.append(channel.latch(0)))
        writer.write(stamp_ns=0, values=[0.0, 0.0])
        with pytest.raises(NoFreeSlotError):
            writer.write(stamp_ns=0, values=[0.0, 0.0])
        served.on_loop(lambda: channel.release(held[0]))
        writer.write(stamp_ns=0, values=[0.0, 0.0])


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({}, PayloadShapeError),
        ({"other": [0.0, 0.0]}, PayloadShapeError),
        ({"values": [0.0, 0.0], "other": 1}, PayloadShapeError),
        ({"values": [0.0]}, PayloadShapeError),
        ({"values": [[0.0, 0.0]]}, PayloadShapeError),
        ({"values": np.zeros(2, np.float64)}, PayloadTypeError),
        ({"values": np.zeros(2, np.int32)}, PayloadTypeError),
        ({"values": ["a", "b"]}, PayloadTypeError),
        ({"values": [0.0, float("nan")]}, NonFiniteError),
        ({"values": [float("inf"), 0.0]}, NonFiniteError),
        ({"values": [0.0, 1.5]}, PayloadRangeError),
        ({"values": [-1.5, 0.0]}, PayloadRangeError),
    ],
)
def test_a_bad_payload_is_refused_and_nothing_handed_over(
    serve: Serve, payload: dict[str, Any], error: type[Exception]
) -> None:
    served = serve()
    with served.client() as client:
        writer = client.open_writer("goal")
        writer.write(stamp_ns=1, values=[0.5, 0.5])
        with pytest.raises(error):
            writer.write(stamp_ns=2, **payload)
        assert values(served) == [0.5, 0.5]
        assert writer.write(stamp_ns=3, values=[1, 0]) == 2


def test_a_stale_loan_is_replaced_once(serve: Serve) -> None:
    served = serve()
    engine = served.engine
    commit = engine.commit
    num_stale = 0

    def refuse(ring: Any, slot: int, ticket: int, **more: Any) -> int:
        nonlocal num_stale
        if num_stale > 0:
            num_stale -= 1
            ring.return_loan(slot, ticket)
            raise StaleGenerationError("before the reset")
        sequence: int = commit(ring, slot, ticket, **more)
        return sequence

    engine.commit = refuse
    with served.client() as client:
        writer = client.open_writer("goal")
        num_stale = 1
        assert writer.write(stamp_ns=1, values=[0.5, 0.5]) == 1
        assert values(served) == [0.5, 0.5]
        num_stale = 2
        with pytest.raises(StaleGenerationError):
            writer.write(stamp_ns=1, values=[0.0, 0.0])
        assert writer.write(stamp_ns=1, values=[0.0, 0.0]) == 2


def test_rings_and_channels_that_are_not_there(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        with pytest.raises(UnknownChannelError):
            client.open_writer("nothing")
        for _ in range(served.engine.channel.spec.num_rings):
            client.open_writer("goal")
        with pytest.raises(NoWriterRingError):
            client.open_writer("goal")
    served.wait_for_clients(0)
    with served.client() as client:
        client.open_writer("goal")


def test_closing_with_views_alive_keeps_the_memory(serve: Serve) -> None:
    served = serve()
    client = served.client()
    writer = client.open_writer("goal")
    before = linux.num_shared_mappings()
    view = writer.loan().fields["values"]
    view[:] = 0.75
    client.close()
    client.close()
    assert view.tolist() == [0.75, 0.75]
    view[:] = 0.5  # a mapping can't be revoked; what it can reach is tested with channels
    del view
    assert linux.num_shared_mappings() < before
    with pytest.raises(LoanError, match="closed"):
        writer.loan()


def test_a_closed_writer_gives_its_loan_back(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        writer = client.open_writer("goal")
        writer.loan()
        writer.close()
        writer.close()
        assert served.engine.channel.reclaimed == [0]
        with pytest.raises(LoanError):
            writer.write(stamp_ns=0, values=[0.0, 0.0])
        client.ping()


def test_a_writer_ends_with_its_connection(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        writer = client.open_writer("goal")
        client.stop()
        with pytest.raises(EngineGoneError):
            writer.write(stamp_ns=0, values=[0.0, 0.0])
