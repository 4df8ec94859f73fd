"""The one loop of a process: deadlines, then messages, then one plan node, then the slack."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flashrt_ros.engine import linux
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.host_clients import Clients
from flashrt_ros.engine.host_filler import Filler
from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.engine.polling import Poll
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES
from flashrt_ros.engine.served import FillingEngine, ServedEngine

SPIN_NS = 150_000
"""How long the device is asked without a pause whether it is done."""

ASK_NS = 50_000
"""How long the loop sleeps after that before it asks again; sockets wake it at once."""

ASLEEP_SWITCH_INTERVAL_S = 2e-5
"""The interpreter's switch interval while the loop is asleep: how long it then waits for the
interpreter's lock, once awake, before it asks for it.
"""

AWAKE_SWITCH_INTERVAL_S = 5e-4
"""The same while it is awake: longer than most turns of the loop, so that other threads don't
interrupt them, and as long as one of those may keep the loop waiting in the midst of a turn.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that a process hosts, with deadlines to keep.

    Attributes:
        engine: Served; its sink is set. Not owned: close it after the host.
        address: The claim on the name; starts to listen in the host, is closed with it.
    """

    engine: ServedEngine
    address: EngineSocket


@dataclass(frozen=True, slots=True)
class FillingMember:
    """An engine that a process hosts, without deadlines: it runs in the slack of the others.

    Attributes:
        engine: As of :class:`Member`.
        address: As of :class:`Member`.
        slack: What fits. Its own alone.
    """

    engine: FillingEngine
    address: EngineSocket
    slack: Slack


class Host:
    """Serves engines, each to the clients of a socket of its own, on one thread.

    Each turn of the loop runs the deadlines that are due, whoever's they are, and takes at
    most one message from each client that sent some (the deadlines are looked at again between
    them). Then one plan node is submitted: of the members with deadlines in turn; where they
    have none, of a filling member whose node fits before the nearest deadline. When there is
    nothing else and no tick is near, one slice of background work is done, first for the
    members with deadlines. After a message the loop looks for the next one for ``busy_poll_us``,
    at most until the next deadline or background work; then it sleeps in ``poll`` until a timer,
    a message, or :meth:`stop`. It wakes up ``wake_early_us`` before a deadline, for a core that
    sleeps takes its time, and looks until then with the interpreter's lock held, for a thread
    that has it takes its time too. While a device is at work the timer has it asked at short
    intervals whether it is done.

    Where no deadline is scheduled, filling members run whenever the others have nothing to
    submit. One node of theirs is under way at a time, whoever's it is.

    Args:
        members: Engines; at least one.
        poll_reserve_us: No background slice starts nearer than this to a deadline, us.
        busy_poll_us: How long to go on looking for messages without a pause after one, us.
        wake_early_us: How long before a deadline to look instead of sleeping, us.
        owns_process: The process is the engines' own: its interpreter's switch interval is
            :data:`ASLEEP_SWITCH_INTERVAL_S` while the loop sleeps or looks with the lock let go,
            and otherwise :data:`AWAKE_SWITCH_INTERVAL_S`. So the loop, whose turns are short,
            hardly waits for other threads, and they wait for its turns to end.
        clock_ns: CLOCK_MONOTONIC, and the engines' clock.
    """

    def __init__(
        self,
        members: Sequence[Member | FillingMember],
        *,
        poll_reserve_us: int = 600,
        busy_poll_us: int = 0,
        wake_early_us: int = 0,
        owns_process: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._reserve_ns = poll_reserve_us * 1000
        self._busy_poll_ns = busy_poll_us * 1000
        self._early_ns = wake_early_us * 1000
        self._owns_process = owns_process
        self._switch_interval_s = sys.getswitchinterval()
        self._timed = [one.engine for one in members if isinstance(one, Member)]
        self._filler = Filler(
            [(one.engine, one.slack) for one in members if isinstance(one, FillingMember)],
            clock_ns,
        )
        self._engines = [*self._timed, *self._filler.engines]
        self._next_timed = 0
        self._is_stopping = False
        self._is_closed = False
        self._armed_ns: int | None = None
        self._waiting_ns = 0
        self._served_ns = 0
        self._timer_fd = linux.create_timer()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = Poll()
        for fd in (self._timer_fd, self._stop_fd):
            self._poll.register(fd, select.POLLIN)
        self._owners: dict[int, Clients] = {}
        self._clients: list[Clients] = []
        try:
            self._listen(members)
        except BaseException:
            self.close()
            raise
        linux.close_after_fork(self)

    @property
    def num_clients(self) -> int:
        """Connections there are, to all members."""
        return sum(clients.num_clients for clients in self._clients)

    def stop(self) -> None:
        """Have :meth:`run` return after the turn it is in; from any thread or signal handler."""
        self._is_stopping = True
        if not self._is_closed:
            os.eventfd_write(self._stop_fd, 1)

    def run(self) -> None:
        """Serve until :meth:`stop`, or until a client of any member asks for it.

        Raises:
            Exception: What an engine itself raised outside any client's message. The
                engine's state can't be relied on then.
        """
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._restore_interval()

    def close(self) -> None:
        """Take the sockets away, end every connection, close all descriptors. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_stopping = True
        with ExitStack() as undo:  # one that fails, on a device that is lost, leaves none open
            for fd in (self._stop_fd, self._timer_fd):
                undo.callback(os.close, fd)
            for clients in reversed(self._clients):
                undo.callback(clients.close)

    def close_in_child(self) -> None:
        """Close descriptors in a forked child; clients and timer stay the parent's."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_stopping = True
        for clients in self._clients:
            clients.close_in_child()
        os.close(self._timer_fd)
        os.close(self._stop_fd)
        self._restore_interval()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _listen(self, members: Sequence[Member | FillingMember]) -> None:
        buffer = bytearray(MAX_MESSAGE_BYTES)
        for member in members:
            self._clients.append(
                Clients(
                    member.engine,
                    member.address,
                    poll=self._poll,
                    owners=self._owners,
                    buffer=buffer,
                    clock_ns=self._clock_ns,
                    run_deadlines=self._run_deadlines,
                    on_stop=self.stop,
                )
            )

    # the loop --------------------------------------------------------------------------------

    def _turn(self) -> None:
        events = self._events()
        self._run_deadlines()
        is_serving = False
        for fd, mask in events:
            owner = self._owners.get(fd)
            if owner is not None:
                if is_serving:
                    self._run_deadlines()
                owner.serve(fd, mask)
                is_serving = True
            elif fd == self._timer_fd:
                # else it stays ready, and there is no looking and no sleep before it is set again
                self._set_timer(None)
        if is_serving:
            self._served_ns = self._clock_ns()
        has_dropped = False
        for clients in self._clients:
            has_dropped = clients.settle() or has_dropped
        if has_dropped:
            for clients in self._clients:
                clients.accept_again()
        self._work()
        for clients in self._clients:
            clients.deliver()

    def _work(self) -> None:
        """Submit one plan node, or do one slice of background work."""
        if self._advance_timed():
            # who waited for slack twice as long as it should goes on beside them
            self._fill(others_have_work=True)
            return
        engine = self._due_background()
        is_first = engine is not None and engine in self._timed
        if not is_first and self._fill(others_have_work=False):
            return
        if engine is not None:
            engine.background(self._clock_ns())

    def _advance_timed(self) -> bool:
        """Submit a node of the next member that has one; False where none has."""
        count = len(self._timed)
        for offset in range(count):
            index = (self._next_timed + offset) % count
            if self._timed[index].has_work:
                self._next_timed = index + 1
                self._timed[index].advance()
                return True
        return False

    def _has_timed_work(self) -> bool:
        for engine in self._timed:  # noqa: SIM110, a generator for each turn costs more
            if engine.has_work:
                return True
        return False

    def _is_timed_waiting(self) -> bool:
        for engine in self._timed:  # noqa: SIM110
            if engine.is_waiting:
                return True
        return False

    # the slack -------------------------------------------------------------------------------

    def _can_fill(self) -> bool:
        if not self._filler.has_members:
            return False
        return self._filler.can_advance(
            self._next_deadline_ns(), others_wait=self._is_timed_waiting(), others_have_work=False
        )

    def _fill(self, *, others_have_work: bool) -> bool:
        if not self._filler.has_members:
            return False
        return self._filler.advance(
            self._next_deadline_ns(),
            others_wait=self._is_timed_waiting(),
            others_have_work=others_have_work,
        )

    # deadlines -------------------------------------------------------------------------------

    def _run_deadlines(self) -> None:
        for engine in self._timed:
            deadline = engine.next_deadline_ns()
            if deadline is not None:
                now_ns = self._clock_ns()
                if now_ns >= deadline:
                    engine.on_deadline(now_ns)

    def _next_deadline_ns(self) -> int | None:
        nearest: int | None = None
        for engine in self._timed:
            deadline = engine.next_deadline_ns()
            if deadline is not None and (nearest is None or deadline < nearest):
                nearest = deadline
        return nearest

    def _due_background(self) -> ServedEngine | None:
        """Return the first member whose background work is due and may be done now."""
        for engine in self._engines:
            due_ns = engine.next_background_ns()
            if due_ns is not None:
                now_ns = self._clock_ns()
                if due_ns <= now_ns:
                    return None if self._is_near(self._next_deadline_ns(), now_ns) else engine
        return None

    def _is_near(self, deadline_ns: int | None, now_ns: int) -> bool:
        """Tell whether a deadline leaves no room for a slice of background work."""
        return deadline_ns is not None and deadline_ns - now_ns <= self._reserve_ns

    # waiting ---------------------------------------------------------------------------------

    def _events(self) -> list[tuple[int, int]]:
        """Take what is ready; where nothing else can be done, look for it, then sleep."""
        if self._has_timed_work() or self._can_fill():
            return self._poll.poll(0)
        for clients in self._clients:
            if clients.unsettled:  # since what was sent last
                return self._poll.poll(0)
        deadline, now_ns = self._next_deadline_ns(), self._clock_ns()
        wake_ns = deadline
        for engine in self._engines:
            due_ns = engine.next_background_ns()
            # what waits for slack waits for the deadline to pass
            if due_ns is not None and (due_ns > now_ns or not self._is_near(deadline, now_ns)):
                wake_ns = _earlier(wake_ns, due_ns)
        if wake_ns is not None and wake_ns <= now_ns:
            return self._poll.look_held()
        is_waiting = self._is_timed_waiting()
        if not is_waiting:
            self._waiting_ns = 0
        look_ns, look = self._served_ns + self._busy_poll_ns, self._look
        if deadline is not None:
            early_ns = deadline - self._early_ns
            if now_ns >= early_ns:
                look_ns, look = deadline, self._look_held
            else:
                wake_ns = _earlier(wake_ns, early_ns)
        if now_ns < look_ns:
            if is_waiting or self._filler.has_members:
                look_ns = now_ns  # once: they are to be asked too
            return look(look_ns if wake_ns is None else min(look_ns, wake_ns))
        if is_waiting:
            self._waiting_ns = self._waiting_ns or now_ns
            if now_ns - self._waiting_ns < SPIN_NS:
                return self._poll.poll(0)
        if is_waiting or self._filler.is_waiting:
            wake_ns = _earlier(wake_ns, now_ns + ASK_NS)
        owed_ns = self._filler.owed_ns
        if owed_ns is not None and owed_ns > now_ns:
            wake_ns = _earlier(wake_ns, owed_ns)
        return self._sleep(wake_ns)

    def _look(self, until_ns: int) -> list[tuple[int, int]]:
        """Look for what is ready without a pause, at least once, until ``until_ns`` at most.

        Other threads of the process may run in between.
        """
        self._hurry()
        try:
            while True:
                events = self._poll.poll(0)
                if events or self._clock_ns() >= until_ns:
                    return events
        finally:
            self._take_time()

    def _look_held(self, until_ns: int) -> list[tuple[int, int]]:
        """Look as well, with the interpreter's lock held."""
        while True:
            events = self._poll.look_held()
            if events or self._clock_ns() >= until_ns:
                return events

    def _sleep(self, wake_ns: int | None) -> list[tuple[int, int]]:
        """Sleep until something is ready, or until ``wake_ns``; None for no end."""
        if wake_ns != self._armed_ns:
            self._set_timer(wake_ns)
        self._hurry()
        try:
            return self._poll.poll(None)
        finally:
            self._take_time()

    def _hurry(self) -> None:
        """Have who waits for the interpreter's lock ask for it at once: the loop, soon."""
        if self._owns_process:
            sys.setswitchinterval(ASLEEP_SWITCH_INTERVAL_S)

    def _take_time(self) -> None:
        """Have who waits for the interpreter's lock ask for it late: other threads."""
        if self._owns_process:
            sys.setswitchinterval(AWAKE_SWITCH_INTERVAL_S)

    def _restore_interval(self) -> None:
        if self._owns_process:
            sys.setswitchinterval(self._switch_interval_s)

    def _set_timer(self, wake_ns: int | None) -> None:
        """Set the timer, or disarm it; also takes back an expiry."""
        linux.set_timer(self._timer_fd, wake_ns)
        self._armed_ns = wake_ns


def _earlier(one_ns: int | None, other_ns: int) -> int:
    return other_ns if one_ns is None or other_ns < one_ns else one_ns
