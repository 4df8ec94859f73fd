"""What ``flashrt-ros doctor`` says of a device, by doubles of the device and of its tools."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from flashrt_ros.cli import doctor_device, doctor_probe
from flashrt_ros.cli.doctor_probe import CudaFacts, DeviceFacts
from flashrt_ros.cli.findings import Row, Status
from flashrt_ros.errors import BackendError
from flashrt_ros.runtime.cuda import MIN_DRIVER
from flashrt_ros.runtime.cuda_driver import Attribute

MIB = 1 << 20

H200 = DeviceFacts(
    index=0,
    name="NVIDIA H200",
    uuid="1f8c",
    architecture=(9, 0),
    is_integrated=False,
    reads_in_place=True,
    refusal="",
    free_bytes=140_000 * MIB,
    total_bytes=143_000 * MIB,
)
THOR = msgspec.structs.replace(
    H200,
    name="NVIDIA Thor",
    uuid="",
    architecture=(11, 0),
    is_integrated=True,
    free_bytes=900 * MIB,
    total_bytes=125_000 * MIB,
)
FACTS = CudaFacts(
    torch="2.11.0+cu130",
    torch_cuda="13.0",
    architectures=("sm_80", "sm_90", "sm_110", "compute_120"),
    driver=(13, 0),
    min_driver=MIN_DRIVER,
    devices=(H200,),
)
SMI = """\
GPU-0000, 580.65.06, P0, 300.00 W, Enabled, [N/A]
GPU-1f8c, 580.65.06, P0, 700.00 W, Enabled, Disabled
"""
NVPMODEL = "NV Power Mode: MAXN\n0\n"


def status_of(row: Row) -> Status:
    """Return a row's status; one that troubles must say what would go wrong, and what to do."""
    assert (row.status is Status.OK) == (row.problem == "") == (row.fix == ""), row
    assert row.found
    return row.status


def replaced(facts: CudaFacts, **changes: object) -> CudaFacts:
    return msgspec.structs.replace(facts, **changes)


def rows_of(
    facts: CudaFacts, folder: Path, *, smi: str = "", nvpmodel: str = "", has_hardware: bool = True
) -> dict[str, Row]:
    meminfo = folder / "meminfo"
    meminfo.write_text("MemAvailable: 60000000 kB\n")
    rows = doctor_device.device_rows(
        facts,
        has_hardware=has_hardware,
        meminfo=meminfo,
        smi=doctor_device.smi_fields(smi),
        nvpmodel=nvpmodel,
    )
    for row in rows:
        status_of(row)
    assert {row.topic for row in rows} == {"cuda"}
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}


# what is there -------------------------------------------------------------------------------


def test_a_device_with_memory_of_its_own(tmp_path: Path) -> None:
    rows = rows_of(FACTS, tmp_path, smi=SMI)
    assert all(row.status is Status.OK for row in rows.values())
    assert rows["driver"].found == "serves CUDA 13.0, version 580.65.06"
    assert rows["cuda:0"].found == "NVIDIA H200, sm_90, memory of its own"
    assert rows["cuda:0 slots"].found.startswith("read in place (64 MiB registered")
    assert rows["cuda:0 memory"].found == "140000 MiB free of 143000 MiB"
    assert rows["cuda:0 power"].found == "P0, limit 700.00 W"
    assert rows["cuda:0 modes"].found == "persistence Enabled, MIG Disabled"


def test_an_integrated_device_has_what_the_page_cache_gives_up(tmp_path: Path) -> None:
    rows = rows_of(replaced(FACTS, devices=(THOR,)), tmp_path, nvpmodel=NVPMODEL)
    assert all(row.status is Status.OK for row in rows.values())
    assert rows["cuda:0"].found == "NVIDIA Thor, sm_110, integrated: shares the host's memory"
    assert rows["cuda:0 memory"].found == (
        "58593 MiB free of 125000 MiB, the page cache counted in"
    )
    assert rows["cuda:0 power"].found == "nvpmodel MAXN"
    assert rows["cuda:0 modes"].found == "unknown"


def test_the_same_memory_without_the_page_cache_is_little() -> None:
    # the twin of the test before: a device of its own has no page cache
    own = msgspec.structs.replace(THOR, is_integrated=False)
    assert status_of(doctor_device.memory_row(own, 60_000 * MIB)) is Status.WARN
    assert status_of(doctor_device.memory_row(THOR, None)) is Status.WARN
    assert status_of(doctor_device.memory_row(THOR, 60_000 * MIB)) is Status.OK


def test_several_devices_are_told_apart(tmp_path: Path) -> None:
    second = msgspec.structs.replace(H200, index=1, uuid="0000")
    rows = rows_of(replaced(FACTS, devices=(H200, second)), tmp_path, smi=SMI)
    assert rows["cuda:0 power"].found == "P0, limit 700.00 W"
    assert rows["cuda:1 power"].found == "P0, limit 300.00 W"
    stranger = msgspec.structs.replace(H200, uuid="other")
    rows = rows_of(replaced(FACTS, devices=(stranger,)), tmp_path, smi=SMI)
    assert rows["cuda:0 power"].found == "unknown"


def test_nvpmodel_speaks_of_integrated_devices_alone(tmp_path: Path) -> None:
    assert rows_of(FACTS, tmp_path, nvpmodel=NVPMODEL)["cuda:0 power"].found == "unknown"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "a, b\n", "[N/A]" + ", N/A" * 5])
def test_what_a_tool_does_not_know_is_unknown(tmp_path: Path, text: str) -> None:
    rows = rows_of(FACTS, tmp_path, smi=text, nvpmodel="NVPM ERROR: no mode\n")
    assert rows["cuda:0 power"].found == rows["cuda:0 modes"].found == "unknown"


def test_channels_are_staged_where_the_device_can_t_read_the_host(tmp_path: Path) -> None:
    staged = msgspec.structs.replace(H200, reads_in_place=False)
    row = rows_of(replaced(FACTS, devices=(staged,)), tmp_path)["cuda:0 slots"]
    assert row.status is Status.WARN
    assert "staged" in row.found
    assert "copied" in row.problem


@pytest.mark.parametrize(
    ("limit", "shown"), [(8 * MIB, "memlock 8 MiB"), (resource.RLIM_INFINITY, "memlock unlimited")]
)
def test_locked_memory_is_judged_by_trying(limit: int, shown: str) -> None:
    row = doctor_device.slots_row(H200, limit)
    assert status_of(row) is Status.OK
    assert shown in row.found
    refused = msgspec.structs.replace(H200, refusal="CUDA_ERROR_OUT_OF_MEMORY (2)")
    row = doctor_device.slots_row(refused, limit)
    assert status_of(row) is Status.WARN
    assert "CUDA_ERROR_OUT_OF_MEMORY" in row.found
    assert shown in row.found
    assert "memlock" in row.fix


def test_an_old_driver_is_named(tmp_path: Path) -> None:
    row = rows_of(replaced(FACTS, driver=(11, 8)), tmp_path)["driver"]
    assert row.status is Status.WARN
    assert "11.8" in row.found
    assert "{}.{}".format(*MIN_DRIVER) in row.fix


@pytest.mark.parametrize(
    ("architectures", "device", "expected"),
    [
        (("sm_90",), (9, 0), Status.OK),
        (("sm_80", "sm_86"), (8, 9), Status.OK),
        (("sm_86",), (8, 0), Status.WARN),
        (("sm_80",), (9, 0), Status.WARN),
        (("compute_80",), (9, 0), Status.OK),
        (("compute_120",), (11, 0), Status.WARN),
        (("sm_90a",), (9, 0), Status.OK),
        (("sm_100a",), (10, 3), Status.WARN),
        (("sm_100f",), (10, 3), Status.OK),
        (("compute_100f",), (11, 0), Status.WARN),
        (("gfx942",), (9, 0), Status.WARN),
        ((), (9, 0), Status.OK),
    ],
)
def test_kernels_for_the_device(
    architectures: tuple[str, ...], device: tuple[int, int], expected: Status
) -> None:
    row = doctor_device.kernels_row(
        msgspec.structs.replace(H200, architecture=device),
        replaced(FACTS, architectures=architectures),
    )
    assert status_of(row) is expected


def test_no_device_is_one_line(tmp_path: Path) -> None:
    facts = CudaFacts(torch="2.13.0+cpu", reason="torch 2.13.0+cpu is built without CUDA")
    rows = rows_of(facts, tmp_path, has_hardware=False)
    assert list(rows) == ["cuda"]
    assert rows["cuda"].status is Status.OK
    assert rows["cuda"].found == (
        "none: torch 2.13.0+cpu is built without CUDA; engines run on the CPU"
    )
    rows = rows_of(facts, tmp_path, has_hardware=True)
    assert rows["cuda"].status is Status.WARN
    assert "built in" in rows["cuda"].problem


def test_a_device_that_fails_beside_one_that_does_not_is_named(tmp_path: Path) -> None:
    rows = rows_of(replaced(FACTS, reason="cuda:1: uncorrectable ECC error"), tmp_path)
    assert rows["cuda"].status is Status.WARN
    assert "cuda:1: uncorrectable" in rows["cuda"].found
    assert rows["cuda:0"].status is Status.OK


def test_hardware_is_seen_by_its_device_files(tmp_path: Path) -> None:
    assert not doctor_device.has_hardware(tmp_path)
    (tmp_path / "nvhost-gpu").touch()
    assert doctor_device.has_hardware(tmp_path)


# asking --------------------------------------------------------------------------------------


class StandInDriver:
    """A driver with one device."""

    def __init__(
        self, attributes: dict[Attribute, int], *, moves: int = 0, refuses: bool = False
    ) -> None:
        self.registered: list[int] = []
        self._attributes = attributes
        self._moves = moves
        self._refuses = refuses

    def version(self) -> tuple[int, int]:
        return (13, 0)

    def attribute(self, attribute: Attribute, device: int) -> int:
        return self._attributes.get(attribute, 1)

    def register(self, address: int, num_bytes: int) -> int:
        if self._refuses:
            raise BackendError("refused", found="CUDA_ERROR_OUT_OF_MEMORY (2)")
        self.registered.append(address)
        return address + self._moves

    def unregister(self, address: int) -> None:
        self.registered.remove(address)


def stand_in_torch(count: int = 1, *, cuda: str | None = "13.0", error: str = "") -> Any:
    """A torch with as many devices, whose initialisation may fail."""

    def init() -> None:
        if error:
            raise RuntimeError(error)

    properties = SimpleNamespace(name="NVIDIA Thor", uuid="7", major=11, minor=0)
    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            device_count=lambda: count,
            init=init,
            get_arch_list=lambda: ["sm_110"],
            set_device=lambda index: None,
            get_device_properties=lambda index: properties,
            mem_get_info=lambda index: (1 << 30, 1 << 37),
        ),
    )


def looked_at(torch: Any, driver: StandInDriver) -> CudaFacts:
    facts = list(doctor_probe.look(torch, lambda: driver))
    assert all(told.stage for told in facts[:-1])
    assert facts[-1].stage == ""
    assert not driver.registered
    return facts[-1]


@pytest.mark.parametrize("is_integrated", [True, False])
def test_a_device_is_looked_at(is_integrated: bool) -> None:
    driver = StandInDriver({Attribute.INTEGRATED: int(is_integrated)})
    facts = looked_at(stand_in_torch(), driver)
    assert facts.reason == ""
    assert (facts.driver, facts.min_driver) == ((13, 0), MIN_DRIVER)
    (device,) = facts.devices
    assert (device.name, device.architecture, device.uuid) == ("NVIDIA Thor", (11, 0), "7")
    assert device.is_integrated is is_integrated
    assert (device.reads_in_place, device.refusal) == (True, "")
    assert (device.free_bytes, device.total_bytes) == (1 << 30, 1 << 37)


@pytest.mark.parametrize(
    "attribute",
    [Attribute.HOST_REGISTER_SUPPORTED, Attribute.CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM],
)
def test_a_device_that_does_not_register_stages(attribute: Attribute) -> None:
    (device,) = looked_at(stand_in_torch(), StandInDriver({attribute: 0})).devices
    assert (device.reads_in_place, device.refusal) == (False, "")


def test_what_registering_finds_is_told() -> None:
    (device,) = looked_at(stand_in_torch(), StandInDriver({}, refuses=True)).devices
    assert device.refusal == "CUDA_ERROR_OUT_OF_MEMORY (2)"
    (device,) = looked_at(stand_in_torch(), StandInDriver({}, moves=4096)).devices
    assert "address of its own" in device.refusal


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (stand_in_torch(cuda=None), "built without CUDA"),
        (stand_in_torch(0), "no device"),
        (stand_in_torch(error="The NVIDIA driver is too old\nsecond line"), "too old"),
    ],
)
def test_why_there_is_no_device_is_told(module: Any, reason: str) -> None:
    facts = looked_at(module, StandInDriver({}))
    assert facts.devices == ()
    assert reason in facts.reason
    assert "second line" not in facts.reason


def test_a_missing_driver_is_told() -> None:
    def refuse() -> StandInDriver:
        raise BackendError("the CUDA driver can't be loaded", found="libcuda.so.1: no such file")

    facts = list(doctor_probe.look(stand_in_torch(), refuse))[-1]
    assert facts.reason == "no driver: libcuda.so.1: no such file"
    assert facts.driver is None


def printing(facts: Sequence[CudaFacts], end: str = "") -> list[str]:
    """Return a command that prints facts among other lines."""
    lines = [doctor_probe.MARK + msgspec.json.encode(told).decode() for told in facts]
    code = f"import os, sys, time; print('noise'); print({chr(10).join(lines)!r}, flush=True); "
    return [sys.executable, "-c", code + end]


STAGES = [CudaFacts(stage="opening the driver"), CudaFacts(stage="initialising CUDA")]


def test_the_last_facts_count() -> None:
    assert doctor_device.probe(printing([*STAGES, FACTS])) == FACTS


def test_a_probe_that_hangs_is_left_and_its_stage_told() -> None:
    facts = doctor_device.probe(printing(STAGES, "time.sleep(600)"), timeout_s=4.0)
    assert facts.reason == "initialising CUDA, the probe did not answer within 4 s"


def test_a_probe_that_dies_is_survived() -> None:
    facts = doctor_device.probe(printing(STAGES, "os.abort()"))
    assert facts.reason == "initialising CUDA, the probe ended with code -6"
    facts = doctor_device.probe(printing([], "sys.exit('no such thing')"))
    assert facts.reason == "starting, the probe ended with code 1: no such thing"
    facts = doctor_device.probe([sys.executable, "-c", "print('facts={')"])
    assert facts.reason.startswith("starting")


def test_tools_that_are_not_there_fail_or_hang_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor_device, "TOOL_TIMEOUT_S", 0.5)
    assert doctor_device.run_tool(["/no/such/tool"]) == ""
    assert doctor_device.run_tool([sys.executable, "-c", "print(1); raise SystemExit(3)"]) == ""
    assert doctor_device.run_tool([sys.executable, "-c", "import time; time.sleep(600)"]) == ""
    assert doctor_device.run_tool(["echo", "said"]) == "said\n"


def test_this_machine_is_asked() -> None:
    rows = doctor_device.check_device()
    names = {row.name for row in rows}
    assert all(status_of(row) is not Status.FAIL for row in rows)
    assert names == {"cuda"} or {"driver", "cuda:0", "cuda:0 slots", "cuda:0 memory"} <= names


@pytest.mark.gpu
def test_a_real_device_is_found() -> None:
    rows = {row.name: row for row in doctor_device.check_device()}
    assert torch.cuda.get_device_name(0) in rows["cuda:0"].found
    for name in ("driver", "cuda:0", "cuda:0 torch", "cuda:0 slots"):
        assert rows[name].status is Status.OK, rows[name]
    assert "read in place" in rows["cuda:0 slots"].found
