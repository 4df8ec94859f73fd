"""What goes to the robot: the policy's actions while they may, the safety action when not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rclpy.publisher import Publisher

from flashrt_ros.engine import protocol
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.controllers import TrajectoryOutlet
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.guard import Cause, Guard
from flashrt_ros.nodes.limits import Limits
from flashrt_ros.nodes.safety import Command, SafetyAction

_LOOK_S = 0.02
"""Time between two looks at ages and at the engine's silence."""

_SAID_S = 1.0
"""Shortest time between two events about commands that were brought within limits."""

Values = npt.NDArray[np.float64]
Approach = Callable[[Command, float], Command]
"""Takes a pose and the time since the last command, s; returns the next command."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the node behaves towards the robot.

    Attributes:
        actions: Safety action of each cause; "default" for every other one.
        clamps: Whether a command beyond a limit is brought within it; else it stops the policy.
        is_position: Whether a command is positions: then the first one's step is measured
            from where the joints are, else from zero.
        watchdog_ticks: Ticks without anything from the engine that stop the policy; 0 for never.
        frame: Frame of chunks and trajectories.
    """

    actions: Mapping[str, str]
    clamps: bool
    is_position: bool
    watchdog_ticks: int
    frame: str

    def action(self, cause: str) -> str:
        """Return the safety action of a cause."""
        return self.actions.get(cause, self.actions["default"])


@dataclass(frozen=True, slots=True)
class Outlets:
    """Ways to the robot; publishers are borrowed from the node.

    Attributes:
        commands: Of ``std_msgs/Float64MultiArray``.
        chunks: Of ``ActionChunk``.
        trajectories: To a trajectory controller.
    """

    commands: Publisher
    chunks: Publisher
    trajectories: TrajectoryOutlet


class Acting:
    """Publishes what passes guard and limits, and takes the safety action.

    Whatever decides or publishes does so while the fence can't move, so that an action
    never follows the safety action that was to replace it.

    Args:
        outlets: Where to publish.
        model: Whose actions they are.
        fence: Of the node.
        guard: Judges ages and silence.
        limits: Of the joints.
        make_safety: Makes the safety action of what sends a command and what approaches a pose.
        conduct: How the node behaves.
        now_ns: The node's clock.
        has_real_ages: False where the node's clock is not the engine's, as in simulation.
        say: Told of each safety action and violation: cause and detail.

    Attributes:
        safety: The safety action; outlives :meth:`close`.
    """

    def __init__(
        self,
        outlets: Outlets,
        model: protocol.ModelInfo,
        fence: Fence,
        guard: Guard,
        limits: Limits,
        *,
        make_safety: Callable[[Callable[[Command], None], Approach], SafetyAction],
        conduct: Conduct,
        now_ns: Callable[[], int],
        has_real_ages: bool,
        say: Callable[[str, str], None],
    ) -> None:
        self._outlets = outlets
        self._model = model
        self._fence = fence
        self._guard = guard
        self._limits = limits
        self._conduct = conduct
        self._now_ns = now_ns
        self._has_real_ages = has_real_ages
        self._say = say
        self._last: Values | None = None
        self._period_s = model.step_ns / 1e9
        self._said_s = -_SAID_S
        self._is_said = False  # why the policy does not act, since it began or acted last
        self._is_closed = threading.Event()
        self._watch: threading.Thread | None = None
        self.num_limited = 0
        self.num_stops = 0
        self.safety = make_safety(self._send, self._approach)

    def facts(self) -> dict[str, object]:
        """Return what diagnostics say of it."""
        return {
            **{f"actions refused: {cause}": n for cause, n in self._guard.num_refused.items()},
            "beyond limits": self.num_limited,
            "safety actions": self.num_stops,
        }

    def begin(self, *, period_s: float | None) -> None:
        """Let the policy act, at an activation; ends the safety action.

        Args:
            period_s: Time between two commands; None where a caller asks for each tick.
        """

        def start() -> None:
            self.safety.pause()
            self._last = None
            self._is_said = False
            self._period_s = self._model.step_ns / 1e9 if period_s is None else period_s
            self._guard.begin(
                is_timed=period_s is not None,
                silence_ns=round(self._conduct.watchdog_ticks * self._period_s * 1e9),
            )

        self._fence.run(start)
        if period_s is not None and self._watch is None:
            self._watch = threading.Thread(target=self._look_on, name="watch", daemon=True)
            self._watch.start()

    def close(self) -> None:
        """Stop watching; the safety action goes on until :meth:`SafetyAction.end`. Idempotent."""
        self._is_closed.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(2.0)

    # what the policy made --------------------------------------------------------------------

    def publish_action(
        self, made: protocol.Provenance, index: int, values: tuple[float, ...]
    ) -> None:
        """Publish one action, or what is within limits of it; the fence lets it pass."""
        if not self._may_pass(made):
            return
        command = self._within(np.array(values)[None], self._period_s)
        if command is None:
            return
        self._passed(made)
        self.safety.pause()
        self._send(tuple(command[0].tolist()))

    def publish_chunk(self, made: protocol.Provenance, payload: bytes, age_ns: int) -> None:
        """Publish a chunk, as trajectory too where wanted; the fence lets it pass."""
        if not self._may_pass(made):
            return
        # The engine's clock is monotonic and the node's may be simulated, where ages mean nothing.
        age_ns = age_ns if self._has_real_ages else 0
        rows = np.frombuffer(payload, np.float32).astype(np.float64)
        rows = rows.reshape(self._model.horizon, self._model.action_dim)
        # Rows before this one belong to ticks that passed while the chunk was in the making: the
        # chunk before was executed in them.
        first = min(max(0, made.tick - made.latched_tick), len(rows) - 1)
        limited = self._within(rows, self._model.step_ns / 1e9, first=first)
        if limited is None:
            return
        self._passed(made)
        if limited is not rows:
            payload = limited.astype(np.float32).tobytes()
        chunk = messages.action_chunk(
            self._model,
            made,
            payload,
            stamp_ns=max(0, self._now_ns() - age_ns - first * self._model.step_ns),
            frame=self._conduct.frame,
        )
        self._outlets.chunks.publish(chunk)
        self._outlets.trajectories.send(chunk)

    # what others say -------------------------------------------------------------------------

    def observed(self, stamp_ns: int) -> None:
        """Take note of an observation that the engine has."""
        self._fence.run(lambda: self._guard.observed(stamp_ns))

    def moved(self, *, is_stop: bool) -> None:
        """Take note that the environment moved.

        Args:
            is_stop: Whether it went elsewhere, as a reset does: then what a trajectory
                controller still holds must not go on, nor a safety action in progress.
        """

        def move() -> None:
            self._guard.moved()
            if is_stop:
                self._last = None
                self.safety.pause()
                self._outlets.trajectories.stop("hold", self.safety)

        self._fence.run(move)

    def hold_trajectory(self) -> None:
        """Override what a trajectory controller holds, as the YAML says."""

        def hold() -> None:
            self._outlets.trajectories.stop("hold", self.safety)

        self._fence.run(hold)

    def stop(self, cause: str, *, repeat: bool) -> str:
        """Take the safety action of a cause; returns what was done."""
        done: list[str] = []

        def take() -> None:
            self._guard.moved()
            done.append(self._take(cause, repeat=repeat))

        self._fence.run(take)
        return done[0]

    # inside ----------------------------------------------------------------------------------

    def _may_pass(self, made: protocol.Provenance) -> bool:
        self._guard.heard(time.monotonic_ns())
        cause = self._guard.objection(made, now_ns=self._now_ns())
        if cause is not None and not (self._is_said or self._guard.is_acting):
            self._is_said = True
            self._say(
                cause, "what the policy makes is refused, and nothing is sent: it never acted"
            )
        return cause is None

    def _passed(self, made: protocol.Provenance) -> None:
        self._guard.passed(made)
        self._is_said = False

    def _within(self, rows: Values, period_s: float, *, first: int = 0) -> Values | None:
        """Return commands within the limits, from the ``first`` on; None where they stop it."""
        if not np.isfinite(rows).all():
            self._stop_for(Cause.LIMIT, "limit=finite")
            return None
        limited, violation = self._limits.apply_rows(
            rows[first:], previous=self._previous(), period_s=period_s
        )
        if not violation:
            return rows
        self.num_limited += 1
        if not self._conduct.clamps:
            self._stop_for(Cause.LIMIT, violation)
            return None
        if time.monotonic() - self._said_s >= _SAID_S:
            self._said_s = time.monotonic()
            self._say(Cause.LIMIT, f"clamped {violation} count={self.num_limited}")
        return np.concatenate([rows[:first], limited])

    def _previous(self) -> Values | None:
        """Return what the next command's step is measured from."""
        if self._last is not None:
            return self._last
        if not self._conduct.is_position:
            return np.zeros(self._model.action_dim)
        positions = self.safety.positions
        return None if positions is None else np.array(positions)

    def _approach(self, pose: Command, period_s: float) -> Command:
        values, _ = self._limits.apply(np.array(pose), previous=self._previous(), period_s=period_s)
        return tuple(values.tolist())

    def _send(self, values: Command) -> None:
        self._last = np.array(values)
        self._outlets.commands.publish(messages.command(values))

    def _look_on(self) -> None:
        while not self._is_closed.wait(_LOOK_S):
            self._fence.run(self._look)

    def _look(self) -> None:
        cause = self._guard.look(now_ns=self._now_ns(), monotonic_ns=time.monotonic_ns())
        if cause is not None and self._fence.is_open:
            self._say(cause, self._take(cause, repeat=True))

    def _stop_for(self, cause: Cause, why: str) -> None:
        was_acting = self._guard.is_acting
        self._is_said = True
        self._guard.stop(cause, now_ns=self._now_ns())
        done = self._take(cause, repeat=True) if was_acting else "nothing is sent: it never acted"
        self._say(cause, f"stopped {why}: {done}")

    def _take(self, cause: str, *, repeat: bool) -> str:
        kind = self._conduct.action(cause)
        self.num_stops += 1
        self._is_said = True
        done = self.safety.take(kind, repeat=repeat)
        return done + self._outlets.trajectories.stop(kind, self.safety)
