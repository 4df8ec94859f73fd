"""A policy that draws no noise: its counters are those the engine takes them to be."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.models.action_queue import QUEUE, commit_queue, counter, policy_counters
from flashrt_ros.models.base import CHUNK, NOISE_SLOT, Buffers, Program, Slots, slot_binding
from flashrt_ros.models.checks import check_model
from flashrt_ros.models.minimal import EXECUTE_HORIZON, MinimalPolicy
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import Verdict
from flashrt_ros.runtime.spec import BufferSpec, Role, ShapeKey


class Deterministic(MinimalPolicy):
    """The minimal policy on a straight path, with no noise on it."""

    noise_shape = None  # type: ignore[assignment]

    def buffers(self) -> tuple[BufferSpec, ...]:
        taken = {spec.name for spec in policy_counters()} | {"noise", "noise_latched"}
        rest = (spec for spec in super().buffers() if spec.name not in taken)
        return (*policy_counters(draws_noise=False), *rest)

    def programs(self) -> Mapping[ShapeKey, Program]:
        return {**super().programs(), ("latch",): _latch, ("commit",): _commit}


def _latch(buffers: Buffers, slots: Slots) -> None:
    for source, channel, target in (
        ("goal.values", "goal", "goal_latched"),
        ("observation.position", "observation", "position_latched"),
    ):
        row = slots[source].index_select(0, buffers[slot_binding(channel)])
        buffers[target].copy_(row[0])
    buffers["path"].copy_(buffers["position_latched"].expand_as(buffers["path"]))


def _commit(buffers: Buffers, slots: Slots) -> None:
    path = buffers["path"]
    buffers[CHUNK].copy_(path)
    buffers["momentum"].mul_(0.5).add_(path[-1])
    for name in ("goal", "position"):
        buffers[name].copy_(buffers[f"{name}_latched"])
    commit_queue(buffers, path, EXECUTE_HORIZON)


def test_is_proved_with_seed_and_counter_only_reported() -> None:
    proof = prove(Deterministic, num_ticks=20)
    assert proof.is_proved, proof.findings
    verdicts = {buffer.buffer: buffer.verdict for buffer in proof.buffers}
    assert verdicts["noise_seed"] is verdicts["noise_counter"] is Verdict.INERT
    assert verdicts["momentum"] is Verdict.MATTERS


@pytest.mark.parametrize("draws_noise", [True, False])
def test_a_commit_counts_what_was_drawn(draws_noise: bool) -> None:
    specs = (
        *policy_counters(draws_noise=draws_noise),
        BufferSpec(QUEUE, (2, 1), "float32", Role.STATE),
    )
    dtypes = {"int64": torch.int64, "float32": torch.float32}
    buffers = {spec.name: torch.zeros(spec.shape, dtype=dtypes[spec.dtype]) for spec in specs}
    commit_queue(buffers, torch.ones(2, 1), 2)
    assert int(buffers["noise_counter"]) == draws_noise
    assert int(buffers["queue_length"]) == 2


def test_a_slot_for_noise_that_nobody_draws_is_refused() -> None:
    class Torn(Deterministic):
        def buffers(self) -> tuple[BufferSpec, ...]:
            return (*super().buffers(), counter(NOISE_SLOT, Role.BINDING))

    check_model(Deterministic())
    with pytest.raises(SpecError, match="draws_noise=False"):
        check_model(Torn())
