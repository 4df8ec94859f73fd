"""Many environments of one policy, stepped together in the caller's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.capsule.capsule import Origin, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.batched_assembly import assemble_batched
from flashrt_ros.engine.batched_rows import RowCapsule, Rows, RowsLike, row_indices
from flashrt_ros.engine.core import check_seed
from flashrt_ros.errors import (
    BackendError,
    CapsuleNotFoundError,
    ConfigError,
    NotActiveError,
    SpecError,
    StepTimeoutError,
)
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    GOAL_SEQUENCE_IN,
    NOISE_COUNTER,
    NOISE_SEED,
    NOISE_SLOT,
    PolicyModel,
    Program,
    slot_binding,
)
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ChannelRole, ShapeKey


class BatchedEngine:
    """Steps ``n`` environments in lockstep: one replay of each graph serves them all.

    Each environment has its own state, goal, observation, noise and position, and is
    reset, snapshot and restored alone, between steps. Same state and same inputs give the
    same bytes in the same environment at the same ``n``, whatever the others hold. In
    another environment, at another ``n`` or in ``Engine`` they may differ by rounding.

    There is no flip (a reset is one copy), no branch (restore one capsule to several
    environments instead), no interrupt, no timer, no process of its own.

    Ownership: the engine owns lanes, graphs and slots. Not to be used by two threads.

    Args:
        model: Outlives the engine.
        num_environments: ``n``; part of the byte promise.
        backend: Outlives the engine; None for the CPU.
        seed: Environment ``i`` draws its noise from ``seed + i``.
        replan_threshold: A step that finds at most this many actions queued makes the
            next chunk first.
        num_threads: Intra-op threads of the process; part of the byte promise.
        programs: Programs over ``[n, *shape]`` to use in place of the model's own, lifted
            to rows, by key.

    Attributes:
        inputs: The slots; write in place by ``inputs.views``, then :meth:`commit`.

    Raises:
        ConfigError: A number is out of range.
        SpecError: The model's declarations are inconsistent, or a program has no key of it.
        CaptureError: A program can't be captured over rows.
        BackendError: There is no such memory.
    """

    def __init__(
        self,
        model: PolicyModel,
        *,
        num_environments: int,
        backend: Backend | None = None,
        seed: int = 0,
        replan_threshold: int = 0,
        num_threads: int = 1,
        programs: Mapping[ShapeKey, Program] | None = None,
    ) -> None:
        check_seed(seed)
        check_seed(seed + max(num_environments, 1) - 1, "last environment's seed")
        if not 0 <= replan_threshold < model.execute_horizon:
            raise ConfigError(
                "batched engine parameter 'replan_threshold' is out of range",
                expected=f"0 to {model.execute_horizon - 1}",
                found=replan_threshold,
            )
        parts = assemble_batched(model, num_environments, backend, num_threads, programs or {})
        self._parts = parts
        self._model = model
        self._seed = seed
        self._replan_threshold = replan_threshold
        self._num_threads = num_threads
        self._positions = [Position()] * num_environments
        self._noise_slots = np.zeros(num_environments, np.int64)
        self._is_closed = False
        self.inputs = parts.inputs
        for channel in model.channels():
            self._bind(slot_binding(channel.name), np.arange(num_environments))
        self.reset()

    @property
    def num_environments(self) -> int:
        """Environments stepped together."""
        return len(self._positions)

    @property
    def fingerprint(self) -> Fingerprint:
        """What capsules of this engine are taken under."""
        return self._parts.fingerprint

    @property
    def ticks(self) -> npt.NDArray[np.int64]:
        """Steps that each environment has made since its home, ``int64[n]``."""
        return np.array([position.tick for position in self._positions], np.int64)

    @property
    def due(self) -> npt.NDArray[np.bool_]:
        """Environments whose next step makes a chunk first, ``bool[n]``.

        One that is due costs as much as all: reset together what may be reset together.
        """
        return np.array(
            [p.queue_remaining <= self._replan_threshold for p in self._positions], np.bool_
        )

    def chunks(self) -> npt.NDArray[np.float32]:
        """Copy the last chunk of each environment, ``float32[n, H, A]``."""
        return self._read(CHUNK)

    def write(self, channel: str, rows: RowsLike = None, **values: npt.ArrayLike) -> None:
        """Check payloads, copy them into the environments' slots, commit them.

        They act until they are replaced or dropped by a reset. ``inputs.views`` and
        :meth:`commit` save the copy.

        Args:
            channel: Name of a goal or observation channel.
            rows: Environments written.
            **values: Every field, ``[len(rows), *shape]``.

        Raises:
            UnknownChannelError: The model has no such channel.
            UnknownEnvironmentError: There is no such environment.
            FlashrtError: A payload was refused; nothing is written.
        """
        self.inputs.write(channel, self._rows(rows), values)

    def commit(self, channel: str, rows: RowsLike = None) -> None:
        """Check payloads that were written in place (``inputs.views``), and let them act.

        Raises:
            UnknownChannelError: The model has no such channel.
            UnknownEnvironmentError: There is no such environment.
            FlashrtError: A payload was refused; these environments have none now.
        """
        self.inputs.commit(channel, self._rows(rows))

    def step(self, rows: RowsLike = None) -> npt.NDArray[np.float32]:
        """Make a control tick: a chunk where one is due, then one action each.

        Args:
            rows: Environments that step; the others keep state and last action.

        Returns:
            ``float32[n, A]``, the last action of every environment.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            StepTimeoutError: One lacks an input since its reset. Nothing changes.
            ConfigError: The process's thread count was changed. Nothing changes.
            LanePoisonedError: One holds a torn state: restore or reset it. Nothing changes.
            BackendError: A replay failed; where it may have torn a state, the
                environments that it moved are poisoned.
            DeviceLostError: The device's context is gone, and with it every environment.
        """
        chosen = [int(row) for row in self._rows(rows)]
        self._check_step(chosen)
        try:
            self._tick(chosen)
        except BaseException:
            # whoever writes a slot next does so past what was submitted; a device that is
            # lost was said to be so by what failed before
            with suppress(BackendError):
                self._parts.backend.synchronize()
            raise
        return self._read(ACTION)

    def reset(
        self, rows: RowsLike = None, *, seeds: Sequence[int] | None = None, keep_goal: bool = False
    ) -> None:
        """Begin an episode: a fresh state, by one copy for each environment.

        Observations, and goals unless kept, must be written anew before the next step.

        Args:
            rows: Environments reset.
            seeds: Of their noise, one each; by default those of the engine's start.
            keep_goal: Leave the goals that were written.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            PayloadRangeError: A seed is out of range.
            SpecError: There are more or fewer seeds than rows. Nothing changes.
        """
        chosen = self._rows(rows)
        home = RowCapsule(self._parts.home, Position(), self._parts.fingerprint)
        own = [self._seed + int(row) for row in chosen] if seeds is None else seeds
        self._restore(chosen, [home] * len(chosen), own, keep_goal)

    def snapshot(self, rows: RowsLike = None) -> list[RowCapsule]:
        """Freeze environments, by one copy each; they go on undisturbed.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            LanePoisonedError: One holds a torn state; nothing is kept.
            BackendError: There is no such memory; nothing is kept.
        """
        chosen = [int(row) for row in self._rows(rows)]
        self._parts.batch.check_not_poisoned(chosen)
        with ExitStack() as undo:
            capsules = []
            for row in chosen:
                block = undo.enter_context(
                    self._parts.backend.allocate_block(self._parts.layout.capsule_bytes)
                )
                self._parts.batch.save(row, block.address)
                capsules.append(RowCapsule(block, self._positions[row], self._parts.fingerprint))
            self._parts.backend.synchronize()
            undo.pop_all()
        return capsules

    def restore(
        self,
        rows: RowsLike,
        capsules: Sequence[RowCapsule],
        *,
        seeds: Sequence[int] | None = None,
        keep_goal: bool = False,
    ) -> None:
        """Bring environments back to capsules, by one copy each; one may serve several.

        Goals come back with them; observations must be written anew before the next step.

        Args:
            rows: Environments restored.
            capsules: One for each, of any environment of an engine alike.
            seeds: Draw noise from these instead, one for each.
            keep_goal: Leave the goals that were written.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            FingerprintMismatchError: A capsule was taken under another engine's.
            CapsuleNotFoundError: A capsule's block is closed.
            PayloadRangeError: A seed is out of range.
            SpecError: The counts of rows, capsules and seeds differ. Nothing changes.
        """
        self._restore(self._rows(rows), capsules, seeds, keep_goal)

    def close(self) -> None:
        """Free graphs, lanes and slots; idempotent. Capsules stay valid."""
        self._is_closed = True
        self._parts.undo.close()

    def _restore(
        self,
        rows: Rows,
        capsules: Sequence[RowCapsule],
        seeds: Sequence[int] | None,
        keep_goal: bool,
    ) -> None:
        if self._is_closed:
            raise NotActiveError("the engine is closed")
        for name, given in (("capsules", capsules), ("seeds", seeds)):
            if given is not None and len(given) != len(rows):
                raise SpecError(
                    f"{len(rows)} environments can't be moved by as many {name} as were given",
                    expected=len(rows),
                    found=len(given),
                )
        for at, capsule in enumerate(capsules):
            self._parts.fingerprint.require(capsule.fingerprint, str(at))
            if capsule.block.is_closed:
                raise CapsuleNotFoundError(f"capsule {at} of those given was closed")
        for seed in () if seeds is None else seeds:
            check_seed(seed)
        for at, (row, capsule) in enumerate(zip(map(int, rows), capsules, strict=True)):
            self._parts.batch.load(row, capsule.block.address)
            self._positions[row] = capsule.position
            if not keep_goal:
                self.inputs.restore_goals(
                    row, capsule.block.address, capsule.position.origin.goal_sequence
                )
            self.inputs.drop(row, ChannelRole.OBSERVATION)
            if seeds is not None:
                self._reseed(row, int(seeds[at]))
        self._parts.backend.synchronize()  # whoever writes a slot next does so past the copies

    def _tick(self, rows: Sequence[int]) -> None:
        positions = self._positions
        due = [row for row in rows if positions[row].queue_remaining <= self._replan_threshold]
        if due:
            self._make_chunks(due)
        if rows:
            self._parts.graphs.replay(self._model.plan().pop, rows)
        for row in rows:
            at = positions[row]
            positions[row] = replace(at, tick=at.tick + 1, queue_head=at.queue_head + 1)

    def _reseed(self, row: int, seed: int) -> None:
        with self._parts.backend.ordered():
            self._parts.batch.views[NOISE_SEED][row].fill_(seed)
            self._parts.batch.views[NOISE_COUNTER][row].fill_(0)
        self._positions[row] = replace(self._positions[row], noise_seed=seed, noise_counter=0)

    def _make_chunks(self, rows: Sequence[int]) -> None:
        sequences = self.inputs.sequences
        if self._parts.noise is not None:
            for row in rows:
                at = self._positions[row]
                self._noise_slots[row] = self._parts.noise.draw(at.noise_seed, at.noise_counter)
            self._bind(NOISE_SLOT, self._noise_slots)
        self._bind(GOAL_SEQUENCE_IN, sequences[ChannelRole.GOAL])
        self._parts.plan.replay(rows)
        for row in rows:
            at = self._positions[row]
            self._positions[row] = replace(
                at,
                queue_head=0,
                queue_length=self._model.execute_horizon,
                noise_counter=at.noise_counter + (self._parts.noise is not None),
                origin=Origin(
                    goal_sequence=int(sequences[ChannelRole.GOAL][row]),
                    observation_sequence=int(sequences[ChannelRole.OBSERVATION][row]),
                    latched_tick=at.tick,
                ),
            )

    def _check_step(self, rows: Sequence[int]) -> None:
        if self._is_closed:
            raise NotActiveError("the engine is closed")
        if torch.get_num_threads() != self._num_threads:
            raise ConfigError(
                "the process's intra-op thread count was changed, which changes the bytes",
                expected=self._num_threads,
                found=torch.get_num_threads(),
                fix="torch.set_num_threads back, or configure num_threads",
            )
        self._parts.batch.check_not_poisoned(rows)
        missing = self.inputs.missing(rows)
        if missing:
            raise StepTimeoutError(
                "environments can't be stepped without their inputs",
                found=f"none for {missing}",
                fix="write them; a reset drops observations, and goals unless kept",
            )

    def _rows(self, rows: RowsLike) -> Rows:
        return row_indices(rows, self.num_environments)

    def _bind(self, name: str, values: npt.NDArray[np.int64]) -> None:
        with self._parts.backend.ordered():
            self._parts.batch.views[name].copy_(torch.from_numpy(values)[:, None])

    def _read(self, name: str) -> npt.NDArray[np.float32]:
        copied: npt.NDArray[np.float32] = self._parts.batch.read(name).numpy()
        return copied

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
