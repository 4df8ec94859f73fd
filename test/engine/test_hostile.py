"""Messages that are well formed and make no sense: the engine answers, and stays."""

from __future__ import annotations

import math
import socket
import typing
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import address, protocol
from flashrt_ros.errors import FlashrtError

WAIT_S = 60.0

REQUESTS = [
    kind
    for kind in typing.get_args(protocol.Request)
    if kind not in (protocol.Hello, protocol.Stop)
]

integers = st.one_of(st.integers(-2, 5), st.integers(-(2**63), 2**64 - 1))
texts = st.one_of(
    st.sampled_from(["", "home", "goal", "observation", "timer", "step", "x"]),
    st.text(max_size=30),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": integers,
    "str": texts,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=64),
    "float": st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-9, 10.0, 1e4, 1e300]),
    "int | None": st.none() | integers,
    "tuple[str, ...]": st.lists(texts, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(integers, max_size=3).map(tuple),
}


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a message may carry, in every field."""
    fields = {
        name: st.none() | messages(protocol.Commit)
        if kind.__annotations__[name] == "Commit | None"
        else VALUES[kind.__annotations__[name]]
        for name in kind.__struct_fields__
    }
    return st.builds(kind, **fields)


def talk(name: str, requests: list[Any]) -> list[object]:
    """Send requests without waiting, then read what came back, to the end."""
    answers: list[object] = []
    with address.connect(name, timeout_s=WAIT_S) as sock:
        sock.settimeout(WAIT_S)
        try:
            for request in (protocol.Hello(0, protocol.PROTOCOL_VERSION, "fuzz", 0), *requests):
                sock.send(protocol.encode(request))
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # one of them cost the connection
        try:
            while message := sock.recv(65536):
                answers.append(protocol.decode_from_engine(message))
        except ConnectionResetError:
            pass  # with some of ours unread
    return answers


def test_no_message_ends_the_engine(engine: Any) -> None:
    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.one_of([messages(kind) for kind in REQUESTS]), min_size=1, max_size=12))
    def run(requests: list[Any]) -> None:
        for answer in talk(engine.name, requests):
            # A code of its own means that somebody thought of it.
            assert not (
                isinstance(answer, protocol.Failure) and answer.code == FlashrtError.code
            ), answer

    run()
    with engine.client() as client:
        client.activate(tick_source="step")
        client.reset(stamp_ns=0)
        assert client.status().num_clients == 1
