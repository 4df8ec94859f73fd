"""Follows the robot by its ground truth, tick by tick, while other things go on."""

from __future__ import annotations

from flashrt_ros.demo.waiting import News
from flashrt_ros.demo.witness import Truth, Witness

_NEXT_S = 3.0


class Follower:
    """Reads the ground truth of an episode in order, none of it twice.

    Args:
        witness: Keeps the truths; emptied when an episode begins.
        news: Wakes who waits for one.
        start_ns: Stamp of the episode's first observation.
    """

    def __init__(self, witness: Witness, news: News, start_ns: int) -> None:
        self._witness = witness
        self._news = news
        self._start_ns = start_ns
        self._num_seen = 0

    def next(self) -> Truth:
        """Return the next truth, waiting for it.

        Raises:
            ScenarioError: The robot has fallen silent.
        """
        truths = self._witness.truths

        def look() -> Truth | None:
            while self._num_seen < len(truths):
                truth = truths[self._num_seen]
                self._num_seen += 1
                if truth.stamp_ns >= self._start_ns:
                    return truth
            return None

        return self._news.wait(look, _NEXT_S, "the robot's next position")
