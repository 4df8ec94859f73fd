"""A process that hosts engines: what it asks the system and its loop for."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from flashrt_ros.engine import host_process
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.host_process import MemberPlan, request_priority, serve_members


def test_a_refused_priority_is_said_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with caplog.at_level(logging.WARNING):
        assert not request_priority(10)
    assert "rtprio" in caplog.text


class Noting:
    """Stands for the loop; notes how it was made, and whether it ran."""

    options: dict[str, Any]
    has_run = False

    def __init__(self, members: list[Any], **options: Any) -> None:
        type(self).options = options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self) -> None:
        type(self).has_run = True


def test_the_loop_gets_the_largest_that_a_member_asks_for_and_the_process(
    monkeypatch: pytest.MonkeyPatch, runtime_folder: Path
) -> None:
    monkeypatch.setattr(host_process, "Host", Noting)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(Noting, "has_run", False)
    settings = [
        EngineConfig(name="one", wake_early_us=300, busy_poll_us=10),
        EngineConfig(name="two", wake_early_us=0, busy_poll_us=70),
    ]
    plans = [
        MemberPlan(
            one.name,
            "",
            "cpu",
            1,
            lambda address, *_: SimpleNamespace(address=address, engine=SimpleNamespace(epoch=1)),  # type: ignore[arg-type]
            one,
        )
        for one in settings
    ]
    stopper: Any = SimpleNamespace(claim=lambda claim: claim(), attach=lambda host: None)
    serve_members(plans, stopper)
    assert Noting.has_run
    assert Noting.options["wake_early_us"] == 300
    assert Noting.options["busy_poll_us"] == 70
    assert Noting.options["owns_process"] is True
