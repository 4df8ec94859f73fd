"""Records the operators that a program runs, as a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import SlotRead, Slots
from flashrt_ros.runtime.batch import extent_bytes, name_lanes, reach
from flashrt_ros.runtime.capture_guard import CaptureWatch
from flashrt_ros.runtime.op_traits import OpTraits, argument_names, traits_of
from flashrt_ros.runtime.spec import Placement, Role
from flashrt_ros.runtime.tape import (
    LaneRegion,
    PrivateRegion,
    PrivateValue,
    Tape,
    TapeOp,
    Window,
    iter_tensors,
    map_tensors,
)

_aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator of a program and writes it down.

    Where a tensor lies decides what becomes of it in a replay: in the lane, it moves
    with the lane; made by the program, it is private; anything else was there before
    (weights, slots) and stays, read only.

    Args:
        watch: Told of what is refused.
        arena: Sealed.
        lane: Lane the program runs over.
        num_lanes: Lanes from there on that it may touch.
        slots: Tensors over slots.
        strangers: Storages that earlier captures made and that are still alive, with
            where they came from, by identity.

    Attributes:
        slot_reads: Every read of a slot, in order.
        references: Every storage that the program made; they don't keep it alive.
    """

    def __init__(
        self,
        watch: CaptureWatch,
        arena: Arena,
        lane: int,
        num_lanes: int,
        slots: Slots,
        strangers: Mapping[int, str],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._arena = arena
        self._lanes = range(lane, lane + num_lanes)
        self._device = next(iter(arena.views(lane).values())).device.type
        self._slots = {tensor.untyped_storage()._cdata: name for name, tensor in slots.items()}
        self._slot_views = dict(slots)
        self._strangers = strangers
        self._ops: list[TapeOp] = []
        self._values: list[PrivateValue] = []
        self._storages: list[torch.UntypedStorage] = []
        self._private: dict[int, int] = {}
        self.slot_reads: list[SlotRead] = []
        self.references: list[StorageWeakRef] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked by the base class, which would import torch._dynamo (seconds) to wrap us.
        return False

    def finish(self) -> Tape:
        """Return the tape, and let go of every tensor that the program made.

        What is alive in :attr:`references` afterwards, constants apart, is held by the
        program.
        """
        for value in self._values:
            if value.pristine is not None:
                value.constant = None
        self._storages.clear()
        self._private.clear()
        return Tape.of(self._ops, self._values)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Judge an operator, run it, write it down."""
        with self._watch.pause():
            return self._record(func, args, kwargs or {})

    def _record(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        watch = self._watch
        if not isinstance(func, OpOverload):
            watch.refuse(str(func), "is no plain operator", "use tensor operators only")
        traits = traits_of(func)
        if self._is_view_of_storage(traits, args):
            return func(*args, **kwargs)
        refusal = traits.refuse_call(args, kwargs, argument_names(func))
        if refusal is not None:
            watch.refuse(traits.name, *refusal)
        if traits.changes_shape:
            return self._change_shape(func, traits, args, kwargs)
        if func is _aten.lift_fresh.default:
            return self._lift(func, traits, args)
        if traits.is_view:
            return func(*args, **kwargs)
        return self._run(func, traits, args, kwargs)

    def _run(
        self,
        func: OpOverload,
        traits: OpTraits,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        inputs = list(iter_tensors((args, kwargs)))
        known = {
            tensor.untyped_storage()._cdata for tensor in inputs if self._check(tensor, traits)
        }
        mutated = list(iter_tensors(traits.mutated(args, kwargs)))
        slot = self._slot_among(args, kwargs, mutated)
        slot_read = self._slot_read(slot, func, traits, args, kwargs) if slot else None
        if slot is not None and slot_read is None:
            self._watch.refuse(
                traits.name,
                f"reads slots '{slot}' in a way that does not show which slot is read",
                f'read them by slots["{slot}"].index_select(0, buffers[<binding>])',
            )
        located_args = map_tensors(args, lambda tensor: self._locate(tensor, traits))
        located_kwargs = map_tensors(kwargs, lambda tensor: self._locate(tensor, traits))
        writes = [self._writable(tensor, traits) for tensor in mutated if tensor.numel()]
        before = [_shape_of(tensor) for tensor in mutated]

        result = func(*args, **kwargs)

        if before != [_shape_of(tensor) for tensor in mutated]:
            self._watch.refuse(
                traits.name, "resized the tensor it writes to", "give out= its final shape"
            )
        outputs = [output for output in iter_tensors(result) if not self._is_aside(output)]
        fresh = [
            (at, output)
            for at, output in enumerate(outputs)
            if self._check(output, traits) and output.untyped_storage()._cdata not in known
        ]
        constant = not traits.is_mutable and (not inputs or traits.is_constant)
        windows = [(at, self._adopt(output, traits, is_constant=constant)) for at, output in fresh]
        if constant or (not traits.is_mutable and not fresh and not traits.returns_nothing):
            return result  # nothing to repeat: a constant, a view, a fact about shapes
        assert isinstance(located_args, tuple)
        assert isinstance(located_kwargs, dict)
        call, copy_back = func, tuple(windows)
        if traits.is_copy:
            call, copy_back = _aten.copy_.default, ()
            located_args, located_kwargs = (windows[0][1], located_args[0]), {}
        elif traits.out is not None and len(windows) == len(traits.out[1]):
            call, copy_back = traits.out[0], ()
            names = traits.out[1]
            located_kwargs |= {name: windows[at][1] for at, name in enumerate(names)}
        self._ops.append(
            TapeOp(
                call=call,
                args=located_args,
                kwargs=located_kwargs,
                copy_back=copy_back,
                writes=(*writes, *(window for _, window in windows)),
                name=traits.name,
                source=self._watch.source(),
            )
        )
        if slot_read is not None:
            self.slot_reads.append(slot_read)
        return result

    def _is_view_of_storage(self, traits: OpTraits, args: tuple[object, ...]) -> bool:
        """Whether a fused RNN views its packed weights: an empty tensor set to a storage."""
        target = args[0] if args else None
        return (
            self._device != "cpu"
            and traits.name == "aten::set_"
            and isinstance(target, torch.Tensor)
            and target.numel() == 0
            and target.untyped_storage()._cdata in self._private
        )

    def _is_aside(self, output: torch.Tensor) -> bool:
        """Whether a device's operator returned a number of the host (a seed, unused here)."""
        return self._device != "cpu" and output.device.type == "cpu" and output.numel() <= 1

    def _check(self, tensor: torch.Tensor, traits: OpTraits) -> bool:
        if (
            type(tensor) not in _PLAIN
            or tensor.layout is not torch.strided
            or tensor.device.type != self._device
            or tensor.is_quantized
        ):
            self._watch.refuse(
                traits.name,
                f"has an argument or a result that is no plain tensor on {self._device.upper()} "
                f"({type(tensor).__name__}, {tensor.layout}, {tensor.device})",
                f"use dense tensors on {self._device.upper()}",
            )
        return True

    def _locate(self, tensor: torch.Tensor, traits: OpTraits) -> Window | torch.Tensor:
        storage = tensor.untyped_storage()
        index = self._private.get(storage._cdata)
        if index is not None:
            return Window.of(tensor, PrivateRegion(index), _offset_bytes(tensor))
        origin = self._strangers.get(storage._cdata)
        if origin is not None:
            self._watch.refuse(
                traits.name,
                f"reads what the program of another graph made ({origin}); no replay of that "
                "graph writes it again",
                "pass it through a SCRATCH buffer, or make it before the first capture",
            )
        if tensor.numel() == 0:
            return tensor.detach()
        address = tensor.data_ptr()
        found = self._arena.locate(address)
        if found is not None:
            return self._locate_in_lane(tensor, found, traits)
        if storage._cdata not in self._slots:
            self._check_foreign(tensor, address, traits)
        return tensor.detach()

    def _locate_in_lane(
        self, tensor: torch.Tensor, found: tuple[int, Placement, int], traits: OpTraits
    ) -> Window:
        lane, place, inside = found
        pitch = self._arena.pitch_bytes(place.spec.name)
        others, extent = reach(tensor, pitch)
        for touched in (lane, lane + others):
            if touched not in self._lanes:
                self._watch.refuse(
                    traits.name,
                    f"touches lane {touched} of a program that runs over {name_lanes(self._lanes)}",
                    "use the buffers that the program is given",
                )
        if inside + extent > place.spec.num_bytes:
            self._watch.refuse(
                traits.name,
                f"reaches past the end of buffer '{place.spec.name}'",
                "use the buffers that the program is given",
            )
        from_first = (lane - self._lanes.start) * pitch
        return Window.of(tensor, LaneRegion(place.spec.name), from_first + inside)

    def _check_foreign(self, tensor: torch.Tensor, address: int, traits: OpTraits) -> None:
        end = address + extent_bytes(tensor)
        for name, view in self._slot_views.items():
            start = view.data_ptr()
            if address < start + extent_bytes(view) and start < end:
                self._watch.refuse(
                    traits.name,
                    f"reads the memory of slots '{name}' by another tensor",
                    "use the slots that the program is given",
                )

    def _writable(self, tensor: torch.Tensor, traits: OpTraits) -> Window:
        where = self._locate(tensor, traits)
        if isinstance(where, torch.Tensor):
            storage = tensor.untyped_storage()._cdata
            what = (
                f"slots '{self._slots[storage]}'"
                if storage in self._slots
                else "a tensor that is no buffer of the lane (a weight, a closure)"
            )
            self._watch.refuse(
                traits.name, f"writes to {what}", "declare a buffer for what a program changes"
            )
        if isinstance(where.region, PrivateRegion):
            value = self._values[where.region.index]
            if value.constant is not None and value.pristine is None:
                empty = torch.empty(0, dtype=torch.uint8, device=value.constant.device)
                whole = empty.set_(value.constant)
                value.pristine = whole.clone()
        return where

    def _slot_among(
        self, args: tuple[object, ...], kwargs: dict[str, object], mutated: Sequence[torch.Tensor]
    ) -> str | None:
        """Name a slots tensor that the operator reads; one that it writes is refused later."""
        if any(tensor.untyped_storage()._cdata in self._slots for tensor in mutated):
            return None
        for tensor in iter_tensors((args, kwargs)):
            name = self._slots.get(tensor.untyped_storage()._cdata)
            if name is not None:
                return name
        return None

    def _slot_read(
        self,
        name: str,
        func: OpOverload,
        traits: OpTraits,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> SlotRead | None:
        """Describe the one way to read slots whose address is known: a row, by a binding."""
        view = self._slot_views[name]
        given = dict(zip(argument_names(func), args, strict=False)) | kwargs
        source, index = given.get("self"), given.get("index")
        if (
            func not in (_aten.index_select.default, _aten.index_select.out)
            or not isinstance(source, torch.Tensor)
            or not isinstance(index, torch.Tensor)
            or (source.data_ptr(), _shape_of(source)) != (view.data_ptr(), _shape_of(view))
            or given.get("dim") != 0
        ):
            return None
        where = self._locate(index, traits)
        if not isinstance(where, Window) or not isinstance(where.region, LaneRegion):
            return None
        place = self._arena.layout.by_name[where.region.buffer]
        num_items = place.spec.num_items * len(self._lanes)
        if place.spec.role is not Role.BINDING or index.numel() != num_items:
            return None
        return SlotRead(
            field=name,
            address=view.data_ptr(),
            pitch_bytes=view.stride(0) * view.itemsize,
            num_rows=view.size(0),
            binding=place.spec.name,
        )

    def _adopt(self, tensor: torch.Tensor, traits: OpTraits, *, is_constant: bool) -> Window:
        storage = tensor.untyped_storage()
        index = self._private.get(storage._cdata)
        if index is None:
            index = len(self._values)
            self._private[storage._cdata] = index
            self._storages.append(storage)
            self.references.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            self._values.append(
                PrivateValue(
                    num_bytes=storage.nbytes(),
                    op=traits.name,
                    source=self._watch.source(),
                    position=len(self._ops),
                    constant=storage if is_constant else None,
                )
            )
        return Window.of(tensor, PrivateRegion(index), _offset_bytes(tensor))

    def _lift(self, func: OpOverload, traits: OpTraits, args: tuple[object, ...]) -> object:
        """Take in a tensor that torch.tensor() has just made from Python numbers."""
        for tensor in iter_tensors(args):
            if not tensor.untyped_storage().resizable():
                self._watch.refuse(
                    traits.name,
                    "brings in memory of the host (a NumPy array)",
                    "make the tensor before capture, or copy the data into a buffer or slot",
                )
            self._adopt(tensor, traits, is_constant=True)
        return func(*args)

    def _change_shape(
        self,
        func: OpOverload,
        traits: OpTraits,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        for tensor in iter_tensors(args[:1]):
            if tensor.untyped_storage()._cdata not in self._private:
                self._watch.refuse(
                    traits.name,
                    "changes the shape of a tensor that the program did not make",
                    "use the operator without the trailing underscore",
                )
        return func(*args, **kwargs)


def _offset_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _shape_of(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tuple(tensor.size()), tuple(tensor.stride()), tensor.untyped_storage().nbytes())
