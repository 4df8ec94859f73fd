"""Every capsule verb of the command line, at a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from flashrt_ros.cli.capsule_views import capsule_table, lineage
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import CapsuleInfo, TimelineInfo

Flashrt = Callable[..., tuple[int, str, str]]


class Verbs:
    """Calls ``flashrt-ros capsule`` at one engine, as JSON."""

    def __init__(self, flashrt: Flashrt, engine: str) -> None:
        self._flashrt = flashrt
        self._engine = engine

    def shown(self, *words: str) -> tuple[int, str, str]:
        return self._flashrt("capsule", *words, "--engine", self._engine)

    def ask(self, *words: str) -> Any:
        code, out, err = self.shown(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def refused(self, *words: str) -> str:
        code, out, err = self.shown(*words, "--json")
        assert code == 1
        error = json.loads(out)["error"]
        assert f"{error['name']} ({error['code']})" in err
        return str(error["name"])


@pytest.fixture
def verbs(flashrt: Flashrt, engine: str) -> Verbs:
    return Verbs(flashrt, engine)


def digest(client: EngineClient) -> str:
    return client.inspect().state_digest


def test_restore_brings_a_snapshot_back(verbs: Verbs, stepped: EngineClient) -> None:
    made = verbs.ask("snapshot", "before", "--label", "task=push", "--pin")["capsule"]
    assert (made["name"], made["labels"], made["pinned"]) == ("before", ["task=push"], True)
    before = digest(stepped)
    stepped.step(2)
    assert digest(stepped) != before
    moved = verbs.ask("restore", "before")
    assert (moved["capsule_id"], moved["tick"]) == (made["id"], made["tick"])
    assert digest(stepped) == before


def test_a_reset_restores_home(verbs: Verbs, stepped: EngineClient) -> None:
    assert stepped.status().tick == 12
    moved = verbs.ask("reset", "--seed", "5")
    assert moved["tick"] == 0
    assert stepped.inspect().noise_seed == 5
    assert stepped.status().waiting_for != ""  # goals are dropped


def test_fork_step_and_select(verbs: Verbs, stepped: EngineClient) -> None:
    forked = verbs.ask("fork", "2", "--seed", "8", "--seed", "9")
    assert forked["seeds"] == [8, 9]
    first, second = forked["branches"]
    stepped.step(4, branch=second)
    verbs.ask("select", str(second))
    assert stepped.status().branches == ()
    assert stepped.inspect().noise_seed == 9
    assert verbs.refused("select", str(first)) == "BRANCH_NOT_FOUND"


def test_select_can_keep_the_others(verbs: Verbs, stepped: EngineClient) -> None:
    first, second = verbs.ask("fork", "2")["branches"]
    verbs.ask("select", str(first), "--keep-others")
    assert stepped.status().branches == (second,)


def test_rollback_goes_back(verbs: Verbs, stepped: EngineClient) -> None:
    ancestor = verbs.ask("snapshot", "ancestor")["capsule"]
    stepped.step(4)
    tick = stepped.status().tick
    assert verbs.ask("rollback")["tick"] < tick
    assert verbs.ask("rollback", "--to", "ancestor")["capsule_id"] == ancestor["id"]
    assert verbs.refused("rollback", "100") == "NO_BOUNDARY"


def test_list_filters_by_label(verbs: Verbs, stepped: EngineClient) -> None:
    verbs.ask("snapshot", "one", "--label", "task=push")
    verbs.ask("snapshot", "two")
    names = {one["name"] for one in verbs.ask("list")["capsules"]}
    assert {"home", "one", "two"} <= names
    labelled = verbs.ask("list", "--label", "task=push")["capsules"]
    assert [one["name"] for one in labelled] == ["one"]


def test_a_snapshot_is_replaced_only_when_asked(verbs: Verbs, stepped: EngineClient) -> None:
    verbs.ask("snapshot", "one")
    assert verbs.refused("snapshot", "one") == "CAPSULE_NAME_TAKEN"
    verbs.ask("snapshot", "one", "--replace")


def test_a_dry_run_drops_nothing(verbs: Verbs, stepped: EngineClient) -> None:
    for name in ("one", "two"):
        verbs.ask("snapshot", name)
    answer = verbs.ask("drop", "one", "two", "--dry-run")
    assert [one["name"] for one in answer["dropped"]] == ["one", "two"]
    assert {"one", "two"} <= {one.name for one in stepped.capsules()}
    verbs.ask("drop", "one", "two")
    assert not {"one", "two"} & {one.name for one in stepped.capsules()}


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_all_or_none_are_dropped(
    verbs: Verbs, stepped: EngineClient, dry_run: tuple[str, ...]
) -> None:
    verbs.ask("snapshot", "free")
    verbs.ask("snapshot", "kept", "--pin")
    assert verbs.refused("drop", "free", "kept", *dry_run) == "CAPSULE_PINNED"
    assert verbs.refused("drop", "free", "unknown", *dry_run) == "CAPSULE_NOT_FOUND"
    assert "free" in {one.name for one in stepped.capsules()}


def test_an_automatic_capsule_is_not_dropped(verbs: Verbs, stepped: EngineClient) -> None:
    automatic = next(one for one in stepped.capsules() if one.labels)
    assert verbs.refused("drop", automatic.id) == "CAPSULE_PINNED"
    assert verbs.refused("drop", automatic.id, "--dry-run") == "CAPSULE_PINNED"


def test_pin_and_unpin(verbs: Verbs, stepped: EngineClient) -> None:
    verbs.ask("snapshot", "one")
    assert verbs.ask("pin", "one")["capsule"]["pinned"] is True
    assert verbs.refused("drop", "one") == "CAPSULE_PINNED"
    assert verbs.ask("pin", "one", "--off")["capsule"]["pinned"] is False
    verbs.ask("drop", "one")


def test_what_people_are_shown(verbs: Verbs, stepped: EngineClient) -> None:
    verbs.ask("snapshot", "one", "--label", "task=push")
    for words, expected in {
        ("list",): "task=push",
        ("tree",): "one",
        ("fork", "2"): "branch",
        ("restore", "one"): "generation",
        ("drop", "one", "--dry-run"): "would be dropped",
    }.items():
        code, out, err = verbs.shown(*words)
        assert (code, err) == (0, "")
        assert expected in out


def test_no_engine_has_an_exit_code_of_its_own(flashrt: Flashrt, runtime_folder: object) -> None:
    code, out, err = flashrt("capsule", "list", "--engine", "nobody", "--json")
    assert code == 3
    assert "ENGINE_GONE (302)" in err
    assert json.loads(out)["error"]["name"] == "ENGINE_GONE"


@pytest.mark.parametrize(
    "words",
    [
        ("snapshot", "one"),
        ("list",),
        ("tree",),
        ("drop", "home"),
        ("pin", "home"),
        ("gc", "--unpinned"),
        ("explain", "home"),
    ],
)
def test_an_unknown_environment_is_refused(verbs: Verbs, words: tuple[str, ...]) -> None:
    assert verbs.refused(*words, "--env", "7") == "UNKNOWN_ENVIRONMENT"


@pytest.mark.parametrize("words", [(), ("unknown",), ("restore",), ("fork", "many")])
def test_wrong_usage_exits_with_two(flashrt: Flashrt, words: tuple[str, ...]) -> None:
    code, out, err = flashrt("capsule", *words)
    assert (code, out) == (2, "")
    assert "usage" in err


# drawing -------------------------------------------------------------------------------------


def info(capsule_id: str, parent: str = "", **facts: Any) -> CapsuleInfo:
    values: dict[str, Any] = {
        "id": capsule_id,
        "name": "",
        "parent": parent,
        "labels": (),
        "created_ns": 0,
        "tick": 3,
        "position": 0,
        "num_bytes": 100,
        "tier": "host",
        "pinned": False,
        "fingerprint": "",
        "digest": "",
    }
    return CapsuleInfo(**{**values, **facts})


def drawn(shown: object) -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(shown)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_lineage_is_drawn_below_its_origin() -> None:
    capsules = [
        info("cc", "bb", created_ns=3),
        info("aa", name="home", pinned=True, created_ns=1),
        info("bb", "aa", labels=("task=push",), created_ns=2),
        info("dd", "aa", name="branch", created_ns=4),
        info("ee", "gone", created_ns=5),
    ]
    here = [TimelineInfo(0, -1, 2, "cc", 4, 1)]
    assert drawn(lineage(capsules, title="engine: minimal", timelines=here)) == [
        "engine: minimal",
        "├── home  aa  tick 3  100 host  pinned",
        "│   ├── bb  tick 3  100 host  task=push",
        "│   │   └── cc  tick 3  100 host  ◀ environment 0, lane 2",
        "│   └── branch  dd  tick 3  100 host",
        "└── ee  tick 3  100 host",
    ]


def test_a_long_line_is_drawn() -> None:
    chain = [info(f"{n:04}", f"{n - 1:04}", created_ns=n) for n in range(2000)]
    console = Console(width=10_000)
    with console.capture() as capture:
        console.print(lineage(chain, title="engine"))
    assert "1999  tick" in capture.get()


def test_markup_in_a_label_is_shown_as_it_is() -> None:
    assert "note=[red]" in "\n".join(drawn(capsule_table([info("aa", labels=("note=[red]",))])))


def test_no_capsules_are_shown_in_words() -> None:
    assert drawn(capsule_table([])) == ["no capsules"]
    assert drawn(lineage([], title="engine")) == ["engine", "└── no capsules"]
