"""Bounds of stamps after the writers' clock was set back."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import StaleStampError, UnknownEnvironmentError


def rewind(rig: Any, now_ns: int) -> None:
    assert isinstance(rig.engine.handle(protocol.Rewind(3, 0, now_ns)), protocol.Ack)


def test_a_reset_that_lies_ahead_shuts_nothing_out(rig: Any) -> None:
    rig.step(4)
    rig.reset(stamp_ns=1000)
    for commit in (rig.goal, rig.observe):
        with pytest.raises(StaleStampError):
            commit(0.1, 0.2, stamp_ns=5)
    generation = rig.restore("home", reset=True, stamp_ns=1000).generation
    rewind(rig, 4)
    rig.goal(0.1, 0.2, stamp_ns=5)
    rig.observe(0.1, 0.2, stamp_ns=5)
    stepped = rig.step(4)
    assert stepped.generation == generation
    assert {record.provenance.goal_stamp_ns for record in stepped.chunks} == {5}


def test_a_reset_in_the_new_time_still_counts(rig: Any) -> None:
    rig.reset(stamp_ns=1000)
    rig.reset(stamp_ns=10)
    rewind(rig, 11)
    for commit in (rig.goal, rig.observe):
        with pytest.raises(StaleStampError):
            commit(0.1, 0.2, stamp_ns=9)
        commit(0.1, 0.2, stamp_ns=10)


def test_what_a_resume_brings_back_is_rewound_too(rig: Any) -> None:
    rig.reset(stamp_ns=1000)
    rig.goal(0.1, 0.2, stamp_ns=1001)
    rig.observe(0.1, 0.2, stamp_ns=1001)
    rig.step(4)
    rig.interrupt()
    rewind(rig, 4)
    rig.resume()
    rig.goal(0.3, 0.3, stamp_ns=5)


def test_an_unknown_environment_is_refused(rig: Any) -> None:
    with pytest.raises(UnknownEnvironmentError):
        rig.engine.handle(protocol.Rewind(3, 7, 0))
