"""Which of several planners may write a goal channel: priority, lease, and the last word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashrt_ros.errors import BusyError, ConfigError, GoalExpiredError, PayloadRangeError
from flashrt_ros.nodes.entries import parse_entries
from flashrt_ros.nodes.names import check_planner

Place = tuple[int, str]
"""Environment and channel: each has planners of its own."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What a planner may do.

    Attributes:
        priority: The higher one wins.
        lease_ns: How long an accepted goal of its keeps lower priorities out.
    """

    priority: int = 0
    lease_ns: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Ruling:
    """Why a planner may write.

    Attributes:
        reason: "first" where nobody held the channel, "holder" where the planner itself
            did, "newer" over one of the same priority, "priority" over a lower one,
            "silence" where a higher one's lease has run out.
        over: Planner that held the channel before, "" for none or the same.
        is_restart: Whether it numbers its goals from the start again.
    """

    reason: str
    over: str = ""
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a channel.

    Attributes:
        planner: Its name.
        priority: Its rank.
        left_ns: What is left of its lease; 0 once it ran out.
    """

    planner: str
    priority: int
    left_ns: int


@dataclass(slots=True)
class _Planner:
    sequence: int
    stamp_ns: int
    lease_until_ns: int


@dataclass(slots=True)
class _Channel:
    holder: str = ""
    planners: dict[str, _Planner] = field(default_factory=dict)
    newest_ns: dict[int, int] = field(default_factory=dict)


def parse_ranks(texts: Sequence[str], *, lease_ns: int) -> dict[tuple[str, str], Rank]:
    """Read the parameter ``planners``.

    Args:
        texts: ``"planner priority=10 lease_s=0.5 channel=goal"`` each, any key left out.
        lease_ns: Where an entry says nothing.

    Returns:
        Rank by channel and planner; the channel "" stands for every one.

    Raises:
        ConfigError: An entry can't be read, comes twice, or names what can be no planner.
    """
    ranks: dict[tuple[str, str], Rank] = {}
    for entry in parse_entries("planners", texts, ("priority", "lease_s", "channel")):
        place = (entry.values.get("channel", ""), entry.name)
        priority = entry.number("priority", 0.0)
        if place in ranks or priority != int(priority):
            raise ConfigError(
                "parameter 'planners' can't be used",
                expected="one entry for each planner and channel, with a whole priority",
                found=repr(entry.text),
            )
        try:
            check_planner(entry.name)
        except PayloadRangeError as error:
            raise entry.refused("no planner has this name", expected=error.expected) from error
        lease_s = entry.number("lease_s", lease_ns / 1e9, low=0.0)
        ranks[place] = Rank(int(priority), round(lease_s * 1e9))
    return ranks


class Arbiter:
    """Decides between planners, channel by channel, and keeps a bounded record of them.

    - A higher priority wins at once, whatever the stamps.
    - Within a priority the newest stamp wins: the last writer.
    - A lower priority is refused while the holder's lease runs. A lease begins anew with
      each goal accepted, on the node's clock at its arrival.
    - A planner's sequence must grow. One that begins anew counts as restarted, once its
      own lease has run out and with a newer stamp than its last: a duplicate or a goal
      that was delayed has an old stamp, and a second sender of the same name meets a
      lease that runs.

    Args:
        ranks: As :func:`parse_ranks` gives them.
        default: Rank of planners that are not among them.
        max_planners: Planners remembered on each channel. One that has been silent for
            its lease gives way to a new one, except the holder.
        tolerance_ns: A clock set back by more makes everything be forgotten.
    """

    def __init__(
        self,
        ranks: Mapping[tuple[str, str], Rank],
        default: Rank,
        *,
        max_planners: int = 16,
        tolerance_ns: int = 0,
    ) -> None:
        self._ranks = dict(ranks)
        self._default = default
        self._max_planners = max_planners
        self._tolerance_ns = tolerance_ns
        self._channels: dict[Place, _Channel] = {}
        self._last_ns = 0
        self.num_forgotten = 0
        self.num_hand_overs = 0

    def rank(self, channel: str, planner: str) -> Rank:
        """Return a planner's rank on a channel."""
        found = self._ranks.get((channel, planner)) or self._ranks.get(("", planner))
        return found or self._default

    def judge(
        self, place: Place, planner: str, *, stamp_ns: int, sequence: int, now_ns: int
    ) -> Ruling:
        """Say why a planner may write now; :meth:`accept` remembers that it did.

        Args:
            place: Environment and channel.
            planner: Its name.
            stamp_ns: When the goal was made.
            sequence: The planner's own number.
            now_ns: The node's clock.

        Raises:
            GoalExpiredError: Not newer than the planner's last goal, or made before one of
                the same or a higher priority that was accepted.
            BusyError: A higher priority holds the channel, or too many planners write it.
        """
        self.rewind(now_ns)
        channel = self._channels.get(place, _Channel())
        rank = self.rank(place[1], planner)
        known = channel.planners.get(planner)
        is_restart = False
        if known is not None and sequence <= known.sequence:
            is_restart = stamp_ns > known.stamp_ns and now_ns >= known.lease_until_ns
            if not is_restart:
                raise GoalExpiredError(
                    f"planner '{planner}' sent a goal that is not newer than its last",
                    expected=f"a sequence above {known.sequence}",
                    found=sequence,
                    fix="after a restart, stay silent for the lease, or number with a clock",
                )
        newest_ns = max(
            (at for level, at in channel.newest_ns.items() if level >= rank.priority), default=0
        )
        if stamp_ns < newest_ns:
            raise GoalExpiredError(
                "a goal made later was accepted already",
                expected=f"a stamp of at least {newest_ns} ns",
                found=f"{stamp_ns} ns",
            )
        ruling = self._challenge(place, channel, planner, rank, now_ns, is_restart)
        is_full = known is None and len(channel.planners) >= self._max_planners
        if is_full and self._silent(channel, now_ns) is None:
            raise BusyError(
                f"too many planners write channel '{place[1]}'",
                expected=f"at most {self._max_planners} within their leases",
                found=f"'{planner}' beside them",
                fix="give senders fixed names, or raise max_planners",
            )
        return ruling

    def accept(
        self, place: Place, planner: str, *, stamp_ns: int, sequence: int, now_ns: int
    ) -> None:
        """Remember a goal as accepted: its planner holds the channel from here on."""
        self.rewind(now_ns)
        channel = self._channels.setdefault(place, _Channel())
        rank = self.rank(place[1], planner)
        if planner not in channel.planners and len(channel.planners) >= self._max_planners:
            gone = self._silent(channel, now_ns)
            if gone is not None:
                del channel.planners[gone]
                self.num_forgotten += 1
        lease_until_ns = now_ns + rank.lease_ns
        channel.planners[planner] = _Planner(sequence, stamp_ns, lease_until_ns)
        channel.newest_ns[rank.priority] = stamp_ns
        self.num_hand_overs += channel.holder not in ("", planner)
        channel.holder = planner

    def holder(self, place: Place, now_ns: int) -> Holder | None:
        """Return who wrote a channel last, None before any."""
        channel = self._channels.get(place)
        if channel is None or not channel.holder:
            return None
        left_ns = channel.planners[channel.holder].lease_until_ns - now_ns
        priority = self.rank(place[1], channel.holder).priority
        return Holder(channel.holder, priority, max(0, left_ns))

    def num_known(self, place: Place) -> int:
        """Return how many planners of a channel are remembered."""
        channel = self._channels.get(place)
        return 0 if channel is None else len(channel.planners)

    def next_sequence(self, place: Place, planner: str) -> int:
        """Return the next number for a sender whose messages carry none."""
        channel = self._channels.get(place)
        known = channel.planners.get(planner) if channel is not None else None
        return 1 if known is None else known.sequence + 1

    def rewind(self, now_ns: int) -> None:
        """Forget everything if the clock was set back, as simulated time is."""
        if now_ns < self._last_ns - self._tolerance_ns:
            self.forget()
        self._last_ns = now_ns

    def forget(self) -> None:
        """Let planners number from the start again; nobody holds a channel."""
        self._channels.clear()

    def _challenge(
        self,
        place: Place,
        channel: _Channel,
        planner: str,
        rank: Rank,
        now_ns: int,
        is_restart: bool,
    ) -> Ruling:
        holder = channel.holder
        if not holder:
            return Ruling("first", "", is_restart)
        if holder == planner:
            return Ruling("holder", "", is_restart)
        priority = self.rank(place[1], holder).priority
        if rank.priority > priority:
            return Ruling("priority", holder, is_restart)
        if rank.priority == priority:
            return Ruling("newer", holder, is_restart)
        left_ns = channel.planners[holder].lease_until_ns - now_ns
        if left_ns > 0:
            raise BusyError(
                f"planner '{holder}' holds channel '{place[1]}'",
                expected=f"a priority of at least {priority}, or its silence for "
                f"{left_ns / 1e9:.3f} s more",
                found=f"priority {rank.priority} of '{planner}'",
            )
        return Ruling("silence", holder, is_restart)

    def _silent(self, channel: _Channel, now_ns: int) -> str | None:
        """Return the planner that has been silent longest, beyond its lease; not the holder."""
        others = [
            (known.lease_until_ns, name)
            for name, known in channel.planners.items()
            if name != channel.holder and known.lease_until_ns <= now_ns
        ]
        return min(others)[1] if others else None
