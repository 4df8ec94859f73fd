"""The capsule verbs over texts: validate everything, then move."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.store import is_home
from flashrt_ros.engine import protocol
from flashrt_ros.engine.core import check_seed
from flashrt_ros.engine.describe import capsule_info
from flashrt_ros.engine.moves import own_home
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.timeline import EpisodeReset
from flashrt_ros.errors import (
    BoundaryError,
    CapsulePinnedError,
    InterruptDepthError,
    NoBoundaryError,
    NotActiveError,
    SpecError,
    UnsupportedError,
)
from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.core import PlannerCore, TextEnvironment
from flashrt_ros.planner.tails import check_own_labels, tail_of
from flashrt_ros.planner.turns import Turns


class TextVerbs:
    """What moves a text other than a turn; what is committed is what verbs see.

    A verb that moves the text ends the turn under way; one that only reads leaves it
    alone. A refused verb changes nothing.

    Args:
        core: The engine's parts.
        boundaries: Makes and loads capsules.
        turns: Ends turns.
    """

    def __init__(self, core: PlannerCore, boundaries: Boundaries, turns: Turns) -> None:
        self._core = core
        self._boundaries = boundaries
        self._turns = turns
        self._handlers: dict[type, Callable[..., protocol.Reply]] = {
            protocol.Snapshot: self._snapshot,
            protocol.Restore: self._restore,
            protocol.Rollback: self._rollback,
            protocol.Resume: self._resume,
            protocol.CancelTurn: self._cancel,
            protocol.Drop: self._drop,
            protocol.Pin: self._pin,
        }

    def carry_out(self, env: TextEnvironment, request: protocol.Request) -> protocol.Reply:
        """Carry a verb out.

        Raises:
            FlashrtError: It was refused; nothing changed.
            NotYet: It waits for bytes.
        """
        handler = self._handlers.get(type(request))
        if handler is None:
            name = type(request).__name__
            is_fork = isinstance(request, protocol.Fork | protocol.Select)
            raise UnsupportedError(
                f"a planner engine has no verb {name}",
                fix="send an instruction with several seeds" if is_fork else None,
            )
        return handler(env, request)

    def where(self, env: TextEnvironment, rid: int) -> protocol.Moved:
        """Say where an environment stands."""
        return protocol.Moved(
            rid=rid,
            tick=env.position.tick,
            generation=env.generation,
            path="",
            duration_ns=0,
            capsule_id=env.parent,
            depth=len(env.unfinished),
        )

    def interrupt(self, env: TextEnvironment, request: protocol.Interrupt) -> protocol.Interrupted:
        """Stack the turn under way."""
        if request.commit is not None:
            raise UnsupportedError(
                "a planner takes no goal with an interrupt", fix="send an instruction instead"
            )
        turn = env.turn
        if turn is None:
            raise NotActiveError(f"environment {env.env_index} has no turn under way")
        if len(env.unfinished) >= self._core.config.interrupt_depth:
            raise InterruptDepthError(
                f"the stack of unfinished turns of environment {env.env_index} is full",
                expected=f"{self._core.config.interrupt_depth} at most",
                fix="resume or reset first, or raise interrupt_depth",
            )
        boundary = turn.num_nodes
        env.generation += 1
        unfinished = self._turns.set_aside(env, request.reason or "interrupted")
        capsule_id = unfinished.capsule.id if unfinished is not None else ""
        self._core.emit(EventKind.INTERRUPT, env, capsule_id=capsule_id, detail=request.reason)
        return protocol.Interrupted(
            rid=request.rid,
            capsule_id=capsule_id,
            depth=len(env.unfinished),
            boundary=boundary,
            generation=env.generation,
            goal_sequence=0,
            tick=env.position.tick,
        )

    # making --------------------------------------------------------------------------------

    def _snapshot(self, env: TextEnvironment, request: protocol.Snapshot) -> protocol.CapsuleReply:
        core = self._core
        started = core.clock_ns()
        name = own_home(env, request.name)
        check_own_labels(request.labels)
        if request.persist:
            core.storage.require_folder("persist")
        old = core.store.find(name) if name and request.replace else None
        if old is not None and old.id != env.base and self._boundaries.is_held(old):
            raise CapsulePinnedError(
                f"capsule '{name}' can't be replaced",
                found="one that a text stands at or may be brought back to",
                fix="use another name, or restore that text elsewhere first",
            )
        base = core.store.get(env.base)
        core.store.require_memory(base)
        tail = tail_of(base.labels)
        # The text's own line goes on from an exact copy with the same bytes; another one, or the
        # whole text computed anew, would not.
        is_border = request.is_exact or not base.position.num_positions % BORDER_TOKENS
        if not is_border and env.turn is not None:
            raise BoundaryError(
                f"position {base.position.num_positions} is no border, and a turn is under way",
                expected=f"a multiple of {BORDER_TOKENS}",
                fix="wait for the end of the turn, and align down",
            )
        source = None
        if not is_border:
            self._boundaries.settle(env)
            source = env.session.snapshot(align_down=request.align_down)
            tail = source.tail
        try:
            capsule = self._boundaries.create(
                base if source is None else source,
                turn=base.position.tick,
                parent=base.id,
                tail=tail,
                name=name,
                labels=request.labels,
                pinned=request.pinned or is_home(name),
                persist=request.persist or (is_home(name) and core.storage.has_files),
                replaces=request.replace,
            )
        finally:
            if source is not None:
                source.close()
        core.emit(
            EventKind.SNAPSHOT,
            env,
            capsule_id=capsule.id,
            duration_ns=core.clock_ns() - started,
            detail=name,
        )
        return protocol.CapsuleReply(request.rid, capsule_info(capsule), len(tail))

    # moving --------------------------------------------------------------------------------

    def _restore(self, env: TextEnvironment, request: protocol.Restore) -> protocol.Moved:
        key = request.capsule or ("home" if request.reset else "")
        asked = (key, request.keep_goal, request.seed)
        last = env.last_reset
        if last is not None and request.episode_id == last.episode_id:
            if asked != last.asked:
                raise SpecError(
                    f"episode '{last.episode_id}' was reset already, with other arguments",
                    expected=f"capsule, keep_goal and seed {last.asked}",
                    found=asked,
                    fix="repeat the same request, or give the episode an id of its own",
                )
            return msgspec.structs.replace(last.answer, rid=request.rid)
        capsule = self._boundaries.find(env, key)
        if request.seed is not None:
            check_seed(request.seed)
        self._core.store.require_memory(capsule)
        kind = EventKind.RESET if request.reset else EventKind.RESTORE
        if request.seed is not None:
            env.seed = request.seed
        moved = self._move(env, capsule, kind, request.rid, forgets=True)
        if request.episode_id:
            env.last_reset = EpisodeReset(request.episode_id, asked, moved)
        return moved

    def _rollback(self, env: TextEnvironment, request: protocol.Rollback) -> protocol.Moved:
        if request.capsule:
            capsule = self._boundaries.find(env, request.capsule)
            if capsule.id not in self._core.store.ancestors(env.base):
                raise NoBoundaryError(
                    f"capsule '{request.capsule}' is no ancestor of environment {env.env_index}",
                    fix="use restore to go to a text of another line",
                )
        else:
            earlier = [c for c in env.boundaries if c.position.tick < env.position.tick]
            if not 1 <= request.boundaries <= len(earlier):
                raise NoBoundaryError(
                    f"environment {env.env_index} can't go back {request.boundaries} turns",
                    expected=f"1 to {len(earlier)}" if earlier else "0, as no earlier one is kept",
                    found=request.boundaries,
                    fix="restore a capsule, or raise rollback_depth",
                )
            capsule = earlier[-request.boundaries]
        self._core.store.require_memory(capsule)
        return self._move(env, capsule, EventKind.ROLLBACK, request.rid, forgets=False)

    def _move(
        self,
        env: TextEnvironment,
        capsule: Capsule,
        kind: EventKind,
        rid: int,
        *,
        forgets: bool,
    ) -> protocol.Moved:
        """Make a capsule the text; its bytes are under the lane when this returns."""
        started = self._core.clock_ns()
        self._turns.abandon(env, kind.name.lower())
        env.generation += 1
        env.last_reset = None
        self._boundaries.put_at(env, capsule)
        self._boundaries.settle(env)
        if forgets:
            self._boundaries.clear(env)
        else:
            self._boundaries.truncate(env)
        duration_ns = self._core.clock_ns() - started
        self._core.emit(kind, env, capsule_id=capsule.id, duration_ns=duration_ns, detail="copy")
        return msgspec.structs.replace(
            self.where(env, rid), path="copy", duration_ns=duration_ns, capsule_id=capsule.id
        )

    def _resume(self, env: TextEnvironment, request: protocol.Resume) -> protocol.Moved:
        self._turns.resume(env, None, rid=request.rid, is_waited=False)
        return msgspec.structs.replace(self.where(env, request.rid), path="copy")

    def _cancel(self, env: TextEnvironment, request: protocol.CancelTurn) -> protocol.Moved:
        if env.turn is None:
            raise NotActiveError(f"environment {env.env_index} has no turn under way")
        env.generation += 1
        self._turns.abandon(env, "cancelled")
        return self.where(env, request.rid)

    # keeping -------------------------------------------------------------------------------

    def _drop(self, env: TextEnvironment, request: protocol.Drop) -> protocol.Ack:
        capsule = self._boundaries.find(env, request.capsule)
        if self._boundaries.is_held(capsule):
            raise CapsulePinnedError(
                f"capsule '{capsule.title}' can't be dropped",
                found="one that a text stands at or may be brought back to",
                fix="restore another one, or reset first",
            )
        self._boundaries.forget(self._core.store.drop(capsule.id))
        return protocol.Ack(request.rid)

    def _pin(self, env: TextEnvironment, request: protocol.Pin) -> protocol.CapsuleReply:
        capsule = self._boundaries.find(env, request.capsule)
        if capsule.id in self._core.prefix_ids and not request.pinned:
            raise CapsulePinnedError(f"capsule '{capsule.title}' is a prefix and stays pinned")
        capsule = self._core.store.pin(capsule.id, pinned=request.pinned)
        if capsule.persist:
            self._core.storage.persist(capsule)
        return protocol.CapsuleReply(request.rid, capsule_info(capsule), 0)
