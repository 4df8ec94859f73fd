from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    AbandonedError,
    BoundaryError,
    CapsuleNameError,
    CapsulePinnedError,
    FlashrtError,
    InterruptDepthError,
    LoanError,
    NoBoundaryError,
    NotActiveError,
    NothingToResumeError,
    PayloadRangeError,
    SpecError,
    UnknownChannelError,
    UnknownEnvironmentError,
    UnsupportedError,
)
from flashrt_ros.planner.tails import tail_of
from test.planner.conftest import Rig


def test_a_snapshot_at_a_border_holds_the_text(rig: Rig) -> None:
    reply = rig.snapshot("start", replace=True)
    assert reply.tail_length == len(tail_of(rig.capsule("prefix.map").labels))
    alone = rig.instruct("go left")
    rig.instruct("something else", mode="append")
    rig.restore("start")
    assert rig.instruct("go left", mode="append").tokens == alone.tokens


def test_off_a_border_a_snapshot_says_what_is_legal(rig: Rig) -> None:
    done = rig.instruct("go left")
    assert done.num_positions % 64
    last = done.num_positions - done.num_positions % 64
    with pytest.raises(BoundaryError, match=f"one of {last}, {last + 64}"):
        rig.snapshot("here")
    reply = rig.snapshot("here", align_down=True, replace=True)
    assert reply.capsule.position == last
    assert reply.tail_length == done.num_positions % 64
    following = rig.instruct("and back", mode="append")
    rig.restore("here")
    # decoded tokens are taken in again as a prompt, so that bytes differ, but not the place
    assert rig.instruct("and back", mode="append").num_prompt_tokens == following.num_prompt_tokens


@pytest.mark.parametrize("label", ["tail.0=999999", "tail.²=1", "tail=1", "prefix=map", "text=1"])
def test_a_caller_can_not_say_what_a_text_is(rig: Rig, label: str) -> None:
    before = len(rig.capsules())
    with pytest.raises(CapsuleNameError, match=r"another key than prefix, text and tail\.N"):
        rig.snapshot("mine", labels=("task=push", label))
    assert len(rig.capsules()) == before
    assert rig.snapshot("mine", labels=("tails=1", "task=push")).capsule.name == "mine"
    rig.ask_drop("mine")


def test_a_tail_of_another_vocabulary_is_refused(rig: Rig) -> None:
    """As from a file that was not made here: its tokens would be read past the embedding."""
    core = rig.engine.core
    home = core.store.get(core.environments[0].base)
    core.store.create(
        lambda block: None,
        position=home.position,
        fingerprint=core.fingerprint,
        parent="",
        num_bytes=home.num_bytes,
        name="foreign",
        labels=("tail.0=5,132",),
    )
    generation = rig.engine.environment(0).generation
    with pytest.raises(PayloadRangeError, match="0 to 131, found 132"):
        rig.restore("foreign")
    with pytest.raises(PayloadRangeError, match="0 to 131, found 132"):
        rig.instruct("go left", capsule="foreign")
    assert rig.engine.environment(0).generation == generation
    core.store.drop(core.store.get("foreign").id)
    rig.instruct("go left", mode="append")


def test_a_snapshot_of_a_turn_under_way_is_of_what_is_committed(rig: Rig) -> None:
    answers = rig.begin("go left")
    rig.run(3)
    reply = rig.snapshot("before", replace=True)
    assert reply.capsule.position == rig.capsule("home").position
    rig.run()
    assert isinstance(answers[0], protocol.TurnDone)
    rig.begin("again", mode="append")
    with pytest.raises(BoundaryError, match="under way"):
        rig.snapshot("now", align_down=True)


@pytest.mark.parametrize("verb", ["restore", "rollback", "reset", "deactivate", "resume"])
def test_a_verb_that_moves_the_text_ends_the_turn_under_way(rig: Rig, verb: str) -> None:
    rig.instruct("go left")
    last = rig.instruct("and up", mode="append")
    generation = rig.engine.environment(0).generation
    if verb == "resume":
        rig.begin("go right")
        rig.run(2)
        rig.engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
    answers = rig.begin("and back", mode="append")
    rig.run(2)
    requests: dict[str, protocol.Request] = {
        "restore": protocol.Restore(0, 0, last.capsule_id, False, None, False, "", 0),
        "reset": protocol.Restore(0, 0, "home", False, None, True, "", 0),
        "rollback": protocol.Rollback(0, 0, 1, ""),
        "deactivate": protocol.Deactivate(0, 0),
        "resume": protocol.Resume(0, 0, False),
    }
    rig.engine.handle(requests[verb])
    assert isinstance(answers[0], AbandonedError)
    assert rig.engine.environment(0).generation > generation
    rig.run()
    assert rig.instruct("go left").text


def test_an_interrupt_stacks_the_turn_and_resume_goes_on(rig: Rig) -> None:
    alone = rig.instruct("go left")
    rig.restore("home", reset=True)
    answers = rig.begin("go left")
    rig.run(5)
    reply = rig.engine.interrupt(protocol.Interrupt(7, 0, "a person came", True, None))
    assert (reply.rid, reply.depth, reply.boundary) == (7, 1, 5)
    assert isinstance(answers[0], AbandonedError)
    assert rig.capsule(reply.capsule_id).is_automatic
    moved = rig.ask(protocol.Resume, False)
    assert moved.depth == 0
    rig.run()
    base = rig.engine.environment(0).base
    assert rig.capsule(base).position == alone.num_positions
    assert any(f"subgoals={len(alone.subgoals)}" in event.detail for event in rig.recorder.events)


def test_interrupts_stack_up_to_a_depth(rig: Rig) -> None:
    depth = rig.engine.core.config.interrupt_depth
    for _ in range(depth):
        rig.begin("go left")
        rig.run(2)
        rig.engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
    rig.begin("go left")
    rig.run(2)
    with pytest.raises(InterruptDepthError):
        rig.engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
    rig.run()
    rig.restore("home")
    with pytest.raises(NothingToResumeError):
        rig.ask(protocol.Resume, False)


def test_rollback_goes_back_turns_and_no_further(rig: Rig) -> None:
    turns = [rig.instruct("go left")]
    turns += [rig.instruct("and on", mode="append") for _ in range(3)]
    moved = rig.ask(protocol.Rollback, 2, "")
    assert moved.capsule_id == turns[1].capsule_id
    assert rig.instruct("and on", mode="append").tokens == turns[2].tokens
    with pytest.raises(NoBoundaryError):
        rig.ask(protocol.Rollback, 9, "")
    with pytest.raises(NoBoundaryError):
        rig.ask(protocol.Rollback, 0, rig.snapshot(align_down=True).capsule.id)
    rig.ask(protocol.Rollback, 0, "prefix.map")
    assert rig.engine.environment(0).position.num_positions == rig.capsule("prefix.map").position


def test_the_ring_keeps_so_many_turns(rig: Rig) -> None:
    depth = rig.engine.core.config.rollback_depth
    rig.instruct("a")
    for _ in range(depth + 2):
        rig.instruct("b", mode="append", max_tokens=20)
    assert len(rig.engine.environment(0).boundaries) == depth
    automatic = [info for info in rig.capsules() if info.is_automatic]
    assert len(automatic) == depth


def test_a_reset_of_an_episode_answers_again_as_it_did(rig: Rig) -> None:
    first = rig.restore("home", reset=True, episode_id="e1", seed=7)
    assert rig.restore("home", reset=True, episode_id="e1", seed=7) == first
    with pytest.raises(SpecError, match="e1"):
        rig.restore("home", reset=True, episode_id="e1", seed=8)
    rig.instruct("go left", temperature=1.0)
    seeded = rig.instruct("go left", temperature=1.0, seed=7)
    assert rig.instruct("go left", temperature=1.0).text == seeded.text


def test_what_a_text_stands_at_can_not_be_dropped(rig: Rig) -> None:
    done = rig.instruct("go left")
    with pytest.raises(CapsulePinnedError):
        rig.ask_drop(done.capsule_id)
    rig.snapshot("kept", align_down=True, replace=True)
    rig.ask_drop("kept")
    rig.snapshot("kept", align_down=True)
    rig.restore("kept")
    with pytest.raises(CapsulePinnedError):
        rig.ask_drop("kept")
    rig.restore("home")
    rig.ask_drop("kept")


def test_capsules_are_saved_and_loaded_with_their_tail(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(capsule_folder=str(tmp_path))
    rig.instruct("go left")
    rig.snapshot("mine", align_down=True)
    rig.restore("mine")
    alone = rig.instruct("and back", mode="append")
    rig.ask(protocol.Save, "mine", "file", False)
    rig.restore("home")
    rig.ask_drop("mine")
    rig.ask(protocol.Load, "file", "", False, False)
    rig.restore("mine")
    assert rig.instruct("and back", mode="append").tokens == alone.tokens


def test_a_name_is_not_taken_from_a_text_that_stands_there(rig: Rig) -> None:
    rig.snapshot("kept")
    other = protocol.Restore(0, 1, "kept", False, None, False, "", 0)
    rig.engine.handle(other)
    with pytest.raises(CapsulePinnedError, match="stands at"):
        rig.snapshot("kept", replace=True)
    rig.engine.handle(protocol.Restore(0, 1, "home", False, None, False, "", 0))
    rig.snapshot("kept", replace=True)
    rig.ask_drop("kept")


def test_a_home_that_is_loaded_takes_the_text_along(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(capsule_folder=str(tmp_path))
    alone = rig.instruct("go left")
    rig.snapshot("home", align_down=True, replace=True)
    rig.ask(protocol.Save, "home", "file", False)
    rig.restore("home")
    after = rig.instruct("and back", mode="append")
    rig.restore("prefix.map")
    rig.snapshot("home", replace=True)
    rig.restore("home")
    assert rig.instruct("go left", mode="append").tokens == alone.tokens
    rig.restore("home")
    rig.ask(protocol.Load, "file", "home", False, True)
    assert rig.instruct("and back", mode="append").tokens == after.tokens


def test_a_turn_from_a_capsule_on_disk_waits_for_its_bytes(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(capsule_folder=str(tmp_path))
    block = rig.engine.core.layout.capsule_bytes
    rig.engine.core.store.room.tiers[0].quota_bytes = 6 * block
    rig.snapshot("first")
    alone = rig.instruct("go left", capsule="first")
    for number in range(4):
        rig.snapshot(f"more.{number}", align_down=True)
    assert rig.capsule("first").tier == "disk"
    assert rig.instruct("go left", capsule="first").tokens == alone.tokens


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (protocol.Fork(0, 0, "", 2, ()), UnsupportedError),
        (protocol.Select(0, 0, 0, True), UnsupportedError),
        (protocol.Reseed(0, 0, 1, 0), UnsupportedError),
        (protocol.Inspect(0, 0), UnsupportedError),
        (protocol.CancelTurn(0, 0), NotActiveError),
        (protocol.GetStatus(0, 2), UnknownEnvironmentError),
        (protocol.ListCapsules(0, 0, 64, "", env_index=2), UnknownEnvironmentError),
        (protocol.GetFingerprint(0, 2, ""), UnknownEnvironmentError),
        (protocol.Instruct(0, 5, b"go"), UnknownEnvironmentError),
    ],
)
def test_what_a_planner_does_not_do_is_refused(
    rig: Rig, request_: protocol.Request, error: type[FlashrtError]
) -> None:
    with pytest.raises(error):
        rig.engine.handle(request_)


def test_a_planner_has_no_slots_and_no_ticks(rig: Rig) -> None:
    engine = rig.engine
    with pytest.raises(UnknownChannelError):
        engine.open_writer("goal", 0)
    with pytest.raises(UnsupportedError):
        engine.begin_step(protocol.Step(0, 0, 1, -1, 0, 0), lambda answer: None)
    with pytest.raises(NotActiveError):
        engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
    commit = protocol.Commit(0, 0, 0, 0, 0, 0, False)
    with pytest.raises(UnsupportedError, match="goal"):
        engine.interrupt(protocol.Interrupt(0, 0, "", False, commit))
    with pytest.raises(LoanError):
        engine.loan(None)  # type: ignore[arg-type]
    assert engine.next_deadline_ns() is None
    assert not engine.is_waiting


def test_status_says_what_the_turn_does(rig: Rig) -> None:
    def state() -> str:
        status = rig.ask(protocol.GetStatus)
        assert isinstance(status, protocol.Status)
        return status.state

    assert state() == "idle"
    rig.begin("go round the block, " * 8)
    rig.run(1)
    assert state() == "prefill"
    rig.run(3)
    assert state() == "decode"
    rig.run()
    assert state() == "idle"
    info = rig.engine.info
    assert (info.channels[0].fields[0].low, info.channels[0].fields[0].high) == (0.0, 0.512)


def test_an_exact_capsule_goes_on_as_the_text_does(rig: Rig) -> None:
    rig.instruct("go left")
    assert rig.engine.environment(0).position.num_positions % 64
    with pytest.raises(BoundaryError):
        rig.snapshot("there")
    made = rig.snapshot("there", is_exact=True)
    assert made.tail_length == 0
    assert made.capsule.position == rig.engine.environment(0).position.num_positions
    alone = rig.instruct("and on", mode="append")
    rig.restore("home")
    rig.restore("there")
    again = rig.instruct("and on", mode="append")
    assert (again.tokens, again.log_probability) == (alone.tokens, alone.log_probability)
    rig.restore("home")
    rig.ask_drop("there")
