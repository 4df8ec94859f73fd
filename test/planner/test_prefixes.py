from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import (
    CapsulePinnedError,
    ConfigError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
    UnsupportedError,
)
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.tails import tail_labels, tail_of
from test.planner.conftest import PREFIXES, Rig, make_config
from test.planner.toy_planner import ByteTokenizer

NAMES = ["prefix.persona", "prefix.tools", "prefix.map"]


def digests(rig: Rig) -> dict[str, str]:
    """The label that stands for each prefix's text, and whatever capsule has it now."""
    return {name: rig.capsule(name).id for name in NAMES}


def test_each_prefix_is_a_pinned_capsule_that_descends_from_the_one_before(rig: Rig) -> None:
    infos = [rig.capsule(name) for name in NAMES]
    assert all(info.pinned and not info.position % 64 for info in infos)
    assert [info.parent for info in infos] == ["", infos[0].id, infos[1].id]
    tokens: list[int] = []
    for info, entry in zip(infos, PREFIXES, strict=True):
        text = entry.partition("=")[2].strip()
        tokens += ByteTokenizer().encode("\n" + text if tokens else text)
        assert info.position == len(tokens) - len(tokens) % 64
        assert list(tail_of(info.labels)) == tokens[info.position :]
    assert rig.capsule("home").parent == infos[2].id


def test_a_prefix_can_not_be_dropped_while_a_text_stands_there(rig: Rig) -> None:
    for name in ("prefix.map", "home"):
        with pytest.raises(CapsulePinnedError):
            rig.ask_drop(name)
        with pytest.raises(CapsulePinnedError):
            rig.engine.handle(protocol.Pin(0, name, False))


def test_a_changed_prefix_is_built_again_with_those_after_it(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    before = digests(rig)
    old = rig.instruct("go left")
    rig.set_prefix("tools", "Answer with very few subgoals.")
    after = digests(rig)
    assert after["prefix.persona"] == before["prefix.persona"]
    assert after["prefix.tools"] != before["prefix.tools"]
    assert after["prefix.map"] != before["prefix.map"]
    told = rig.recorder.details(EventKind.SNAPSHOT)
    assert [detail.split(" tokens=")[0] for detail in told] == [
        "rebuilt prefix=tools",
        "rebuilt prefix=map",
    ]
    new = rig.instruct("go left")
    assert new.text != old.text
    fresh = make_rig(
        prefixes=(PREFIXES[0], "tools = Answer with very few subgoals.", PREFIXES[2])
    ).instruct("go left")
    assert (new.text, new.tokens) == (fresh.text, fresh.tokens)
    assert rig.capsule("home").labels == rig.capsule("prefix.map").labels[1:]


def test_the_same_text_again_builds_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    before = digests(rig)
    rig.set_prefix("map", PREFIXES[2].partition("=")[2].strip())
    assert digests(rig) == before
    assert rig.recorder.events == []


def test_a_turn_that_begins_at_the_library_waits_for_it(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    text = "The table has moved to the other side of the room. " * 4
    answers: list[Any] = []
    rig.engine.begin(protocol.SetPrefix(0, "map", text.encode()), answers.append)
    done = rig.begin("go left")
    rig.run(2)
    turn = rig.engine.environment(0).turn
    assert turn is not None
    assert not turn.is_started
    assert not answers
    rig.run()
    assert answers == [protocol.Ack(0)]
    assert (
        done[0].text == make_rig(prefixes=(*PREFIXES[:2], f"map = {text}")).instruct("go left").text
    )


def test_a_prefix_that_grows_under_a_turn_refuses_it_before_it_runs(
    make_rig: Callable[..., Rig],
) -> None:
    """Else the arena would be full in the middle of a plan whose first subgoals were told."""
    rig = make_rig()
    refused = rig.begin("go left")
    rig.engine.begin(protocol.SetPrefix(0, "map", b"x" * 430), lambda answer: None)
    rig.run()
    assert isinstance(refused[0], PayloadShapeError)
    assert "at most 640 tokens" in str(refused[0])
    assert not rig.recorder.details(EventKind.SUBGOAL)
    rig.set_prefix("map", "x")
    assert rig.instruct("go left").subgoals


def test_a_turn_under_way_goes_on_while_prefixes_are_built(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    alone = rig.instruct("go left")
    answers = rig.begin("go left")
    rig.run(3)
    rig.engine.begin(protocol.SetPrefix(0, "persona", b"You are fast."), lambda answer: None)
    rig.run()
    assert answers[0].tokens == alone.tokens
    assert rig.capsule(answers[0].capsule_id).parent == rig.capsule("prefix.map").id


def test_a_restarted_engine_finds_its_prefixes(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    folder = str(tmp_path / "capsules")
    first = make_rig(capsule_folder=folder)
    before = digests(first)
    done = first.instruct("go left")
    first.engine.close()

    same = make_rig(capsule_folder=folder)
    assert digests(same) == before
    assert same.instruct("go left").tokens == done.tokens
    same.engine.close()

    changed = make_rig(capsule_folder=folder, prefixes=(*PREFIXES[:2], "map = No table at all."))
    after = digests(changed)
    assert [name for name in NAMES if after[name] != before[name]] == ["prefix.map"]
    assert changed.instruct("go left").text != done.text
    changed.engine.close()

    # a prefix that is none any more goes
    fewer = make_rig(capsule_folder=folder, prefixes=PREFIXES[:2])
    assert "prefix.map" not in [info.name for info in fewer.capsules()]
    assert fewer.capsule("prefix.tools").id == before["prefix.tools"]
    fewer.engine.close()
    changed = make_rig(capsule_folder=folder, prefixes=(*PREFIXES[:2], "map = No table at all."))
    after = digests(changed)
    changed.engine.close()

    # other weights: nothing of before fits, and nothing of it is lost
    other = make_rig(capsule_folder=folder, model_seed=1)
    assert not set(digests(other).values()) & (set(before.values()) | set(after.values()))
    other.engine.close()
    again = make_rig(capsule_folder=folder, prefixes=(*PREFIXES[:2], "map = No table at all."))
    assert digests(again) == after


def test_without_prefixes_a_text_begins_empty(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(prefixes=())
    done = rig.instruct("go left")
    assert done.num_positions == len("\ngo left\n") - 2 + len(done.tokens)
    assert rig.capsule("home").position == 0


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("map", b"", PayloadShapeError),
        ("map", b"\xff", PayloadTypeError),
        ("map", "Tür".encode(), PayloadRangeError),
        ("map", b"x" * 700, PayloadShapeError),
        ("map", b"x" * 460, PayloadShapeError),
        ("nothing", b"x", UnsupportedError),
    ],
)
def test_a_bad_prefix_changes_nothing(
    rig: Rig, name: str, text: bytes, error: type[Exception]
) -> None:
    before = digests(rig)
    with pytest.raises(error):
        rig.set_prefix(name, text)
    assert not rig.engine.has_work
    assert digests(rig) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"prefixes": ("no sign",)},
        {"prefixes": ("a b = text",)},
        {"prefixes": ("a =",)},
        {"prefixes": ("a = x", "a = y")},
        {"scorers": ("a = nothing",)},
        {"numbers": "guessed"},
        {"synonyms": ("stand still",)},
        {"synonyms": ("... = stop",)},
        {"synonyms": ("wait = stop", "Wait, please! = go")},
        {"chunk_length": 96},
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"subgoal_low": 1.0},
        {"device": "tpu"},
        {"rollback_depth": 0},
    ],
)
def test_a_bad_configuration_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_config(**changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"prefixes": ("a = " + "x" * 640,)}, PayloadShapeError),
        ({"prefixes": ("a = Tür",)}, PayloadRangeError),
        ({"scorers": ("a = no_such_module:f",)}, ConfigError),
        ({"scorers": ("a = math:pi",)}, ConfigError),
        ({"max_tokens": 10}, Exception),
    ],
)
def test_an_engine_that_can_not_work_does_not_start(
    make_rig: Callable[..., Rig], changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make_rig(**changes)


def test_a_scorer_is_named_as_entry_points_are(
    make_rig: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scorers_here.py").write_text(
        "class Judges:\n    @staticmethod\n    def first(plan):\n        return 1\n"
    )
    (tmp_path / "scorers_broken.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "scorers_unreadable.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    rig = make_rig(scorers=("mine = scorers_here:Judges.first",))
    assert rig.instruct("go left", scorer="mine").subgoals
    for module, says in (("scorers_broken", "not today"), ("scorers_unreadable", "SyntaxError")):
        with pytest.raises(ConfigError, match=f"scorer 'mine' can't be imported.*{says}"):
            make_rig(scorers=(f"mine = {module}:f",))


def test_every_parameter_with_a_range_is_one() -> None:
    from flashrt_ros.planner.config import RANGES

    assert set(RANGES) < set(PlannerConfig.__struct_fields__)


def test_tails_are_kept_in_labels_whatever_else_is_there() -> None:
    tail = tuple(range(999_900, 999_963))
    labels = ("map=1", *tail_labels(tail), "tail=x", "tail.9=a,b,²", "tail.²=1")
    assert tail_of(labels) == tail
    assert all(len(label) <= 256 for label in labels)
    assert tail_of(("map=1",)) == ()
