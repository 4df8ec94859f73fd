"""Turns a program over one lane into one over a batch of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch._C import _functorch

from flashrt_ros.runtime.backend import Buffers, Program, Slots
from flashrt_ros.runtime.batch import ROW_MASK
from flashrt_ros.runtime.tape import map_tensors


def over_rows(program: Program) -> Program:
    """Run a program over every row of a batch at once (``torch.func.vmap``).

    Its operators run once, over all rows; row ``i`` reads the slot that its own binding
    names. What vmap can't do is refused at capture: above all, writing values of a row
    into a tensor that the program made alike for all rows (``torch.zeros(...)``; make it
    ``zeros_like`` a buffer instead). An operator that vmap has no rule for (in torch 2.13
    attention on the CPU, ``index_copy_``, ``scatter_``) is called once for each row, and
    torch warns. A program written for a batch needs none of this.

    Args:
        program: Over buffers ``[*shape]`` of one lane.

    Returns:
        The same over buffers ``[num_rows, *shape]``.
    """

    @functools.wraps(program)
    def batched(buffers: Buffers, slots: Slots) -> None:
        row_slots = {name: _RowSlots.of(tensor) for name, tensor in slots.items()}

        def row(row_buffers: dict[str, torch.Tensor]) -> tuple[()]:
            program(MappingProxyType(row_buffers), row_slots)
            return ()

        # "different" lets a draw come as far as the recorder, which names it and its line
        torch.func.vmap(row, randomness="different")(dict(buffers))

    return batched


def masked(program: Program, written: Iterable[str]) -> Program:
    """Let a program over a batch change only the rows that the mask names.

    The program writes to copies of these buffers; its last operators bring over the rows
    in the mask. So what fails before them leaves every row as it was, and rows outside
    the mask are never written at all.

    Args:
        program: Over buffers ``[num_rows, *shape]``.
        written: Names of the buffers to protect: those of STATE, INPUT and OUTPUT that
            the program writes.
    """
    names = tuple(sorted(written))

    @functools.wraps(program)
    def under_mask(buffers: Buffers, slots: Slots) -> None:
        made: dict[str, torch.Tensor] = {
            name: buffers[name].clone(memory_format=torch.contiguous_format) for name in names
        }
        program(MappingProxyType({**buffers, **made}), slots)
        for name in names:
            target = buffers[name]
            mask = buffers[ROW_MASK].view(-1, *(1 for _ in target.shape[1:]))
            torch.where(mask, made[name], target, out=target)

    return under_mask


class _RowSlots(torch.Tensor):
    """Slots as a program over rows sees them: a row's index selects that row's slot.

    vmap would turn the selection into a gather, whose index is no binding any more: what
    it reads could not be told. Here it stays one selection, by all rows' bindings.
    """

    _slots: torch.Tensor

    @classmethod
    def of(cls, slots: torch.Tensor) -> _RowSlots:
        """Make a tensor over the same slots."""
        made = slots.as_subclass(cls)
        made._slots = slots
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run a function over the plain slots; a selection by row, row by row."""
        plain_args, plain_kwargs = cast(
            "tuple[tuple[object, ...], dict[str, object]]",
            map_tensors(
                (args, dict(kwargs or {})),
                lambda tensor: tensor._slots if isinstance(tensor, cls) else tensor,
            ),
        )
        with torch._C.DisableTorchFunctionSubclass():
            if func in (torch.index_select, torch.Tensor.index_select):
                rows = _select(*plain_args, **plain_kwargs)
                if rows is not None:
                    return rows
            return func(*plain_args, **plain_kwargs)


def _select(*args: object, **kwargs: object) -> torch.Tensor | None:
    """Select slots by an index that differs from row to row; None if it is another index."""
    given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    slots, index, out = given["input"], given["index"], given.get("out")
    if (
        given["dim"] != 0
        or not isinstance(slots, torch.Tensor)
        or not isinstance(index, torch.Tensor)
        or not _functorch.is_batchedtensor(index)
        or _functorch.maybe_get_level(index) != _functorch.maybe_current_level()
    ):
        return None
    whole = _functorch.get_unwrapped(index).movedim(_functorch.maybe_get_bdim(index), 0)
    chosen = slots.index_select(0, whole.reshape(-1)).view(*whole.shape, *slots.shape[1:])
    rows = _functorch._add_batch_dim(chosen, 0, _functorch.maybe_get_level(index))
    return rows if not isinstance(out, torch.Tensor) else out.copy_(rows)
