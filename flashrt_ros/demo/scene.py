"""What a scenario works with, and the few moves that several scenarios make."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from flashrt_ros.demo.report import Report
from flashrt_ros.demo.services import Services
from flashrt_ros.demo.stage import Stage
from flashrt_ros.demo.table import View
from flashrt_ros.demo.trace import EpisodeTrace
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Chunk, Frame, Witness
from flashrt_ros.errors import StepTimeoutError
from flashrt_ros.nodes.conversions import ns_to_stamp, stamp_to_ns

_SHOWN = 5  # best-effort readers may lose a frame on a busy machine
_SHOWN_S = 0.5


@dataclass(slots=True)
class Scene:
    """Everything a scenario needs.

    Attributes:
        stage: Processes and connections.
        report: Takes figures, checks and controls.
        view: Shows what happens.
        traces: Episodes so far.
        words: The episode in words, None before it.
        barriers: Of every reset: generation from which it holds, and its stamp.
        lab_frames: Recorded observations, for scenarios in lockstep.
    """

    stage: Stage
    report: Report
    view: View
    traces: list[EpisodeTrace] = field(default_factory=list)
    words: EpisodeTrace | None = None
    barriers: list[tuple[int, int]] = field(default_factory=list)
    lab_frames: list[Frame] = field(default_factory=list)

    @property
    def services(self) -> Services:
        """Calls to the nodes."""
        return self.stage.services

    @property
    def witness(self) -> Witness:
        """What was heard."""
        return self.stage.witness

    @property
    def execute_horizon(self) -> int:
        """Actions of a chunk that are queued."""
        return self.stage.client.model.execute_horizon

    def show(self, frame: Frame, stamp_ns: int) -> None:
        """Publish a recorded observation as if it were taken at ``stamp_ns``."""
        image, joints = copy.copy(frame.image), copy.copy(frame.joints)
        image.header = copy.copy(frame.image.header)
        joints.header = copy.copy(frame.joints.header)
        image.header.stamp = joints.header.stamp = ns_to_stamp(stamp_ns)
        self.witness.joints.publish(joints)
        self.witness.images.publish(image)

    def step_on(self, frame: Frame, count: int) -> StepResult:
        """Show an observation and run ticks that must have latched nothing older.

        The frame is sent again when it was lost on its way.

        Raises:
            ScenarioError: The step was refused, or no frame ever came through.
        """
        stamp_ns = self.witness.now_ns()
        for _ in range(_SHOWN):
            self.show(frame, stamp_ns)
            reply = self.services.step(
                count, min_stamp_ns=stamp_ns, timeout_s=_SHOWN_S, may_fail=True
            )
            if reply.success:
                return StepResult(
                    [Chunk.of(chunk) for chunk in reply.chunks],
                    bytes(memoryview(reply.actions).cast("B")),
                    list(reply.action_indices),
                    stamp_ns,
                )
            if reply.error_code != StepTimeoutError.code:
                break
        raise ScenarioError(f"a step on a recorded observation was refused: {reply.error_msg}")

    def chunks_on(self, frames: Sequence[Frame]) -> list[Chunk]:
        """Run one whole chunk on each of several recorded observations."""
        made: list[Chunk] = []
        for frame in frames:
            made += self.step_on(frame, self.execute_horizon).chunks
        return made

    def finish_chunk(self) -> None:
        """Pop what is left in the queue, so that the next plan makes a chunk; in lockstep."""
        while self.services.step(1).action_indices[0] != self.execute_horizon - 1:
            pass

    def reset_policy(self, episode_id: str, seed: int) -> int:
        """Reset the policy through ``~/reset_episode`` and note the barrier.

        Returns:
            The generation from which it holds.
        """
        reply = self.services.reset_episode(episode_id, seed)
        self.barriers.append((reply.generation, stamp_to_ns(reply.barrier)))
        self.view.say(
            f"reset_episode: home by {reply.path} in {reply.duration_ns / 1e3:.0f} µs, "
            f"generation {reply.generation}"
        )
        return int(reply.generation)

    def begin_episode(self, episode_id: str, seed: int) -> int:
        """Reset the policy, then the robot; what was seen of the robot before is forgotten.

        Returns:
            Stamp of the episode's first observation, ns.
        """
        self.reset_policy(episode_id, seed)
        self.witness.begin_episode()
        return stamp_to_ns(self.services.reset_simulator(seed).stamp)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step made.

    Attributes:
        chunks: In order.
        actions: ``float32[ticks, A]`` as bytes.
        indices: Place of each action in its chunk.
        stamp_ns: Of the observation shown.
    """

    chunks: list[Chunk]
    actions: bytes
    indices: list[int]
    stamp_ns: int
