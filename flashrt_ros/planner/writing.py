"""A plan while it is written, one token at a time."""

from __future__ import annotations

import math

from flashrt_ros.errors import BackendError
from flashrt_ros.planner.constraint import PlanConstraint
from flashrt_ros.planner.grammar import DONE, START, PlanParser, Subgoal
from flashrt_ros.planner.scorers import Plan


class Writing:
    """What was chosen of a plan so far, and what may come next.

    Args:
        constraint: Of plans.
        pieces: What each token spells, by id.
        max_tokens: Most tokens of the plan.
        seed: It is drawn with.
    """

    def __init__(
        self, constraint: PlanConstraint, pieces: list[bytes], *, max_tokens: int, seed: int
    ) -> None:
        self.seed = seed
        self.tokens: list[int] = []
        self.subgoals: list[Subgoal] = []
        self.log_probability = 0.0
        self._constraint = constraint
        self._pieces = pieces
        self._max_tokens = max_tokens
        self._state = START
        self._parser = PlanParser(constraint.grammar)

    @property
    def is_whole(self) -> bool:
        """Whether the plan is complete."""
        return self._state == DONE

    @property
    def text(self) -> str:
        """What was written."""
        return self._parser.text

    def bias(self) -> bytes:
        """Return what is added to the logits of the next token; nothing after the end."""
        return self._constraint.bias(self._state, self._max_tokens - len(self.tokens))

    def take(self, token: int, log_probability: float) -> list[Subgoal]:
        """Note a token that was chosen; return the subgoals that it completes.

        Raises:
            BackendError: The model's scores are not numbers.
        """
        state = self._constraint.next_state(self._state, token)
        # With NaN among the scores any token may come out as the best, also one that is allowed.
        if state is None or not math.isfinite(log_probability):
            raise BackendError(
                "the model chose no token of a plan",
                expected="finite logits",
                found=f"token {token} of log-probability {log_probability:g} after {self.text!r}",
            )
        self._state = state
        self.tokens.append(token)
        self.log_probability += log_probability
        # A plan is ASCII, so that a token is never a part of a character.
        found = self._parser.feed(self._pieces[token].decode())
        self.subgoals += found
        return found

    def plan(self) -> Plan:
        """Return the whole plan."""
        return Plan(
            text=self.text,
            subgoals=tuple(self.subgoals),
            tokens=tuple(self.tokens),
            log_probability=self.log_probability,
            seed=self.seed,
        )
