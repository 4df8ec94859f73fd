"""What judges plans: the model's own probability, or functions that the configuration names."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from flashrt_ros.errors import ConfigError, NonFiniteError, UnsupportedError
from flashrt_ros.planner.grammar import Subgoal

LOG_PROBABILITY = "log_probability"
"""Scorer that every engine has: the sum over the plan's tokens, at temperature 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan, as a scorer is given it.

    Attributes:
        text: As it was written.
        subgoals: In order, m.
        tokens: Of the text.
        log_probability: Sum over the tokens, at temperature 1 and among those allowed.
        seed: It was drawn with.
    """

    text: str
    subgoals: tuple[Subgoal, ...]
    tokens: tuple[int, ...]
    log_probability: float
    seed: int


Scorer = Callable[[Plan], float]
"""Judges a plan, higher is better."""


def load_scorers(entries: Mapping[str, str]) -> dict[str, Scorer]:
    """Import the functions that a configuration names.

    A request names one of these: what a client says is never imported.

    Args:
        entries: ``module:function`` by name, as entry points are written:
            ``module:Class.method`` is fine.

    Raises:
        ConfigError: One can't be imported, or is no function.
    """
    scorers: dict[str, Scorer] = {LOG_PROBABILITY: lambda plan: plan.log_probability}
    for name, target in entries.items():
        module, _, function = target.partition(":")
        try:
            scorer = attrgetter(function)(importlib.import_module(module))
        except Exception as error:  # whatever the user's own module does when it is imported
            raise ConfigError(
                f"scorer '{name}' can't be imported", expected=target, found=repr(error)
            ) from error
        if not callable(scorer):
            raise ConfigError(f"scorer '{name}' is no function", found=repr(scorer))
        scorers[name] = scorer
    return scorers


def find_scorer(scorers: Mapping[str, Scorer], name: str) -> Scorer:
    """Return a scorer by name; "" for :data:`LOG_PROBABILITY`.

    Raises:
        UnsupportedError: There is none of this name.
    """
    try:
        return scorers[name or LOG_PROBABILITY]
    except KeyError:
        raise UnsupportedError(
            f"the planner engine has no scorer '{name}'",
            expected=", ".join(sorted(scorers)),
            fix="name it in the engine parameter 'scorers'",
        ) from None


def judge(scorer: Scorer, plan: Plan) -> float:
    """Score a plan.

    Raises:
        NonFiniteError: The score is no finite number.
        Exception: What a scorer of the user's own raises.
    """
    score = float(scorer(plan))
    if not math.isfinite(score):
        raise NonFiniteError("a plan's score is not finite", found=f"{score} for {plan.text!r}")
    return score
