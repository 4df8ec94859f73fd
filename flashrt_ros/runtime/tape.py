"""A recorded program, free of addresses, and its binding to a lane."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flashrt_ros.runtime.memory_plan import Lifetime, MemoryPlan, plan_memory


@dataclass(frozen=True, slots=True)
class LaneRegion:
    """A buffer of whichever lane the tape is bound to, the first of several if it is."""

    buffer: str


@dataclass(frozen=True, slots=True)
class PrivateRegion:
    """A value that the program made, by its place in :attr:`Tape.values`."""

    index: int


@dataclass(frozen=True, slots=True)
class Window:
    """A strided tensor over a region.

    Attributes:
        region: What it lies in.
        dtype: Element type.
        size: Extents.
        stride: Elements from one index to the next, by dimension.
        offset_bytes: Bytes from the region's start to the first element.
        is_conj: Whether readers see the complex conjugate, lazily.
        is_neg: Whether readers see the negative, lazily.
    """

    region: LaneRegion | PrivateRegion
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset_bytes: int
    is_conj: bool = False
    is_neg: bool = False

    @staticmethod
    def of(tensor: torch.Tensor, region: LaneRegion | PrivateRegion, offset_bytes: int) -> Window:
        """Describe a tensor as it is now; later changes of its shape don't count."""
        return Window(
            region,
            tensor.dtype,
            tuple(tensor.size()),
            tuple(tensor.stride()),
            offset_bytes,
            tensor.is_conj(),
            tensor.is_neg(),
        )


@dataclass(slots=True)
class PrivateValue:
    """Memory that the program made while it was recorded.

    Attributes:
        num_bytes: Size of its storage.
        op: Operation that made it.
        source: ``file:line`` of the program that made it.
        position: Number of operations recorded before it.
        constant: The storage, where the value depends on no tensor and is never
            written after: it is computed once, at capture.
        pristine: Bytes that a value of that kind had before the program wrote to it,
            put back at its position by every replay.
    """

    num_bytes: int
    op: str
    source: str
    position: int
    constant: torch.UntypedStorage | None = None
    pristine: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TapeOp:
    """One operation of a replay.

    Attributes:
        call: Operator overload.
        args: Positional arguments; tensors as :class:`Window`, or as they are where
            they are the same for every lane (weights, slots).
        kwargs: Keyword arguments, likewise.
        copy_back: Which of the results are copied where, for operators that can't
            write into given memory.
        writes: Everything the operation writes.
        name: Operator's name, for messages.
        source: ``file:line`` of the program.
    """

    call: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    copy_back: tuple[tuple[int, Window], ...]
    writes: tuple[Window, ...]
    name: str
    source: str


def map_tensors(value: object, change: Callable[[torch.Tensor], object]) -> object:
    """Rebuild nested lists, tuples and dictionaries with every tensor replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {name: map_tensors(item, change) for name, item in value.items()}
    return value


def iter_tensors(value: object) -> Iterator[torch.Tensor]:
    """Walk the tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from iter_tensors(item)


def iter_windows(value: object) -> Iterator[Window]:
    """Walk the windows of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, Window):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_windows(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from iter_windows(item)


@dataclass(frozen=True, slots=True)
class Tape:
    """Operations in order, and where their private values lie.

    Attributes:
        ops: Operations of a replay.
        values: What the program made.
        plan: Offsets of the values in the private memory.
    """

    ops: tuple[TapeOp, ...]
    values: tuple[PrivateValue, ...] = field(repr=False)
    plan: MemoryPlan = field(repr=False)

    @staticmethod
    def of(ops: Sequence[TapeOp], values: Sequence[PrivateValue]) -> Tape:
        """Put in what restores written constants, and plan the memory of the rest."""
        complete = _with_restores(ops, values)
        return Tape(complete, tuple(values), plan_memory(_lifetimes(complete, values)))

    @property
    def written_buffers(self) -> frozenset[str]:
        """Names of the buffers that the operations write."""
        return frozenset(
            window.region.buffer
            for op in self.ops
            for window in op.writes
            if isinstance(window.region, LaneRegion)
        )

    @property
    def touched_buffers(self) -> frozenset[str]:
        """Names of the buffers that the operations read or write."""
        return self.written_buffers | frozenset(
            window.region.buffer
            for op in self.ops
            for window in iter_windows((op.args, dict(op.kwargs)))
            if isinstance(window.region, LaneRegion)
        )

    def bind(
        self, buffers: Mapping[str, torch.Tensor], private: torch.Tensor
    ) -> list[Callable[[], object]]:
        """Return the operations as calls without arguments, over one lane.

        Every address is settled here: a call looks nothing up and binds nothing.

        Args:
            buffers: The lane's views.
            private: ``uint8[plan.num_bytes]`` at least.
        """

        @functools.cache
        def make(window: Window) -> torch.Tensor:
            storage, base = self._storage(window, buffers, private)
            offset = (base + window.offset_bytes) // window.dtype.itemsize
            empty = torch.empty(0, dtype=window.dtype)
            tensor = empty.set_(storage, offset, window.size, window.stride)
            tensor = tensor.conj() if window.is_conj else tensor
            return torch._neg_view(tensor) if window.is_neg else tensor

        # Tensors made in inference mode can't be written to outside of it.
        with torch.inference_mode(False):
            return [_bind_op(op, make) for op in self.ops]

    def _storage(
        self, window: Window, buffers: Mapping[str, torch.Tensor], private: torch.Tensor
    ) -> tuple[torch.UntypedStorage, int]:
        if isinstance(window.region, LaneRegion):
            view = buffers[window.region.buffer]
            return view.untyped_storage(), int(view.storage_offset()) * view.itemsize
        constant = self.values[window.region.index].constant
        if constant is not None:
            return constant, 0
        return private.untyped_storage(), self.plan.offsets[window.region.index]


def _with_restores(ops: Sequence[TapeOp], values: Sequence[PrivateValue]) -> tuple[TapeOp, ...]:
    restores: dict[int, list[TapeOp]] = {}
    for index, value in enumerate(values):
        if value.pristine is not None:
            whole = Window.of(value.pristine, PrivateRegion(index), 0)
            restores.setdefault(value.position, []).append(
                TapeOp(
                    call=torch.ops.aten.copy_.default,
                    args=(whole, value.pristine),
                    kwargs={},
                    copy_back=(),
                    writes=(whole,),
                    name=value.op,
                    source=value.source,
                )
            )
    complete: list[TapeOp] = []
    for position in range(len(ops) + 1):
        complete.extend(restores.get(position, ()))
        complete.extend(ops[position : position + 1])
    return tuple(complete)


def _lifetimes(ops: Sequence[TapeOp], values: Sequence[PrivateValue]) -> list[Lifetime]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, op in enumerate(ops):
        for window in iter_windows((op.args, dict(op.kwargs), op.copy_back)):
            if isinstance(window.region, PrivateRegion):
                first.setdefault(window.region.index, step)
                last[window.region.index] = step
    return [
        Lifetime(first[index], last[index], value.num_bytes)
        if index in first and value.constant is None
        else Lifetime(0, 0, 0)
        for index, value in enumerate(values)
    ]


def _bind_op(op: TapeOp, make: Callable[[Window], torch.Tensor]) -> Callable[[], object]:
    def bound(value: object) -> object:
        if isinstance(value, Window):
            return make(value)
        if isinstance(value, (list, tuple)):
            return type(value)(bound(item) for item in value)
        return value

    # The overload's own C++ entry; its Python __call__ only forwards to it.
    entry = getattr(op.call, "_op", op.call)
    call = functools.partial(
        entry,
        *(bound(value) for value in op.args),
        **{name: bound(value) for name, value in op.kwargs.items()},
    )
    if not op.copy_back:
        return call
    return _CopyBack(call, tuple((at, make(window)) for at, window in op.copy_back))


class _CopyBack:
    """Runs an operator that allocates its results, and copies them where readers look."""

    __slots__ = ("_call", "_targets")

    def __init__(
        self, call: Callable[[], object], targets: tuple[tuple[int, torch.Tensor], ...]
    ) -> None:
        self._call = call
        self._targets = targets

    def __call__(self) -> None:
        results = list(iter_tensors(self._call()))
        for at, target in self._targets:
            target.copy_(results[at])
