"""System calls by way of ctypes."""

from __future__ import annotations

import os
import select

import pytest

from flashrt_ros.engine import linux


def test_a_timer_fires_once_it_is_due_and_not_when_it_is_disarmed() -> None:
    fd = linux.create_timer()
    try:
        linux.set_timer(fd, 1)  # long ago
        assert select.select([fd], [], [], 60.0)[0]
        linux.set_timer(fd, None)
        assert not select.select([fd], [], [], 0.0)[0]
    finally:
        os.close(fd)


def test_a_timer_that_is_none_is_refused_with_the_reason() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        linux.set_timer(-1, 1)
