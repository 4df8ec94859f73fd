"""What is too old to act: the newest (engine_epoch, generation) known, per environment."""

from __future__ import annotations

import threading
from collections.abc import Callable

TOLD_S = 0.25
"""Longest wait for the word that everything which goes with a move has been done."""


class Fence:
    """Lets actions through only while they belong to the newest generation known.

    Raising the fence and passing it exclude each other, so that once :meth:`raise_to`
    or :meth:`shut` has returned, nothing older is published any more. Epochs of
    different engine processes are not ordered: the one attached to counts. What is
    called back while the fence can't move may use the fence.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._told = threading.Condition(self._lock)
        self._told_of: dict[int, int] = {}
        self._epoch = 0
        self._generations: dict[int, int] = {}
        self._ticks: dict[int, int] = {}
        self._is_open = False
        self.num_dropped = 0

    def attach(self, epoch: int) -> None:
        """Take a new engine's epoch as the only one; generations start afresh."""
        with self._lock:
            self._epoch = epoch
            self._generations.clear()
            self._ticks.clear()
            self._told_of.clear()
            self._told.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether actions may pass."""
        return self._is_open

    def run(self, act: Callable[[], None]) -> None:
        """Call something while the fence can't move and nothing passes."""
        with self._lock:
            act()

    def open(self) -> None:
        """Let actions pass from here on."""
        with self._lock:
            self._is_open = True

    def shut(self) -> None:
        """Let nothing pass; returns after a publication in progress."""
        with self._lock:
            self._is_open = False

    def raise_to(self, env_index: int, generation: int) -> None:
        """Make everything before a generation stale; never lowers.

        Returns once what goes with the move has been done, where :meth:`expect` was
        called for the environment, but does not wait longer than :data:`TOLD_S`.

        Args:
            env_index: Environment that moved.
            generation: Its generation now.
        """
        with self._lock:
            self._raise(env_index, generation)
            if self._told_of.get(env_index, generation) < generation:
                self._wait_for_word(env_index, generation)

    def note(self, env_index: int, generation: int, tick: int = -1) -> None:
        """Make everything before a generation stale at once; never lowers.

        Args:
            env_index: Environment.
            generation: Its generation now.
            tick: Control ticks committed so far; while the generation stays, an action
                is stale too if its chunk began to act in one of them. -1 says nothing
                of ticks.
        """
        with self._lock:
            self._raise(env_index, generation)
            if generation == self._generations.get(env_index, 0):
                self._ticks[env_index] = max(tick, self._ticks.get(env_index, -1))

    def expect(self, env_index: int) -> None:
        """Let :meth:`raise_to` return only once :meth:`tell` spoke of the move."""
        with self._lock:
            self._told_of.setdefault(env_index, 0)

    def expect_nothing(self) -> None:
        """Wait for no move any more, for whoever told of them has gone."""
        with self._lock:
            self._told_of.clear()
            self._told.notify_all()

    def tell(self, env_index: int, generation: int) -> None:
        """Say that everything which goes with a move has been done."""
        with self._lock:
            if env_index in self._told_of:
                self._told_of[env_index] = max(generation, self._told_of[env_index])
                self._told.notify_all()

    def generation(self, env_index: int) -> int:
        """Return the newest generation known, 0 before any."""
        with self._lock:
            return self._generations.get(env_index, 0)

    @property
    def epoch(self) -> int:
        """Epoch of the engine attached to, 0 before any."""
        return self._epoch

    def pass_through(
        self,
        epoch: int,
        env_index: int,
        generation: int,
        tick: int,
        publish: Callable[[], None],
    ) -> bool:
        """Publish unless stale; a newer generation raises the fence.

        Args:
            epoch: Of what is to be published.
            env_index: Its environment.
            generation: Its generation.
            tick: Control tick in which its chunk began to act, counted from 1.
            publish: Called while the fence can't move.

        Returns:
            False if it was dropped.
        """
        with self._lock:
            is_stale = epoch != self._epoch or generation < self._generations.get(env_index, 0)
            if self._is_open and not is_stale:
                self._raise(env_index, generation)
                if tick > self._ticks.get(env_index, -1):
                    publish()
                    return True
            self.num_dropped += 1
            return False

    def _wait_for_word(self, env_index: int, generation: int) -> None:
        """Wait until :meth:`tell` spoke of a move; the lock is held."""
        # apart, for its closure would make every raise_to slower
        told_of = self._told_of
        self._told.wait_for(lambda: told_of.get(env_index, generation) >= generation, TOLD_S)

    def _raise(self, env_index: int, generation: int) -> None:
        if generation > self._generations.get(env_index, 0):
            self._generations[env_index] = generation
            self._ticks[env_index] = -1
