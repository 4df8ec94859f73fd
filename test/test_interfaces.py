"""The ROS interfaces: what their files say, and what was compiled from them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import ERRORS

ROOT = Path(__file__).resolve().parents[1]
MESSAGES = sorted((ROOT / "msg").glob("*.msg"))
SERVICES = sorted((ROOT / "srv").glob("*.srv"))
CONSTANT = re.compile(r"(?P<type>\w+) +(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\d+)")
FIELD = re.compile(r"(?P<type>[\w/]+(\[\])?) +(?P<name>[a-z][a-z0-9_]*)( +\S+)?")


def statements(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def constants(text: str) -> dict[str, int]:
    matches = map(CONSTANT.fullmatch, statements(text))
    return {match["name"]: int(match["value"]) for match in matches if match}


def fields(text: str) -> list[str]:
    matches = map(FIELD.fullmatch, statements(text))
    return [match["name"] for match in matches if match]


def request_and_reply(path: Path) -> tuple[str, str]:
    request, _, reply = path.read_text(encoding="utf-8").partition("\n---\n")
    return request, reply


def by_name(path: Path) -> str:
    return path.stem


def error_codes() -> dict[str, int]:
    return {"SUCCESS": 0} | {ERRORS[code].name: code for code in sorted(ERRORS)}


@pytest.mark.parametrize("path", MESSAGES + SERVICES, ids=by_name)
def test_every_statement_is_understood(path: Path) -> None:
    for statement in statements(path.read_text(encoding="utf-8")):
        assert statement == "---" or CONSTANT.fullmatch(statement) or FIELD.fullmatch(statement), (
            statement
        )


def test_error_names_and_codes_are_unique() -> None:
    assert len(error_codes()) == len(ERRORS) + 1
    assert 0 not in ERRORS


@pytest.mark.parametrize("path", SERVICES, ids=by_name)
def test_reply_repeats_the_error_table(path: Path) -> None:
    wanted = error_codes()
    found = constants(request_and_reply(path)[1])
    listing = "\n".join(f"uint16 {name}={code}" for name, code in wanted.items())
    assert found == wanted, f"{path.name} must have these constants in its reply:\n{listing}"


@pytest.mark.parametrize("path", SERVICES, ids=by_name)
def test_request_names_the_environment_and_reply_the_outcome(path: Path) -> None:
    request, reply = request_and_reply(path)
    assert fields(request)[0] == "env_index"
    assert fields(reply)[:3] == ["success", "error_code", "error_msg"]


def test_event_kinds_are_those_of_the_engine() -> None:
    text = (ROOT / "msg" / "ExecutionEvent.msg").read_text(encoding="utf-8")
    assert constants(text) == {kind.name: kind.value for kind in EventKind}


@pytest.fixture(params=["msg", "srv"])
def interface_module(request: pytest.FixtureRequest) -> Any:
    if importlib.util.find_spec("rclpy") is None:
        pytest.skip("ROS is not installed; pip install -e '.[ros,test]' on x86_64 would run it")
    return importlib.import_module(f"flashrt_ros.{request.param}")


def compiled_parts(module: Any, path: Path) -> list[tuple[type[Any], str]]:
    """The generated classes of a file, each with the text that it was generated from."""
    if path.suffix == ".msg":
        return [(getattr(module, path.stem), path.read_text(encoding="utf-8"))]
    service = getattr(module, path.stem)
    request, reply = request_and_reply(path)
    return [(service.Request, request), (service.Response, reply)]


def test_compiled_interfaces_are_those_of_the_files(interface_module: Any) -> None:
    is_message = interface_module.__name__.endswith("msg")
    for path in MESSAGES if is_message else SERVICES:
        for cls, text in compiled_parts(interface_module, path):
            wanted = fields(text)
            found = list(cls.get_fields_and_field_types())
            assert found == wanted, f"{path.name} has changed: install the package again"
            for name, value in constants(text).items():
                assert getattr(cls, name) == value, path.name


def test_compiled_interfaces_cross_the_wire(interface_module: Any) -> None:
    from rclpy.serialization import deserialize_message, serialize_message

    is_message = interface_module.__name__.endswith("msg")
    for path in MESSAGES if is_message else SERVICES:
        for cls, _ in compiled_parts(interface_module, path):
            message = cls()
            assert deserialize_message(serialize_message(message), cls) == message


def test_payload_and_defaults_cross_the_wire() -> None:
    pytest.importorskip("rclpy", reason="ROS is not installed; the extra 'ros' would run it")
    from rclpy.serialization import deserialize_message, serialize_message

    from flashrt_ros.msg import ActionChunk
    from flashrt_ros.srv import ResetEpisode, Step

    chunk = ActionChunk(horizon=2, action_dim=2, actions=[0.5, 1.0, 1.5, 2.0], generation=2**40)
    arrived = deserialize_message(serialize_message(chunk), ActionChunk)
    assert list(arrived.actions) == [0.5, 1.0, 1.5, 2.0]
    assert arrived.generation == 2**40
    assert ResetEpisode.Request().capsule == "home"
    assert (Step.Request().count, Step.Request().branch) == (1, -1)
