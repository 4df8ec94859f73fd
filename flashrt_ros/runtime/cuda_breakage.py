"""Finds the operator and the line that break a capture.

The driver tells of a broken capture late: some calls fail at once, others only make its
end fail. So the program is captured once more, and after every line the driver is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from flashrt_ros.runtime.capture_guard import is_program


class Breakage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches a capture for the duration of its block.

    Args:
        is_broken: Asks the driver whether the capture can still end well.

    Attributes:
        source: ``file:line`` of the program's line that broke it, "" if none was found.
        op: The last operator before that, "" if none ran on that line.
    """

    def __init__(self, is_broken: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = ""
        self.op = ""
        self._is_broken = is_broken
        self._line = ""
        self._op = ""
        self._outer: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Remember an operator and run it."""
        self._op = func._schema.name
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Self:
        self._outer = sys.gettrace()
        sys.settrace(self._trace)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        sys.settrace(self._outer)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not is_program(frame):
            return None
        if not self.source and self._line and (event == "exception" or self._is_broken()):
            self.source, self.op = self._line, self._op
        if event == "line":
            self._line, self._op = f"{frame.f_code.co_filename}:{frame.f_lineno}", ""
        return self._trace
