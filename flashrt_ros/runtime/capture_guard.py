"""Refuses what a replay can't repeat, where the dispatcher would not see it.

``tolist()``, ``numpy()`` and the like read memory without dispatching an operator, so
a function mode watches for them by name. What does dispatch is judged by the recorder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.spec import ShapeKey
from flashrt_ros.runtime.tape import iter_tensors

_LIBRARIES = tuple(
    f"{Path(module).parent}{os.sep}" for module in (str(torch.__file__), np.__file__, __file__)
)

_HOST_READ = "brings data to the host"
_HOST_READ_FIX = (
    "keep the value in a tensor (torch.where, index_select, masked_fill), or compute it before "
    "capture"
)
_STORAGE = "reaches memory past the operators that a capture records"
_STORAGE_FIX = "use tensor operators only"

_REFUSED: dict[object, tuple[str, str]] = {
    **dict.fromkeys(
        (
            torch.Tensor.item,
            torch.Tensor.tolist,
            torch.Tensor.numpy,
            torch.Tensor.__bool__,
            torch.Tensor.__int__,
            torch.Tensor.__float__,
            torch.Tensor.__complex__,
            torch.Tensor.__index__,
            torch.Tensor.__array__,
            torch.Tensor.__contains__,
            torch.Tensor.__repr__,
            torch.Tensor.__format__,
            torch.Tensor.is_nonzero,
            torch.is_nonzero,
        ),
        (_HOST_READ, _HOST_READ_FIX),
    ),
    **dict.fromkeys(
        (
            torch.Tensor.untyped_storage,
            torch.Tensor.storage,
            torch.Tensor.data_ptr,
            torch.Tensor.share_memory_,
            torch.Tensor.__dlpack__,
            torch.Tensor.__deepcopy__,
            torch.Tensor.__reduce_ex__,
        ),
        (_STORAGE, _STORAGE_FIX),
    ),
    torch.Tensor.data.__set__: (  # type: ignore[attr-defined]
        "changes which memory a tensor stands for",
        "write into the tensor with copy_()",
    ),
}

# Read the data of a tensor argument where a list of ints is usual, undispatched.
_READS_SIZES: dict[object, tuple[int, str]] = {
    torch.tensor_split: (1, "tensor_indices_or_sections"),
    torch.Tensor.tensor_split: (1, "tensor_indices_or_sections"),
    torch.functional.tensordot: (2, "dims"),
}

# Turn nested sequences into a new tensor, reading tensors in them undispatched.
_READS_ITEMS = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)


class CaptureWatch:
    """Turns a violation into an error that names the operation and the source line.

    The first refusal is kept: a program that catches it is refused all the same.

    Args:
        key: Of the program under capture.
        fallback: ``file:line`` to name where no frame of the program is on the stack.
    """

    def __init__(self, key: ShapeKey, fallback: str) -> None:
        self.key = key
        self.refusal: CaptureError | None = None
        self.function: object = None
        self._fallback = fallback

    def refuse(self, op: str, reason: str, fix: str, *, source: str = "") -> NoReturn:
        """Raise the refusal of an operation.

        Args:
            op: Operator or function that is refused.
            reason: Rest of the sentence "<op> at <line> ...".
            fix: What the program can do instead.
            source: ``file:line``; looked up on the stack where empty.

        Raises:
            CaptureError: Always.
        """
        source = source or self.source()
        called = _function_name(self.function)
        if called and called.rpartition(".")[2].strip("_") != op.rpartition("::")[2].strip("_"):
            op = f"{called} ({op})" if op else called
        error = CaptureError(
            f"program {self.key} can't be captured: {op} at {source} {reason}",
            op=op,
            source=source,
            fix=fix,
        )
        if self.refusal is None:
            self.refusal = error
        raise error

    def source(self) -> str:
        """Return ``file:line`` of the innermost frame that is the program's own."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_program(frame):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return self._fallback

    def source_of(self, trace: TracebackType | None) -> str:
        """Return ``file:line`` of the innermost frame of the program in a traceback."""
        found = self._fallback
        while trace is not None:
            if _is_program(trace.tb_frame):
                found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        return found


class CaptureGuard(TorchFunctionMode):
    """Watches every torch function that the program calls."""

    def __init__(self, watch: CaptureWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Refuse the function or call it."""
        kwargs = kwargs or {}
        watch = self._watch
        outer, watch.function = watch.function, func
        try:
            refused = _REFUSED.get(func)
            if refused is not None:
                watch.refuse("", *refused)
            if func in _READS_SIZES and isinstance(
                _argument(args, kwargs, *_READS_SIZES[func]), torch.Tensor
            ):
                watch.refuse("", "makes shapes that depend on data", "give it ints")
            if func in _READS_ITEMS and any(
                isinstance(value, (list, tuple)) and next(iter_tensors(value), None) is not None
                for value in (*args, *kwargs.values())
            ):
                watch.refuse("", _HOST_READ, "use torch.stack")
            return func(*args, **kwargs)
        finally:
            watch.function = outer


def _is_program(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith(("<frozen", *_LIBRARIES))


def _argument(
    args: tuple[object, ...], kwargs: dict[str, object], position: int, name: str
) -> object:
    return args[position] if position < len(args) else kwargs.get(name)


def _function_name(func: object) -> str:
    if func is None:
        return ""
    name = resolve_name(func) or getattr(func, "__name__", repr(func))
    return str(name).removeprefix("torch.")
