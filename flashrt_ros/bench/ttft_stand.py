"""A language model on one lane, captured and eager, for the bench ``ttft``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch

from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.ttft_models import TextScale, build
from flashrt_ros.models.hybrid_ablation import decode_with_logits
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_lm import RECURRENT
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.runtime.backend import Program, Slots
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout, ShapeKey

NUM_COMPARED = 8
"""Tokens that are decoded, and their logits compared, before anything is timed."""

_Text = tuple[list[int], list[bytes]]
"""Tokens, and the bytes of the logits that each was chosen by."""


class EagerLane(Lane):
    """A lane whose programs run as the Python that they are, in the order of the backend.

    Args:
        graphs: Captured over the lane; they don't run.
        index: Which lane.
        programs: By key.
        slots: What the programs read.
    """

    def __init__(
        self, graphs: GraphSet, index: int, programs: Mapping[ShapeKey, Program], slots: Slots
    ) -> None:
        super().__init__(graphs, index)
        self._backend = graphs.backend
        self._programs = programs
        self._slots = slots

    def replay(self, key: ShapeKey, *, beside: bool = False) -> None:
        """Run a program."""
        with self._backend.ordered(), torch.no_grad():
            self._programs[key](self.views, self._slots)


class TextStand:
    """A model with random weights, its graphs, and two sessions that take turns on one lane.

    Each use of a session begins with its reset or a restore: the other one has had the lane.

    Args:
        device: Where it runs.
        scale: How large it is.

    Attributes:
        device: Where it runs.
        scale: How large it is.
        model: The model.
        tensors: Its checkpoint, for peers.
        captured: Replays graphs.
        eager: Runs the programs themselves.
    """

    def __init__(self, device: Device, scale: TextScale) -> None:
        self.device = device
        self.scale = scale
        backend = device.backend
        with ExitStack() as undo:
            self.model, self.tensors = build(scale, device.torch_device)
            programs = self.model.programs()
            layout = ArenaLayout.of(self.model.buffers())
            arena = undo.enter_context(backend.create_arena(layout, num_lanes=1))
            arena.seal()
            noise = undo.enter_context(
                NoiseRing(self.model.noise_shape, num_slots=4, backend=backend)
            )
            graphs = undo.enter_context(GraphSet(backend, programs, arena, noise.slots))
            lanes = Lane(graphs, 0), EagerLane(graphs, 0, programs, noise.slots)
            self.captured, self.eager = (
                undo.enter_context(HybridSession(self.model, graphs, lane, noise)) for lane in lanes
            )
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.device.settle()
        self._undo.close()

    def capsule_of(self, prefix: Sequence[int]) -> SessionCapsule:
        """Compute a prefix and freeze it.

        Args:
            prefix: Tokens, a multiple of 64.

        Returns:
            The capsule, which the caller closes.
        """
        self.captured.reset()
        self.captured.append(prefix)
        return self.captured.snapshot()

    def check(self, prefix: Sequence[int], suffix: Sequence[int], capsule: SessionCapsule) -> None:
        """Compare three ways to a text, on a lane that held something else: tokens and logits.

        Args:
            prefix: Tokens, a multiple of 64.
            suffix: Tokens that follow it.
            capsule: Of the prefix.

        Raises:
            WrongResultError: They differ; or they don't without the recurrent state, so that
                comparing them proves nothing.
        """
        whole = [*prefix, *suffix]
        self.captured.reset()
        self.captured.append(whole)
        expected = _decode(self.captured)
        for what, session in (("captured", self.captured), ("eager", self.eager)):
            self._dirty(suffix)
            session.restore(capsule)
            session.append(suffix)
            _require("a restore", what, expected, _decode(session))
        self._dirty(suffix)
        self.eager.reset()
        self.eager.append(whole)
        _require("the text computed", "eager", expected, _decode(self.eager))
        self.captured.restore(capsule)
        size = self.captured.layout.by_name[RECURRENT].spec.num_bytes
        self.captured.write(RECURRENT, bytes(size))
        self.captured.append(suffix)
        if _decode(self.captured)[1][0] == expected[1][0]:
            raise WrongResultError("a text is the same without its recurrent state")

    def num_differing(
        self, prefix: Sequence[int], suffix: Sequence[int], capsule: SessionCapsule
    ) -> int:
        """Count the logits that differ where the end of a prefix comes in by 64 tokens.

        A long chunk and short ones must give the same bytes, so that a prefix may end, and a
        text be resumed, at every multiple of 64.

        Args:
            prefix: Tokens, a multiple of 64.
            suffix: Tokens that follow it.
            capsule: Of the prefix, computed in chunks as long as they may be.

        Returns:
            How many of the logits after the suffix differ in value.
        """
        session = self.captured
        session.restore(capsule)
        session.append(suffix)
        expected = session.logits()
        start = max(0, len(prefix) - self.scale.chunk_length + BORDER_TOKENS)
        session.reset()
        for end in (start, *range(start + BORDER_TOKENS, len(prefix) + 1, BORDER_TOKENS)):
            if end > session.position:
                session.append(prefix[session.position : end])
        session.append(suffix)
        return int((session.logits() != expected).sum())

    def _dirty(self, tokens: Sequence[int]) -> None:
        self.captured.reset()
        self.captured.append(list(reversed(tokens)))


def _decode(session: HybridSession) -> _Text:
    tokens, logits = decode_with_logits(session, NUM_COMPARED)
    return tokens, [row.tobytes() for row in logits]


def _require(what: str, how: str, expected: _Text, found: _Text) -> None:
    if found[0] != expected[0]:
        raise WrongResultError(f"{what} ({how}) gave other tokens than the text computed at once")
    if found[1] != expected[1]:
        raise WrongResultError(f"{what} ({how}) gave other logits than the text computed at once")
