"""Which tokens may come next, so that what a model writes is always a plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from flashrt_ros.errors import ConfigError, ParameterRangeError
from flashrt_ros.planner.grammar import DONE, START, PlanGrammar, automaton

_KEPT_BIASES = 64
_SUBGOAL = b"go "  # what a plan that has a subgoal begins with


class _Branch:
    """A node of the tree of all tokens' bytes."""

    __slots__ = ("branches", "tokens")

    def __init__(self) -> None:
        self.branches: dict[int, _Branch] = {}
        self.tokens: list[int] = []


class PlanConstraint:
    """A plan's grammar over a vocabulary: states, and the tokens that lead from each.

    A token may hold several steps of the grammar, or a part of one. Tokens from which no
    plan can be completed are left out, and those too from which none can within the
    tokens that are left.

    Args:
        grammar: Of plans.
        pieces: What each token adds to a text, by id; empty for those never to be chosen.

    Raises:
        ConfigError: The tokens can't spell a plan.
    """

    def __init__(self, grammar: PlanGrammar, pieces: Sequence[bytes]) -> None:
        self.grammar = grammar
        self._vocab_size = len(pieces)
        self._steps = _token_steps(automaton(grammar), pieces)
        self._distances = _distances(self._steps)
        self._min_tokens = self._shortest_with_subgoal(pieces)
        if not self._min_tokens:
            raise ConfigError(
                "the tokenizer can't write a plan",
                expected=f"tokens for {grammar.write([(grammar.high,) * grammar.num_coordinates])}",
                fix="use a tokenizer with the letters, digits and signs of it",
            )
        for state, steps in self._steps.items():
            self._steps[state] = {t: n for t, n in steps.items() if n in self._distances}
        self._longest = {
            state: max((self._distances[n] for n in steps.values()), default=0)
            for state, steps in self._steps.items()
        }
        self._bias = lru_cache(_KEPT_BIASES)(self._make_bias)

    @property
    def min_tokens(self) -> int:
        """Tokens of the shortest plan that has a subgoal."""
        return self._min_tokens

    def check_budget(self, max_tokens: int) -> None:
        """Refuse a number of tokens that no subgoal fits in.

        Too few must not become the plan that says an instruction can't be followed.

        Raises:
            ParameterRangeError: It is too small; says what the shortest plan takes.
        """
        if max_tokens < self.min_tokens:
            raise ParameterRangeError(
                "no plan fits in this many tokens",
                expected=f"max_tokens of {self.min_tokens} or more",
                found=max_tokens,
            )

    def _shortest_with_subgoal(self, pieces: Sequence[bytes]) -> int:
        """Return its tokens, 0 where there is none."""
        return min(
            (
                1 + self._distances[following]
                for token, following in self._steps[START].items()
                if pieces[token].startswith(_SUBGOAL[:1]) and following in self._distances
            ),
            default=0,
        )

    def next_state(self, state: int, token: int) -> int | None:
        """Return the state after a token; None if no plan goes on with it."""
        return self._steps[state].get(token)

    def bias(self, state: int, remaining: int) -> bytes:
        """Return what is added to the logits before a token is chosen.

        Args:
            state: After the tokens chosen so far.
            remaining: Tokens that may still be chosen, this one among them; at least
                what the shortest way to the end takes.

        Returns:
            ``float32[V]``: 0 for a token that may be chosen, -inf for the others.
        """
        return self._bias(state, min(remaining, self._longest[state] + 1))

    def _make_bias(self, state: int, remaining: int) -> bytes:
        if state == DONE:
            return bytes(4 * self._vocab_size)
        bias = np.full(self._vocab_size, -np.inf, np.float32)
        steps = self._steps[state].items()
        bias[[t for t, n in steps if self._distances[n] < remaining]] = 0.0
        return bias.tobytes()


def _token_steps(
    states: list[dict[int, int]], pieces: Sequence[bytes]
) -> dict[int, dict[int, int]]:
    """Follow every token from every state that tokens reach."""
    root = _Branch()
    for token, piece in enumerate(pieces):
        branch = root
        for byte in piece:
            branch = branch.branches.setdefault(byte, _Branch())
        if piece:
            branch.tokens.append(token)
    steps: dict[int, dict[int, int]] = {}
    waiting = [START]
    while waiting:
        state = waiting.pop()
        if state in steps:
            continue
        found: dict[int, int] = {}
        open_ends = [(state, root)]
        while open_ends:
            here, branch = open_ends.pop()
            found.update(dict.fromkeys(branch.tokens, here))
            for byte, following in states[here].items():
                if byte in branch.branches:
                    open_ends.append((following, branch.branches[byte]))
        steps[state] = found
        waiting += found.values()
    return steps


def _distances(steps: dict[int, dict[int, int]]) -> dict[int, int]:
    """Return the fewest tokens to the end, for every state from which it is reached."""
    before: dict[int, set[int]] = {}
    for state, found in steps.items():
        for following in found.values():
            before.setdefault(following, set()).add(state)
    distances = {DONE: 0} if DONE in steps else {}
    waiting = deque(distances)
    while waiting:
        state = waiting.popleft()
        for earlier in before.get(state, ()):
            if earlier not in distances:
                distances[earlier] = distances[state] + 1
                waiting.append(earlier)
    return distances
