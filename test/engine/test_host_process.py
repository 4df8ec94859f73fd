from __future__ import annotations

import logging
import os

import pytest

from flashrt_ros.engine.host_process import request_priority


def test_a_refused_priority_is_said_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with caplog.at_level(logging.WARNING):
        assert not request_priority(10)
    assert "rtprio" in caplog.text
