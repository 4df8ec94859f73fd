"""What is shown in this process once the robot has stopped: controls, and the proof of state."""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.demo.embedded import Outcome, drive, inspect_transport, reach_rate
from flashrt_ros.demo.hidden_state import HIDDEN, HiddenStatePolicy
from flashrt_ros.demo.judge import REACH_RATE
from flashrt_ros.demo.scene import Scene
from flashrt_ros.models import registry
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS

CLEARLY_SHORT = 0.5
"""What a control of the reach rate must stay below."""

MIN_EPISODES = 8
"""Episodes of a control, however few the demo itself runs."""

_UNTRAINED_SEED = 0


def control_reach(scene: Scene, model: PolicyModel, count: int) -> None:
    """Drive the same episodes with untrained weights, and with a black image.

    Both show something only where the trained policy, driven in the same way, succeeds:
    a way of driving in which nothing succeeds would let every control fall short.
    """

    def go_on(outcome: Outcome) -> None:
        scene.stage.require_going()

    seeds = HELD_OUT_SEEDS[: max(count, MIN_EPISODES)]
    base = reach_rate(drive(model, seeds, on_episode=go_on))
    scene.report.note("reach_rate_without_ros", round(base, 4))
    for name, what, policy, is_blackened in (
        ("untrained_weights", "untrained weights", FlowPolicy.untrained(_UNTRAINED_SEED), False),
        ("blackened_image", "a black image", model, True),
    ):
        outcomes = drive(policy, seeds, is_blackened=is_blackened, on_episode=go_on)
        rate = reach_rate(outcomes)
        scene.report.control(
            name,
            "reach_rate",
            what,
            round(rate, 4),
            expected=f"below {CLEARLY_SHORT:g} of {len(outcomes)} episodes, where the trained "
            f"policy driven alike has {REACH_RATE:g} or more: {base:.4g}",
            is_held=falls_short(rate, base),
        )


def falls_short(rate: float, base: float) -> bool:
    """Tell whether a broken policy is clearly worse than a whole one that is good enough.

    Args:
        rate: Reached by the broken one.
        base: Reached by the whole one, driven in the same way.
    """
    return rate < CLEARLY_SHORT and base >= REACH_RATE


def control_copies(scene: Scene, model: PolicyModel) -> None:
    """Force the goal channel through a copy, as a device that can't map a ring would."""
    seen = inspect_transport(model, staged=True)
    scene.report.control(
        "staged_goal",
        "goal_transport_copies",
        "the goal channel forced through a copy",
        seen.goal_transport_copies,
        expected="1, read from private memory",
        is_held=seen.goal_transport_copies == 1 and seen.read_inode == 0,
    )


def check_state(scene: Scene, name: str, weights: Path | None) -> None:
    """Prove that the declared state is the whole state; its own controls run with it."""

    def told(check: CheckName) -> None:
        scene.stage.require_going()
        scene.view.say(f"prove: {check.value}")

    proof = prove(lambda: registry.create(name, weights), on_check=told)
    scene.report.check(
        "state_controls",
        proof.is_proved,
        expected=f"proved, by {len(proof.checks)} checks",
        is_held=proof.is_proved,
    )
    scene.report.note("state_findings", [finding.message for finding in proof.findings])
    scene.report.note("state_buffers_damaged", len(proof.buffers))
    hidden = prove(HiddenStatePolicy)
    names = sorted({finding.subject for finding in hidden.findings})
    scene.report.control(
        "hidden_state",
        "state_controls",
        "a model that keeps what a chunk leaves to the next outside its declared state",
        f"proved: {'yes' if hidden.is_proved else 'no'}, found: {', '.join(names)}",
        expected=f"not proved, because of '{HIDDEN}'",
        is_held=not hidden.is_proved and HIDDEN in names,
    )
