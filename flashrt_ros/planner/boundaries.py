"""How the capsules of texts are made, put under a session, and let go."""

from __future__ import annotations

from flashrt_ros.capsule.capsule import Capsule, Position
from flashrt_ros.capsule.store import home_name
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.models.hybrid_tokens import checked_tokens
from flashrt_ros.planner.core import PlannerCore, TextEnvironment
from flashrt_ros.planner.tails import tail_labels, tail_of
from flashrt_ros.runtime.arena import Block


class Boundaries:
    """The steps that verbs and turns are made of; none of them validates.

    Args:
        core: The engine's parts.
    """

    def __init__(self, core: PlannerCore) -> None:
        self._core = core

    # making --------------------------------------------------------------------------------

    def create(
        self,
        source: HybridSession | Capsule | SessionCapsule,
        *,
        turn: int,
        parent: str,
        tail: tuple[int, ...] = (),
        name: str = "",
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        persist: bool = False,
        replaces: bool = False,
        automatic: bool = False,
    ) -> Capsule:
        """Copy what a session or capsule holds into a new capsule; see ``CapsuleStore.create``.

        Args:
            source: Where the bytes are.
            turn: Turns of the text.
            parent: Id of the capsule that the text came from, "" for none.
            tail: Tokens that the next append takes first.
            name: As in the store.
            labels: As in the store; the tail is added.
            pinned: As in the store.
            persist: As in the store; the file is written in the background.
            replaces: Take the name over.
            automatic: From the blocks set aside.
        """
        core = self._core
        address, num_positions = _place(source)
        num_bytes = core.layout.used_bytes(num_positions)

        def fill(block: Block) -> None:
            core.backend.copy(block.address, address, num_bytes)

        capsule, replaced = core.store.create(
            fill,
            position=Position(tick=turn, num_positions=num_positions),
            fingerprint=core.fingerprint,
            parent=parent,
            num_bytes=num_bytes,
            name=name,
            labels=(*labels, *tail_labels(tail)),
            pinned=pinned,
            persist=persist,
            replace=replaces,
            automatic=automatic,
        )
        if replaced is not None:
            self.forget(replaced, heir=capsule.id)
        if capsule.persist:
            core.storage.persist(capsule)
        return capsule

    def load(self, session: HybridSession, capsule: Capsule) -> None:
        """Put a capsule that lies in memory under a session; its sampling is to be set anew.

        Raises:
            PayloadRangeError: Its tail is none of this model's. The session is untouched.
        """
        session.restore(
            SessionCapsule(
                block=capsule.block,
                num_bytes=capsule.num_bytes,
                position=capsule.position.num_positions,
                tail=self._tail(capsule),
                temperature=0.0,
                seed=0,
            )
        )

    def settle(self, env: TextEnvironment) -> None:
        """Have the lane hold the committed text.

        Raises:
            NotYet: Its bytes are being fetched.
        """
        if env.is_settled:
            return
        capsule = self._core.store.get(env.base)
        self._core.store.require_memory(capsule)
        self.load(env.session, capsule)
        env.is_settled = True

    def put_at(self, env: TextEnvironment, capsule: Capsule) -> None:
        """Make a capsule the committed text; the lane follows when it is needed."""
        env.base = env.parent = env.brought_back = capsule.id
        env.position = capsule.position
        env.is_settled = False

    # what the verbs over stored capsules ask -------------------------------------------------

    def find(self, env: Environment, key: str) -> Capsule:
        """Return a capsule that fits, by id or name; ``home`` is the environment's own.

        Raises:
            CapsuleNotFoundError: There is none.
            FingerprintMismatchError: It was taken under another fingerprint.
            PayloadRangeError: Its tail is none of this model's: a file that was not made here.
        """
        capsule = self._core.store.get(home_name(env.env_index) if key == "home" else key)
        self._core.fingerprint.require(capsule.fingerprint, capsule.id)
        self._tail(capsule)
        return capsule

    def is_held(self, capsule: Capsule) -> bool:
        """Tell whether a text stands at a capsule, begins there, or may be brought back to it."""
        if capsule.id in self._core.prefix_ids:
            return True
        for env in self._core.environments:
            turn = env.turn
            held = {env.base, *(c.id for c in env.boundaries)}
            held.update(unfinished.capsule.id for unfinished in env.unfinished)
            if turn is not None and not turn.is_started:
                held.add(turn.base)
            if capsule.id in held:
                return True
        return False

    def forget(self, gone: Capsule, heir: str = "") -> None:
        """Let what descends from a capsule that is gone descend from its heir or parent.

        A text that stood at it stands at its heir, or goes home where a file that was loaded
        took its name.
        """
        parent = heir or gone.parent
        for env in self._core.environments:
            if env.parent == gone.id:
                env.parent = parent
            if env.base == gone.id:
                self._leave(env, heir)
            turns = [unfinished.turn for unfinished in env.unfinished]
            for turn in [*turns, *([env.turn] if env.turn is not None else [])]:
                if turn.base == gone.id:
                    turn.base = parent

    def _leave(self, env: TextEnvironment, heir: str) -> None:
        if heir:
            env.base, env.is_settled = heir, False
            return
        home = self._core.store.get(home_name(env.env_index))
        self.put_at(env, home)
        env.generation += 1
        detail = "what the text stood at was replaced"
        self._core.emit(EventKind.RESTORE, env, capsule_id=home.id, detail=detail)

    def note_home(self, capsule: Capsule) -> None:
        """Do nothing: no lane is kept ready with a home."""

    def begin_at(self, env: Environment, capsule: Capsule) -> None:
        """Put an environment that has not run yet at a capsule."""
        self.put_at(self._core.environments[env.env_index], capsule)

    def _tail(self, capsule: Capsule) -> tuple[int, ...]:
        tokens = tail_of(capsule.labels)
        return tuple(checked_tokens(tokens, self._core.model.config.vocab_size))

    # letting go ----------------------------------------------------------------------------

    def sweep(self) -> None:
        """Take back the automatic capsules that no text needs any more."""
        for capsule in self._core.store:
            if capsule.is_automatic and not self.is_held(capsule):
                gone = self._core.store.recycle(capsule)
                if gone is not None:
                    self.forget(gone)

    def drop_unfinished(self, env: TextEnvironment, index: int = -1) -> None:
        """Forget an interrupted turn; its capsule is reused."""
        env.unfinished.pop(index).turn.close()
        self.sweep()

    def clear(self, env: TextEnvironment) -> None:
        """Forget every interrupted turn and every boundary kept."""
        for unfinished in env.unfinished:
            unfinished.turn.close()
        env.unfinished.clear()
        env.boundaries.clear()
        self.sweep()

    def commit(self, env: TextEnvironment, turn: int, parent: str) -> Capsule:
        """Freeze what the lane holds as the committed text, in the environment's ring.

        Boundaries that the text does not descend from are let go, and the oldest beyond
        the ring's depth.
        """
        capsule = self.create(
            env.session,
            turn=env.position.tick + 1,
            parent=parent,
            labels=("automatic=turn", f"turn={turn}"),
            automatic=True,
        )
        env.base = env.parent = capsule.id
        env.position = capsule.position
        env.is_settled = True
        env.boundaries.append(capsule)
        self.truncate(env)
        return capsule

    def truncate(self, env: TextEnvironment) -> None:
        """Keep the newest boundaries of the text's own line."""
        line = set(self._core.store.ancestors(env.base))
        kept = [capsule for capsule in env.boundaries if capsule.id in line]
        env.boundaries.clear()
        env.boundaries.extend(kept[-self._core.config.rollback_depth :])
        self.sweep()


def _place(source: HybridSession | Capsule | SessionCapsule) -> tuple[int, int]:
    """Return where bytes lie, and how many positions are used."""
    if isinstance(source, HybridSession):
        return source.lane.address, source.position
    if isinstance(source, Capsule):
        return source.block.address, source.position.num_positions
    return source.block.address, source.position
