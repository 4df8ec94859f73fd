"""Verbs of an engine that hosts a planner: turns of text and the prefix library."""

from __future__ import annotations

import msgspec


class Instruct(msgspec.Struct, array_like=True, tag=30, frozen=True):
    """Begin a turn of a planner's text → :class:`TurnDone` at its end, if ``wait``.

    Without ``wait`` the answer is :class:`TurnBegun`, at once. ``prompt`` is UTF-8 and may be
    left out for ``tokens``, which then are all that the turn appends; ``context`` is a line
    before it. ``mode`` is "new" (from ``capsule``; "" for the prefix library's end) or "append"
    (after the turn before). ``max_tokens`` 0, ``temperature`` and ``seed`` -1 take the engine's
    own. With ``seeds`` a plan is made with each, and the one of the best score by ``scorer`` is
    committed; before, none is told.

    A turn that is under way is abandoned; it can be resumed.
    """

    rid: int
    env_index: int
    prompt: bytes
    tokens: tuple[int, ...] = ()
    context: bytes = b""
    mode: str = "new"
    capsule: str = ""
    max_tokens: int = 0
    temperature: float = -1.0
    seed: int = -1
    seeds: tuple[int, ...] = ()
    scorer: str = ""
    wait: bool = True


class CancelTurn(msgspec.Struct, array_like=True, tag=31, frozen=True):
    """End the turn under way, for good → :class:`Moved`, back where it began."""

    rid: int
    env_index: int


class ResumeTurn(msgspec.Struct, array_like=True, tag=32, frozen=True):
    """Go on with the last turn that was interrupted → :class:`TurnDone`, as for ``Instruct``."""

    rid: int
    env_index: int
    wait: bool = True


class SetPrefix(msgspec.Struct, array_like=True, tag=33, frozen=True):
    """Replace the text of a prefix; it and those after it are built again → :class:`Ack`.

    The answer comes once they are. Turns that begin at the library's end wait for it.
    """

    rid: int
    name: str
    text: bytes


class CandidateInfo(msgspec.Struct, array_like=True, frozen=True):
    """A plan that was compared: ``log_probability`` at temperature 1, ``score`` by the scorer."""

    seed: int
    text: str
    log_probability: float
    score: float
    num_tokens: int


class TurnBegun(msgspec.Struct, array_like=True, tag=83, frozen=True):
    """A turn begins with the next plan node; ``turn`` numbers it in the engine."""

    rid: int
    turn: int
    generation: int
    num_prompt_tokens: int


class TurnDone(msgspec.Struct, array_like=True, tag=84, frozen=True):
    """A turn that is committed.

    ``subgoals`` are in the order of the plan, m. ``capsule_id`` is the boundary after it,
    ``num_positions`` the tokens of the whole text. ``first_token_ns``, ``first_subgoal_ns``
    and ``duration_ns`` count from the message, ``num_prompt_tokens`` what the turn appended
    before its plan. ``candidates`` is in the order of the seeds asked for.
    """

    rid: int
    turn: int
    env_index: int
    generation: int
    text: str
    tokens: tuple[int, ...]
    subgoals: tuple[tuple[float, ...], ...]
    num_prompt_tokens: int
    num_positions: int
    seed: int
    log_probability: float
    capsule_id: str
    first_token_ns: int
    first_subgoal_ns: int
    duration_ns: int
    candidates: tuple[CandidateInfo, ...] = ()
