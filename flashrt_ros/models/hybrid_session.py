"""Drives a hybrid language model on one lane: append, decode, snapshot, restore."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import BoundaryError, ParameterRangeError, PayloadShapeError
from flashrt_ros.models.base import NOISE_SEED, NOISE_SLOT
from flashrt_ros.models.hybrid_borders import LastBorder, SessionCapsule, split_at_borders
from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_lm import (
    CHOOSE,
    DECODE,
    LOG_PROBABILITY,
    LOGITS,
    NEXT_TOKEN,
    NUM_VALID,
    TEMPERATURE,
    TOKENS,
    HybridLm,
)
from flashrt_ros.models.hybrid_tokens import checked_tokens
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout

_TOKEN_BYTES = 8
_SCRUB_BYTES = 1 << 20


class HybridSession:
    """One text on one lane.

    Calls return when the work is submitted; those that return tokens or logits wait for
    the device. Noise of the token at a position is drawn from the seed and that position
    alone, so that a restored session draws what the uninterrupted one drew.

    Ownership: the session owns a copy of the last border; model, graphs, lane and noise
    are the caller's and outlive it. The lane is the session's alone meanwhile.

    Args:
        model: Whose programs are captured.
        graphs: Captured over the lane.
        lane: What it runs on; it is reset.
        noise: Of the model's ``noise_shape``, whose slots the graphs read.

    Raises:
        BackendError: There is no memory for the copy of the last border.
    """

    def __init__(self, model: HybridLm, graphs: GraphSet, lane: Lane, noise: NoiseRing) -> None:
        self._model = model
        self._backend = graphs.backend
        self._layout = graphs.arena.layout
        self._lane = lane
        self._noise = noise
        self._fixed_bytes = self._layout.used_bytes(0)
        with ExitStack() as undo:
            self._border = LastBorder(self._backend, lane.address, self._fixed_bytes)
            undo.callback(self._border.close)
            self._blank = self._backend.allocate_block(self._fixed_bytes)
            undo.callback(self._blank.close)
            self._chosen = self._backend.allocate_host_block(BORDER_TOKENS * _TOKEN_BYTES)
            undo.callback(self._chosen.close)
            self._undo = undo.pop_all()
        self.reset()

    @property
    def model(self) -> HybridLm:
        """Whose programs run."""
        return self._model

    @property
    def lane(self) -> Lane:
        """What it runs on."""
        return self._lane

    @property
    def backend(self) -> Backend:
        """Of the lane."""
        return self._backend

    @property
    def layout(self) -> ArenaLayout:
        """Of the lane."""
        return self._layout

    @property
    def position(self) -> int:
        """Tokens that the lane holds; a pending tail is not among them."""
        return self._position

    @property
    def pending(self) -> tuple[int, ...]:
        """Tail of the restored capsule, which the next append or decode takes first."""
        return self._pending

    @property
    def next_token(self) -> int:
        """Token that follows what the lane holds; waits for the device."""
        return int.from_bytes(self.read(NEXT_TOKEN), "little", signed=True)

    @property
    def log_probability(self) -> float:
        """Logarithm of the probability of :attr:`next_token` at temperature 1; waits."""
        return float(struct.unpack("<f", self.read(LOG_PROBABILITY))[0])

    def logits(self) -> npt.NDArray[np.float32]:
        """Return a copy of the logits of the next token, ``float32[V]``; waits."""
        return np.frombuffer(self.read(LOGITS), np.float32)

    def reset(self) -> None:
        """Begin an empty text, greedy; whatever the lane held is gone."""
        self._backend.copy(self._lane.address, self._blank.address, self._fixed_bytes)
        self._lane.clear_poison()
        self._position = 0
        self._pending: tuple[int, ...] = ()
        self._temperature, self._seed = 0.0, 0
        self._border.reach(0)

    def scrub(self) -> None:
        """Begin an empty text on a lane of zeros, in slices; for after a model gave no numbers.

        A restore brings back the positions that are used. What lies past them is masked, but a
        NaN there would still count: 0 times NaN is NaN.
        """
        zeros = bytes(_SCRUB_BYTES)
        for at in range(self._fixed_bytes, self._layout.capsule_bytes, _SCRUB_BYTES):
            self._backend.write(self._lane.address + at, zeros[: self._layout.capsule_bytes - at])
        self.reset()

    def set_sampling(self, *, temperature: float, seed: int = 0) -> None:
        """Set how tokens are chosen from now on; see :meth:`choose` for the next one.

        Args:
            temperature: 0 takes the likeliest; above, scores are divided by it.
            seed: Of the noise, 0 to 2**63 - 1.

        Raises:
            ParameterRangeError: One is out of range; nothing changes.
        """
        if not 0.0 <= temperature < float("inf"):
            raise ParameterRangeError(
                "tokens can't be drawn at this temperature",
                expected="a finite number, 0 or above",
                found=temperature,
            )
        if not 0 <= seed < 1 << 63:
            raise ParameterRangeError(
                "tokens can't be drawn with this seed", expected="0 to 2**63 - 1", found=seed
            )
        for name, data in (
            (TEMPERATURE, struct.pack("<f", temperature)),
            (NOISE_SEED, struct.pack("<q", seed)),
        ):
            self.write(name, data)
            self._border.write(self._offset(name), data)
        self._temperature, self._seed = temperature, seed

    def append(self, tokens: Sequence[int]) -> None:
        """Take tokens in; a pending tail goes before them.

        Args:
            tokens: Ids, at least one; what :attr:`next_token` was plays no part.

        Raises:
            PayloadShapeError: There are none, or more than the lane has room for. The
                session is untouched.
            PayloadTypeError: One is no integer. The session is untouched.
            PayloadRangeError: One is outside the vocabulary. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: A replay failed.
        """
        if not len(tokens):
            raise PayloadShapeError("a prompt is empty", expected="at least one token")
        self._take([*self._pending, *checked_tokens(tokens, self._model.config.vocab_size)])

    def choose(self) -> int:
        """Choose the next token again, as sampling and bias are now; waits for the device.

        So texts that fork at one position differ from their first token on.

        Raises:
            PayloadShapeError: The text is empty. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: A replay failed.
        """
        self._take_pending("chosen")
        self._bind_noise(self._position)
        self._border.leave()
        self._lane.replay(CHOOSE)
        return self.next_token

    def decode(self, count: int, *, stop: Collection[int] = ()) -> list[int]:
        """Choose tokens and take each in, one after the other.

        Greedy and without ``stop`` the device is waited for at borders and at the end only.

        Args:
            count: Most tokens to choose.
            stop: Tokens that end the text; one that is chosen is neither taken in nor
                returned, and stays :attr:`next_token`.

        Returns:
            The tokens taken in. The one after them is :attr:`next_token`.

        Raises:
            PayloadShapeError: The lane has no room for ``count`` more, or the text is
                empty. The session is untouched.
            LanePoisonedError: A replay failed before; restore or reset.
            BackendError: A replay failed.
        """
        self._check_room(len(self._pending) + count, "a text that is decoded")
        self._take_pending("decoded")
        tokens: list[int] = []
        if not stop and not self._temperature:
            while len(tokens) < count:
                tokens += self._decode_ahead(count - len(tokens))
            return tokens
        while len(tokens) < count and (token := self.next_token) not in stop:
            self._bind_noise(self._position + 1)
            self._border.leave()
            self._lane.replay(DECODE)
            self._advance([token])
            tokens.append(token)
        return tokens

    def snapshot(self, *, align_down: bool = False, any_position: bool = False) -> SessionCapsule:
        """Copy the state out, at a border.

        A border is a multiple of 64: what is computed from there does not depend on how
        the text before was split at borders.

        Args:
            align_down: Off a border, go back to the last one; the tokens since are the
                capsule's tail.
            any_position: Copy the state as it stands wherever that is. To go on from it
                is bit-identical to not having been interrupted; to append to it is not
                bit-identical to computing the whole text.

        Raises:
            BoundaryError: The position is no border, or the last one was before the
                position that this session was restored at; says which positions are legal.
            BackendError: There is no memory for the copy.
        """
        tail = (*self._border.since, *self._pending)
        if any_position or not self._position % BORDER_TOKENS:
            return self._copy_out(self._lane.address, self._position, self._pending)
        following = self._position - self._position % BORDER_TOKENS + BORDER_TOKENS
        border = self._border.position
        if align_down and border is not None:
            return self._copy_out(self._border.address, border, tail)
        legal = [following] if border is None else [border, following]
        raise BoundaryError(
            f"position {self._position} is no border",
            expected=f"one of {', '.join(map(str, legal))} (multiples of {BORDER_TOKENS})",
            found=self._position,
            fix="snapshot there, or align down and append the tail again"
            if border is not None
            else "go on to the next border",
        )

    def restore(self, capsule: SessionCapsule) -> None:
        """Copy a capsule back, whatever the lane holds, in the order of the calls.

        Args:
            capsule: Of a session over the same layout and weights.
        """
        self._backend.copy(self._lane.address, capsule.block.address, capsule.num_bytes)
        self._lane.clear_poison()
        self._position = capsule.position
        self._pending = capsule.tail
        self._temperature, self._seed = capsule.temperature, capsule.seed
        if capsule.position % BORDER_TOKENS:
            self._border.forget()
        else:
            self._border.reach(capsule.position)

    def read(self, name: str) -> bytes:
        """Copy a buffer of the lane out, as of all that is submitted; waits for it."""
        place = self._layout.by_name[name]
        return self._backend.read(self._lane.address + place.offset, place.spec.num_bytes)

    def write(self, name: str, data: bytes) -> None:
        """Copy bytes to the front of a buffer of the lane, in the order of the calls."""
        self._backend.write(self._lane.address + self._offset(name), data)

    def close(self) -> None:
        """Free the copy of the last border; idempotent."""
        self._undo.close()

    def _take(self, tokens: list[int]) -> None:
        self._check_room(len(tokens), "a prompt")
        first, end = self._position, self._position + len(tokens)
        self._pending = ()
        self._bind_noise(end)
        for start, stop in split_at_borders(first, len(tokens), self._model.chunk_length):
            piece = tokens[start - first : stop - first]
            self.write(TOKENS, np.array(piece, np.int64).tobytes())
            self.write(NUM_VALID, struct.pack("<q", len(piece)))
            if stop % BORDER_TOKENS:
                self._border.leave()
            self._lane.replay(self._model.prefill_key(len(piece)))
            self._advance(piece)

    def _decode_ahead(self, count: int) -> list[int]:
        """Decode up to the next border without waiting in between.

        Each token is copied out before the replay that takes it in and chooses the next.
        """
        count = min(count, BORDER_TOKENS - self._position % BORDER_TOKENS)
        chosen = self._lane.address + self._offset(NEXT_TOKEN)
        self._border.leave()
        for at in range(count):
            self._backend.copy(self._chosen.address + at * _TOKEN_BYTES, chosen, _TOKEN_BYTES)
            self._lane.replay(DECODE)
        self._backend.fence().wait()
        tokens: list[int] = np.frombuffer(self._chosen.view(), np.int64)[:count].tolist()
        self._advance(tokens)
        return tokens

    def _take_pending(self, what: str) -> None:
        if self._pending:
            self._take(list(self._pending))
        if not self._position:
            raise PayloadShapeError(
                f"no token can be {what}", expected="at least one token before", found="none"
            )

    def _advance(self, tokens: list[int]) -> None:
        self._position += len(tokens)
        self._border.take(tokens)
        if not self._position % BORDER_TOKENS:
            self._border.reach(self._position)

    def _copy_out(self, fixed_address: int, position: int, tail: tuple[int, ...]) -> SessionCapsule:
        """Take the small buffers from an address, and the cache from the lane.

        The cache keeps what it held at every position before, so that only the small
        buffers of a border need a copy of their own.
        """
        num_bytes = self._layout.used_bytes(position)
        block = self._allocate(num_bytes)
        self._backend.copy(block.address, fixed_address, self._fixed_bytes)
        if num_bytes > self._fixed_bytes:
            self._backend.copy(
                block.address + self._fixed_bytes,
                self._lane.address + self._fixed_bytes,
                num_bytes - self._fixed_bytes,
            )
        return SessionCapsule(
            block=block,
            num_bytes=num_bytes,
            position=position,
            tail=tail,
            temperature=self._temperature,
            seed=self._seed,
        )

    def _allocate(self, num_bytes: int) -> Block:
        return self._backend.allocate_block(num_bytes)

    def _bind_noise(self, position: int) -> None:
        if self._temperature:
            slot = self._noise.draw(self._seed, position)
            self.write(NOISE_SLOT, struct.pack("<q", slot))

    def _check_room(self, count: int, what: str) -> None:
        most = self._model.max_positions
        if self._position + count > most:
            raise PayloadShapeError(
                f"{what} of {count} tokens does not fit after {self._position}",
                expected=f"at most {most} tokens in the arena",
                found=self._position + count,
                fix="shorten it, or configure more positions",
            )

    def _offset(self, name: str) -> int:
        return self._layout.by_name[name].offset

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
