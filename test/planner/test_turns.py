from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import (
    AbandonedError,
    FlashrtError,
    NonFiniteError,
    NothingToResumeError,
    UnsupportedError,
)
from flashrt_ros.planner.core import TextEnvironment
from flashrt_ros.planner.grammar import parse_plan
from flashrt_ros.planner.turn import Turn
from test.planner.conftest import PREFIXES, Rig
from test.planner.toy_planner import ByteTokenizer

LIBRARY = "\n".join(entry.partition("=")[2].strip() for entry in PREFIXES)


def tokens_of(text: str) -> list[int]:
    """Tokens of the library and a text, computed as the engine does: part by part."""
    encode = ByteTokenizer().encode
    parts = [entry.partition("=")[2].strip() for entry in PREFIXES]
    library = encode(parts[0]) + [t for part in parts[1:] for t in encode("\n" + part)]
    return library + encode(text)


def cold(rig: Rig, tokens: list[int], count: int) -> tuple[list[int], list[bytes]]:
    """Compute a text whole, without any capsule, and decode under the plan's grammar."""
    core = rig.engine.core
    session, constraint = core.builder, core.constraint
    session.reset()
    session.write("bias", constraint.bias(0, core.config.max_tokens))
    session.append(tokens)
    chosen: list[int] = []
    logits: list[bytes] = []
    state = 0
    for number in range(count):
        token = session.next_token
        logits.append(session.logits().tobytes())
        following = constraint.next_state(state, token)
        assert following is not None
        state = following
        chosen.append(token)
        session.write("bias", constraint.bias(state, core.config.max_tokens - number - 1))
        session.decode(1)
    return chosen, logits


@pytest.mark.parametrize("chunk_length", [64, 128])
def test_a_turn_from_the_library_is_the_whole_text_computed_cold(
    make_rig: Callable[..., Rig], chunk_length: int
) -> None:
    rig = make_rig(chunk_length=chunk_length)
    rig.instruct("Something else entirely, so that the lane is dirty.")
    done = rig.instruct("go round the block")
    session = rig.engine.environment(0).session
    warm = session.logits().tobytes(), session.read("recurrent")
    tokens, logits = cold(rig, tokens_of("\ngo round the block\n"), len(done.tokens))
    assert tuple(tokens) == done.tokens
    builder = rig.engine.core.builder
    assert (builder.logits().tobytes(), builder.read("recurrent")) == warm
    assert len(set(logits)) == len(logits)


def test_a_turn_from_another_place_differs(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    first = rig.instruct("go round the block")
    other = rig.instruct("go round the block", capsule="prefix.persona")
    assert other.num_positions < first.num_positions
    assert other.text != first.text


def test_every_plan_parses_and_is_told_in_order(rig: Rig) -> None:
    for text in ("go left", "Über"[1:], "and then, slowly, back to where you were"):
        rig.recorder.events.clear()
        done = rig.instruct(text)
        grammar = rig.engine.core.constraint.grammar
        assert parse_plan(grammar, done.text) == list(done.subgoals)
        told = rig.recorder.details(EventKind.SUBGOAL)
        assert told == [
            f"turn={done.turn} index={index} values={x:.6g} {y:.6g}"
            for index, (x, y) in enumerate(done.subgoals)
        ]
        assert 0 < done.first_token_ns < done.first_subgoal_ns < done.duration_ns


def test_a_plan_without_a_subgoal_is_a_turn_like_any_other(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(may_refuse=True)
    drawn = (rig.instruct("go left", temperature=5.0, seed=seed) for seed in range(100))
    empty = next(done for done in drawn if not done.subgoals)
    assert empty.text == "done"
    assert empty.first_subgoal_ns == 0 < empty.first_token_ns
    assert f"done turn={empty.turn} subgoals=0" in rig.recorder.details(EventKind.TURN)[-1]
    assert not any(
        f"turn={empty.turn} " in detail for detail in rig.recorder.details(EventKind.SUBGOAL)
    )
    after = rig.instruct("go right", mode="append")
    assert rig.capsule(after.capsule_id).parent == empty.capsule_id


def test_a_turn_appends_to_the_one_before_and_descends_from_it(rig: Rig) -> None:
    first = rig.instruct("go left")
    second = rig.instruct("and back", mode="append")
    assert rig.capsule(first.capsule_id).parent == rig.capsule("prefix.map").id
    assert rig.capsule(second.capsule_id).parent == first.capsule_id
    assert second.num_positions == first.num_positions + len("\nand back\n") + len(second.tokens)
    # going back and asking again is the same turn again
    rig.engine.handle(protocol.Rollback(0, 0, 1, ""))
    again = rig.instruct("and back", mode="append")
    assert again.tokens == second.tokens
    assert again.num_positions == second.num_positions


def test_what_was_said_before_counts(rig: Rig) -> None:
    rig.instruct("go left")
    appended = rig.instruct("and back", mode="append")
    alone = rig.instruct("and back")
    assert appended.text != alone.text


def test_environments_take_turns(rig: Rig) -> None:
    alone = [rig.instruct(text, env_index=i) for i, text in enumerate(("go left", "go up"))]
    both = [rig.begin(text, env_index=i) for i, text in enumerate(("go left", "go up"))]
    rig.run(8)
    assert all(
        env.turn is not None and env.turn.num_nodes == 4
        for env in (rig.engine.environment(0), rig.engine.environment(1))
    )
    rig.run()
    assert [answers[0].tokens for answers in both] == [done.tokens for done in alone]


# barge-in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 9])
def test_an_interrupted_turn_goes_on_as_if_nothing_had_been(rig: Rig, num_nodes: int) -> None:
    long = "go round the block, " * 8
    alone = rig.instruct(long)
    interrupted = rig.begin(long)
    assert rig.run(num_nodes) == num_nodes
    short = rig.instruct("stop there")
    assert isinstance(interrupted[0], AbandonedError)
    assert short.tokens == rig.instruct("stop there").tokens
    resumed = rig.ask(protocol.ResumeTurn)
    assert resumed.tokens == alone.tokens
    assert resumed.log_probability == alone.log_probability
    with pytest.raises(NothingToResumeError):
        rig.ask(protocol.ResumeTurn)


def test_a_new_instruction_takes_effect_at_the_next_node(rig: Rig) -> None:
    prefill = -(-len("go round the block, " * 8) // 64)
    rig.begin("go round the block, " * 8)
    rig.run(2)
    answers = rig.begin("stop")
    rig.run(1 + prefill)
    turn = rig.engine.environment(0).turn
    assert turn is not None
    assert turn.num_tokens >= 1, "one chunk, and the first token was chosen with it"
    assert not answers


def test_two_instructions_in_one_tick_leave_the_newest(rig: Rig) -> None:
    first, second = rig.begin("go left"), rig.begin("go right")
    assert isinstance(first[0], AbandonedError)
    rig.run()
    assert second[0].text == rig.instruct("go right").text
    assert rig.engine.environment(0).unfinished == []
    told = rig.recorder.details(EventKind.TURN)
    assert sum("abandoned" in detail and "resumable=0" in detail for detail in told) == 1


def test_a_turn_cancelled_in_the_middle_of_prefill_leaves_the_text_as_it_was(rig: Rig) -> None:
    first = rig.instruct("go left")
    answers = rig.begin("and back, " * 20, mode="append")
    rig.run(1)
    moved = rig.ask(protocol.CancelTurn)
    assert isinstance(answers[0], AbandonedError)
    assert moved.capsule_id == first.capsule_id
    assert moved.depth == 0
    again = rig.instruct("and back", mode="append")
    rig.restore(first.capsule_id)
    assert rig.instruct("and back", mode="append").tokens == again.tokens


def test_a_full_stack_lets_the_oldest_turn_go(rig: Rig) -> None:
    depth = rig.engine.core.config.interrupt_depth
    for number in range(depth + 2):
        rig.begin(f"instruction {number}")
        rig.run(2)
    assert len(rig.engine.environment(0).unfinished) == depth
    assert any("forgotten" in detail for detail in rig.recorder.details(EventKind.TURN))
    numbers = [entry.turn.number for entry in rig.engine.environment(0).unfinished]
    assert numbers == sorted(numbers)


def test_a_caller_that_is_gone_takes_its_turn_along(rig: Rig) -> None:
    answers: list[object] = []
    wait = rig.engine.begin(rig.request("go left"), answers.append)
    rig.run(2)
    rig.engine.cancel(wait)
    assert not rig.engine.has_work
    assert rig.engine.environment(0).turn is None


def test_without_waiting_the_answer_comes_at_once(rig: Rig) -> None:
    answers = rig.begin("go left", wait=False)
    assert isinstance(answers[0], protocol.TurnBegun)
    rig.run()
    assert len(answers) == 1
    assert rig.recorder.details(EventKind.TURN)[-1].startswith(f"done turn={answers[0].turn} ")


# candidates ----------------------------------------------------------------------------------


def test_candidates_are_what_each_seed_gives_alone_and_the_best_is_committed(rig: Rig) -> None:
    seeds = (3, 1, 4, 1)
    alone = [rig.instruct("go left", temperature=2.0, seed=seed) for seed in seeds]
    rig.recorder.events.clear()
    best = rig.instruct("go left", temperature=2.0, seeds=seeds)
    assert [one.text for one in best.candidates] == [done.text for done in alone]
    assert [one.log_probability for one in best.candidates] == [
        done.log_probability for done in alone
    ]
    assert len({one.text for one in best.candidates}) > 1
    scores = [one.score for one in best.candidates]
    chosen = scores.index(max(scores))
    assert best.text == alone[chosen].text
    assert best.seed == seeds[chosen]
    assert len(rig.recorder.details(EventKind.SUBGOAL)) == len(best.subgoals)
    # what follows goes on from the best, whichever was made last
    following = rig.instruct("and back", mode="append")
    rig.instruct("go left", temperature=2.0, seed=best.seed)
    assert rig.instruct("and back", mode="append").tokens == following.tokens


def test_candidates_can_be_interrupted_and_resumed(rig: Rig) -> None:
    seeds = (3, 1, 4)
    alone = rig.instruct("go left", temperature=2.0, seeds=seeds)
    for num_nodes in (1, 20, 40, 60):
        rig.begin("go left", temperature=2.0, seeds=seeds)
        rig.run(num_nodes)
        rig.instruct("something else")
        resumed = rig.ask(protocol.ResumeTurn)
        assert resumed.candidates == alone.candidates
        assert resumed.tokens == alone.tokens


def test_a_scorer_of_the_users_own_decides(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(
        scorers=(
            "short = test.planner.toy_planner:score_by_length",
            "bad = test.planner.toy_planner:score_badly",
            "broken = test.planner.toy_planner:raise_always",
            "leaving = test.planner.toy_planner:leave_always",
        )
    )
    best = rig.instruct("go left", temperature=2.0, seeds=(1, 2, 3, 4), scorer="short")
    assert best.candidates[(1, 2, 3, 4).index(best.seed)].score == max(
        one.score for one in best.candidates
    )
    with pytest.raises(NonFiniteError):
        rig.instruct("go left", scorer="bad")
    with pytest.raises(FlashrtError, match="no idea"):
        rig.instruct("go left", scorer="broken")
    with pytest.raises(FlashrtError, match="had enough"):
        rig.instruct("go left", temperature=2.0, seeds=(1, 2), scorer="leaving")
    with pytest.raises(UnsupportedError, match="short"):
        rig.instruct("go left", scorer="os:system")
    assert rig.instruct("go left", temperature=2.0, seed=best.seed).text == best.text


def test_a_turn_that_waits_for_bytes_lets_the_loop_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no work until something may have been moved; nothing waits for the disk."""
    engine = rig.engine
    turns, mover = engine._turns, engine.core.storage.mover
    start = turns._start
    tried: list[int] = []

    def start_later(env: TextEnvironment, turn: Turn) -> None:
        if env.env_index == 0:
            tried.append(turn.number)
            raise NotYet("its bytes come")
        start(env, turn)

    monkeypatch.setattr(turns, "_start", start_later)
    monkeypatch.setattr(mover, "next_ns", lambda: 0)
    answers = rig.begin("go left")
    beside = rig.begin("go left", env_index=1)
    for num_tries in (1, 2):
        while len(tried) < num_tries:
            engine.advance()
        assert turns.next_env(0) is engine.environment(1), "others go on"
        engine.background(0)
        assert turns.next_env(0) is engine.environment(0)
    while not beside:
        engine.advance()
    assert len(tried) > 3, "looked for again, though the loop has no time for the background"
    monkeypatch.undo()
    rig.run()
    assert answers[0].tokens == beside[0].tokens
