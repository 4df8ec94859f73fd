"""Shows that a model's declared state is its whole state, and that all of it is state.

On the runtime alone, without an engine: a lane is driven along a recorded history,
then everything that a capsule does not carry is overwritten, the capsule is restored,
and the same inputs must give the same bytes. Then each STATE buffer is damaged, and
what follows must change. Everything is drawn from a seed: two proofs of one model
agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from flashrt_ros.engine.prove_damage import damages
from flashrt_ros.engine.prove_report import (
    BufferResult,
    CheckName,
    CheckResult,
    Finding,
    Proof,
    Verdict,
)
from flashrt_ros.engine.prove_rig import Frame, Region, Rig
from flashrt_ros.engine.prove_walk import History, Walk
from flashrt_ros.errors import CaptureError, FlashrtError, SpecError
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.spec import Placement, Role, ShapeKey

POISONS = (0xFF, 0x3F, 0x00)
"""Bytes to overwrite with: NaN or -1, a finite number of about 1, zero."""

NUM_STARTS = 3
"""Boundaries from which the poisoned runs start."""

NUM_DAMAGE_STARTS = 6
"""Boundaries from which the damaged runs start; queues are full, half full and empty."""

NUM_HISTORIES = 3
"""Random histories that are run against a fresh start."""

QUESTIONS = {
    CheckName.CAPTURE: "is every program captured, and the plan sound?",
    CheckName.REPLAY: "does a program do again what its graph replays?",
    CheckName.COUNTERS: "do counters and inputs say what the engine takes them to say?",
    CheckName.POISON: "is nothing read but STATE and INPUT after a restore?",
    CheckName.LANE: "does another lane give the same bytes?",
    CheckName.FRESH: "does a fresh instance give the same bytes?",
    CheckName.HISTORIES: "does a used lane, restored, equal a fresh start?",
    CheckName.DAMAGE: "does every STATE buffer matter?",
}


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
    num_ticks: int | None = None,
    seed: int = 0,
    on_check: Callable[[CheckName], None] = lambda check: None,
) -> Proof:
    """Run every check on a model.

    Sets the number of intra-op threads to one, as an engine does by default.

    Args:
        create: Makes the model; called again for every fresh instance.
        num_ticks: Ticks compared after each boundary; None takes three chunks' worth.
        seed: Of the histories.
        on_check: Told when a check begins.

    Returns:
        What was found. A model whose capture is refused is reported, not raised.

    Raises:
        FlashrtError: The model can't be made.
    """
    torch.set_num_threads(1)
    return _Prover(create, num_ticks, seed, on_check).run()


class _Prover:
    """State of one proof: the instance under test, and what was found so far."""

    def __init__(
        self,
        create: Callable[[], PolicyModel],
        num_ticks: int | None,
        seed: int,
        on_check: Callable[[CheckName], None],
    ) -> None:
        self._create = create
        self._model = create()
        self._seed = seed
        self._on_check = on_check
        self._num_ticks = num_ticks or 3 * self._model.execute_horizon
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
        return Proof(
            model=self._model.name,
            weights_digest=self._model.weights_digest(),
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
        starts = [self._record(rig, index) for index in range(NUM_STARTS)]
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
                rig = Rig(self._model)
            except CaptureError as error:
                self._find(CheckName.CAPTURE, error.op or error.source, str(error))
            except SpecError as error:
                self._find(CheckName.CAPTURE, self._model.name, str(error))

        self._check(CheckName.CAPTURE, body)
        return rig

    # replay ------------------------------------------------------------------------------

    def _check_replay(self, rig: Rig) -> None:
        comparison = _EagerComparison(rig)
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
            views = rig.lanes[0].views
            for name, expected in walk.expected.items():
                found = int(views[name][0])
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
            if not torch.equal(rig.lanes[0].views[name], latched):
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
        return _first_difference(walk, start.frames)

    def _check_poison(self, rig: Rig, starts: Sequence[_Start]) -> None:
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
        for start in starts:
            difference = self._follow(rig, 1, start)
            if difference is not None:
                self._find(
                    CheckName.LANE,
                    difference[1],
                    f"differs at tick {difference[0]} on another lane, restored from the same "
                    "capsule",
                )
                return

    def _check_fresh(self, starts: Sequence[_Start]) -> None:
        with Rig(self._create()) as fresh:
            for start in starts:
                difference = self._follow(fresh, 0, start)
                if difference is not None:
                    self._find(
                        CheckName.FRESH,
                        difference[1],
                        f"differs at tick {difference[0]} in a fresh instance of the model: what "
                        "programs read outside their buffers must be the same every time the "
                        "model is made and captured",
                    )
                    return

    def _check_histories(self, rig: Rig) -> None:
        for index in range(NUM_HISTORIES):
            history = History(self._model, self._seed + 1 + index)
            with Rig(self._create(), num_lanes=1) as fresh:
                fresh.initialise(0)
                capsule = fresh.capsule(0)
                frames = Walk(fresh, 0, history).frames(self._num_ticks)
            lane = index % len(rig.lanes)
            # whatever ran before, and a plan cut off in its middle
            dirt = History(self._model, self._seed + 1001 + index)
            Walk(rig, lane, dirt).frames(self._num_ticks)
            self._num_runs += 1
            rig.restore(lane, capsule)
            difference = _first_difference(Walk(rig, lane, history), frames)
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
        trial = _DamageTrial(rig, self._history, self._num_ticks)
        places = [p for p in rig.layout.placements if p.spec.role is Role.STATE]
        seen = {place.spec.name: trial.run(place) for place in places}
        live = _live_buffers(places, seen)
        for place in places:
            result = _judge(place, seen[place.spec.name], live)
            self._buffers.append(result)
            self._num_runs += result.num_runs
            if result.verdict is Verdict.DEAD:
                self._find(
                    CheckName.DAMAGE,
                    result.buffer,
                    f"changes nothing within {self._num_ticks} ticks when it is damaged"
                    + (f" but {', '.join(result.reached)}" if result.reached else "")
                    + "; it is no state: drop it, or mark it inert if it is only reported",
                )
            elif result.verdict is Verdict.MISMARKED and place.spec.feeds_noise:
                self._find(
                    CheckName.DAMAGE,
                    result.buffer,
                    "is marked feeds_noise, but the same noise is drawn when it is damaged; "
                    "drop the mark",
                )
            elif result.verdict is Verdict.MISMARKED:
                self._find(
                    CheckName.DAMAGE,
                    result.buffer,
                    f"is marked {result.mark}, but damaging it changes "
                    f"{', '.join(result.reached)} after {result.after_ticks} ticks; drop the mark",
                )


class _EagerComparison:
    """Runs each program's Python on a second lane before its graph runs on the first."""

    def __init__(self, rig: Rig) -> None:
        self.num_runs = 0
        self.differences: dict[ShapeKey, tuple[list[str], str]] = {}
        self._rig = rig
        self._error = ""

    def before(self, key: ShapeKey) -> None:
        """Run the program over a copy of the lane."""
        self._rig.copy_lane(1, 0)
        self._error = ""
        try:
            self._rig.run_eagerly(1, key)
        except Exception as error:  # noqa: BLE001 - a model's code may raise anything
            self._error = f"run again, it raised {type(error).__name__}: {error}"

    def after(self, key: ShapeKey) -> None:
        """Compare what the graph did with what the program did."""
        self.num_runs += 1
        if key in self.differences:
            return
        differing = [
            name
            for name in self._rig.lanes[0].views
            if not torch.equal(self._rig.buffer_bytes(0, name), self._rig.buffer_bytes(1, name))
        ]
        if differing or self._error:
            self.differences[key] = (differing, self._error or "other bytes")


@dataclass(slots=True)
class _Seen:
    """What the damaged runs of one buffer showed.

    Attributes:
        reached: Buffer that changed → ticks until it did, and by which damage.
        is_decided: OUTPUT was reached; no further run was made.
    """

    reached: dict[str, tuple[int, str]]
    num_runs: int = 0
    is_decided: bool = False


class _DamageTrial:
    """Damaged runs from several boundaries, against undamaged ones."""

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

    def run(self, place: Placement) -> _Seen:
        """Damage one buffer, from every boundary and in every way, until OUTPUT changes."""
        seen = _Seen({})
        is_judged_by_noise = place.spec.feeds_noise
        for index, (capsule, _) in enumerate(self._starts):
            others = [other for other, _ in self._starts if other is not capsule]
            frames, noises = self._reference(index, is_noise_fixed=not is_judged_by_noise)
            for label, value in damages(place, capsule, others):
                seen.num_runs += 1
                walk = self._begin(index, is_noise_fixed=not is_judged_by_noise)
                self._rig.lanes[0].views[place.spec.name].copy_(value)
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
        self, walk: Walk, frames: list[Frame], damaged: str, label: str, seen: _Seen
    ) -> None:
        for tick, expected in enumerate(frames, start=1):
            try:
                walk.tick()
            except FlashrtError:
                # a replay that refuses the damaged value has read it
                seen.reached.setdefault("error", (tick, label))
                seen.is_decided = True
                return
            for name in _differing(walk.frame(), expected):
                if name != damaged and self._roles[name] is not Role.INPUT:
                    seen.reached.setdefault(name, (tick, label))
                    seen.is_decided |= self._roles[name] is Role.OUTPUT
            if seen.is_decided:
                return

    def _compare_noise(self, walk: Walk, noises: list[bytes], label: str, seen: _Seen) -> None:
        for tick in range(1, self._num_ticks + 1):
            walk.tick()
            if walk.noises != noises[: len(walk.noises)]:
                seen.reached.setdefault("noise", (tick, label))
                seen.is_decided = True
                return


def _first_difference(walk: Walk, frames: Sequence[Frame]) -> tuple[int, str] | None:
    for tick, expected in enumerate(frames, start=1):
        try:
            walk.tick()
        except FlashrtError as error:
            return tick, f"error: {error}"
        for name in _differing(walk.frame(), expected):
            return tick, name
    return None


def _differing(found: Frame, expected: Frame) -> Iterator[str]:
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            yield name


def _live_buffers(places: Sequence[Placement], seen: dict[str, _Seen]) -> frozenset[str]:
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


def _judge(place: Placement, seen: _Seen, live: frozenset[str]) -> BufferResult:
    spec = place.spec
    is_live = spec.name in live
    mark = spec.inert.value if spec.inert is not None else "noise" if spec.feeds_noise else ""
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
