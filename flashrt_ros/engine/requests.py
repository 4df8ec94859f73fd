"""What each request asks of an engine, by its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashrt_ros.engine import protocol
from flashrt_ros.engine.branches import Branches
from flashrt_ros.engine.core import Core, check_seed
from flashrt_ros.engine.describe import capsule_info, status
from flashrt_ros.engine.inspection import inspect
from flashrt_ros.engine.jobs import check_tick_source
from flashrt_ros.engine.library import Library
from flashrt_ros.engine.moves import Moves
from flashrt_ros.engine.restores import Restores
from flashrt_ros.engine.stats import Stats
from flashrt_ros.engine.ticks import FIRST_TICK_DELAY_NS, Ticks
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.engine.verbs import Verbs
from flashrt_ros.engine.waits import Done
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.runtime.graph import GraphSet


class Requests:
    """Carries requests out, each whole or not at all.

    Args:
        core: The engine's parts.
        graphs: Of all lanes.
        ticks: Abandons plans.
        moves: Finds capsules.
        branches: Forks.
        verbs: Move environments.
        library: Finds, saves and loads.
    """

    def __init__(
        self,
        core: Core,
        graphs: GraphSet,
        ticks: Ticks,
        moves: Moves,
        branches: Branches,
        verbs: Verbs,
        library: Library,
    ) -> None:
        self._core = core
        self._graphs = graphs
        self._ticks = ticks
        self._moves = moves
        self._branches = branches
        self._verbs = verbs
        self._library = library
        self._handlers: dict[type, Callable[..., protocol.Reply]] = {
            protocol.Activate: self._activate,
            protocol.Deactivate: self._deactivate,
            protocol.Rewind: self._rewind,
            protocol.Snapshot: self._snapshot,
            protocol.Fork: self._fork,
            protocol.Select: self._select,
            protocol.Rollback: self._rollback,
            protocol.Resume: self._resume,
            protocol.ListCapsules: self._library.find,
            protocol.Collect: self._library.collect,
            protocol.GetFingerprint: self._library.fingerprint,
            protocol.Drop: self._drop,
            protocol.Pin: self._pin,
            protocol.GetStatus: self._status,
            protocol.Reseed: self._reseed,
            protocol.Inspect: self._inspect,
        }
        self._answering: dict[type, Callable[[Any, Done], None]] = {
            protocol.Restore: Restores(core, moves, branches).restore,
            protocol.Save: self._save,
            protocol.Load: self._load,
        }

    def carry_out(self, request: protocol.Request, done: Done) -> None:
        """Carry a request out; ``done`` gets the answer, at once but for files.

        A restore answers before its books are kept; they are when this returns.

        Raises:
            FlashrtError: It was refused; nothing changed.
            NotYet: It waits for bytes or room; nothing changed.
        """
        answer = self._answering.get(type(request))
        if answer is not None:
            answer(request, done)
        else:
            handler = self._handlers.get(type(request))
            if handler is None:
                raise UnsupportedError(f"the engine has no verb {type(request).__name__}")
            done(handler(request))
        self._ticks.wake()

    def _save(self, request: protocol.Save, done: Done) -> None:
        self._library.save(self._core.environment(request.env_index), request, done)

    def _load(self, request: protocol.Load, done: Done) -> None:
        self._library.load(self._core.environment(request.env_index), request, done)

    def _activate(self, request: protocol.Activate) -> protocol.Moved:
        env = self._core.environment(request.env_index)
        is_timed = check_tick_source(request)
        self._verbs.take_home(env)
        self._ticks.abandon(env)
        self._ticks.plans.stats[env.env_index] = Stats()
        env.is_active = True
        env.tick_source = request.tick_source
        if is_timed:
            env.period_ns = round(1e9 / request.rate_hz)
            env.next_tick_ns = self._core.clock_ns() + FIRST_TICK_DELAY_NS
        return self._where(env, request.rid)

    def _deactivate(self, request: protocol.Deactivate) -> protocol.Moved:
        env = self._core.environment(request.env_index)
        env.is_active = False
        self._ticks.abandon(env)
        self._moves.flush(env)
        return self._where(env, request.rid)

    def _rewind(self, request: protocol.Rewind) -> protocol.Ack:
        env = self._core.environment(request.env_index)
        self._core.latches.rewind(env, request.now_ns)
        for entry in env.interruptions:
            entry.goal_bounds = {
                name: bound if bound <= request.now_ns else 0
                for name, bound in entry.goal_bounds.items()
            }
        return protocol.Ack(request.rid)

    def _snapshot(self, request: protocol.Snapshot) -> protocol.CapsuleReply:
        capsule = self._verbs.snapshot(self._core.environment(request.env_index), request)
        return protocol.CapsuleReply(request.rid, capsule_info(capsule), 0)

    def _fork(self, request: protocol.Fork) -> protocol.Forked:
        return self._branches.fork(self._core.environment(request.env_index), request)

    def _select(self, request: protocol.Select) -> protocol.Moved:
        return self._branches.select(self._core.environment(request.env_index), request)

    def _rollback(self, request: protocol.Rollback) -> protocol.Moved:
        return self._verbs.rollback(self._core.environment(request.env_index), request)

    def _resume(self, request: protocol.Resume) -> protocol.Moved:
        return self._verbs.resume(self._core.environment(request.env_index), request)

    def _drop(self, request: protocol.Drop) -> protocol.Ack:
        self._verbs.drop(self._core.environment(request.env_index), request.capsule)
        return protocol.Ack(request.rid)

    def _pin(self, request: protocol.Pin) -> protocol.CapsuleReply:
        env = self._core.environment(request.env_index)
        capsule = self._moves.find(env, request.capsule)
        capsule = self._core.store.pin(capsule.id, pinned=request.pinned)
        if capsule.persist:
            self._core.storage.persist(capsule)
        return protocol.CapsuleReply(request.rid, capsule_info(capsule), 0)

    def _reseed(self, request: protocol.Reseed) -> protocol.Moved:
        self._require_hooks("reseed")
        env = self._core.environment(request.env_index)
        check_seed(request.seed)
        check_seed(request.counter, "counter")
        self._ticks.abandon(env)
        self._core.reseed(env, request.seed, request.counter)
        return self._where(env, request.rid)

    def _inspect(self, request: protocol.Inspect) -> protocol.Inspection:
        self._require_hooks("inspect")
        env = self._core.environment(request.env_index)
        return inspect(self._core, self._graphs, env, request.rid)

    def _status(self, request: protocol.GetStatus) -> protocol.Status:
        env = self._core.environment(request.env_index)
        return status(self._core, self._ticks, env, request.rid)

    def _where(self, env: Environment, rid: int) -> protocol.Moved:
        return protocol.Moved(
            rid=rid,
            tick=env.position.tick,
            generation=env.generation,
            path="",
            duration_ns=0,
            capsule_id=env.parent,
            depth=len(env.interruptions),
            barrier_ns=self._core.latches.observation_bound_ns(env),
        )

    def _require_hooks(self, verb: str) -> None:
        if not self._core.config.test_hooks:
            raise UnsupportedError(
                f"'{verb}' is a test hook", fix="start the engine with test_hooks set"
            )
