"""Every message that can name an environment is refused where there is none of that index."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import UnknownEnvironmentError, UnsupportedError

_NAMING = sorted(
    (kind for kind in get_args(protocol.Request) if "env_index" in kind.__struct_fields__),
    key=lambda kind: str(kind.__name__),
)
_WITHOUT_AN_ANSWER = {protocol.Release}
_OF_A_CONNECTION = {protocol.OpenWriter, protocol.Subscribe}
"""Answered by the session; ``test_process.py`` asks them."""
_OF_A_PLANNER = {protocol.Instruct, protocol.CancelTurn, protocol.ResumeTurn}

_PLAIN: dict[Any, Any] = {int: 0, str: "", bool: False, bytes: b"", float: 1.0}


def make(kind: type[Any], env_index: int) -> Any:
    """Return a request of a kind with plain values."""
    values = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            values[field.name] = _PLAIN.get(field.type, () if "tuple" in str(field.type) else None)
    values["env_index"] = env_index
    return kind(**values)


def ask(engine: Any, request: Any) -> Any:
    """Carry out a request by the method that takes it."""
    if isinstance(request, protocol.Step):
        return engine.step(request)
    if isinstance(request, protocol.Interrupt):
        return engine.interrupt(request)
    return engine.handle(request)


@pytest.mark.parametrize(
    "kind", [one for one in _NAMING if one not in _WITHOUT_AN_ANSWER | _OF_A_CONNECTION]
)
def test_no_request_is_answered_for_an_environment_that_is_not_there(
    rig: Any, kind: type[Any]
) -> None:
    expected = UnsupportedError if kind in _OF_A_PLANNER else UnknownEnvironmentError
    for env_index in (1, 7, -1):
        with pytest.raises(expected):
            ask(rig.engine, make(kind, env_index))


def test_the_same_requests_are_answered_for_one_that_is(rig: Any) -> None:
    """The control: what refuses is the index."""
    for kind in (protocol.ListCapsules, protocol.GetFingerprint, protocol.GetStatus):
        ask(rig.engine, make(kind, 0))


def test_the_list_of_messages_is_not_empty() -> None:
    assert len(_NAMING) > 15
