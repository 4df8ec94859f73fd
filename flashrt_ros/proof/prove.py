"""Shows that a model's declared state is its whole state, and that all of it is state.

On the runtime alone, without an engine: a lane is driven along a recorded history,
then everything that a capsule does not carry is overwritten, the capsule is restored,
and the same inputs must give the same bytes. Then each STATE buffer is damaged, and
what follows must change. Everything is drawn from a seed: two proofs of one model
agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from flashrt_ros.errors import (
    CaptureError,
    DeviceLostError,
    FlashrtError,
    ParameterRangeError,
    SpecError,
)
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.proof.damage import DamageTrial, complaint, judge, live_buffers
from flashrt_ros.proof.eager import EagerComparison
from flashrt_ros.proof.report import (
    QUESTIONS,
    BufferResult,
    CheckName,
    CheckResult,
    Finding,
    Proof,
)
from flashrt_ros.proof.rig import Frame, Region, Rig
from flashrt_ros.proof.walk import History, Walk, first_difference
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.spec import Role

POISONS = (0xFF, 0x3F, 0x00)
"""Bytes to overwrite with: NaN or -1, a finite number of about 1, zero."""

NUM_STARTS = 3
"""Boundaries from which the poisoned runs start."""

NUM_HISTORIES = 3
"""Random histories that are run against a fresh start."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A boundary of the recorded history, and what the original run gave after it.

    Attributes:
        capsule: STATE and INPUT.
        ordinal: Place in the history of the next plan.
        frames: Boundaries that followed, with the lane as it was.
        saved: Everything else at the boundary, by region.
    """

    capsule: bytes
    ordinal: int
    frames: list[Frame]
    saved: dict[str, tuple[torch.Tensor, ...]]


def prove(
    create: Callable[[], PolicyModel],
    *,
    device: str = "cpu",
    num_ticks: int | None = None,
    seed: int = 0,
    on_check: Callable[[CheckName], None] = lambda check: None,
) -> Proof:
    """Run every check on a model.

    Sets the number of intra-op threads to one, as an engine does by default.

    Args:
        create: Makes the model; called again for every fresh instance.
        device: Where: "cpu", "cuda" (device 0) or "cuda:N".
        num_ticks: Ticks compared after each boundary; None takes three chunks' worth.
        seed: Of the histories.
        on_check: Told when a check begins.

    Returns:
        What was found. A model whose capture is refused is reported, not raised.

    Raises:
        ParameterRangeError: Seed or ticks are out of range.
        ConfigError: There is no such kind of device.
        BackendError: The device is not there.
        DeviceLostError: A program ran into an error that the device's context does not
            survive (an index out of range, usually); the process can't use it any more.
        FlashrtError: The model can't be made.
    """
    torch.set_num_threads(1)
    model = create()
    if not 0 <= seed < 1 << 32:
        raise ParameterRangeError("a proof has no such seed", expected="0 to 2**32 - 1", found=seed)
    # a queue may last for a chunk: in fewer ticks nothing need be planned, and all would pass
    least = model.execute_horizon + 1
    if num_ticks is not None and num_ticks < least:
        raise ParameterRangeError(
            f"a proof of '{model.name}' over so few ticks would say nothing",
            expected=f"{least} or more",
            found=num_ticks,
        )
    num_ticks = num_ticks or 3 * model.execute_horizon
    with make_backend(device) as backend:
        return _Prover(model, create, backend, device, num_ticks, seed, on_check).run()


class _Prover:
    """State of one proof: the instance under test, and what was found so far."""

    def __init__(
        self,
        model: PolicyModel,
        create: Callable[[], PolicyModel],
        backend: Backend,
        device: str,
        num_ticks: int,
        seed: int,
        on_check: Callable[[CheckName], None],
    ) -> None:
        self._model = model
        self._create = create
        self._backend = backend
        self._device = device
        self._num_ticks = num_ticks
        self._seed = seed
        self._on_check = on_check
        self._history = History(self._model, seed)
        self._findings: list[Finding] = []
        self._checks: list[CheckResult] = []
        self._buffers: list[BufferResult] = []
        self._num_runs = 0

    def run(self) -> Proof:
        started = time.monotonic()
        rig = self._capture()
        if rig is not None:
            with rig:
                self._run_checks(rig)
        with self._backend.ordered():
            digest = self._model.weights_digest()
        return Proof(
            model=self._model.name,
            weights_digest=digest,
            device=self._device,
            seed=self._seed,
            num_ticks=self._num_ticks,
            duration_s=round(time.monotonic() - started, 3),
            checks=tuple(self._checks),
            buffers=tuple(self._buffers),
            findings=tuple(self._findings),
        )

    def _run_checks(self, rig: Rig) -> None:
        self._check(CheckName.REPLAY, lambda: self._check_replay(rig))
        self._check(CheckName.COUNTERS, lambda: self._check_counters(rig))
        starts: list[_Start] = []
        self._check(CheckName.POISON, lambda: self._check_poison(rig, starts))
        if any(found.check is CheckName.POISON for found in self._findings):
            # each further comparison would find the same memory again, without its name
            return
        self._check(CheckName.LANE, lambda: self._check_lane(rig, starts))
        self._check(CheckName.FRESH, lambda: self._check_fresh(starts))
        self._check(CheckName.HISTORIES, lambda: self._check_histories(rig))
        self._check(CheckName.DAMAGE, lambda: self._check_damage(rig))

    def _check(self, name: CheckName, body: Callable[[], None]) -> None:
        self._on_check(name)
        before = len(self._findings)
        self._num_runs = 0
        try:
            body()
        except DeviceLostError:
            raise
        except FlashrtError as error:
            self._find(name, self._model.name, f"could not be run to the end: {error}")
        passed = len(self._findings) == before
        self._checks.append(CheckResult(name, QUESTIONS[name], self._num_runs, passed))

    def _find(self, check: CheckName, subject: str, message: str) -> None:
        self._findings.append(Finding(check, subject, message))

    # capture -----------------------------------------------------------------------------

    def _capture(self) -> Rig | None:
        rig: Rig | None = None

        def body() -> None:
            nonlocal rig
            self._num_runs = 1
            try:
                rig = Rig(self._model, backend=self._backend)
            except CaptureError as error:
                self._find(CheckName.CAPTURE, error.op or error.source, str(error))
            except SpecError as error:
                self._find(CheckName.CAPTURE, self._model.name, str(error))

        self._check(CheckName.CAPTURE, body)
        return rig

    # replay ------------------------------------------------------------------------------

    def _check_replay(self, rig: Rig) -> None:
        comparison = EagerComparison(rig)
        rig.initialise(0)
        Walk(rig, 0, self._history, observer=comparison).frames(self._num_ticks)
        self._num_runs = comparison.num_runs
        for key, (buffers, reason) in comparison.differences.items():
            self._find(
                CheckName.REPLAY,
                buffers[0] if buffers else str(key),
                f"differs between program {key} and its graph ({reason}): the program keeps "
                "something outside its buffers, which no replay repeats; keep it in a STATE buffer",
            )

    # counters ----------------------------------------------------------------------------

    def _check_counters(self, rig: Rig) -> None:
        rig.initialise(0)
        walk = Walk(rig, 0, self._history)
        wrong: set[str] = set()
        for _ in range(self._num_ticks):
            walk.tick()
            self._num_runs += 1
            for name, expected in walk.expected.items():
                found = rig.counter(0, name)
                if found != expected and name not in wrong:
                    wrong.add(name)
                    self._find(
                        CheckName.COUNTERS,
                        name,
                        f"is {found} where an engine takes it to be {expected}; count as "
                        "models.action_queue does",
                    )
            self._check_inputs(rig, walk, wrong)

    def _check_inputs(self, rig: Rig, walk: Walk, wrong: set[str]) -> None:
        for field, name in self._model.inputs().items():
            latched = walk.consumed.get(field)
            if latched is None or name in wrong:
                continue
            if not torch.equal(rig.value(0, name), latched):
                wrong.add(name)
                self._find(
                    CheckName.COUNTERS,
                    name,
                    f"does not keep what the last plan latched from '{field}', so that a "
                    "restored goal would be another one; copy it in the commit node",
                )

    # poison ------------------------------------------------------------------------------

    def _record(self, rig: Rig, index: int) -> _Start:
        """Run to a boundary of the history, and on from there."""
        rig.initialise(0)
        walk = Walk(rig, 0, self._history)
        for _ in range(self._model.execute_horizon + 1 + 2 * index):
            walk.tick()
        walk.settle()
        capsule = rig.capsule(0)
        saved = {region.name: region.save() for region in rig.regions(0)}
        frames = Walk(rig, 0, self._history, ordinal=walk.ordinal).frames(self._num_ticks)
        return _Start(capsule, walk.ordinal, frames, saved)

    def _follow(self, rig: Rig, lane: int, start: _Start) -> tuple[int, str] | None:
        """Restore a start and run on; returns tick and buffer of the first difference."""
        self._num_runs += 1
        rig.restore(lane, start.capsule)
        walk = Walk(rig, lane, self._history, ordinal=start.ordinal)
        return first_difference(walk, start.frames)

    def _follow_each(self, rig: Rig, lane: int, starts: Sequence[_Start]) -> tuple[int, str] | None:
        """Follow one start after the other, up to the first that differs."""
        differences = (self._follow(rig, lane, start) for start in starts)
        return next((found for found in differences if found is not None), None)

    def _check_poison(self, rig: Rig, starts: list[_Start]) -> None:
        starts.extend(self._record(rig, index) for index in range(NUM_STARTS))
        for start in starts:
            for value in POISONS:
                rig.poison(0, value)
                difference = self._follow(rig, 0, start)
                if difference is not None:
                    self._blame(rig, start, value, difference)
                    return

    def _blame(self, rig: Rig, start: _Start, value: int, difference: tuple[int, str]) -> None:
        """Find which memory a difference came from, by poisoning one region at a time."""
        tick, buffer = difference

        def is_read(poisoned: Region | None) -> bool:
            for region in rig.regions(0):
                region.load(start.saved[region.name])
            if poisoned is not None:
                poisoned.fill(value)
            return self._follow(rig, 0, start) is not None

        if is_read(None):
            writers = [str(key) for key in rig.programs if buffer in rig.written_by(key)]
            self._find(
                CheckName.POISON,
                buffer,
                f"differs at tick {tick} after a restore, with every buffer put back: program "
                f"{' or '.join(writers) or 'unknown'} reads memory outside the arena that "
                "changes; keep it in a STATE buffer",
            )
            return
        culprits = [region.name for region in rig.regions(0) if is_read(region)]
        for name in culprits:
            self._find(
                CheckName.POISON,
                name,
                f"is read before it is written: overwritten with {value:#04x}, it changes "
                f"'{buffer}' at tick {tick} after a restore; declare what it carries from one "
                "plan to the next as STATE",
            )
        if not culprits:
            self._find(
                CheckName.POISON,
                buffer,
                f"differs at tick {tick} after a restore once several regions are overwritten "
                "together; none of them alone shows it",
            )

    # other lanes and instances -----------------------------------------------------------

    def _check_lane(self, rig: Rig, starts: Sequence[_Start]) -> None:
        difference = self._follow_each(rig, 1, starts)
        if difference is not None:
            self._find(
                CheckName.LANE,
                difference[1],
                f"differs at tick {difference[0]} on another lane, restored from the same capsule",
            )

    def _check_fresh(self, starts: Sequence[_Start]) -> None:
        with Rig(self._create(), backend=self._backend) as fresh:
            difference = self._follow_each(fresh, 0, starts)
        if difference is not None:
            self._find(
                CheckName.FRESH,
                difference[1],
                f"differs at tick {difference[0]} in a fresh instance of the model: what programs "
                "read outside their buffers must be the same every time the model is made and "
                "captured",
            )

    def _check_histories(self, rig: Rig) -> None:
        for index in range(NUM_HISTORIES):
            history = History(self._model, self._seed + 1 + index)
            with Rig(self._create(), num_lanes=1, backend=self._backend) as fresh:
                fresh.initialise(0)
                capsule = fresh.capsule(0)
                frames = Walk(fresh, 0, history).frames(self._num_ticks)
            lane = index % len(rig.lanes)
            # whatever ran before, and a plan cut off in its middle
            dirt = History(self._model, self._seed + 1001 + index)
            Walk(rig, lane, dirt).frames(self._num_ticks)
            self._num_runs += 1
            rig.restore(lane, capsule)
            difference = first_difference(Walk(rig, lane, history), frames)
            if difference is not None:
                self._find(
                    CheckName.HISTORIES,
                    difference[1],
                    f"differs at tick {difference[0]} from a fresh start, on a lane that had run "
                    f"another history before (seed {self._seed + 1001 + index}, then "
                    f"{self._seed + 1 + index})",
                )
                return

    # damage ------------------------------------------------------------------------------

    def _check_damage(self, rig: Rig) -> None:
        trial = DamageTrial(rig, self._history, self._num_ticks)
        places = [p for p in rig.layout.placements if p.spec.role is Role.STATE]
        seen = {place.spec.name: trial.run(place) for place in places}
        live = live_buffers(places, seen)
        for place in places:
            result = judge(place, seen[place.spec.name], live)
            self._buffers.append(result)
            self._num_runs += result.num_runs
            reason = complaint(result, self._num_ticks)
            if reason:
                self._find(CheckName.DAMAGE, result.buffer, reason)
