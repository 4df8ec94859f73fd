"""The CUDA backend: programs become captured graphs, replayed by three calls of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import torch

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime.arena import Arena, Block
from flashrt_ros.runtime.backend import Backend, Fence, Program, Slots
from flashrt_ros.runtime.batch import lane_views
from flashrt_ros.runtime.cuda_compare import LaneBytes, Saved, check_recorded, check_replayed
from flashrt_ros.runtime.cuda_driver import Attribute, driver
from flashrt_ros.runtime.cuda_graph import Captured, CudaGraph, Recipe, capture_graph, open_pool
from flashrt_ros.runtime.cuda_memory import (
    CudaArena,
    CudaBlock,
    HostBlock,
    exhaustion_told,
    view_bytes,
)
from flashrt_ros.runtime.cuda_staging import Staging
from flashrt_ros.runtime.cuda_streams import Stream, Streams
from flashrt_ros.runtime.rehearsal import Rehearsal, check_sealed, definition_of
from flashrt_ros.runtime.slot_views import view_slots
from flashrt_ros.runtime.spec import ArenaLayout, ChannelSpec, ShapeKey

_POISON = 0xFF
"""Fills private memory before a check; reads as NaN in every floating dtype."""

MIN_DRIVER = (12, 4)
"""Oldest driver, by the CUDA version it serves, that the calls used here are known on."""


class CudaBackend(Backend):
    """Captures programs as CUDA graphs of one device.

    One thread owns a backend: every call comes from it. Other threads may use the device
    meanwhile, during a capture too. Nothing runs on the default stream.

    Args:
        index: Of the device.
        is_integrated: Whether the device shares the host's memory; None asks the driver.
        is_background: Whether what is submitted gives way to other backends of the process.

    Raises:
        BackendError: There is no such device, or its driver is too old.
    """

    def __init__(
        self, index: int = 0, *, is_integrated: bool | None = None, is_background: bool = False
    ) -> None:
        _check_device(index)
        torch.cuda.set_device(index)
        # That may only note the index. Calls of the driver need the context to be current in
        # this thread, which a first call that needs it makes so.
        torch.cuda.mem_get_info(index)
        self._device = torch.device("cuda", index)
        self._driver = driver()
        _check_driver(self._driver.version())
        attribute = self._driver.attribute
        if is_integrated is None:
            is_integrated = bool(attribute(Attribute.INTEGRATED, index))
        self._is_integrated = is_integrated
        self._reads_host_in_place = bool(
            attribute(Attribute.HOST_REGISTER_SUPPORTED, index)
            and attribute(Attribute.CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, index)
        )
        self._streams = Streams(self._driver, self._device, is_background=is_background)
        with ExitStack() as undo:
            undo.callback(self._streams.close)
            self._staging = Staging(self._driver, self._streams, self._device)
            # One pool for each stream: graphs of one stream never overlap, so they may share.
            self._pools = {
                stream: open_pool(stream, self._driver)
                for stream in (self._streams.plan, self._streams.state)
            }
            undo.pop_all()
        self._rehearsal = Rehearsal()
        self._registered: set[int] = set()
        self._is_closed = False

    @property
    def name(self) -> str:
        """The name in configurations."""
        return "cuda"

    @property
    def device(self) -> torch.device:
        """The device, with its index."""
        return self._device

    @property
    def has_own_memory(self) -> bool:
        """Whether the device has memory of its own."""
        return not self._is_integrated

    @property
    def reads_host_in_place(self) -> bool:
        """Whether registered host memory has the same address on the device."""
        return self._reads_host_in_place

    # memory ----------------------------------------------------------------------------------

    def create_arena(self, layout: ArenaLayout, *, num_lanes: int) -> Arena:
        """Allocate an arena in the device's memory, OUTPUT buffers in the host's."""
        with self._setup():
            return CudaArena(
                layout,
                num_lanes=num_lanes,
                device=self._device,
                allocate_host=self.allocate_host_block,
            )

    def allocate_block(self, num_bytes: int) -> Block:
        """Allocate memory of the device; where that is the host's, locked memory of it.

        So what lies in the one memory of an integrated device can be written to files too.
        """
        if self._is_integrated:
            return self.allocate_host_block(num_bytes)
        with self._setup():
            return CudaBlock(num_bytes, self._device)

    def allocate_host_block(self, num_bytes: int) -> HostBlock:
        """Allocate locked memory of the host."""
        return HostBlock(num_bytes, self._device)

    def register(self, address: int, num_bytes: int) -> None:
        """Lock mapped host memory and let graphs read it at its own address.

        Args:
            address: Of the mapping, which its owner keeps until :meth:`unregister`.
            num_bytes: Of it.

        Raises:
            BackendError: It can't be locked, or the device reads it at another address; it is
                not locked then.
        """
        try:
            found = self._driver.register(address, num_bytes)
        except BackendError as error:
            raise BackendError(
                f"{num_bytes} bytes of host memory can't be locked for {self._device}",
                found=error.found,
                fix="raise the limit of locked memory (ulimit -l), or stage the channel",
            ) from error
        self._registered.add(address)
        if found != address:
            self.unregister(address)
            raise BackendError(
                f"{self._device} reads host memory at an address of its own",
                expected=hex(address),
                found=hex(found),
                fix="stage the channels of this device",
            )

    def unregister(self, address: int) -> None:
        """Unlock host memory; returns once the device is idle."""
        self._registered.discard(address)
        self._driver.unregister(address)

    def import_slots(
        self, address: int, num_slots: int, channel: ChannelSpec
    ) -> dict[str, torch.Tensor]:
        """View the slots of a channel in place; host memory must be registered before."""
        return view_slots(
            address, num_slots, channel, lambda at, size: view_bytes(at, size, self._device)
        )

    # graphs ----------------------------------------------------------------------------------

    def capture(
        self,
        program: Program,
        key: ShapeKey,
        arena: Arena,
        lane: int,
        slots: Slots,
        *,
        num_rows: int | None = None,
    ) -> CudaGraph:
        """Judge a program, run it once more as it is, capture it, and compare.

        It runs twice before the capture: under the recorder, which refuses what a replay
        can't repeat, and plainly, which warms its kernels up and gives the bytes that the
        first replay is compared with.
        """
        check_sealed(key, arena)
        views = lane_views(arena, lane, num_rows)
        lane_bytes = LaneBytes(arena, range(lane, lane + (num_rows or 1)))
        self.synchronize()
        with (
            exhaustion_told(f"the capture of {key}", self._device),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            with self._setup():
                before = lane_bytes.save()
            self.synchronize()  # another stream overwrites what was saved
            try:
                with torch.cuda.stream(self._streams.state.torch):
                    tape, slot_reads = self._rehearsal.record(
                        program, key, arena, lane, slots, num_rows
                    )
                recipe = Recipe(key, program, arena, slots, tape, slot_reads, num_rows)
                stream = self._stream_of(recipe)
                self._put_back(lane_bytes, before)
                with torch.cuda.stream(stream.torch):
                    _run_again(recipe, views)
                self.synchronize()
                with self._setup():
                    eager = lane_bytes.save()
                    check_recorded(recipe, lane_bytes, before, eager)
                self._put_back(lane_bytes, before)
                with ExitStack() as undo:
                    graph = undo.enter_context(self._graph(recipe, lane))
                    self._replay_poisoned(graph, stream)
                    with self._setup():
                        check_replayed(recipe, lane_bytes, eager, lane_bytes.save())
                    undo.pop_all()
            finally:
                self._put_back(lane_bytes, before)
        return graph

    def _replay_poisoned(self, graph: CudaGraph, stream: Stream) -> None:
        for memory in graph.private_tensors():
            self._driver.fill(memory.data_ptr(), _POISON, memory.numel(), stream.handle)
        graph.replay()
        self.synchronize()

    def _graph(self, recipe: Recipe, lane: int) -> CudaGraph:
        stream = self._stream_of(recipe)
        pool, _ = self._pools[stream]
        with (
            exhaustion_told(f"a graph of {recipe.key}", self._device),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            captured = capture_graph(recipe, lane, self._driver, stream, pool, self.synchronize)
        return CudaGraph(recipe, lane, captured, self._submit, self._graph, self.synchronize)

    def _submit(self, captured: Captured, writes_kept: bool, beside: bool) -> None:
        streams = self._streams
        stream = streams.before_state(beside=beside) if writes_kept else streams.before_plan()
        self._driver.launch(captured.executable, stream.handle)
        streams.submitted(stream)

    def _stream_of(self, recipe: Recipe) -> Stream:
        return self._streams.state if recipe.writes_kept else self._streams.plan

    # transfers -------------------------------------------------------------------------------

    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        """Submit a copy, in the order of the calls."""
        stream = self._streams.before_state()
        self._driver.copy(dst_address, src_address, num_bytes, stream.handle)
        self._streams.submitted(stream)

    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        """Submit a copy on the copy stream."""
        stream = self._streams.before_copy()
        self._driver.copy(dst_address, src_address, num_bytes, stream.handle)
        self._streams.submitted(stream)
        return self._streams.fence()

    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        """Submit the writing of bytes of the host."""
        self._staging.write(address, data, beside=beside)

    def read(self, address: int, num_bytes: int) -> bytes:
        """Return bytes of the device or the host; waits for all that is submitted."""
        return self._staging.read(address, num_bytes)

    def fence(self) -> Fence:
        """Mark what was submitted last."""
        return self._streams.fence()

    def fence_all(self) -> Fence:
        """Mark what was submitted last to each stream."""
        return self._streams.fence_all()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Run torch operators on the state stream.

        Raises:
            DeviceLostError: One of them found that the device's context is gone.
            DeviceMemoryError: One of them found no memory.
        """
        stream = self._streams.before_state()
        with exhaustion_told("what is run", self._device), torch.cuda.stream(stream.torch):
            try:
                yield
            except BaseException:
                # Nothing stays under way that no mark tells of; and where torch has an error
                # of its own for a device that is lost, the driver tells.
                self.synchronize()
                raise
        self._streams.submitted(stream)

    def synchronize(self) -> None:
        """Return when every stream is idle.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        self._streams.synchronize()

    def close(self) -> None:
        """Give back what the backend holds; idempotent. Close graphs and arenas first."""
        if self._is_closed:
            return
        self._is_closed = True
        # After a device error nothing can be given back, and nothing needs to be.
        with suppress(BackendError):
            self.synchronize()
            for address in tuple(self._registered):
                self.unregister(address)
            self._streams.close()
        self._staging.close()
        self._pools.clear()
        self._rehearsal.clear()

    def _setup(self) -> AbstractContextManager[None]:
        """Run torch operators on the copy stream, for allocations."""
        stream: AbstractContextManager[None] = torch.cuda.stream(self._streams.copy.torch)
        return stream

    def _put_back(self, lane_bytes: LaneBytes, before: Saved) -> None:
        self.synchronize()
        with self._setup():
            lane_bytes.load(before)
        self.synchronize()


def _run_again(recipe: Recipe, views: dict[str, torch.Tensor]) -> None:
    try:
        recipe.program(views, dict(recipe.slots))
    except Exception as error:
        raise CaptureError(
            f"program {recipe.key} can't be captured: run again, it raised {type(error).__name__}",
            source=definition_of(recipe.program),
            found=str(error).partition("\n")[0],
            fix="keep nothing outside of the buffers that decides how the program runs",
        ) from error


def _check_device(index: int) -> None:
    device = f"cuda:{index}" if index else "cuda"
    if torch.version.cuda is None:
        raise BackendError(
            f"device '{device}' can't be used",
            found=f"torch {torch.__version__}, built without CUDA",
            fix="install a CUDA build of torch, or run with device 'cpu'",
        )
    try:
        count = torch.cuda.device_count()
        if count:
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise BackendError(
            f"device '{device}' can't be used",
            found=str(error).partition("\n")[0],
            fix="install the driver that this build of torch asks for",
        ) from error
    if not 0 <= index < count:
        raise BackendError(
            f"there is no device 'cuda:{index}'",
            expected=f"cuda:0 to cuda:{count - 1}" if count else "a CUDA device; there is none",
            fix="check nvidia-smi and CUDA_VISIBLE_DEVICES",
        )


def _check_driver(found: tuple[int, int]) -> None:
    if found < MIN_DRIVER:
        raise BackendError(
            "the CUDA driver is too old",
            expected="one that serves CUDA {}.{} or newer".format(*MIN_DRIVER),
            found="CUDA {}.{}".format(*found),
            fix="update the NVIDIA driver",
        )
