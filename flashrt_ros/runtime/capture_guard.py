"""Refuses what a replay can't repeat, where the dispatcher would not see it.

``tolist()``, ``numpy()`` and the like read memory without dispatching an operator, so
they are replaced while a program is captured. A torch function mode would see them as
well, but modules look for one and take another path under it (the fused encoder layer,
for one): what is captured would not be what runs without it. What does dispatch is
judged by the recorder.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import numpy as np
import torch

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.spec import ShapeKey
from flashrt_ros.runtime.tape import iter_tensors

_LIBRARIES = tuple(
    f"{Path(module).parent}{os.sep}" for module in (str(torch.__file__), np.__file__, __file__)
)

_STANDARD = f"{Path(os.__file__).parent}{os.sep}"

_HOST_READ = "brings data to the host"
_HOST_READ_FIX = (
    "keep the value in a tensor (torch.where, index_select, masked_fill), or compute it before "
    "capture"
)
_STORAGE = "reaches memory past the operators that a capture records"
_STORAGE_FIX = "use tensor operators only"

Arguments = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A function that is refused while a program is captured.

    Attributes:
        owner: Class or module it is looked up in.
        name: Attribute's name.
        reason: Rest of the sentence "<op> at <line> ...".
        fix: What the program can do instead.
        applies: Whether a call is refused, by its arguments.
    """

    owner: object
    name: str
    reason: str
    fix: str
    applies: Callable[[Arguments, dict[str, object]], bool] = lambda args, kwargs: True

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{getattr(self.owner, '__name__', '')}.{self.name}"


def _has_tensor_items(args: Arguments, kwargs: dict[str, object]) -> bool:
    """Whether numbers are to be taken out of tensors in a nested sequence."""
    return any(
        isinstance(value, (list, tuple)) and next(iter_tensors(value), None) is not None
        for value in (*args, *kwargs.values())
    )


def _has_tensor_sizes(args: Arguments, kwargs: dict[str, object]) -> bool:
    """Whether the argument after the tensor, usually ints, is a tensor."""
    return any(isinstance(value, torch.Tensor) for value in (*args[1:], *kwargs.values()))


def _has_tensor_dims(args: Arguments, kwargs: dict[str, object]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in (*args[2:3], kwargs.get("dims")))


_REFUSED: tuple[_Refused, ...] = (
    *(
        _Refused(torch.Tensor, name, _HOST_READ, _HOST_READ_FIX)
        for name in (
            "item",
            "tolist",
            "numpy",
            "__bool__",
            "__int__",
            "__float__",
            "__complex__",
            "__index__",
            "__array__",
            "__contains__",
            "__repr__",
            "__format__",
            "is_nonzero",
        )
    ),
    *(
        _Refused(torch.Tensor, name, _STORAGE, _STORAGE_FIX)
        for name in (
            "untyped_storage",
            "storage",
            "data_ptr",
            "share_memory_",
            "__dlpack__",
            "__deepcopy__",
            "__reduce_ex__",
        )
    ),
    _Refused(torch, "is_nonzero", _HOST_READ, _HOST_READ_FIX),
    # Take numbers out of tensors, or shapes, without dispatching an operator.
    *(
        _Refused(owner, name, _HOST_READ, "use torch.stack", _has_tensor_items)
        for owner, name in (
            (torch, "tensor"),
            (torch, "as_tensor"),
            (torch, "asarray"),
            (torch.Tensor, "new_tensor"),
        )
    ),
    *(
        _Refused(owner, name, "makes shapes that depend on data", "give it ints", applies)
        for owner, name, applies in (
            (torch, "tensor_split", _has_tensor_sizes),
            (torch.Tensor, "tensor_split", _has_tensor_sizes),
            (torch, "tensordot", _has_tensor_dims),
        )
    ),
)

_replacing = threading.Lock()
_is_capturing: ContextVar[bool] = ContextVar("is_capturing", default=False)  # of this thread


class CaptureWatch:
    """Turns a violation into an error that names the operation and the source line.

    The first refusal is kept: a program that catches it is refused all the same. Only
    the thread that makes the watch is watched.

    Args:
        key: Of the program under capture.
        fallback: ``file:line`` to name where no frame of the program is on the stack.

    Attributes:
        refusal: The first one, None for none.
    """

    def __init__(self, key: ShapeKey, fallback: str) -> None:
        self.key = key
        self.refusal: CaptureError | None = None
        self._fallback = fallback
        self._thread = threading.get_ident()
        self._is_paused = False

    @property
    def is_watching(self) -> bool:
        """Whether a call comes from the program: its thread, not the recorder's own work."""
        return not self._is_paused and threading.get_ident() == self._thread

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let the recorder, and operators written in Python, do what a program may not."""
        outer, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = outer

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
            if is_program(frame):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return self._fallback

    def source_of(self, trace: TracebackType | None) -> str:
        """Return ``file:line`` of the innermost frame of the program in a traceback."""
        found = self._fallback
        while trace is not None:
            if is_program(trace.tb_frame):
                found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        return found


@contextmanager
def guard(watch: CaptureWatch) -> Iterator[None]:
    """Refuse, until the end of the block, what the dispatcher does not see.

    Functions of ``torch`` and ``torch.Tensor`` are replaced for the whole process, one
    capture at a time; other threads go through to the originals. A program that took
    ``tensor``, ``as_tensor``, ``asarray``, ``tensor_split`` or ``tensordot`` out of
    ``torch`` before (``from torch import tensor``) goes unseen for those.

    Raises:
        CaptureError: The thread captures already: a program can't capture another.
    """
    if _is_capturing.get():
        watch.refuse("capture", "captures another program", "capture one after the other")
    with ExitStack() as stack:
        stack.enter_context(_replacing)
        stack.callback(_is_capturing.reset, _is_capturing.set(True))
        for refused in _REFUSED:
            original = getattr(refused.owner, refused.name)
            _replace(stack, refused.owner, refused.name, _guarded(refused, original, watch))
        _replace(stack, torch.Tensor, "data", _guarded_data(watch))
        yield


def _guarded(
    refused: _Refused, original: Callable[..., object], watch: CaptureWatch
) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        if watch.is_watching and refused.applies(args, kwargs):
            watch.refuse(refused.label, refused.reason, refused.fix)
        return original(*args, **kwargs)

    return call


def _guarded_data(watch: CaptureWatch) -> property:
    original = torch.Tensor.data

    def change(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if watch.is_watching:
            watch.refuse(
                "Tensor.data",
                "changes which memory a tensor stands for",
                "write into the tensor with copy_()",
            )
        original.__set__(tensor, value)  # type: ignore[attr-defined]

    return property(original.__get__, change)  # type: ignore[attr-defined]


def _replace(stack: ExitStack, owner: object, name: str, value: object) -> None:
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


def is_program(frame: FrameType) -> bool:
    """Whether a frame is a program's own: of no library, and of nothing beside this file."""
    name = frame.f_code.co_filename
    if name.startswith(("<frozen", *_LIBRARIES)):
        return False
    return not name.startswith(_STANDARD) or "-packages" in name
