"""The verbs over episodes: every participant, or none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from flashrt_ros.episode.catalog import Catalog, OnDamage, ignore_damage
from flashrt_ros.episode.manifest import Manifest, Part, check_episode_name, check_parts
from flashrt_ros.episode.participant import Participant, PolicyParticipant, Taking
from flashrt_ros.errors import CapsuleNameTakenError, EpisodeError, FlashrtError

logger = logging.getLogger(__name__)


class Episodes:
    """Takes and brings back the state of several participants at one boundary.

    All are held before the first is touched, in the order given, the policy last: from then
    on no tick runs until the verb is over. Whatever fails, the others are put back, and the
    error names the participant that failed. One verb at a time.

    Args:
        policy: The policy's engine; taken and brought back last, released last.
        others: The rest, in the order in which they are held: what makes goals first.
        catalog: Keeps the manifests; the caller closes it.
        env_index: Environment of the policy, noted in the manifests.
        absent: Participants that there could be, for the manifests.
        now_ns: Wall clock, ns.
    """

    def __init__(
        self,
        policy: PolicyParticipant,
        others: Sequence[Participant],
        catalog: Catalog,
        *,
        env_index: int = 0,
        absent: Sequence[str] = (),
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._policy = policy
        self._participants = (*others, policy)
        self._catalog = catalog
        self._env_index = env_index
        self._absent = tuple(absent)
        self._now_ns = now_ns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the participants, the policy's last."""
        return tuple(one.name for one in self._participants)

    def snapshot(
        self,
        name: str,
        *,
        replace: bool = False,
        persist: bool = False,
        requires: Sequence[str] = (),
    ) -> Manifest:
        """Take every participant's state at one boundary and keep it under a name.

        Args:
            name: Of the episode.
            replace: Take the name over; the episode that has it is dropped afterwards.
            persist: Have the capsules written to files that restarted engines find.
            requires: Participants that must be there; empty asks for none.

        Raises:
            CapsuleNameError: Not a name.
            CapsuleNameTakenError: Without ``replace``.
            EpisodeError: A participant is missing or failed; nothing was kept.
            FlashrtError: The manifest could not be kept; nothing was.
        """
        check_episode_name(name)
        if self._catalog.has(name) and not replace:
            raise CapsuleNameTakenError(
                f"the episode name '{name}' is taken", fix="use replace, or another name"
            )
        self._require(requires)
        taken: list[tuple[Participant, Part]] = []
        try:
            with self._held(f"episode '{name}' was not taken"):
                taking = Taking(name, persist)
                for one in self._participants:
                    with _blame(one, "take"):
                        taken.append((one, one.take(taking)))
                self._release()
            parts = tuple(part for _, part in taken)
            check_parts(parts)
            manifest = Manifest(name, self._now_ns(), self._env_index, parts, self._absent)
            try:
                old = self._catalog.write(manifest, replace=replace)
            finally:
                self._settle()
        except BaseException:
            for one, part in taken:
                _try(one, "drop", partial(one.drop, part))
            raise
        if old is not None:
            self._drop_parts(old)
        return manifest

    def restore(self, name: str) -> Manifest:
        """Bring every participant back to an episode's boundary.

        Raises:
            CapsuleNotFoundError: There is no episode of this name.
            CapsuleArchiveError: Its manifest is damaged.
            EpisodeError: The participants are not those of the episode, or one failed; every
                one is as before, but for those that the message names.
        """
        manifest = self._catalog.read(name)
        self._require_same(manifest)
        with self._held(f"episode '{name}' was not restored"):
            for one in self._participants:
                with _blame(one, "check"):
                    one.check(manifest.part(one.name))
            for one in self._participants:
                with _blame(one, "put"):
                    one.put(manifest.part(one.name))
            self._release()
        self._settle()
        return manifest

    def drop(self, name: str) -> tuple[Part, ...]:
        """Forget an episode and what its participants kept for it.

        The manifest goes first: what a participant that is not there kept is left to it.

        Returns:
            The parts of participants that are not here and kept a capsule: it stays with them.

        Raises:
            CapsuleNotFoundError: There is no episode of this name.
        """
        manifest = self._catalog.remove(name)
        if manifest is None:
            return ()
        self._drop_parts(manifest)
        return tuple(p for p in manifest.parts if p.capsule_id and p.name not in self.names)

    def manifests(self, on_damage: OnDamage = ignore_damage) -> tuple[Manifest, ...]:
        """Return every episode that can be read, by name; see ``Catalog.manifests``."""
        return self._catalog.manifests(on_damage)

    # inside ----------------------------------------------------------------------------------

    @contextmanager
    def _held(self, what: str) -> Iterator[None]:
        """Hold every participant; on any failure have all of them go on as they were."""
        held: list[Participant] = []
        try:
            for one in self._participants:
                held.append(one)  # a hold that failed may have happened: its answer was lost
                with _blame(one, "hold"):
                    one.hold()
            yield
        except BaseException as error:
            problems = self._revert(held)
            if isinstance(error, _BlamedError) and error.verb == "hold":
                del problems[error.participant]
            left = "; ".join(problem for problem in problems.values() if problem)
            if isinstance(error, _BlamedError):
                raise EpisodeError(
                    f"{what}: {error.text}",
                    participant=error.participant,
                    fix=f"not put back: {left}; restore an episode, or reset" if left else None,
                ) from error.__cause__
            raise

    def _revert(self, held: Sequence[Participant]) -> dict[str, str]:
        """Have everybody go on as they were, and return what went wrong with whom.

        The policy is moved first, so that a goal that comes from who goes on is not lost by
        it, and ticks last, so that it acts on nothing that is still to go back.
        """
        policy = self._policy
        problems = {}
        if policy in held:
            problems[policy.name] = _try(policy, "undo", policy.undo)
        for one in reversed([one for one in held if one is not policy]):
            problems[one.name] = _try(one, "revert", one.revert)
        if policy in held:
            problem = _try(policy, "revert", policy.revert)
            problems[policy.name] = problems[policy.name] or problem
        return problems

    def _release(self) -> None:
        for one in self._participants:
            with _blame(one, "release"):
                one.release()

    def _settle(self) -> None:
        for one in self._participants:
            _try(one, "settle", one.settle)

    def _require(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.names]
        if missing:
            raise EpisodeError(
                f"participant '{missing[0]}' is not there",
                participant=missing[0],
                expected=", ".join(names),
                found=", ".join(self.names),
            )

    def _require_same(self, manifest: Manifest) -> None:
        if manifest.env_index != self._env_index:
            raise EpisodeError(
                f"episode '{manifest.name}' is of another environment",
                expected=manifest.env_index,
                found=self._env_index,
            )
        for name in manifest.names:
            if name not in self.names:
                raise EpisodeError(
                    f"episode '{manifest.name}' needs participant '{name}', which is not there",
                    participant=name,
                    expected=", ".join(manifest.names),
                    found=", ".join(self.names),
                    fix="start it and name it, or take an episode without it",
                )
        for name in self.names:
            if name not in manifest.names:
                raise EpisodeError(
                    f"episode '{manifest.name}' says nothing of participant '{name}'",
                    participant=name,
                    expected=", ".join(manifest.names),
                    found=", ".join(self.names),
                    fix="leave it out, or take an episode with it",
                )

    def _drop_parts(self, manifest: Manifest) -> None:
        for one in self._participants:
            if one.name in manifest.names:
                _try(one, "drop", partial(one.drop, manifest.part(one.name)))


class _BlamedError(Exception):
    """A participant's failure on its way to the verb's boundary."""

    def __init__(self, participant: str, verb: str, error: FlashrtError) -> None:
        self.participant = participant
        self.verb = verb
        self.text = (
            f"participant '{participant}' failed at {verb}: {error.name} ({error.code}): {error}"
        )
        super().__init__(self.text)


@contextmanager
def _blame(one: Participant, verb: str) -> Iterator[None]:
    try:
        yield
    except FlashrtError as error:
        raise _BlamedError(one.name, verb, error) from error
    except Exception as error:
        # A participant may be the caller's own code: whatever it raises, all go back.
        plain = FlashrtError(f"{type(error).__name__}: {error}")
        raise _BlamedError(one.name, verb, plain) from error


def _try(one: Participant, verb: str, act: Callable[[], None]) -> str:
    """Do what must not keep the rest from being done; return what went wrong, "" for nothing."""
    try:
        act()
    except FlashrtError as error:
        text = f"participant '{one.name}' failed at {verb}: {error.name}: {error}"
        logger.warning("%s", text)
        return text
    except Exception as error:
        text = f"participant '{one.name}' failed at {verb}: {type(error).__name__}: {error}"
        logger.exception("%s", text)
        return text
    return ""
