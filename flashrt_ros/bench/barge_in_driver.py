"""Interrupts the turns of an embedded planner engine at given moments, and times the next ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flashrt_ros.bench.barge_in_stand import LONG_PLAN, SHORT_PLAN, START, Texts
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind, OutputKind, Provenance
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.hybrid_lm import RECURRENT
from flashrt_ros.planner.engine import PlannerEngine

ANSWER_S = 120.0
"""Longest wait for a turn."""

_PREFILL = ("begin", "prefill")
_SEEDS = range(12)
_LONG_ENOUGH = 48
"""Tokens: three subgoals."""

Written = tuple[tuple[int, ...], float]
"""Tokens of a plan, and their log-probability, which tells texts apart that chose alike."""

Answers = list[protocol.Reply | FlashrtError]


@dataclass(frozen=True, slots=True)
class Way:
    """How a new instruction comes to run.

    Attributes:
        name: For people.
        waits: The turn under way is left to end first.
        is_cold: The prefix is computed again, in place of a restore.
    """

    name: str
    waits: bool = False
    is_cold: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """What one new instruction took, from its arrival on, ns of the bench's clock.

    Attributes:
        is_in_prefill: Whether it came while the turn before took its instruction in.
        first_token: Until its first token was on the host.
        own_first_token: The same as the engine says it: from when it got to the message.
        first_token_by_wall: As ``first_token``, by the wall clock.
        first_subgoal: Until its first subgoal was told.
        whole: Until its plan was answered.
    """

    is_in_prefill: bool
    first_token: int
    own_first_token: int
    first_token_by_wall: int
    first_subgoal: int
    whole: int


class Told:
    """A sink that notes when the first subgoal since :meth:`forget` was told.

    Args:
        clock_ns: Of the bench.

    Attributes:
        first_ns: When; 0 for not yet.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.first_ns = 0

    def forget(self) -> None:
        """Wait for the next one."""
        self.first_ns = 0

    def output(self, kind: OutputKind, provenance: Provenance, index: int, payload: bytes) -> None:
        """Do nothing: a planner engine has no outputs."""

    def event(self, event: protocol.Event) -> None:
        """Look whether it is a subgoal."""
        if event.kind == EventKind.SUBGOAL and not self.first_ns:
            self.first_ns = self._clock_ns()


class Driver:
    """Has turns begun, interrupted and resumed, on this thread.

    Nothing is under way between two calls.

    Args:
        engine: With its prefix in place; the sink is the driver's from now on.
        texts: What it is told.
        clock_ns: The engine's clock too.
        seed: Of the long turn's plan, which is sampled: see :meth:`find_seed`.
    """

    def __init__(
        self,
        engine: PlannerEngine,
        texts: Texts,
        clock_ns: Callable[[], int],
        *,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._texts = texts
        self._clock_ns = clock_ns
        self._told = engine.sink = Told(clock_ns)
        self._seed = seed
        self._expires_s = 0.0

    # turns alone ---------------------------------------------------------------------------

    def find_seed(self) -> int:
        """Look for a seed whose long turn is long in its decode too, and take it from now on.

        Where a plan ends is left to weights that are random.

        Returns:
            The seed.
        """
        lengths: dict[int, int] = {}
        for seed in _SEEDS:
            self._seed = seed
            lengths[seed] = len(self.long_alone()[0][0])
            if lengths[seed] >= _LONG_ENOUGH:
                break
        self._seed = max(lengths, key=lambda seed: lengths[seed])
        return self._seed

    def long_alone(self) -> tuple[Written, protocol.TurnDone]:
        """Run the long turn to its end; returns its plan, and its times."""
        done = self._finish(self._begin(self._long()))
        return _written(done), done

    def short_alone(self) -> Written:
        """Run the short turn to its end."""
        return _written(self._finish(self._begin(self._short(is_cold=False))))

    def cold_alone(self) -> Written:
        """Run the short turn to its end, its prefix computed again."""
        return _written(self._finish(self._begin(self._short(is_cold=True))))

    # turns interrupted ---------------------------------------------------------------------

    def interrupted(self, num_nodes: int, *, is_damaged: bool = False) -> tuple[Written, Written]:
        """Interrupt the long turn after some nodes, the last of which may be under way.

        Args:
            num_nodes: Nodes to submit before; fewer than the turn has.
            is_damaged: Take the recurrent state away, from the new turn after its first
                token, and from the old one when it is resumed.

        Returns:
            What the short turn wrote, and what the long one wrote once it was resumed.
        """
        engine = self._engine
        env = engine.environment(0)
        self._begin(self._long())
        while (turn := env.turn) is not None and turn.num_nodes < num_nodes:
            self._step()
        answers = self._begin(self._short(is_cold=False))
        if is_damaged:
            while (turn := env.turn) is not None and not turn.first_token_ns:
                self._step()
            self._damage()
        short = _written(self._finish(answers))
        answers = self._begin(protocol.ResumeTurn(0, 0))
        if is_damaged:
            self._damage()
        return short, _written(self._finish(answers))

    def sample(self, way: Way, arrival_ns: float, expected: Written) -> Times | None:
        """Have the short instruction come while the long turn runs, and time it.

        It comes at a moment, whatever the engine does then; if that is a node that this
        thread computes itself, the message waits for its end, and that counts.

        Args:
            way: What happens then.
            arrival_ns: When it comes, from the beginning of the long turn.
            expected: What it writes.

        Returns:
            Times; None where the long turn had ended before.

        Raises:
            WrongResultError: It wrote something else.
            BenchError: It did not come to an end.
        """
        engine, clock_ns = self._engine, self._clock_ns
        running = self._begin(self._long())
        arrival_ns = round(arrival_ns) + clock_ns()
        kind, now_ns, now_wall_ns = "begin", clock_ns(), time.monotonic_ns()
        last_ns, last_wall_ns = now_ns, now_wall_ns
        while now_ns < arrival_ns and not running:
            kind = engine.next_node or kind
            self._step()
            last_ns, last_wall_ns = now_ns, now_wall_ns
            now_ns, now_wall_ns = clock_ns(), time.monotonic_ns()
        if running:
            _require_done(running)
            return None
        # What else ran on the processor since counts for the wall clock, before the arrival too.
        arrival_wall_ns = last_wall_ns + arrival_ns - last_ns
        if way.waits:
            self._finish(running)
        self._told.forget()
        answers = self._begin(self._short(is_cold=way.is_cold))
        turn = engine.environment(0).turn
        assert turn is not None
        while not turn.first_token_ns and not answers:
            self._step()
        first_ns, first_wall_ns = clock_ns(), time.monotonic_ns()
        done = self._finish(answers)
        whole_ns = clock_ns()
        if _written(done) != expected:
            raise WrongResultError(f"a turn wrote something else ({way.name})")
        return Times(
            is_in_prefill=kind in _PREFILL,
            first_token=first_ns - arrival_ns,
            own_first_token=done.first_token_ns,
            first_token_by_wall=first_wall_ns - arrival_wall_ns,
            first_subgoal=self._told.first_ns - arrival_ns,
            whole=whole_ns - arrival_ns,
        )

    # the engine's loop ---------------------------------------------------------------------

    def _long(self) -> protocol.Instruct:
        prompt, seed = self._texts.long, self._seed
        return protocol.Instruct(0, 0, prompt, max_tokens=LONG_PLAN, temperature=1.0, seed=seed)

    def _short(self, *, is_cold: bool) -> protocol.Instruct:
        if is_cold:
            tokens = self._texts.cold
            return protocol.Instruct(0, 0, b"", tokens, capsule=START, max_tokens=SHORT_PLAN)
        return protocol.Instruct(0, 0, self._texts.short, max_tokens=SHORT_PLAN)

    def _begin(self, request: protocol.Instruct | protocol.ResumeTurn) -> Answers:
        """Hand a message over; what answers it goes to the list."""
        answers: Answers = []
        self._expires_s = time.monotonic() + ANSWER_S
        self._engine.begin(request, answers.append)
        return answers

    def _step(self) -> None:
        """Take in what is done and submit what is next, as a server's loop does; never wait."""
        if time.monotonic() > self._expires_s:
            raise BenchError(f"a turn did not end within {ANSWER_S:g} s")
        self._engine.advance()

    def _finish(self, answers: Answers) -> protocol.TurnDone:
        while not answers:
            self._step()
        return _require_done(answers)

    def _damage(self) -> None:
        """Take the recurrent state away; no node is under way."""
        session = self._engine.environment(0).session
        session.write(RECURRENT, bytes(session.layout.by_name[RECURRENT].spec.num_bytes))


def _require_done(answers: Answers) -> protocol.TurnDone:
    answer = answers[0]
    if isinstance(answer, FlashrtError):
        raise answer
    assert isinstance(answer, protocol.TurnDone)
    return answer


def _written(done: protocol.TurnDone) -> Written:
    return done.tokens, done.log_probability
