"""Captured graphs by shape key: what a set over lanes and one over a batch have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

from flashrt_ros.errors import SpecError, UnknownShapeKeyError
from flashrt_ros.runtime.backend import Program
from flashrt_ros.runtime.spec import ShapeKey

_Graphs = TypeVar("_Graphs")


class KeyedGraphs(ABC, Generic[_Graphs]):
    """Graphs, or one for each lane, under the key of the program they were captured from.

    Owns them and closes them. A subclass says how a program is captured, and sets up what it
    needs for that before it calls this constructor.

    Args:
        programs: One program for each key; captured in this order.

    Raises:
        CaptureError: A program can't be captured; nothing of the set is left.
    """

    _what = "graph"
    """What a key stands for, in refusals."""

    def __init__(self, programs: Mapping[ShapeKey, Program]) -> None:
        self._graphs: dict[ShapeKey, _Graphs] = {}
        try:
            for key, program in programs.items():
                self.capture(key, program)
        except BaseException:
            self.close()
            raise

    @property
    def keys(self) -> tuple[ShapeKey, ...]:
        """Captured keys, in the order of their capture."""
        return tuple(self._graphs)

    def capture(self, key: ShapeKey, program: Program) -> None:
        """Capture a further program; the bytes that it runs over stay as they are.

        Raises:
            SpecError: The key is taken; evict it first. Nothing changes.
            CaptureError: The program can't be captured. Nothing changes.
        """
        if key in self._graphs:
            raise SpecError(f"a graph is captured under {key} already", fix="evict it first")
        self._graphs[key] = self._capture(key, program)

    def evict(self, key: ShapeKey) -> None:
        """Free what is captured under a key; it is unknown from now on.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        if key not in self._graphs:
            raise self._unknown(key)
        self._free(self._graphs.pop(key))

    def close(self) -> None:
        """Free every graph; idempotent."""
        for key in self.keys:
            self.evict(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # for the subclass ------------------------------------------------------------------------

    @abstractmethod
    def _capture(self, key: ShapeKey, program: Program) -> _Graphs:
        """Capture a program; leave nothing behind where it can't be."""

    @abstractmethod
    def _free(self, graphs: _Graphs) -> None:
        """Close what :meth:`_capture` returned."""

    def _unknown(self, key: ShapeKey) -> UnknownShapeKeyError:
        """Return the refusal of a key under which nothing is captured."""
        return UnknownShapeKeyError(
            f"no {self._what} is captured under {key}",
            expected=f"one of {', '.join(map(str, self._graphs)) or 'none: the set is empty'}",
            fix="capture it first",
        )
