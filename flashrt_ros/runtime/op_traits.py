"""What a replay needs to know of an operator, read once from its schema and tags."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

_aten = torch.ops.aten

_BY_TAG: dict[torch.Tag, tuple[str, str]] = {
    torch.Tag.nondeterministic_seeded: (
        "draws random numbers",
        "make the noise an INPUT: read it from the slots, and call eval() where it is dropout",
    ),
    torch.Tag.dynamic_output_shape: (
        "makes a shape that depends on data",
        "use an operator of fixed shape (torch.where, masked_fill, index_select, topk)",
    ),
    torch.Tag.data_dependent_output: (
        "brings data to the host",
        "keep the value in a tensor (torch.where, index_select), or compute it before capture",
    ),
}

# Shapes that depend on data, without the tag.
_DYNAMIC = frozenset({"aten::_pack_padded_sequence"})

_RESIZES = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})

# Arguments that give a probability of dropping out.
_DROPOUTS = ("dropout_p", "dropout")

# Depend on the shape of their argument only: computed once.
_LIKE_FACTORIES = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like",
        "full_like",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "zeros_like",
    )
)

# Write the statistics of a batch norm in training, which their schemas don't say.
_BATCH_NORMS = frozenset(
    f"aten::{name}" for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
)


@dataclass(frozen=True, slots=True)
class OpTraits:
    """An operator as a recorder sees it.

    Attributes:
        name: ``namespace::name``, without the overload.
        is_view: Returns views of its arguments and computes nothing.
        is_mutable: Writes to arguments.
        changes_shape: Changes the shape of an argument in place.
        is_constant: Its result depends on no tensor's data.
        returns_nothing: Has no results: a check that is made at every replay.
        is_copy: Its result is a copy of its first argument, converted.
        out: The overload of the same arguments that writes into given tensors, and
            the names it gives them by; None where there is none.
        written: Position and name of each argument it writes.
        refusal: Reason and fix, where it can't be captured at all.
    """

    name: str
    is_view: bool
    is_mutable: bool
    changes_shape: bool
    is_constant: bool
    returns_nothing: bool
    is_copy: bool
    out: tuple[OpOverload, tuple[str, ...]] | None
    written: tuple[tuple[int, str], ...]
    refusal: tuple[str, str] | None

    def mutated(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """Return the arguments that a call writes."""
        return [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in self.written
        ]

    def refuse_call(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], arguments: tuple[str, ...]
    ) -> tuple[str, str] | None:
        """Return why this call can't be captured, as reason and fix, or None.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            arguments: Names of the positional arguments, in order.
        """
        if "index" in self.name and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for value in args[1:2]
            if isinstance(value, (list, tuple))
            for index in value
        ):
            return (
                "indexes by a mask, so that its work depends on data",
                "use torch.where or masked_fill",
            )
        given = {**dict(zip(arguments, args, strict=False)), **kwargs}
        if (
            self.name in _BATCH_NORMS
            and given.get("training")
            and given.get("running_mean") is not None
        ):
            return (
                "updates running statistics, which are no buffer of the lane",
                "call eval() on the module",
            )
        if self.refusal is None:
            return None
        # Attention and fused RNNs are tagged random because they may drop out; at probability
        # 0 they draw nothing.
        if any(name in arguments and not given.get(name, 0.0) for name in _DROPOUTS):
            return None
        return self.refusal


def argument_names(func: OpOverload) -> tuple[str, ...]:
    """Return the names of an operator's arguments, in order."""
    return tuple(argument.name for argument in func._schema.arguments)


@functools.cache
def traits_of(func: OpOverload) -> OpTraits:
    """Read an operator's schema and tags."""
    schema = func._schema
    name = schema.name
    refusal = next((text for tag, text in _BY_TAG.items() if tag in func.tags), None)
    if name == "aten::index":  # tagged for its masks, which are looked for in the call
        refusal = None
    if name in _DYNAMIC:
        refusal = _BY_TAG[torch.Tag.dynamic_output_shape]
    if name in _RESIZES:
        refusal = (
            "changes the size or the storage of a tensor",
            "give every tensor its size when it is made",
        )
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return OpTraits(
        name=name,
        is_view=not written and any(result.alias_info is not None for result in schema.returns),
        is_mutable=bool(written),
        changes_shape=torch.Tag.inplace_view in func.tags,
        is_constant=name in _LIKE_FACTORIES,
        returns_nothing=not schema.returns,
        is_copy=func in (_aten.clone.default, _aten._to_copy.default),
        out=None if written else _find_out(func),
        written=written,
        refusal=refusal,
    )


def _find_out(func: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """Find the overload that takes exactly the same inputs, and tensors for all results."""
    inputs = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    if any(str(result.type) != "Tensor" for result in func._schema.returns):
        return None
    packet = func._overloadpacket
    for overload in packet.overloads():  # type: ignore[no-untyped-call]
        candidate = getattr(packet, overload)
        outs = [argument for argument in candidate._schema.arguments if argument.is_out]
        if not outs or len(outs) != len(func._schema.returns):
            continue
        if inputs == [
            (argument.name, str(argument.type))
            for argument in candidate._schema.arguments
            if not argument.is_out
        ]:
            return candidate, tuple(argument.name for argument in outs)
    return None
