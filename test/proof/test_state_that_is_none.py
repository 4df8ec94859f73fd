"""State that nothing reads, that is marked wrongly, or that is not what the engine takes it for."""

from __future__ import annotations

import pytest

from flashrt_ros.models.action_queue import counter
from flashrt_ros.proof.report import CheckName, Proof, Verdict
from flashrt_ros.runtime.spec import BufferSpec, Inert, Role
from test.proof.changed_policy import CARRIED, COMMIT, LATCH, PAIR, carry, changed, the_finding


def verdicts(proof: Proof) -> dict[str, Verdict]:
    return {result.buffer: result.verdict for result in proof.buffers}


def test_a_state_buffer_that_nothing_reads_is_named() -> None:
    proof = changed(carry(Role.STATE), after={COMMIT: CARRIED[COMMIT]})
    finding = the_finding(proof)
    assert (finding.check, finding.subject) == (CheckName.DAMAGE, "carry")
    assert verdicts(proof)["carry"] is Verdict.DEAD


def test_buffers_that_reach_only_each_other_are_named() -> None:
    second = BufferSpec("second", PAIR, "float32", Role.STATE)
    proof = changed(
        carry(Role.STATE),
        second,
        after={COMMIT: lambda b: (b["second"].copy_(b["carry"]), b["carry"].add_(1))},
    )
    assert [finding.subject for finding in proof.findings] == ["carry", "second"]
    assert "second" in proof.findings[0].message


def test_a_state_buffer_that_nothing_reads_passes_with_a_reason() -> None:
    num_chunks = counter("num_chunks", inert=Inert.COUNTER)
    proof = changed(num_chunks, after={COMMIT: lambda b: b["num_chunks"].add_(1)})
    assert proof.findings == ()
    assert verdicts(proof)["num_chunks"] is Verdict.INERT


@pytest.mark.parametrize("reason", list(Inert))
def test_a_buffer_wrongly_marked_inert_is_named(reason: Inert) -> None:
    proof = changed(remarked={"momentum": {"inert": reason}})
    finding = the_finding(proof)
    assert (finding.check, finding.subject) == (CheckName.DAMAGE, "momentum")
    assert reason.value in finding.message
    assert verdicts(proof)["momentum"] is Verdict.MISMARKED


def test_a_buffer_wrongly_marked_as_noise_is_named() -> None:
    finding = the_finding(changed(remarked={"momentum": {"feeds_noise": True}}))
    assert finding.subject == "momentum"
    assert "feeds_noise" in finding.message


def test_an_integer_state_is_damaged_within_what_it_was_seen_to_be() -> None:
    cursor = counter("cursor")
    proof = changed(
        cursor,
        after={
            LATCH: lambda b: b["path"].add_(0.1 * b["path"].index_select(0, b["cursor"])),
            COMMIT: lambda b: b["cursor"].copy_((b["cursor"] + 1) % 8),
        },
    )
    assert proof.findings == ()
    result = next(result for result in proof.buffers if result.buffer == "cursor")
    assert "error" not in result.reached


# what the engine takes for granted -----------------------------------------------------------


def test_a_counter_unlike_the_engines_is_named() -> None:
    finding = the_finding(changed(after={COMMIT: lambda b: b["noise_counter"].add_(1)}))
    assert (finding.check, finding.subject) == (CheckName.COUNTERS, "noise_counter")


def test_an_input_that_does_not_keep_the_goal_is_named() -> None:
    finding = the_finding(changed(after={COMMIT: lambda b: b["goal"].mul_(2)}))
    assert (finding.check, finding.subject) == (CheckName.COUNTERS, "goal")
