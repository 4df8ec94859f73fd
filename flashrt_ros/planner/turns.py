"""Turns under way: begun, interrupted, resumed, committed."""

from __future__ import annotations

import logging

from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.waits import Done
from flashrt_ros.errors import (
    AbandonedError,
    BackendError,
    DeviceLostError,
    FlashrtError,
    NothingToResumeError,
    SpecError,
)
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.core import PlannerCore, TextEnvironment, Unfinished
from flashrt_ros.planner.grammar import Subgoal
from flashrt_ros.planner.instructions import check_room, read_instruction
from flashrt_ros.planner.prefixes import PrefixLibrary
from flashrt_ros.planner.tails import tail_of
from flashrt_ros.planner.turn import Turn
from flashrt_ros.planner.writing import Writing

logger = logging.getLogger(__name__)

_MOST_TOLD = 400  # characters of an error in an event; a scorer's own may have any length


class Turns:
    """What happens to the turn of each environment.

    Args:
        core: The engine's parts.
        boundaries: Makes and loads capsules.
        prefixes: Where new texts begin.
    """

    def __init__(self, core: PlannerCore, boundaries: Boundaries, prefixes: PrefixLibrary) -> None:
        self._core = core
        self._boundaries = boundaries
        self._prefixes = prefixes

    # beginning -----------------------------------------------------------------------------

    def instruct(self, env: TextEnvironment, request: protocol.Instruct, done: Done) -> None:
        """Begin a turn; one that is under way is abandoned, and can be resumed.

        Raises:
            FlashrtError: The request was refused; nothing changed.
            NotYet: The capsule that it begins from is being fetched.
        """
        core = self._core
        received_ns = core.clock_ns()
        base, num_before = self._base(env, request)
        spec = read_instruction(
            core,
            request,
            default_seed=core.config.seed + env.env_index if env.seed is None else env.seed,
            num_before=num_before,
        )
        if env.turn is not None:
            if env.turn.num_nodes:
                self._make_room(env)
            self.set_aside(env, "a new instruction")
        env.generation += 1
        core.num_turns += 1
        turn = env.turn = Turn(
            number=core.num_turns,
            spec=spec,
            base=base,
            new_writing=lambda seed: Writing(
                core.constraint, core.pieces, max_tokens=spec.max_tokens, seed=seed
            ),
            done=done if request.wait else None,
            rid=request.rid,
            received_ns=received_ns,
        )
        self._tell(env, turn, "begun", mode=request.mode, prompt_tokens=len(spec.tokens))
        self._begun(env, turn, done, is_waited=request.wait, rid=request.rid)

    def resume(self, env: TextEnvironment, done: Done | None, *, rid: int, is_waited: bool) -> None:
        """Go on with the turn that was interrupted last; one under way ends for good.

        Raises:
            NothingToResumeError: There is none.
        """
        if not env.unfinished:
            raise NothingToResumeError(f"environment {env.env_index} has no unfinished turn")
        unfinished = env.unfinished[-1]
        self._core.store.require_memory(unfinished.capsule)
        self.abandon(env, "another turn was resumed")
        env.unfinished.pop()
        env.generation += 1
        turn = env.turn = unfinished.turn
        turn.done, turn.rid = (done if is_waited else None), rid
        self._boundaries.load(env.session, unfinished.capsule)
        env.is_settled = False
        turn.resume(env.session)
        self._boundaries.sweep()
        self._core.emit(
            EventKind.RESUME,
            env,
            capsule_id=unfinished.capsule.id,
            detail=protocol.format_detail("", turn=turn.number),
        )
        self._tell(env, turn, "resumed", at=turn.phase, tokens=turn.num_tokens)
        if done is not None:
            self._begun(env, turn, done, is_waited=is_waited, rid=rid)

    def _begun(
        self, env: TextEnvironment, turn: Turn, done: Done, *, is_waited: bool, rid: int
    ) -> None:
        if not is_waited:
            num_tokens = len(turn.spec.tokens)
            done(protocol.TurnBegun(rid, turn.number, env.generation, num_tokens))

    def _base(self, env: TextEnvironment, request: protocol.Instruct) -> tuple[str, int]:
        """Return where a turn begins, and how many tokens are there."""
        if request.mode == "append":
            if request.capsule:
                raise SpecError(
                    "a turn can't be appended to a capsule",
                    expected="mode 'new' with a capsule, or 'append' without",
                    found=repr(request.capsule),
                )
            capsule = self._core.store.get(env.base)
        elif request.capsule:
            capsule = self._boundaries.find(env, request.capsule)
        else:
            self._prefixes.check()
            return "", self._prefixes.num_tokens
        self._core.store.require_memory(capsule)
        return capsule.id, capsule.position.num_positions + len(tail_of(capsule.labels))

    # ending early --------------------------------------------------------------------------

    def set_aside(self, env: TextEnvironment, reason: str) -> Unfinished | None:
        """Stack the turn under way, so that it can be resumed; whoever waits is told.

        Returns:
            The entry; None where the turn had not begun to run, and is forgotten.
        """
        turn = env.turn
        assert turn is not None
        if not turn.num_nodes:
            self.abandon(env, reason)
            return None
        capsule = self._boundaries.create(
            env.session,
            turn=env.position.tick,
            parent=turn.base,
            labels=("automatic=interrupt", f"turn={turn.number}"),
            automatic=True,
        )
        env.turn = None
        env.is_settled = False
        unfinished = Unfinished(turn, capsule)
        env.unfinished.append(unfinished)
        self._tell(
            env,
            turn,
            "interrupted",
            capsule_id=capsule.id,
            at=turn.phase,
            tokens=turn.num_tokens,
            resumable=1,
        )
        self._answer_abandoned(env, turn, reason)
        return unfinished

    def abandon(self, env: TextEnvironment, reason: str) -> None:
        """End the turn under way for good, if there is one; the text is as before it."""
        turn = env.turn
        if turn is None:
            return
        env.turn = None
        env.is_settled = env.is_settled and not turn.is_started
        turn.close()
        self._tell(env, turn, "abandoned", at=turn.phase, tokens=turn.num_tokens, resumable=0)
        self._answer_abandoned(env, turn, reason)

    def _answer_abandoned(self, env: TextEnvironment, turn: Turn, reason: str) -> None:
        done, turn.done = turn.done, None
        if done is not None:
            done(
                AbandonedError(
                    f"turn {turn.number} of environment {env.env_index} was abandoned",
                    found=reason,
                )
            )

    def _make_room(self, env: TextEnvironment) -> None:
        """Let go of the oldest interrupted turn where the stack is full.

        An instruction is never refused for turns that nobody came back to.
        """
        if len(env.unfinished) >= self._core.config.interrupt_depth:
            turn = env.unfinished[0].turn
            self._boundaries.drop_unfinished(env, 0)
            self._tell(env, turn, "forgotten")

    # running -------------------------------------------------------------------------------

    def next_env(self, first: int) -> TextEnvironment | None:
        """Return the next environment whose turn can run, from an index on, in a round."""
        environments = self._core.environments
        count = len(environments)
        for offset in range(count):
            env = environments[(first + offset) % count]
            turn = env.turn
            if turn is not None and not turn.waits_for_bytes and not self._waits_for_prefix(turn):
                return env
        return None

    @property
    def are_held_up(self) -> bool:
        """Whether one waits for bytes."""
        turns = (env.turn for env in self._core.environments)
        return any(turn is not None and turn.waits_for_bytes for turn in turns)

    def try_again(self) -> None:
        """Let turns that waited for bytes look for them again."""
        for env in self._core.environments:
            if env.turn is not None:
                env.turn.waits_for_bytes = False

    def submit(self, env: TextEnvironment) -> bool:
        """Submit one node of an environment's turn; what goes wrong ends the turn.

        Returns:
            Whether one was submitted.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        turn = env.turn
        assert turn is not None
        try:
            if not turn.is_started:
                self._start(env, turn)
            turn.submit(env.session)
        except NotYet:
            # What it begins from has moved to disk since it was asked for.
            turn.waits_for_bytes = self._core.storage.mover.next_ns() is not None
            return False
        except DeviceLostError:
            raise
        except FlashrtError as error:
            self._fail(env, turn, error)
            return False
        return True

    def take_in(self, env: TextEnvironment, turn: Turn, submitted_ns: int) -> None:
        """Take in a node that is done; nothing where its turn has left meanwhile.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        if env.turn is not turn:
            return
        try:
            for subgoal in turn.take_in(env.session, self._core.clock_ns):
                self._tell_subgoal(env, turn, subgoal)
            env.stats.note_replay(self._core.clock_ns() - submitted_ns)
            if turn.is_done:
                self._commit(env, turn)
        except DeviceLostError:
            raise
        except FlashrtError as error:
            self._fail(env, turn, error)
        except (Exception, SystemExit) as error:
            # A scorer is the user's; the engine's own state is whole at every node, and a turn's
            # end is not the engine's.
            logger.exception("turn %d failed", turn.number)
            self._fail(env, turn, FlashrtError(f"turn {turn.number} failed: {error!r}"))

    def tell_shortage(self, needs_ns: int, found_ns: int) -> None:
        """Tell of every turn under way that its nodes don't fit in the slack, or do again."""
        for env in self._core.environments:
            env.is_short_of_slack = needs_ns > 0
            if env.turn is None:
                continue
            if not needs_ns:
                self._tell(env, env.turn, "unslowed")
                continue
            needs_us, found_us = needs_ns // 1000, found_ns // 1000
            self._tell(env, env.turn, "slowed", needs_us=needs_us, found_us=found_us)

    def _waits_for_prefix(self, turn: Turn) -> bool:
        return not turn.is_started and not turn.base and self._prefixes.is_building

    def _start(self, env: TextEnvironment, turn: Turn) -> None:
        if not turn.base:
            self._prefixes.check()
            turn.base = self._prefixes.end_id
        if not (env.is_settled and turn.base == env.base):
            capsule = self._core.store.get(turn.base)
            self._core.store.require_memory(capsule)
            self._boundaries.load(env.session, capsule)
        env.is_settled = False
        # A prefix may have grown since the turn was asked for.
        num_before = env.session.position + len(env.session.pending)
        check_room(self._core, turn.spec, num_before=num_before)
        turn.start(env.session)

    def _commit(self, env: TextEnvironment, turn: Turn) -> None:
        now_ns = self._core.clock_ns()
        plan, _ = turn.chosen
        capsule = self._boundaries.commit(env, turn.number, turn.base)
        env.turn = None
        turn.close()
        answer = protocol.TurnDone(
            rid=turn.rid,
            turn=turn.number,
            env_index=env.env_index,
            generation=env.generation,
            text=plan.text,
            tokens=plan.tokens,
            subgoals=plan.subgoals,
            num_prompt_tokens=len(turn.spec.tokens),
            num_positions=capsule.position.num_positions,
            seed=plan.seed,
            log_probability=plan.log_probability,
            capsule_id=capsule.id,
            first_token_ns=turn.first_token_ns - turn.received_ns,
            first_subgoal_ns=turn.first_subgoal_ns - turn.received_ns if plan.subgoals else 0,
            duration_ns=now_ns - turn.received_ns,
            candidates=tuple(
                protocol.CandidateInfo(
                    one.seed, one.text, one.log_probability, score, len(one.tokens)
                )
                for one, score in turn.scored
            )
            if len(turn.scored) > 1
            else (),
        )
        self._tell(
            env,
            turn,
            "done",
            capsule_id=capsule.id,
            duration_ns=answer.duration_ns,
            subgoals=len(plan.subgoals),
            tokens=len(plan.tokens),
            first_token_ns=answer.first_token_ns,
            first_subgoal_ns=answer.first_subgoal_ns,
        )
        done, turn.done = turn.done, None
        if done is not None:
            done(answer)

    def _fail(self, env: TextEnvironment, turn: Turn, error: FlashrtError) -> None:
        env.turn = None
        env.is_settled = False
        turn.close()
        if isinstance(error, BackendError):
            env.session.scrub()
        why = " ".join(str(error).split())[:_MOST_TOLD]
        self._tell(env, turn, "failed", code=error.code, name=error.name, text=why)
        done, turn.done = turn.done, None
        if done is not None:
            done(error)

    # telling -------------------------------------------------------------------------------

    def _tell_subgoal(self, env: TextEnvironment, turn: Turn, subgoal: Subgoal) -> None:
        detail = protocol.format_detail("", turn=turn.number, index=turn.num_told, values=subgoal)
        turn.num_told += 1
        self._core.emit(EventKind.SUBGOAL, env, detail=detail)

    def _tell(
        self,
        env: TextEnvironment,
        turn: Turn,
        word: str,
        *,
        capsule_id: str = "",
        duration_ns: int = 0,
        text: str = "",
        **facts: str | int,
    ) -> None:
        self._core.emit(
            EventKind.TURN,
            env,
            capsule_id=capsule_id,
            duration_ns=duration_ns,
            detail=protocol.format_detail(word, text=text, turn=turn.number, **facts),
        )
