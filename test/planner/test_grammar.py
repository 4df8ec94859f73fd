from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.errors import ConfigError, ParameterRangeError, PayloadRangeError
from flashrt_ros.planner.constraint import PlanConstraint
from flashrt_ros.planner.grammar import DONE, START, PlanGrammar, PlanParser, parse_plan
from flashrt_ros.planner.vocabulary import token_pieces
from test.planner.toy_planner import ByteTokenizer

TABLE = PlanGrammar(low=0.0, high=0.512, decimals=3)
PIECES = token_pieces(ByteTokenizer(), 132)


def walk(constraint: PlanConstraint, pieces: list[bytes], choices: list[int], budget: int) -> str:
    """Choose allowed tokens by some numbers, as a model would by its scores."""
    state, text, chosen = START, b"", iter(choices)
    for number in range(budget):
        bias = np.frombuffer(constraint.bias(state, budget - number), np.float32)
        allowed = np.flatnonzero(bias == 0.0)
        assert np.isneginf(np.delete(bias, allowed)).all()
        token = int(allowed[next(chosen, 0) % len(allowed)])
        following = constraint.next_state(state, token)
        assert following is not None
        state, text = following, text + pieces[token]
        if state == DONE:
            return text.decode()
    raise AssertionError(f"no end within {budget} tokens: {text!r}")


@st.composite
def grammars(draw: st.DrawFn) -> PlanGrammar:
    decimals = draw(st.integers(0, 3))
    low = draw(st.integers(-1200, 1200))
    high = draw(st.integers(low, low + 1500))
    scale = 10**decimals
    return PlanGrammar(
        num_coordinates=draw(st.integers(1, 3)),
        low=low / scale,
        high=high / scale,
        decimals=decimals,
        may_be_empty=draw(st.booleans()),
    )


@given(
    grammar=grammars(),
    more=st.lists(st.binary(min_size=1, max_size=8).filter(lambda b: b.isascii()), max_size=12),
    choices=st.lists(st.integers(0, 1 << 20), max_size=80),
    slack=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_chosen_is_a_plan_within_the_budget(
    grammar: PlanGrammar, more: list[bytes], choices: list[int], slack: int
) -> None:
    pieces = [*(bytes([byte]) for byte in range(128)), *more, b"go ", b"; go ", b"; done", b""]
    constraint = PlanConstraint(grammar, pieces)
    text = walk(constraint, pieces, choices, constraint.min_tokens + slack)
    subgoals = parse_plan(grammar, text)
    assert subgoals or grammar.may_be_empty
    for subgoal in subgoals:
        assert len(subgoal) == grammar.num_coordinates
        assert all(grammar.low - 1e-9 <= x <= grammar.high + 1e-9 for x in subgoal)


@given(grammar=grammars(), seed=st.integers(0, 1000), count=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back(grammar: PlanGrammar, seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = list(grammar.numbers())
    subgoals = [
        tuple(float(generator.choice(numbers)) for _ in range(grammar.num_coordinates))
        for _ in range(count)
    ]
    text = grammar.write(subgoals)
    assert parse_plan(grammar, text) == subgoals
    state, constraint = START, PlanConstraint(grammar, [bytes([byte]) for byte in range(128)])
    for byte in text.encode():
        following = constraint.next_state(state, byte)
        assert following is not None, text
        state = following
    assert state == DONE


def test_a_parser_tells_each_subgoal_once_it_is_complete() -> None:
    parser = PlanParser(TABLE)
    pieces = ("go 0.1", "00 0.200", ";", " go 0.300 0", ".4")
    assert [parser.feed(piece) for piece in pieces] == [[], [], [], [(0.1, 0.2)], []]
    assert parser.feed("00; done") == [(0.3, 0.4)]
    assert parser.is_done


@pytest.mark.parametrize(
    "text",
    [
        "",
        "done",
        "go 0.1 0.2; done",
        "go 0.100 0.200; ",
        "go 0.100 0.600; done",
        "go 0.100; done",
        "go 0.100 0.200 0.300; done",
        "go 0.100 -0.100; done",
        "go 00.100 0.200; done",
        "go 0.100 0.200; done; done",
        " go 0.100 0.200; done",
        "go nan 0.200; done",
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PayloadRangeError, match="no plan"):
        parse_plan(TABLE, text)


def test_a_zero_has_no_sign() -> None:
    grammar = PlanGrammar(low=-0.1, high=0.1, decimals=1)
    assert list(grammar.numbers()) == ["-0.1", "0.0", "0.1"]
    assert grammar.write([(-0.04, 0.0)]) == "go 0.0 0.0; done"


@pytest.mark.parametrize(
    "changes",
    [
        {"low": 0.6},
        {"low": 0.5001, "high": 0.5009, "decimals": 3},
        {"decimals": 6, "low": -1.0, "high": 1.0},
        {"decimals": 7},
        {"high": math.inf},
        {"low": math.nan},
        {"num_coordinates": 0},
    ],
)
def test_a_range_that_can_not_be_written_is_refused(changes: dict[str, float]) -> None:
    given_ = {"low": 0.0, "high": 0.512, "decimals": 3, **changes}
    with pytest.raises(ConfigError):
        PlanGrammar(**given_)  # type: ignore[arg-type]


def test_the_shortest_plan_is_counted_in_tokens() -> None:
    assert PlanConstraint(TABLE, [bytes([byte]) for byte in range(128)]).min_tokens == 20
    constraint = PlanConstraint(TABLE, PIECES)
    assert constraint.min_tokens == len(ByteTokenizer().encode("go 0.100 0.100; done"))
    with pytest.raises(ParameterRangeError, match="14 or more"):
        constraint.check_budget(constraint.min_tokens - 1)


def test_an_empty_plan_is_only_one_where_it_may_be() -> None:
    grammar = PlanGrammar(low=0.0, high=0.512, decimals=3, may_be_empty=True)
    assert parse_plan(grammar, "done") == []
    assert parse_plan(grammar, "go 0.100 0.200; done") == [(0.1, 0.2)]
    assert grammar.write([]) == "done"
    for text in ("", "don", "done; ", "done done"):
        with pytest.raises(PayloadRangeError, match="no plan"):
            parse_plan(grammar, text)
    for may_be_empty in (True, False):
        grammar = PlanGrammar(low=0.0, high=0.512, decimals=3, may_be_empty=may_be_empty)
        constraint = PlanConstraint(grammar, PIECES)
        following = constraint.next_state(START, 128 + ByteTokenizer.MORE.index("done"))
        assert following == (DONE if may_be_empty else None)


def test_too_few_tokens_do_not_become_an_empty_plan() -> None:
    grammar = PlanGrammar(low=0.0, high=0.512, decimals=3, may_be_empty=True)
    constraint = PlanConstraint(grammar, PIECES)
    assert constraint.min_tokens == PlanConstraint(TABLE, PIECES).min_tokens
    with pytest.raises(ParameterRangeError, match="14 or more"):
        constraint.check_budget(constraint.min_tokens - 1)


def test_a_vocabulary_that_spells_only_the_empty_plan_is_refused() -> None:
    grammar = PlanGrammar(low=0.0, high=0.512, decimals=3, may_be_empty=True)
    without = [b"" if piece.startswith(b"g") else piece for piece in PIECES]
    with pytest.raises(ConfigError, match="can't write a plan"):
        PlanConstraint(grammar, without)


def test_a_vocabulary_that_can_not_spell_a_plan_is_refused() -> None:
    without = [b"" if piece in (b"d", b"done") else piece for piece in PIECES]
    with pytest.raises(ConfigError, match="can't write a plan"):
        PlanConstraint(TABLE, without)


def test_what_tokens_spell_leaves_out_controls_and_parts_of_characters() -> None:
    assert PIECES[ByteTokenizer.CONTROL] == b""
    assert PIECES[ord("g")] == b"g"
    assert PIECES[128] == b"go "


class Halves(ByteTokenizer):
    """A tokenizer whose token 7 is half a character, and which lacks the last token."""

    def _piece(self, token: int) -> str:
        return "\ufffd" if token == 7 else super()._piece(token)


def test_a_token_that_the_tokenizer_lacks_spells_nothing() -> None:
    pieces = token_pieces(Halves(), 140)
    assert pieces[7] == b""
    assert pieces[132:] == [b""] * 8
