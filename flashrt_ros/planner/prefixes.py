"""The prefix library: what every text begins with, part by part, each a pinned capsule."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.store import home_name
from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.waits import Done
from flashrt_ros.errors import FlashrtError, PayloadShapeError, UnsupportedError
from flashrt_ros.models.hybrid_borders import split_at_borders
from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.config import PrefixText
from flashrt_ros.planner.core import PlannerCore
from flashrt_ros.planner.tails import PREFIX, TEXT, tail_of
from flashrt_ros.planner.vocabulary import check_length

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A part, and the capsule of everything up to its end.

    Attributes:
        name: Of the part.
        tokens: Of the part.
        capsule_id: "" until it is built.
    """

    name: str
    tokens: list[int]
    capsule_id: str = ""


class PrefixLibrary:
    """Builds the prefixes, on a lane of its own, a chunk at a time.

    A capsule ends on the last border within its text; the tokens past it are its tail,
    which the next append takes first. So a text that begins with a capsule has the bytes
    of one that was computed whole. A capsule of before is used again where text and
    fingerprint are the same, also one that a restarted engine finds.

    Args:
        core: The engine's parts.
        boundaries: Makes capsules.
        parts: In order; none makes the empty text.

    Raises:
        PayloadShapeError: They don't fit in the arena.
        PayloadRangeError: The tokenizer lacks a part of one.
    """

    def __init__(
        self, core: PlannerCore, boundaries: Boundaries, parts: Sequence[PrefixText]
    ) -> None:
        self._core = core
        self._boundaries = boundaries
        self._entries = [
            _Entry(part.name, self._encode(part.text, is_first=index == 0))
            for index, part in enumerate(parts)
        ] or [_Entry("empty", [])]
        self._check_room(self.num_tokens)
        self._pieces: deque[list[int]] = deque()
        self._next = 0
        self._is_prepared = False
        self._failure: FlashrtError | None = None
        self._waiting: list[tuple[int, Done]] = []
        self._drop_others()
        self._find()

    @property
    def num_tokens(self) -> int:
        """Tokens of all parts."""
        return sum(len(entry.tokens) for entry in self._entries)

    @property
    def is_building(self) -> bool:
        """Whether :meth:`advance` has something to do."""
        return self._next < len(self._entries) and self._failure is None

    @property
    def end_id(self) -> str:
        """Id of the capsule of all parts; only where nothing is being built."""
        return self._entries[-1].capsule_id

    def check(self) -> None:
        """Refuse a turn that would begin where nothing could be built.

        Raises:
            FlashrtError: What building failed with.
        """
        if self._failure is not None:
            raise self._failure

    def fail(self, error: FlashrtError) -> None:
        """Give up building until a text is replaced; whoever waits for it is told."""
        logger.error("prefix '%s' can't be built: %s", self._entries[self._next].name, error)
        self._failure = error
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(error)

    def replace(self, name: str, text: bytes, rid: int, done: Done) -> None:
        """Give a part another text; ``done`` is told once everything is built.

        Raises:
            UnsupportedError: There is no such part.
            PayloadShapeError: The new text is empty, or all parts don't fit in the arena.
            PayloadTypeError: It is no UTF-8.
            PayloadRangeError: The tokenizer lacks a part of it.
        """
        names = [entry.name for entry in self._entries]
        if name not in names:
            raise UnsupportedError(
                f"the planner engine has no prefix '{name}'",
                expected=", ".join(names),
                fix="name it in the engine parameter 'prefixes'",
            )
        index = names.index(name)
        tokens = self._encode(text, is_first=index == 0)
        self._check_room(self.num_tokens - len(self._entries[index].tokens) + len(tokens))
        self._entries[index].tokens = tokens
        self._next = min(self._next, index)
        self._is_prepared = False
        self._failure = None
        self._waiting.append((rid, done))
        self._find()
        if not self.is_building:  # the same text as before
            self._end()

    def advance(self) -> None:
        """Take in one chunk of the next part, or keep it.

        Raises:
            CapsuleQuotaError: Pins leave no room for it.
            FlashrtError: A replay failed.
            NotYet: Room for it is being made; the next call tries again.
        """
        if not self._is_prepared:
            self._prepare()
        if self._pieces:
            self._core.builder.append(self._pieces.popleft())
        if not self._pieces:
            self._keep()

    # building ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Put the part before under the lane, and cut the next one into chunks."""
        core, builder = self._core, self._core.builder
        if self._next:
            before = core.store.get(self._entries[self._next - 1].capsule_id)
            core.store.require_memory(before)
            self._boundaries.load(builder, before)
        else:
            builder.reset()
        builder.set_sampling(temperature=0.0)
        pending = builder.pending
        tokens = [*pending, *self._entries[self._next].tokens]
        start = builder.position
        end = start + len(tokens)
        count = end - end % BORDER_TOKENS - start
        pieces = split_at_borders(start, count, core.model.chunk_length) if count else ()
        self._pieces = deque(tokens[first - start : stop - start] for first, stop in pieces)
        if self._pieces:
            self._pieces[0] = self._pieces[0][len(pending) :]
        self._is_prepared = True

    def _keep(self) -> None:
        """Pin what the lane holds as the part's capsule, in place of the one before."""
        core, entry = self._core, self._entries[self._next]
        length = sum(len(one.tokens) for one in self._entries[: self._next + 1])
        tokens = [token for one in self._entries for token in one.tokens][:length]
        name = _name(entry.name)
        old = core.store.find(name)
        if old is not None and old.pinned:
            old = core.store.pin(old.id, pinned=False)
        try:
            capsule = self._boundaries.create(
                core.builder,
                turn=0,
                parent=self._entries[self._next - 1].capsule_id if self._next else "",
                tail=tuple(tokens[length - length % BORDER_TOKENS :]),
                name=name,
                labels=(f"{PREFIX}={entry.name}", self._digest_label(self._next)),
                pinned=True,
                persist=core.storage.has_files,
                replaces=True,
            )
        except BaseException:
            if old is not None:
                core.store.pin(old.id, pinned=True)
            raise
        core.prefix_ids.discard(entry.capsule_id)
        core.prefix_ids.add(capsule.id)
        entry.capsule_id = capsule.id
        self._tell(capsule, entry, length, is_new=old is None)
        self._next += 1
        self._is_prepared = False
        if not self.is_building:
            self._end()

    def _tell(self, capsule: Capsule, entry: _Entry, length: int, *, is_new: bool) -> None:
        detail = protocol.format_detail(
            "built" if is_new else "rebuilt",
            prefix=entry.name,
            tokens=length,
            border=capsule.position.num_positions,
        )
        if not is_new:
            logger.warning("%s: its text, or one before it, has changed", detail)
        for env in self._core.environments:
            self._core.emit(EventKind.SNAPSHOT, env, capsule_id=capsule.id, detail=detail)

    def _end(self) -> None:
        self._take_homes()
        waiting, self._waiting = self._waiting, []
        for rid, done in waiting:
            done(protocol.Ack(rid))

    def _take_homes(self) -> None:
        """Let every environment begin here, unless its home is a caller's own."""
        core = self._core
        end = core.store.get(self.end_id)
        digest = self._digest_label(len(self._entries) - 1)
        for env in core.environments:
            home = core.store.find(home_name(env.env_index))
            is_own = home is not None and any(one.startswith(f"{TEXT}=") for one in home.labels)
            if home is not None and (not is_own or digest in home.labels):
                if not env.base:
                    self._boundaries.put_at(env, home)
                continue
            made = self._boundaries.create(
                end,
                turn=0,
                parent=end.id,
                tail=tail_of(end.labels),
                name=home_name(env.env_index),
                labels=(digest,),
                pinned=True,
                persist=core.storage.has_files,
                replaces=True,
            )
            if not env.base:
                self._boundaries.put_at(env, made)

    # finding -------------------------------------------------------------------------------

    def _find(self) -> None:
        """Use the capsules of before, up to the first whose text is another."""
        store = self._core.store
        while self.is_building:
            found = store.find(_name(self._entries[self._next].name))
            if (
                found is None
                or self._digest_label(self._next) not in found.labels
                or not found.residence.is_in_memory
            ):
                break
            if not found.pinned:
                found = store.pin(found.id, pinned=True)
            self._entries[self._next].capsule_id = found.id
            self._core.prefix_ids.add(found.id)
            self._next += 1
        if not self.is_building and not self._waiting:
            self._take_homes()

    def _drop_others(self) -> None:
        """Let go of prefixes of before that are none any more."""
        store = self._core.store
        names = {_name(entry.name) for entry in self._entries}
        for capsule in store:
            is_prefix = any(label.startswith(f"{PREFIX}=") for label in capsule.labels)
            if is_prefix and capsule.name.startswith(_name("")) and capsule.name not in names:
                store.pin(capsule.id, pinned=False)
                self._boundaries.forget(store.drop(capsule.id))

    def _digest_label(self, index: int) -> str:
        tokens = [token for entry in self._entries[: index + 1] for token in entry.tokens]
        digest = hashlib.sha256(np.array(tokens, np.int64).tobytes()).hexdigest()[:32]
        return f"{TEXT}={digest}"

    def _encode(self, text: str | bytes, *, is_first: bool) -> list[int]:
        core = self._core
        line = (text if isinstance(text, bytes) else text.encode()).strip()
        if not line:
            raise PayloadShapeError("a prefix is empty", expected="at least one token")
        check_length("a prefix", line, core.model.max_positions)
        return core.tokenizer.encode(
            line if is_first else b"\n" + line,
            has_control_tokens=core.config.has_control_tokens,
        )

    def _check_room(self, num_tokens: int) -> None:
        most = self._core.model.max_positions
        least = self._core.constraint.min_tokens + 1
        if num_tokens + least > most:
            raise PayloadShapeError(
                f"prefixes of {num_tokens} tokens leave no room for a turn",
                expected=f"at most {most - least}: the arena holds {most} tokens, and the shortest "
                f"turn takes {least}",
                found=num_tokens,
                fix="shorten them, or raise max_positions",
            )


def _name(prefix: str) -> str:
    return f"prefix.{prefix}"
