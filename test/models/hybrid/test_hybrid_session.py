"""Restore is what was not interrupted, to the bit; borders; what is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.errors import (
    BoundaryError,
    LanePoisonedError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
)
from flashrt_ros.models.hybrid_borders import split_at_borders
from flashrt_ros.models.hybrid_lm import KEYS_VALUES, POSITION, RECURRENT
from flashrt_ros.models.hybrid_session import HybridSession
from test.models.hybrid.conftest import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    Rig,
    compute,
    decode,
    random_tokens,
)

TOKENS = random_tokens(420)
OTHERS = random_tokens(300, seed=1)
NUM_DECODED = 12


def used(session: HybridSession) -> bytes:
    """What a capsule of the session's lane would hold."""
    return session.backend.read(session.lane.address, session.layout.used_bytes(session.position))


# identity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("border", [64, 128, 192, 256, 320, 384])
def test_restore_and_append_is_the_whole_text_to_the_bit(
    session: HybridSession, border: int
) -> None:
    cold = compute(session, TOKENS, NUM_DECODED)
    session.reset()
    session.append(TOKENS[:border])
    with_border = session.snapshot()
    session.append(OTHERS)  # another text dirties the lane
    session.decode(3)

    session.restore(with_border)
    session.append(TOKENS[border:])

    assert decode(session, NUM_DECODED) == cold
    with_border.close()


def test_without_the_restore_the_text_differs(session: HybridSession) -> None:
    cold = compute(session, TOKENS, NUM_DECODED)
    session.reset()
    session.append(OTHERS)
    session.append(TOKENS[128:])
    assert decode(session, NUM_DECODED) != cold


def test_a_text_split_off_the_borders_differs_in_its_logits(session: HybridSession) -> None:
    _, cold = compute(session, TOKENS, NUM_DECODED)
    session.reset()
    session.append(TOKENS[:100])
    session.append(TOKENS[100:])
    assert decode(session, NUM_DECODED)[1] != cold


def test_a_capsule_fits_every_lane(make_rig: Callable[..., Rig]) -> None:
    first, second = make_rig(num_lanes=2).sessions
    cold = compute(first, TOKENS, NUM_DECODED)
    first.reset()
    first.append(TOKENS[:192])
    capsule = first.snapshot()
    second.append(OTHERS)

    second.restore(capsule)
    second.append(TOKENS[192:])

    assert decode(second, NUM_DECODED) == cold
    capsule.close()


def test_a_turn_that_is_interrupted_goes_on_where_it_was(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:130])
    session.decode(5)
    interrupted = session.snapshot(any_position=True)
    expected = decode(session, NUM_DECODED)
    session.reset()
    session.append(OTHERS)

    session.restore(interrupted)

    assert session.position == 135
    assert decode(session, NUM_DECODED) == expected
    interrupted.close()


def test_the_used_bytes_come_back_whole(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:256])
    before = used(session)
    capsule = session.snapshot()
    assert capsule.num_bytes == len(before)
    session.reset()
    session.append(OTHERS)
    session.restore(capsule)
    assert used(session) == before
    capsule.close()


def test_padding_leaves_the_recurrent_state_as_it_was(session: HybridSession) -> None:
    rows = []
    for filler in (0, 255):
        session.reset()
        session.append([filler] * 60)  # what the padding holds afterwards
        session.reset()
        session.append(TOKENS[:7])
        rows.append((session.read(RECURRENT), session.logits().tobytes()))
    assert rows[0] == rows[1]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_however_a_text_comes_in_its_bytes_are_the_same(
    session: HybridSession, data: st.DataObject
) -> None:
    """Appends of any length, each followed by a capsule that comes back over another text."""
    cold = compute(session, TOKENS[:200], 2)
    session.reset()
    position = 0
    while position < 200:
        count = min(data.draw(st.integers(20, 200)), 200 - position)
        session.append(TOKENS[position : position + count])
        position += count
        capsule = session.snapshot(align_down=True)
        if data.draw(st.booleans()):
            session.reset()
        session.append(OTHERS[: data.draw(st.integers(1, 100))])
        session.restore(capsule)
        capsule.close()
    session.decode(0)  # takes the tail of the last capsule
    assert decode(session, 2) == cold


# borders --------------------------------------------------------------------------------------


def test_off_a_border_a_snapshot_is_refused_and_says_where_it_is_legal(
    session: HybridSession,
) -> None:
    session.reset()
    session.append(TOKENS[:100])
    before = used(session)
    with pytest.raises(BoundaryError, match="one of 64, 128") as caught:
        session.snapshot()
    assert caught.value.found == 100
    assert used(session) == before


@pytest.mark.parametrize("cut", [65, 100, 127, 200, 300])
def test_align_down_gives_the_tail_and_the_next_append_takes_it(
    session: HybridSession, cut: int
) -> None:
    cold = compute(session, TOKENS, NUM_DECODED)
    session.reset()
    session.append(TOKENS[:cut])
    capsule = session.snapshot(align_down=True)
    assert (capsule.position, capsule.tail) == (
        cut // 64 * 64,
        tuple(TOKENS[cut // 64 * 64 : cut]),
    )
    session.append(OTHERS)

    session.restore(capsule)
    assert (session.position, session.pending) == (capsule.position, capsule.tail)
    session.append(TOKENS[cut:])

    assert decode(session, NUM_DECODED) == cold
    capsule.close()


def test_decode_takes_a_pending_tail_too(session: HybridSession) -> None:
    cold = compute(session, TOKENS[:100], NUM_DECODED)
    session.reset()
    session.append(TOKENS[:100])
    capsule = session.snapshot(align_down=True)
    session.restore(capsule)
    assert decode(session, NUM_DECODED)[0] == cold[0]
    assert not session.pending
    capsule.close()


def test_tokens_that_were_decoded_are_part_of_the_tail(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:60])
    text = TOKENS[:60] + session.decode(10)
    capsule = session.snapshot(align_down=True)
    assert (capsule.position, list(capsule.tail)) == (64, text[64:])
    capsule.close()


def test_a_border_reached_by_decoding_is_one(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:120])
    session.decode(8)
    capsule = session.snapshot()
    expected = decode(session, NUM_DECODED)
    session.restore(capsule)
    assert decode(session, NUM_DECODED) == expected
    capsule.close()


def test_after_a_restore_off_a_border_only_the_next_one_is_legal(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:70])
    capsule = session.snapshot(any_position=True)
    session.restore(capsule)
    with pytest.raises(BoundaryError, match="one of 128 "):
        session.snapshot(align_down=True)
    session.append(TOKENS[70:128])
    session.snapshot().close()
    capsule.close()


@given(
    start=st.integers(0, 700),
    count=st.integers(1, 700),
    chunk_length=st.sampled_from([64, 128, 256]),
)
def test_replays_of_an_append_have_no_gaps_and_end_at_borders(
    start: int, count: int, chunk_length: int
) -> None:
    pieces = list(split_at_borders(start, count, chunk_length))
    assert pieces[0][0] == start
    assert pieces[-1][1] == start + count
    assert all(left[1] == right[0] for left, right in pairwise(pieces))
    assert all(0 < stop - first <= chunk_length for first, stop in pieces)
    ends = {start, *(stop for _, stop in pieces)}
    assert all(stop % 64 == 0 for _, stop in pieces[:-1])
    last_border = (start + count) // 64 * 64
    assert last_border < start or last_border in ends


# bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        ([], PayloadShapeError, "empty"),
        ([1, VOCAB_SIZE], PayloadRangeError, "token 1 .* expected 0 to 255, found 256"),
        ([-1], PayloadRangeError, "token 0 .* found -1"),
        ([1, 2.5], PayloadTypeError, "token 1 .* found 2.5"),
        (["go"], PayloadTypeError, "an integer"),
        ([1] * 729, PayloadShapeError, "at most 768 tokens in the arena, found 769"),
    ],
)
def test_a_bad_prompt_is_refused_and_changes_nothing(
    session: HybridSession, tokens: list[int], error: type[Exception], match: str
) -> None:
    session.reset()
    session.append(TOKENS[:40])
    before = used(session), session.logits().tobytes()
    with pytest.raises(error, match=match):
        session.append(tokens)
    assert (used(session), session.logits().tobytes()) == before
    assert session.position == 40


def test_the_arena_can_be_filled_to_its_last_position(session: HybridSession) -> None:
    session.reset()
    session.append(random_tokens(MAX_POSITIONS - 2))
    assert len(session.decode(2)) == 2
    with pytest.raises(PayloadShapeError, match="found 769"):
        session.decode(1)
    session.snapshot().close()


def test_nothing_is_decoded_from_an_empty_text(session: HybridSession) -> None:
    session.reset()
    for verb in (session.choose, lambda: session.decode(1)):
        with pytest.raises(PayloadShapeError, match="at least one token before"):
            verb()


def test_a_poisoned_lane_is_refused_until_it_is_restored(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:64])
    capsule = session.snapshot()
    session.lane.poison("a test")
    with pytest.raises(LanePoisonedError):
        session.append(TOKENS[:1])
    session.restore(capsule)
    session.append(TOKENS[:1])
    capsule.close()


def test_what_lies_past_the_position_counts_for_nothing(session: HybridSession) -> None:
    cold = compute(session, TOKENS[:100], NUM_DECODED)
    session.reset()
    place = session.layout.by_name[KEYS_VALUES]
    junk = np.full(place.spec.num_items, 1e4, np.float32)
    session.write(KEYS_VALUES, junk.tobytes())
    session.append(TOKENS[:100])
    assert decode(session, NUM_DECODED) == cold
    session.write(KEYS_VALUES, bytes(place.spec.num_bytes))


def test_the_position_on_the_device_is_the_sessions(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:100])
    session.decode(3)
    assert int.from_bytes(session.read(POSITION), "little") == session.position == 103
