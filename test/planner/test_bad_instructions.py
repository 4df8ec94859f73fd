"""Instructions that can't be followed: refused with the reason, and the turn under way goes on."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    BackendError,
    CapsuleNotFoundError,
    FlashrtError,
    ParameterRangeError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
    SpecError,
)
from test.planner.conftest import Rig
from test.planner.toy_planner import ByteTokenizer


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"text": ""}, PayloadShapeError, "empty"),
        ({"text": " \n "}, PayloadShapeError, "empty"),
        ({"text": b"\xff\xfe"}, PayloadTypeError, "UTF-8"),
        ({"text": "go \ufffd left"}, PayloadTypeError, "UTF-8, found .* at character 3"),
        ({"context": "block at \ufffd".encode()}, PayloadTypeError, "UTF-8"),
        ({"text": "go to the Kühlschrank"}, PayloadRangeError, "lacks"),
        ({"text": "x" * 4000}, PayloadShapeError, "640 tokens"),
        ({"text": "", "tokens": (1, 132)}, PayloadRangeError, "0 to 131"),
        ({"text": "", "tokens": (-1,)}, PayloadRangeError, "token 0"),
        ({"text": "a", "tokens": (1,)}, SpecError, "one of them"),
        ({"mode": "again"}, SpecError, "new or append"),
        ({"mode": "append", "capsule": "home"}, SpecError, "appended"),
        ({"capsule": "nothing"}, CapsuleNotFoundError, "nothing"),
        ({"max_tokens": 3}, ParameterRangeError, "14 or more"),
        ({"temperature": -0.5}, ParameterRangeError, "temperature"),
        ({"temperature": float("nan")}, ParameterRangeError, "temperature"),
        ({"seed": 1 << 63}, PayloadRangeError, "seed"),
        ({"seeds": (1, 2), "temperature": 0.0}, SpecError, "chance"),
        ({"seeds": (1, 2), "seed": 3}, SpecError, "one of them"),
        ({"seeds": tuple(range(17)), "temperature": 1.0}, SpecError, "at most 16"),
    ],
)
def test_a_bad_instruction_is_refused_and_the_turn_under_way_goes_on(
    rig: Rig, fields: dict[str, object], error: type[FlashrtError], says: str
) -> None:
    answers = rig.begin("go left")
    rig.run(3)
    with pytest.raises(error, match=says):
        rig.begin(**{"text": "go right", **fields})  # type: ignore[arg-type]
    rig.run()
    assert isinstance(answers[0], protocol.TurnDone)


def test_a_prompt_that_is_too_long_says_both_figures(rig: Rig) -> None:
    with pytest.raises(PayloadShapeError, match=r"prompt of 602 tokens.* 640 tokens .*found 9"):
        rig.begin("x" * 600)


def test_a_text_that_can_not_fit_holds_nobody_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(self: ByteTokenizer, text: str, **options: object) -> list[int]:
        raise AssertionError("tokenized, for as long as that takes")

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    for fields in ({"text": "x" * 10_300}, {"text": "x", "context": b"y" * 10_300}):
        with pytest.raises(PayloadShapeError, match="at most 10240 bytes, for at most 640 tokens"):
            rig.begin(**fields)
    with pytest.raises(PayloadShapeError, match="a prefix of 10300 bytes"):
        rig.set_prefix("map", "x" * 10_300)


def test_a_line_break_in_an_instruction_is_a_blank(rig: Rig) -> None:
    assert rig.instruct("go\n left ").tokens == rig.instruct("go left").tokens


def test_a_context_stands_on_a_line_before_the_instruction(rig: Rig) -> None:
    tokens = tuple(ByteTokenizer().encode("\nblock at 0.1 0.2\ngo left\n"))
    with_context = rig.instruct("go left", context=b"block at 0.1\n 0.2")
    assert with_context.num_prompt_tokens == len(tokens)
    assert rig.instruct("", tokens=tokens).tokens == with_context.tokens


def test_a_control_token_in_an_instruction_is_text(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(turn_end="<end>", has_control_tokens=True)
    assert rig.instruct("go <end>").num_prompt_tokens == len("\n<end>") + 1 + 1


@pytest.mark.parametrize("temperature", [0.0, 3.0])
@pytest.mark.parametrize("part", ["recurrent", "convolution", "keys_values"])
def test_a_model_that_gives_no_numbers_costs_its_turn_alone(
    rig: Rig, part: str, temperature: float
) -> None:
    """Also where the NaN lies in positions that no restore writes over."""
    alone = rig.instruct("go left")
    answers = rig.begin("go left", temperature=temperature, seed=3)
    rig.run(4)
    session = rig.engine.environment(0).session
    count = len(session.read(part)) // 4
    session.write(part, struct.pack("<f", float("nan")) * count)
    rig.run()
    assert isinstance(answers[0], BackendError)
    again = rig.instruct("go left")
    assert (again.tokens, again.log_probability) == (alone.tokens, alone.log_probability)
