"""Runs a program once and writes down what it does, whatever the device."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Mapping

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flashrt_ros.errors import CaptureError, SealedArenaError
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import Program, SlotRead, Slots
from flashrt_ros.runtime.batch import lane_views
from flashrt_ros.runtime.capture_guard import CaptureWatch, guard
from flashrt_ros.runtime.recorder import Recorder
from flashrt_ros.runtime.spec import ShapeKey
from flashrt_ros.runtime.tape import Tape


class Rehearsal:
    """Judges programs, and remembers what refused ones left behind.

    A program that was refused may still hold tensors that it made; a later one that reads
    them would depend on memory that no replay writes.
    """

    def __init__(self) -> None:
        # Storages that a refused program still holds, and where it made them.
        self._left_behind: list[tuple[StorageWeakRef, str]] = []

    def record(
        self,
        program: Program,
        key: ShapeKey,
        arena: Arena,
        lane: int,
        slots: Slots,
        num_rows: int | None = None,
    ) -> tuple[Tape, tuple[SlotRead, ...]]:
        """Run a program over a lane, or over a batch, operator by operator.

        The lanes' bytes are what the program made of them afterwards.

        Args:
            program: Judged.
            key: Names it in messages.
            arena: Sealed.
            lane: Lane it runs over; of a batch, the first.
            slots: Tensors it may read.
            num_rows: Lanes of the batch, None for a program over one lane.

        Returns:
            Its operators, and every read of a slot, in order.

        Raises:
            CaptureError: It did what a replay can't repeat; names operator and line.
        """
        watch = CaptureWatch(key, definition_of(program))
        self._left_behind = [kept for kept in self._left_behind if _is_held(kept[0])]
        strangers = {reference.cdata: origin for reference, origin in self._left_behind}
        views = lane_views(arena, lane, num_rows)
        # Tensors of the program's own over the same storages: what it does to their
        # shape stays with them.
        buffers = _Given("buffer", {name: view.detach() for name, view in views.items()}, watch)
        given_slots = _Given("slots", {name: view.detach() for name, view in slots.items()}, watch)
        recorder = Recorder(watch, arena, lane, num_rows or 1, slots, strangers)
        try:
            with guard(watch), recorder:
                program(buffers, given_slots)
        except CaptureError:
            self._remember(recorder, key)
            raise
        except Exception as error:
            self._remember(recorder, key)
            if watch.refusal is not None:
                raise watch.refusal from error
            source = watch.source_of(error.__traceback__)
            raise CaptureError(
                f"program {key} can't be captured: it raised {type(error).__name__} at {source}",
                source=source,
                found=str(error),
            ) from error
        if watch.refusal is not None:
            self._remember(recorder, key)
            raise watch.refusal
        buffers.check(views)
        given_slots.check(slots)
        slot_reads = tuple(recorder.slot_reads)
        tape = recorder.finish()
        self._check_kept(recorder, tape, watch)
        return tape, slot_reads

    def clear(self) -> None:
        """Forget what refused programs left behind."""
        self._left_behind.clear()

    def _check_kept(self, recorder: Recorder, tape: Tape, watch: CaptureWatch) -> None:
        """Refuse a program that holds on to what it made: no replay would renew it."""

        def held() -> list[int]:
            return [
                index
                for index, value in enumerate(tape.values)
                if value.constant is None and _is_held(recorder.references[index])
            ]

        if not held():
            return
        gc.collect()  # locals of the program that refer to each other
        kept = held()
        if not kept:
            return
        self._remember(recorder, watch.key)
        value = tape.values[kept[0]]
        watch.refuse(
            value.op,
            "made a tensor that the program keeps; a replay would not renew it",
            "write it to a SCRATCH or STATE buffer, or make it before capture if it is a constant",
            source=value.source,
        )

    def _remember(self, recorder: Recorder, key: ShapeKey) -> None:
        origin = f"made while {key} was captured"
        self._left_behind.extend((reference, origin) for reference in recorder.references)


def check_sealed(key: ShapeKey, arena: Arena) -> None:
    """Refuse to capture over addresses that may still change.

    Raises:
        SealedArenaError: The arena is not sealed.
    """
    if not arena.is_sealed:
        raise SealedArenaError(
            f"program {key} can't be captured",
            expected="a sealed arena",
            found="one whose addresses may still change",
            fix="call seal() first",
        )


def check_equal(key: ShapeKey, arena: Arena, eager: bytes, replayed: bytes) -> None:
    """Refuse a graph whose replay gave other bytes than its program.

    Args:
        key: Names the program.
        arena: Whose layout names the buffers.
        eager: The lanes' bytes after the program.
        replayed: The lanes' bytes after the replay, from the same bytes.

    Raises:
        CaptureError: They differ; names the buffers.
    """
    if eager == replayed:
        return
    lanes = range(0, len(eager), arena.layout.lane_bytes)
    differing = [
        place.spec.name
        for place in arena.layout.placements
        if any(
            eager[start : start + place.spec.num_bytes]
            != replayed[start : start + place.spec.num_bytes]
            for start in (lane + place.offset for lane in lanes)
        )
    ]
    raise CaptureError(
        f"program {key} can't be captured: its replay differs from the program itself",
        expected="the same bytes",
        found=f"other bytes in {', '.join(differing)}",
        fix="look for what the program reads besides its buffers, slots and weights",
    )


class _Given(Mapping[str, torch.Tensor]):
    """The tensors a program is given; entries can't be replaced."""

    def __init__(self, kind: str, tensors: dict[str, torch.Tensor], watch: CaptureWatch) -> None:
        self._kind = kind
        self._tensors = tensors
        self._watch = watch

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __setitem__(self, name: str, value: object) -> None:
        self._watch.refuse(
            "assignment",
            f"replaces {self._kind} '{name}' instead of writing to it",
            f'write {self._kind}["{name}"].copy_(...)',
        )

    def check(self, expected: Mapping[str, torch.Tensor]) -> None:
        """Refuse if a tensor was made to stand for other memory.

        Raises:
            CaptureError: One has another address or shape than it was given with.
        """
        for name, tensor in self._tensors.items():
            view = expected[name]
            if (tensor.data_ptr(), tensor.size(), tensor.stride(), tensor.dtype) != (
                view.data_ptr(),
                view.size(),
                view.stride(),
                view.dtype,
            ):
                self._watch.refuse(
                    "program",
                    f"changed what {self._kind} '{name}' stands for",
                    "write into the tensor with copy_()",
                )


def definition_of(program: Program) -> str:
    """Return ``file:line`` of a program's definition."""
    target = inspect.unwrap(program)
    target = getattr(target, "func", target)  # functools.partial
    target = getattr(target, "__func__", target)  # bound method
    if not hasattr(target, "__code__"):  # an instance that can be called
        target = vars(type(target)).get("__call__", target)
    code = getattr(target, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(program)


def _is_held(reference: StorageWeakRef) -> bool:
    """Whether anything still holds the storage."""
    return not reference.expired()  # type: ignore[no-untyped-call]
