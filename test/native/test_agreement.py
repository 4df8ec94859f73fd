"""The C library judges names and payloads as the Python side does, whatever they are."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import address, payload, protocol
from flashrt_ros.errors import FlashrtError
from flashrt_ros.runtime.spec import ITEM_BYTES

DTYPES = [name for name in ITEM_BYTES if name != "bfloat16"]  # NumPy has none
MAX_DIMS = 8


class FieldInfo(ctypes.Structure):
    """``flashrt_field_info``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("units", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("num_dims", ctypes.c_uint32),
        ("shape", ctypes.c_uint64 * MAX_DIMS),
        ("num_items", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("low", ctypes.c_double),
        ("high", ctypes.c_double),
    )


class Channel(ctypes.Structure):
    """``flashrt_channel``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("frame", ctypes.c_char_p),
        ("slot_bytes", ctypes.c_uint64),
        ("num_ring_slots", ctypes.c_uint32),
        ("num_fields", ctypes.c_uint32),
        ("fields", ctypes.POINTER(FieldInfo)),
        ("inode", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
    )


class Error(ctypes.Structure):
    """``flashrt_error``."""

    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 1024))


@pytest.fixture(scope="module")
def library(open_library: Path) -> Any:
    return ctypes.CDLL(str(open_library))


def judge_in_c(library: Any, part: protocol.FieldInfo, array: Any) -> tuple[int, str]:
    memory = ctypes.create_string_buffer(array.tobytes(), array.nbytes + 16)
    low = -math.inf if part.low is None else part.low
    high = math.inf if part.high is None else part.high
    field = FieldInfo(name=part.name.encode(), units=part.units.encode(), low=low, high=high)
    field.dtype = list(ITEM_BYTES).index(part.dtype)
    field.num_items, field.num_bytes = array.size, array.nbytes
    channel = Channel(name=b"goal", num_fields=1, fields=ctypes.pointer(field))
    error = Error()
    code = library.fr_check_payload(ctypes.byref(channel), memory, ctypes.byref(error))
    return code, error.message.decode()


def judge_in_python(part: protocol.FieldInfo, array: Any) -> int:
    channel = protocol.ChannelInfo("goal", "goal", "", 4096, 4, 16384, (part,))
    try:
        payload.check_payload(channel, {part.name: array})
    except FlashrtError as error:
        return error.code
    return 0


bounds = st.none() | st.sampled_from([-1.0, 0.0, 1.0, 0.1, -0.1, 100.0, 3.5, -math.inf, math.inf])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    low=bounds,
    high=bounds,
    numbers=st.lists(
        st.floats(-2, 2) | st.sampled_from([math.nan, math.inf, -math.inf, 0.1, -0.1, 100, 3.5]),
        min_size=1,
        max_size=40,
    ),
)
@example(dtype="float32", low=0.1, high=None, numbers=[0.1])  # not the number that 0.1 is
@example(dtype="float32", low=None, high=math.inf, numbers=[math.inf])
@example(dtype="float16", low=0.1, high=0.1, numbers=[0.1])
def test_payloads_are_judged_alike(
    library: Any, dtype: str, low: float | None, high: float | None, numbers: list[float]
) -> None:
    values = np.array(numbers)
    if np.dtype(dtype).kind != "f":
        values = np.nan_to_num(values, nan=0.0, posinf=50.0, neginf=-50.0)
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype == "uint8":
            values = np.abs(values)
        array = values.astype(dtype)
    part = protocol.FieldInfo("values", array.shape, dtype, 0, low, high, "m")
    code, message = judge_in_c(library, part, array)
    assert code == judge_in_python(part, array), message


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bits=st.integers(0, 2**16 - 1))
def test_half_numbers_are_read_right(library: Any, bits: int) -> None:
    array = np.array([bits], np.uint16).view(np.float16)
    value = float(array[0])
    above = float(np.nextafter(array[0], np.float16(math.inf)))
    for low in (value, above) if math.isfinite(value) else (0.0,):
        code, _ = judge_in_c(
            library, protocol.FieldInfo("x", (1,), "float16", 0, low, None, ""), array
        )
        assert code == (402 if not math.isfinite(value) else 0 if low == value else 406)


def test_a_bool_is_a_bool_and_a_bfloat16_has_a_range(library: Any) -> None:
    part = protocol.FieldInfo("x", (1,), "bool", 0, None, None, "")
    assert [judge_in_c(library, part, np.array([n], np.uint8))[0] for n in (0, 1, 2)] == [0, 0, 406]
    part = protocol.FieldInfo("x", (1,), "bfloat16", 0, -1.0, 1.0, "")
    upper_halves = np.array([1.0, -1.5, math.nan], np.float32).view(np.uint16)[1::2]
    codes = [judge_in_c(library, part, upper_halves[i : i + 1])[0] for i in range(3)]
    assert codes == [0, 406, 402]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_has_one_socket(library: Any, runtime_folder: Path, name: str) -> None:
    path = ctypes.create_string_buffer(4200)
    code = library.flashrt_socket_path(
        name.encode(), path, ctypes.c_size_t(len(path)), ctypes.byref(Error())
    )
    if not name.strip("/"):
        assert code == 500
    else:
        assert (code, path.value.decode()) == (0, str(address.socket_path(name)))
