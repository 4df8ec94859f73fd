"""An engine's environment, policy or planner, as a participant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.environment_lock import EnvironmentLock
from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.episode.turn_end import IDLE, wait_for_turn_end
from flashrt_ros.errors import (
    BusyError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    EngineGoneError,
    EpisodeError,
    FingerprintMismatchError,
    FlashrtError,
    ProtocolError,
    SpecError,
)

POLICY = "policy"
PLANNER = "planner"

TURN_WAIT_S = 10.0
"""How long a hold waits for the end of a planner's turn."""

Link = AbstractContextManager[EngineClient]
"""Gives the connection to one caller at a time, as often as it is entered."""


class EnginePart:
    """One environment of an engine.

    A policy that a timer ticks is held by taking its ticks away: while it is held its tick
    source is ``step``. One that is stepped stands still by itself; a tick that somebody runs
    all the same is found out, and the verb fails. Neither loses its queue, its plan ring or
    its interrupt stack by a hold; the plan in flight is begun again. A planner is held
    between turns: the hold waits for the end of the one under way. From the hold until
    :meth:`settle` or :meth:`revert` no other verb over episodes gets the environment; what
    somebody moves all the same after a :meth:`put` is not moved back by a revert.

    Args:
        link: Connection to the engine, borrowed.
        name: In the episode, :data:`POLICY` or :data:`PLANNER` where there is one of each.
        env_index: Environment.
        rate_hz: Rate of the timer to go back to; None refuses to hold a policy that one ticks.
        on_moved: Told where the environment stands each time it was moved.
        facts: Asked for more to note when the state is taken.
    """

    def __init__(
        self,
        link: Link,
        *,
        name: str,
        env_index: int = 0,
        rate_hz: Callable[[], float | None] = lambda: None,
        on_moved: Callable[[protocol.Moved], None] = lambda moved: None,
        facts: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._link = link
        self._name = name
        self._env_index = env_index
        self._rate_hz = rate_hz
        self._on_moved = on_moved
        self._facts = facts
        self._held_at: tuple[int, int] | None = None
        self._paused_hz: float | None = None
        self._lock: EnvironmentLock | None = None
        self._taken = ""
        self._replaced = ""
        self._put_generation: int | None = None
        self._left: set[str] = set()

    @property
    def name(self) -> str:
        """Name in the episode."""
        return self._name

    @property
    def env_index(self) -> int:
        """Environment."""
        return self._env_index

    # standing still --------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop at a boundary, and keep other verbs over episodes away.

        Raises:
            BusyError: Another verb has the environment, or a planner's turn did not end in time.
            SpecError: A timer ticks the policy, and nobody said at which rate to go on.
            ConfigError: No timer has that rate.
            FlashrtError: As ``EngineClient.call``.
        """
        with self._link as client:
            self._lock = EnvironmentLock(client.name, self._env_index)
            engine = client.name
            status = client.status(env_index=self._env_index)
            is_planner = not client.model.action_dim
            if not is_planner and status.state == "active" and status.tick_source == "timer":
                rate_hz = self._rate_hz()
                if rate_hz is None:
                    raise SpecError(
                        "a policy that a timer ticks can't be held",
                        expected="the rate to go on at",
                        fix="name rate_hz, or step the policy",
                    )
                # An impossible rate is refused here, not once the ticks are to go on again.
                client.activate(env_index=self._env_index, tick_source="timer", rate_hz=rate_hz)
                self._paused_hz = rate_hz
                client.activate(env_index=self._env_index, tick_source="step")
                status = client.status(env_index=self._env_index)
        if is_planner and status.state != IDLE:
            # With the connection given back: somebody may want to cancel the turn over it.
            status = wait_for_turn_end(engine, self._env_index, timeout_s=TURN_WAIT_S)
        self._held_at = (status.tick, status.generation)

    def release(self) -> None:
        """Go on: the timer ticks again where it did."""
        self._held_at = None
        rate_hz = self._paused_hz
        if rate_hz is None:
            return
        with self._link as client:
            status = client.status(env_index=self._env_index)
            # Who deactivated it, or took the ticks for himself meanwhile, meant that.
            if status.state == "active" and status.tick_source == "step":
                client.activate(env_index=self._env_index, tick_source="timer", rate_hz=rate_hz)
        self._paused_hz = None

    # state -----------------------------------------------------------------------------------

    def take(self, taking: Taking) -> Part:
        """Freeze the boundary in a pinned capsule, labelled ``episode=NAME``.

        Raises:
            BusyError: The environment was ticked or moved since the hold.
            FlashrtError: As ``EngineClient.snapshot``.
        """
        with self._link as client:
            info = self._freeze(client, f"episode={taking.episode}", persist=taking.persist)
            self._taken = info.id
            status = client.status(env_index=self._env_index)
            if self._held_at != (status.tick, status.generation):
                self._taken = ""
                self._forget(client, info.id)
                raise BusyError(
                    f"environment {self._env_index} did not stand still",
                    expected=f"tick and generation {self._held_at}",
                    found=(status.tick, status.generation),
                    fix="let nobody step, instruct or reset it meanwhile",
                )
            facts = {
                "engine": client.name,
                "engine_epoch": str(client.engine_epoch),
                "generation": str(status.generation),
                "tick": str(info.tick),
                "position": str(info.position),
                **self._facts(),
            }
            kind = POLICY if client.model.action_dim else PLANNER
            return Part(self._name, kind, info.id, info.fingerprint, b"", facts)

    def check(self, part: Part) -> None:
        """Refuse a capsule that is gone, or does not fit the engine.

        Raises:
            EpisodeError: The part is of another kind.
            CapsuleNotFoundError: There is no such capsule.
            FingerprintMismatchError: Names the fields that differ.
        """
        with self._link as client:
            kind = POLICY if client.model.action_dim else PLANNER
            if part.kind != kind or not part.capsule_id:
                raise EpisodeError(
                    "the state is of another kind", expected=kind, found=part.kind or "none"
                )
            found = client.fingerprint(part.capsule_id, env_index=self._env_index)
            own = client.fingerprint(env_index=self._env_index)
            if found.digest != own.digest:
                here = dict(own.fields)
                names = [name for name, value in found.fields if here.get(name) != value]
                raise FingerprintMismatchError(
                    f"capsule '{part.capsule_id}' does not fit the engine",
                    expected=f"fingerprint {own.digest}",
                    found=f"{found.digest}, which differs in {', '.join(names)}",
                )

    def put(self, part: Part) -> None:
        """Bring the capsule back; what it replaces is frozen first.

        Raises:
            FlashrtError: As ``EngineClient.restore``, or there is no room to freeze.
        """
        with self._link as client:
            before = self._freeze(client, f"episode_undo={part.capsule_id}")
            self._replaced = before.id
            try:
                moved = client.restore(part.capsule_id, env_index=self._env_index)
            except (EngineGoneError, ProtocolError):
                raise  # whether it has moved can't be known here: a revert has to try
            except FlashrtError:
                self._replaced = ""
                self._forget(client, before.id)
                raise
            self._put_generation = moved.generation
        self._on_moved(moved)

    def settle(self) -> None:
        """Forget what was replaced, and let other verbs come."""
        replaced, self._replaced = self._replaced, ""
        try:
            if replaced:
                with self._link as client:
                    self._forget(client, replaced)
        finally:
            self._end()

    def undo(self) -> None:
        """Bring back what was replaced, and stand still.

        Raises:
            BusyError: Somebody else has moved the environment since; it is left there.
            FlashrtError: The engine refuses, or is gone.
        """
        replaced, self._replaced = self._replaced, ""
        if replaced:
            self._bring_back(replaced)

    def revert(self) -> None:
        """Bring back what was replaced, forget what was taken, and go on.

        Raises:
            FlashrtError: As :meth:`undo`.
        """
        try:
            self.undo()
            if self._taken:
                with self._link as client:
                    self._forget(client, self._taken)
        finally:
            try:
                self.release()
            finally:
                self._end()

    def drop(self, part: Part) -> None:
        """Unpin and drop the capsule; where a text stands at it, with the next one dropped."""
        if part.capsule_id:
            with self._link as client:
                self._forget(client, part.capsule_id)

    # inside ----------------------------------------------------------------------------------

    def _bring_back(self, capsule_id: str) -> None:
        with self._link as client:
            generation = client.status(env_index=self._env_index).generation
            if self._put_generation not in (None, generation):
                self._forget(client, capsule_id)
                raise BusyError(
                    f"environment {self._env_index} was moved by somebody else meanwhile",
                    expected=f"generation {self._put_generation}",
                    found=generation,
                    fix="it is left there: that verb came last",
                )
            moved = client.restore(capsule_id, env_index=self._env_index)
        self._on_moved(moved)
        with self._link as client:
            self._forget(client, capsule_id)

    def _end(self) -> None:
        self._taken = ""
        self._put_generation = None
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _freeze(
        self, client: EngineClient, label: str, *, persist: bool = False
    ) -> protocol.CapsuleInfo:
        request = protocol.Snapshot(
            0,
            self._env_index,
            name="",
            labels=(label,),
            pinned=True,
            replace=False,
            align_down=False,
            persist=persist,
            is_exact=True,
        )
        return client.call(request, protocol.CapsuleReply).capsule

    def _forget(self, client: EngineClient, capsule_id: str) -> None:
        """Drop a capsule, and those that a text stood at when they were to be dropped."""
        for one in (capsule_id, *self._left):
            try:
                client.pin(one, pinned=False, env_index=self._env_index)
                client.drop(one, env_index=self._env_index)
            except CapsuleNotFoundError:
                self._left.discard(one)  # dropped by somebody else: what was wanted
            except CapsulePinnedError:
                self._left.add(one)
            else:
                self._left.discard(one)
