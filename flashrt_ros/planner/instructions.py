"""From a request to what a turn shall be; judges everything, changes nothing."""

from __future__ import annotations

from dataclasses import replace

from flashrt_ros.engine import protocol
from flashrt_ros.engine.core import check_seed
from flashrt_ros.errors import (
    ParameterRangeError,
    PayloadShapeError,
    PayloadTypeError,
    SpecError,
)
from flashrt_ros.models.hybrid_tokens import checked_tokens
from flashrt_ros.planner.core import PlannerCore
from flashrt_ros.planner.reading import bare_words, check_numbers
from flashrt_ros.planner.scorers import find_scorer
from flashrt_ros.planner.turn import TurnSpec
from flashrt_ros.planner.vocabulary import check_length

_REPLACED = "\ufffd"
"""What ROS makes of bytes that are no UTF-8; nobody says it."""

MODES = ("new", "append")
"""From a prefix or named capsule, or after the turn before."""


def read_instruction(
    core: PlannerCore, request: protocol.Instruct, *, default_seed: int, num_before: int
) -> TurnSpec:
    """Return what a turn shall be.

    Args:
        core: The engine's parts.
        request: As it came.
        default_seed: Where it names none.
        num_before: Tokens of the text that it goes on from.

    Raises:
        PayloadShapeError: No text, or more than the arena has room for: says both figures.
        PayloadTypeError: No UTF-8.
        PayloadRangeError: A part or token that the tokenizer or model lacks, a seed out of
            range, or a point out of the range of subgoals.
        ParameterRangeError: No plan fits in ``max_tokens``, or no token can be drawn at
            the temperature.
        SpecError: The request contradicts itself.
        UnsupportedError: No scorer of this name, or a length that belongs to no point.
    """
    config = core.config
    if request.mode not in MODES:
        raise SpecError(
            "a turn can't begin so", expected=" or ".join(MODES), found=repr(request.mode)
        )
    max_tokens = request.max_tokens or config.max_tokens
    core.constraint.check_budget(max_tokens)
    temperature = config.temperature if request.temperature == -1.0 else request.temperature
    if not 0.0 <= temperature < float("inf"):
        raise ParameterRangeError(
            "tokens can't be drawn at this temperature",
            expected="a finite number, 0 or above",
            found=temperature,
        )
    seeds = _seeds(core, request, default_seed, temperature)
    line = _instruction(core, request)
    tokens = _text_tokens(core, line, request.context) if line else _plain_tokens(core, request)
    spec = TurnSpec(
        tokens=tuple(tokens),
        max_tokens=max_tokens,
        temperature=temperature,
        seeds=seeds,
        scorer=find_scorer(core.scorers, request.scorer),
    )
    check_room(core, spec, num_before=num_before)
    if line and core.habits.checks_numbers:
        return replace(spec, points=check_numbers(line, core.constraint.grammar))
    return spec


def check_room(core: PlannerCore, spec: TurnSpec, *, num_before: int) -> None:
    """Refuse a turn that does not fit in the arena after a text.

    Args:
        core: The engine's parts.
        spec: Of the turn.
        num_before: Tokens of the text that it goes on from.

    Raises:
        PayloadShapeError: It does not: says both figures.
    """
    total = num_before + len(spec.tokens) + spec.max_tokens
    if total > core.model.max_positions:
        raise PayloadShapeError(
            f"a prompt of {len(spec.tokens)} tokens does not fit after {num_before}, with "
            f"{spec.max_tokens} for its plan",
            expected=f"at most {core.model.max_positions} tokens in the arena",
            found=total,
            fix="shorten it, begin anew, or raise max_positions",
        )


def _seeds(
    core: PlannerCore, request: protocol.Instruct, default_seed: int, temperature: float
) -> tuple[int, ...]:
    if request.seeds and request.seed != -1:
        raise SpecError("a turn has a seed and seeds", expected="one of them")
    seeds = request.seeds or (default_seed if request.seed == -1 else request.seed,)
    for seed in seeds:
        check_seed(seed)
    if len(seeds) > core.config.max_candidates:
        raise SpecError(
            "a turn compares too many plans",
            expected=f"at most {core.config.max_candidates}",
            found=len(seeds),
            fix="ask for fewer, or raise max_candidates",
        )
    if len(set(seeds)) > 1 and not temperature:
        raise SpecError(
            "plans can't differ without chance",
            expected="a temperature above 0",
            found=f"{len(seeds)} seeds at temperature 0",
        )
    return seeds


def _instruction(core: PlannerCore, request: protocol.Instruct) -> str:
    """Return an instruction as one line, in the words that the model knows; "" for tokens."""
    check_length("an instruction", request.prompt + request.context, core.model.max_positions)
    if request.tokens:
        if request.prompt or request.context:
            raise SpecError("a turn has tokens and text", expected="one of them")
        return ""
    line = _line(request.prompt)
    if not line:
        raise PayloadShapeError("an instruction is empty", expected="words")
    return core.habits.synonyms.get(bare_words(line), line)


def _plain_tokens(core: PlannerCore, request: protocol.Instruct) -> list[int]:
    return checked_tokens(request.tokens, core.model.config.vocab_size)


def _text_tokens(core: PlannerCore, line: str, given: bytes) -> list[int]:
    context = _line(given)
    body = f"{context}\n{line}" if context else line
    config, encode = core.config, core.tokenizer.encode
    if not config.has_control_tokens:
        return encode(config.turn_begin + body + config.turn_end)
    parts = (config.turn_begin, True), (body, False), (config.turn_end, True)
    return [
        token for text, is_own in parts if text for token in encode(text, has_control_tokens=is_own)
    ]


def _line(data: bytes) -> str:
    """Return a text as one line: a line break would end an instruction."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PayloadTypeError(
            "an instruction is no text", expected="valid UTF-8", found=error
        ) from error
    if _REPLACED in text:
        raise PayloadTypeError(
            "an instruction is no text",
            expected="valid UTF-8",
            found=f"what stands for bytes that were none, at character {text.index(_REPLACED)}",
        )
    return " ".join(text.split())
