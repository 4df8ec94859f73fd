"""What a loop waits for: the look that keeps the lock sees what poll sees."""

from __future__ import annotations

import os
import resource
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flashrt_ros.engine.polling import Poll


class PollMachine(RuleBasedStateMachine):
    """Descriptors come, go, turn ready and are closed while they are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.poll = Poll()
        self.ends: list[tuple[int, int]] = []
        self.watched: set[int] = set()

    def teardown(self) -> None:
        for reading, writing in self.ends:
            os.close(reading)
            os.close(writing)

    @rule(mask=st.sampled_from([select.POLLIN, select.POLLIN | select.POLLOUT]))
    def open(self, mask: int) -> None:
        ends = os.pipe()
        self.ends.append(ends)
        self.poll.register(ends[0], mask)
        self.poll.register(ends[1], mask & select.POLLIN)
        self.watched.update(ends)

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        if self.ends:
            os.write(data.draw(st.sampled_from(self.ends))[1], b".")

    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        if self.watched:
            fd = data.draw(st.sampled_from(sorted(self.watched)))
            self.poll.unregister(fd)
            self.watched.remove(fd)

    @rule(data=st.data())
    def close_and_unregister(self, data: st.DataObject) -> None:
        if self.ends:
            ends = data.draw(st.sampled_from(self.ends))
            self.ends.remove(ends)
            for fd in ends:
                os.close(fd)
                if fd in self.watched:
                    self.poll.unregister(fd)
                    self.watched.remove(fd)

    @rule(data=st.data(), mask=st.sampled_from([0, select.POLLIN, select.POLLOUT]))
    def modify(self, data: st.DataObject, mask: int) -> None:
        if self.watched:
            self.poll.register(data.draw(st.sampled_from(sorted(self.watched))), mask)

    @invariant()
    def both_see_the_same(self) -> None:
        assert sorted(self.poll.look_held()) == sorted(self.poll.poll(0))


TestPoll = PollMachine.TestCase
TestPoll.settings = settings(deadline=None, max_examples=60)


def test_who_was_not_watched_is_refused() -> None:
    with pytest.raises(KeyError):
        Poll().unregister(0)


@pytest.fixture
def held_long() -> Iterator[None]:
    """Let the lock go only where it is let go of."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before_s)


def test_a_poll_that_fails_says_so() -> None:
    poll = Poll()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as exits:
        for _ in range(2):
            for fd in os.pipe():
                exits.callback(os.close, fd)
                poll.register(fd, 0)
        exits.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (3, hard)
        )  # poll takes no more entries than that
        with pytest.raises(OSError, match="Invalid argument"):
            poll.look_held()


@pytest.mark.parametrize("is_held", [True, False])
def test_no_other_thread_runs_while_it_is_looked_for(held_long: None, is_held: bool) -> None:
    """A look that lets go of the lock has the other thread run, and this shows it."""
    poll = Poll()
    has_run, may_run = threading.Event(), threading.Event()

    def other() -> None:
        may_run.wait()
        has_run.set()

    thread = threading.Thread(target=other)
    with ExitStack() as exits:
        ends = os.pipe()
        for fd in ends:
            exits.callback(os.close, fd)
        poll.register(ends[0], select.POLLIN)
        thread.start()
        exits.callback(thread.join)
        may_run.set()
        for _ in range(200_000 if is_held else 1_000_000):
            assert not (poll.look_held() if is_held else poll.poll(0))
            if not is_held and has_run.is_set():
                break
        assert has_run.is_set() != is_held
