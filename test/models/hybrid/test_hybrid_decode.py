"""Tokens decoded ahead of the host, the short prefill, and how rarely a border is copied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.models.hybrid_lm import DECODE, PREFILL, SHORT_PREFILL
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.runtime.backend import Fence
from flashrt_ros.runtime.cpu import CpuBackend
from test.models.hybrid.conftest import Rig, compute, random_tokens

TOKENS = random_tokens(420)


@pytest.mark.parametrize("length", [1, 64, 100, 127])
@pytest.mark.parametrize("count", [1, 63, 64, 150])
def test_tokens_decoded_ahead_are_those_decoded_one_by_one(
    session: HybridSession, length: int, count: int
) -> None:
    session.reset()
    session.append(TOKENS[:length])
    each = [session.decode(1)[0] for _ in range(count)]
    logits = session.logits().tobytes()
    session.reset()
    session.append(TOKENS[:length])
    assert session.decode(count) == each
    assert session.position == length + count
    assert session.logits().tobytes() == logits


def test_nothing_is_decoded_where_nothing_is_asked_for(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:70])
    assert session.decode(0) == []
    assert session.position == 70


def test_the_device_is_waited_for_at_borders_only(
    session: HybridSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    whole = CpuBackend.fence

    def fence(self: CpuBackend) -> Fence:
        waits.append(1)
        return whole(self)

    monkeypatch.setattr(CpuBackend, "fence", fence)
    session.reset()
    session.append(TOKENS[:100])
    session.decode(28 + 64 + 5)
    assert len(waits) == 3


def test_a_tail_decoded_ahead_is_taken_after_its_border(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:120])
    decoded = session.decode(20)
    with_tail = session.snapshot(align_down=True)
    assert with_tail.position == 128
    assert with_tail.tail == tuple(decoded[8:])
    session.append(TOKENS[:5])
    compute(session, TOKENS, 1)
    session.restore(with_tail)
    session.append(TOKENS[:52])
    found = session.logits().tobytes()
    session.restore(with_tail)
    assert session.pending == tuple(decoded[8:])
    session.decode(1)  # takes the tail first
    session.restore(with_tail)
    session.append(TOKENS[:52])
    assert session.logits().tobytes() == found
    with_tail.close()


@pytest.mark.parametrize(("tokens", "copies"), [(384, 0), (64, 0), (100, 1), (384 + 3, 1)])
def test_a_border_is_copied_where_it_is_left_for_none(
    session: HybridSession, monkeypatch: pytest.MonkeyPatch, tokens: int, copies: int
) -> None:
    session.reset()
    made: list[int] = []
    whole = CpuBackend.copy

    def copy(self: CpuBackend, target: int, source: int, num_bytes: int) -> None:
        made.append(target)
        whole(self, target, source, num_bytes)

    monkeypatch.setattr(CpuBackend, "copy", copy)
    session.append(TOKENS[:tokens])
    assert len(made) == copies


def test_a_restore_is_one_copy(session: HybridSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session.reset()
    session.append(TOKENS[:128])
    capsule = session.snapshot()
    made: list[int] = []
    whole = CpuBackend.copy

    def copy(self: CpuBackend, target: int, source: int, num_bytes: int) -> None:
        made.append(num_bytes)
        whole(self, target, source, num_bytes)

    monkeypatch.setattr(CpuBackend, "copy", copy)
    session.restore(capsule)
    assert made == [capsule.num_bytes]
    capsule.close()


def test_a_long_chunk_has_a_short_program_beside_it(make_rig: Callable[..., Rig]) -> None:
    short, long = (make_rig(chunk_length=length).model for length in (64, 128))
    assert SHORT_PREFILL not in short.programs()
    assert short.prefill_key(1) == short.prefill_key(64) == PREFILL
    assert {PREFILL, SHORT_PREFILL, DECODE} < set(long.programs())
    assert [long.prefill_key(count) for count in (1, 64, 65, 128)] == [
        SHORT_PREFILL,
        SHORT_PREFILL,
        PREFILL,
        PREFILL,
    ]


def test_long_and_short_programs_give_the_same_bytes(make_rig: Callable[..., Rig]) -> None:
    session = make_rig(chunk_length=256).sessions[0]

    def state(key: object) -> bytes:
        session.reset()
        session.append(TOKENS[:192])
        session.model.prefill_key = lambda count: key  # type: ignore[method-assign, assignment, return-value]
        session.append(TOKENS[192:230])
        del session.model.prefill_key
        return session.backend.read(session.lane.address, session.layout.used_bytes(230))

    assert state(PREFILL) == state(SHORT_PREFILL)
