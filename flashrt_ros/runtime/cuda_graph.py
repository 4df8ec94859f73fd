"""One captured graph, and how a program becomes one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import CapturedGraph, Program, SlotRead, Slots
from flashrt_ros.runtime.batch import lane_views
from flashrt_ros.runtime.capture_guard import CaptureWatch
from flashrt_ros.runtime.cuda_breakage import Breakage
from flashrt_ros.runtime.cuda_driver import Driver
from flashrt_ros.runtime.cuda_memory import view_bytes
from flashrt_ros.runtime.cuda_streams import Stream
from flashrt_ros.runtime.rehearsal import definition_of
from flashrt_ros.runtime.spec import CAPSULE_ROLES, Role, ShapeKey
from flashrt_ros.runtime.tape import Tape

PoolHandle = tuple[int, int]
"""Names a pool of private memory to torch's allocator."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program that was judged, and what is known of it; the same for every lane."""

    key: ShapeKey
    program: Program
    arena: Arena
    slots: Slots
    tape: Tape
    slot_reads: tuple[SlotRead, ...]
    num_rows: int | None = None

    @property
    def written_roles(self) -> frozenset[Role]:
        """Roles of the buffers it writes."""
        by_name = self.arena.layout.by_name
        return frozenset(by_name[name].spec.role for name in self.tape.written_buffers)

    @property
    def writes_kept(self) -> bool:
        """Whether it writes STATE or INPUT."""
        return bool(self.written_roles & CAPSULE_ROLES)


@dataclass(slots=True)
class Captured:
    """What the driver holds of a graph.

    Attributes:
        graph: torch's; keeps the private memory.
        executable: The driver's handle.
        num_nodes: Kernels, copies and fills.
        pool: Where its private memory lies.
        device: Where it runs.
        driver: Made the executable.
    """

    graph: torch.cuda.CUDAGraph
    executable: int
    num_nodes: int
    pool: PoolHandle
    device: torch.device
    driver: Driver


class CudaGraph(CapturedGraph):
    """A CUDA graph of one lane.

    Args:
        recipe: Shared with the graphs of other lanes.
        lane: Lane it was captured over.
        captured: Owned.
        submit: Launches in order: what is captured, whether it writes STATE or INPUT,
            whether it runs beside plan nodes.
        capture: Captures the recipe over another lane.
        synchronize: Waits until nothing is under way.
    """

    def __init__(
        self,
        recipe: Recipe,
        lane: int,
        captured: Captured,
        submit: Callable[[Captured, bool, bool], None],
        capture: Callable[[Recipe, int], CudaGraph],
        synchronize: Callable[[], None],
    ) -> None:
        self._recipe = recipe
        self._lane = lane
        self._captured: Captured | None = captured
        self._num_nodes = captured.num_nodes
        self._writes_kept = recipe.writes_kept
        self._submit = submit
        self._capture = capture
        self._synchronize = synchronize

    @property
    def key(self) -> ShapeKey:
        """Shape key it was captured under."""
        return self._recipe.key

    @property
    def lane(self) -> int:
        """Index of the lane it reads and writes."""
        return self._lane

    @property
    def num_ops(self) -> int:
        """Kernels, copies and fills of one replay."""
        return self._num_nodes

    @property
    def written_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay writes."""
        return self._recipe.tape.written_buffers

    @property
    def touched_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay reads or writes."""
        return self._recipe.tape.touched_buffers

    @property
    def written_roles(self) -> frozenset[Role]:
        """Roles of the buffers a replay writes."""
        return self._recipe.written_roles

    def slot_reads(self) -> tuple[SlotRead, ...]:
        """Return every read of a slot, in order."""
        return self._recipe.slot_reads

    def private_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the memory that graphs of this one's stream share; empty once closed."""
        captured = self._captured
        if captured is None:
            return ()
        return tuple(
            view_bytes(int(segment["address"]), int(segment["total_size"]), captured.device)
            for segment in _segments(captured.pool)
        )

    def replay(self, *, beside: bool = False) -> None:
        """Launch the graph; returns before it has run."""
        self._submit(self._open(), self._writes_kept, beside)

    def rebase(self, lane: int) -> CudaGraph:
        """Capture the same program over another lane."""
        self._open()
        lane_views(self._recipe.arena, lane, self._recipe.num_rows)  # refuses lanes not there
        return self._capture(self._recipe, lane)

    def close(self) -> None:
        """Wait until it is not under way and free it; idempotent."""
        captured, self._captured = self._captured, None
        if captured is None:
            return
        # After a device error nothing can be given back, and nothing needs to be.
        with suppress(BackendError):
            self._synchronize()
            captured.driver.destroy_graph(captured.executable)
            captured.graph.reset()

    def _open(self) -> Captured:
        if self._captured is None:
            raise BackendError(
                f"graph {self.key} on lane {self._lane} is closed", fix="capture it again"
            )
        return self._captured


def capture_graph(
    recipe: Recipe,
    lane: int,
    driver: Driver,
    stream: Stream,
    pool: PoolHandle,
    synchronize: Callable[[], None],
) -> Captured:
    """Capture a program that has run over some lane before.

    Nothing runs. Other threads may use the device meanwhile.

    Raises:
        CaptureError: An operator can't be captured, or the program keeps memory that it
            made; names the operator and the line. The backend stays usable.
    """
    synchronize()
    try:
        graph = _capture(recipe, lane, driver, stream, pool)
    except Exception as error:
        raise _refusal(recipe, lane, driver, stream, pool, error) from error
    try:
        handle = int(graph.raw_cuda_graph())
        _check_nothing_kept(recipe, pool)
        num_nodes = driver.num_nodes(handle)
        executable = driver.instantiate(handle, stream.handle)
    except BaseException:
        graph.reset()
        raise
    return Captured(graph, executable, num_nodes, pool, stream.torch.device, driver)


def open_pool(stream: Stream, driver: Driver) -> tuple[PoolHandle, torch.cuda.CUDAGraph]:
    """Make a pool for the graphs of one stream.

    Returns:
        Its handle, and a graph that does next to nothing; keep it as long as the pool: torch
        can't use a pool again once its last graph is gone.

    Raises:
        BackendError: Its capture was broken, by a thread that waits for the whole device.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream.torch), _no_collection():
        mark = torch.zeros(1, device=stream.torch.device)
        stream.torch.synchronize()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            mark.zero_()
            graph.capture_end()
        except BaseException as error:
            _leave(graph, driver, stream)
            if not isinstance(error, RuntimeError):
                raise
            raise BackendError(
                f"no pool for graphs can be opened on {stream.torch.device}",
                found=str(error).partition("\n")[0],
                fix="let no thread wait for the whole device meanwhile (torch.cuda.synchronize)",
            ) from error
    first, second = graph.pool()
    return (int(first), int(second)), graph


def _capture(
    recipe: Recipe, lane: int, driver: Driver, stream: Stream, pool: PoolHandle
) -> torch.cuda.CUDAGraph:
    # Kept as a graph, not only as an executable: the driver instantiates it for us, whose
    # launch is a tenth of what torch's own replay takes.
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    views, slots = lane_views(recipe.arena, lane, recipe.num_rows), dict(recipe.slots)
    with torch.cuda.stream(stream.torch), _no_collection():
        try:
            graph.capture_begin(
                pool=pool,  # type: ignore[arg-type]
                capture_error_mode="thread_local",
            )
            recipe.program(views, slots)
            graph.capture_end()
        except BaseException:
            _leave(graph, driver, stream)
            raise
    return graph


def _leave(graph: torch.cuda.CUDAGraph, driver: Driver, stream: Stream) -> None:
    """End a capture that failed.

    torch gives up at a capture that the driver calls broken, before it tells its
    allocators, which would go on serving the pool and refuse the next capture. So it is
    given one that is whole, and empty. Where torch had not come as far as a capture, it does
    not take that one either: whatever is under way on the stream then is ended here.
    """
    with suppress(RuntimeError, BackendError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is empty
        driver.restart_capture(stream.handle)
        graph.capture_end()
    with suppress(BackendError):
        driver.end_capture(stream.handle)
    with suppress(RuntimeError):
        graph.reset()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from freeing device memory in the middle of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refusal(
    recipe: Recipe,
    lane: int,
    driver: Driver,
    stream: Stream,
    pool: PoolHandle,
    error: Exception,
) -> CaptureError:
    """Capture again, line by line, to name the operator and the line that broke it."""
    search = Breakage(lambda: driver.is_capture_broken(stream.handle))
    with suppress(Exception), search:
        _capture(recipe, lane, driver, stream, pool).reset()
    watch = CaptureWatch(recipe.key, definition_of(recipe.program))
    source = search.source or watch.source_of(error.__traceback__)
    op = search.op or "an operation"
    return CaptureError(
        f"program {recipe.key} can't be captured: {op} at {source} broke the capture",
        op=search.op,
        source=source,
        found=str(error).partition("\n")[0],
        fix="keep the program free of waits, host copies and allocations of the driver's own, and "
        "let no other thread wait for the whole device meanwhile (torch.cuda.synchronize)",
    )


def _check_nothing_kept(recipe: Recipe, pool: PoolHandle) -> None:
    """Refuse memory that outlives the capture: the next graph of the pool writes over it."""
    kept = sum(
        int(block["size"])
        for segment in _segments(pool)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    if kept:
        raise CaptureError(
            f"program {recipe.key} can't be captured: it keeps {kept} bytes that it made",
            expected="nothing that crosses a node outside of the arena",
            fix="write it to a SCRATCH or STATE buffer, or make it before capture if it is a "
            "constant",
        )


def _segments(pool: PoolHandle) -> list[dict[str, Any]]:
    return [
        segment
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if tuple(segment["segment_pool_id"]) == pool
    ]
