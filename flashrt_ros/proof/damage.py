"""Damages each STATE buffer, and judges it by what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.proof.report import BufferResult, Verdict
from flashrt_ros.proof.rig import Frame, Rig
from flashrt_ros.proof.walk import History, Walk, differing
from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.spec import Placement, Role

NUM_DAMAGE_STARTS = 6
"""Boundaries from which the damaged runs start; queues are full, half full and empty."""

NOISE_MARK = "noise"
"""Mark of a buffer with ``feeds_noise``, in a report."""

_MAX_OTHERS = 3


def read_buffer(capsule: bytes, place: Placement) -> torch.Tensor:
    """Copy a buffer's value out of a capsule's payload."""
    raw = bytearray(capsule[place.offset : place.offset + place.spec.num_bytes])
    return torch.frombuffer(raw, dtype=DTYPES[place.spec.dtype]).view(place.spec.shape)


def damages(
    place: Placement, capsule: bytes, others: Sequence[bytes]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk values of a buffer that differ from the one a capsule has.

    What an integer may be is not declared, so its range is what it was seen to be at
    other boundaries; an index damaged so stays an index.

    Args:
        place: The buffer.
        capsule: Payload to be damaged.
        others: Payloads of other boundaries.

    Yields:
        What was done, and the value.
    """
    now = read_buffer(capsule, place)
    seen = [read_buffer(other, place) for other in others]
    different = [value for value in seen if not _is_same(value, now)]
    for value in different[:_MAX_OTHERS]:
        yield "value of another boundary", value
    candidates = _perturbed_float(now) if now.is_floating_point() else _perturbed(now, seen)
    for label, value in candidates:
        if not _is_same(value, now):
            yield label, value


def _perturbed_float(now: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    limit = torch.finfo(now.dtype)
    signs = torch.ones(now.numel(), dtype=now.dtype)
    signs[1::2] = -1
    shift = (0.5 * (1 + now.abs()) * signs.view(now.shape)).to(now.dtype)
    yield "shifted", (now + shift).clamp(limit.min, limit.max)
    yield "negated", -now
    yield "zeroed", torch.zeros_like(now)


def _perturbed(
    now: torch.Tensor, seen: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    if now.dtype is torch.bool:
        yield "inverted", ~now
        return
    every = torch.stack([now, *seen])
    low, high = every.min(), every.max()
    if low == high:
        # seen at one value only: the next one is as good a guess as any
        low, high = low - 1 if low > 0 else low, high + 1
    yield "one more", (now + 1).clamp(low, high)
    yield "one less", (now - 1).clamp(low, high)


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    as_bytes = (left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    return torch.equal(*as_bytes)


@dataclass(slots=True)
class Seen:
    """What the damaged runs of one buffer showed.

    Attributes:
        reached: Buffer that changed → ticks until it did, and by which damage.
        is_decided: OUTPUT was reached; no further run was made.
    """

    reached: dict[str, tuple[int, str]]
    num_runs: int = 0
    is_decided: bool = False


class DamageTrial:
    """Damaged runs from several boundaries, against undamaged ones.

    The boundaries are taken here, over lane 0, which is left at the last of them.

    Args:
        rig: Runs the model.
        history: Inputs of every run.
        num_ticks: Length of a run from a boundary.
    """

    def __init__(self, rig: Rig, history: History, num_ticks: int) -> None:
        self._rig = rig
        self._history = history
        self._num_ticks = num_ticks
        self._roles = {p.spec.name: p.spec.role for p in rig.layout.placements}
        self._references: dict[tuple[int, bool], tuple[list[Frame], list[bytes]]] = {}
        self._starts: list[tuple[bytes, int]] = []
        rig.initialise(0)
        walk = Walk(rig, 0, history)
        for _ in range(rig.model.execute_horizon):
            walk.tick()
        for _ in range(NUM_DAMAGE_STARTS):
            walk.tick()
            walk.settle()
            self._starts.append((rig.capsule(0), walk.ordinal))

    def run(self, place: Placement) -> Seen:
        """Damage one buffer, from every boundary and in every way, until OUTPUT changes."""
        seen = Seen({})
        is_judged_by_noise = place.spec.feeds_noise
        for index, (capsule, _) in enumerate(self._starts):
            others = [other for other, _ in self._starts if other is not capsule]
            frames, noises = self._reference(index, is_noise_fixed=not is_judged_by_noise)
            for label, value in damages(place, capsule, others):
                seen.num_runs += 1
                walk = self._begin(index, is_noise_fixed=not is_judged_by_noise)
                self._rig.put(0, place.spec.name, value)
                if is_judged_by_noise:
                    self._compare_noise(walk, noises, label, seen)
                else:
                    self._compare(walk, frames, place.spec.name, label, seen)
                if seen.is_decided:
                    return seen
        return seen

    def _begin(self, index: int, *, is_noise_fixed: bool) -> Walk:
        capsule, ordinal = self._starts[index]
        self._rig.restore(0, capsule)
        return Walk(self._rig, 0, self._history, ordinal=ordinal, is_noise_fixed=is_noise_fixed)

    def _reference(self, index: int, *, is_noise_fixed: bool) -> tuple[list[Frame], list[bytes]]:
        key = (index, is_noise_fixed)
        if key not in self._references:
            walk = self._begin(index, is_noise_fixed=is_noise_fixed)
            self._references[key] = (walk.frames(self._num_ticks), walk.noises)
        return self._references[key]

    def _compare(
        self, walk: Walk, frames: list[Frame], damaged: str, label: str, seen: Seen
    ) -> None:
        for tick, expected in enumerate(frames, start=1):
            try:
                walk.tick()
            except DeviceLostError:
                raise
            except FlashrtError:
                # a replay that refuses the damaged value has read it
                seen.reached.setdefault("error", (tick, label))
                seen.is_decided = True
                return
            for name in differing(walk.frame(), expected):
                if name != damaged and self._roles[name] is not Role.INPUT:
                    seen.reached.setdefault(name, (tick, label))
                    seen.is_decided |= self._roles[name] is Role.OUTPUT
            if seen.is_decided:
                return

    def _compare_noise(self, walk: Walk, noises: list[bytes], label: str, seen: Seen) -> None:
        for tick in range(1, self._num_ticks + 1):
            walk.tick()
            if walk.noises != noises[: len(walk.noises)]:
                seen.reached.setdefault("noise", (tick, label))
                seen.is_decided = True
                return


def live_buffers(places: Sequence[Placement], seen: dict[str, Seen]) -> frozenset[str]:
    """Return the STATE buffers whose damage reaches OUTPUT or noise, by whatever way.

    A buffer that reaches only buffers which reach nothing is as dead as they are.
    """
    live = {name for name, one in seen.items() if one.is_decided}
    inert = {place.spec.name for place in places if place.spec.inert is not None}
    while True:
        more = {
            name
            for name, one in seen.items()
            if name not in live and any(other in live - inert for other in one.reached)
        }
        if not more:
            return frozenset(live)
        live |= more


def judge(place: Placement, seen: Seen, live: frozenset[str]) -> BufferResult:
    """Conclude from what the damaged runs of a buffer showed.

    Args:
        place: The buffer.
        seen: What its runs showed.
        live: As :func:`live_buffers` gave it.
    """
    spec = place.spec
    is_live = spec.name in live
    mark = spec.inert.value if spec.inert is not None else NOISE_MARK if spec.feeds_noise else ""
    if spec.feeds_noise:
        verdict = Verdict.NOISE if is_live else Verdict.MISMARKED
    elif spec.inert is not None:
        verdict = Verdict.MISMARKED if is_live else Verdict.INERT
    else:
        verdict = Verdict.MATTERS if is_live else Verdict.DEAD
    first = min(seen.reached.values(), default=(-1, ""))
    return BufferResult(
        buffer=spec.name,
        num_bytes=spec.num_bytes,
        mark=mark,
        verdict=verdict,
        reached=tuple(sorted(seen.reached)),
        after_ticks=first[0],
        damage=first[1],
        num_runs=seen.num_runs,
    )


def complaint(result: BufferResult, num_ticks: int) -> str:
    """Say what is wrong with a buffer, "" where nothing is.

    Args:
        result: As :func:`judge` gave it.
        num_ticks: Ticks that were compared.
    """
    reached = ", ".join(result.reached)
    if result.verdict is Verdict.DEAD:
        return (
            f"changes nothing within {num_ticks} ticks when it is damaged"
            + (f" but {reached}, which reaches nothing either" if reached else "")
            + "; it is no state: drop it, or mark it inert if it is only reported"
        )
    if result.verdict is not Verdict.MISMARKED:
        return ""
    if result.mark == NOISE_MARK:
        return (
            "is marked feeds_noise, but the same noise is drawn when it is damaged; drop the mark"
        )
    return (
        f"is marked {result.mark}, but damaging it changes {reached} after {result.after_ticks} "
        "ticks; drop the mark"
    )
