"""The capsule verbs that deal with files, age and fit, and the drawing of the lineage."""

from __future__ import annotations

import argparse
import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.cli.capsule_page import Drawing
from flashrt_ros.cli.capsule_text import age_ns, moment_ns, size_text
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import CapsuleInfo, TierInfo, TimelineInfo

Flashrt = Callable[..., tuple[int, str, str]]

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def ask(flashrt: Flashrt, engine: str) -> Callable[..., Any]:
    """Runs a verb that must succeed; returns its JSON."""

    def call(*words: str) -> Any:
        code, out, err = flashrt("capsule", *words, "--engine", engine, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


def test_a_capsule_is_saved_and_loaded(
    ask: Callable[..., Any], stepped: EngineClient, capsule_folder: Path
) -> None:
    made = ask("snapshot", "one")["capsule"]
    before = stepped.inspect().state_digest
    saved = ask("save", "one", "shelf")
    assert (capsule_folder / "shelf.capsule").stat().st_size == saved["num_bytes"]
    stepped.step(2)
    ask("drop", "one")
    loaded = ask("load", "shelf", "--pin")["capsule"]
    assert (loaded["id"], loaded["pinned"], loaded["digest"]) == (made["id"], True, saved["digest"])
    ask("restore", "one")
    assert stepped.inspect().state_digest == before


def test_a_capsule_goes_out_and_comes_back_as_one_file(
    ask: Callable[..., Any], stepped: EngineClient, capsule_folder: Path, tmp_path: Path
) -> None:
    made = ask("snapshot", "one")["capsule"]
    path = tmp_path / "moved.capsule"
    exported = ask("export", "one", str(path))
    assert (exported["id"], exported["num_bytes"]) == (made["id"], path.stat().st_size)
    assert not list(capsule_folder.glob("export-*"))
    back = ask("import", str(path), "--name", "two")["capsule"]
    assert (back["name"], back["digest"]) == ("two", exported["digest"])


def test_explain_compares_engine_capsule_and_files(
    ask: Callable[..., Any], flashrt: Flashrt, stepped: EngineClient, tmp_path: Path
) -> None:
    path = tmp_path / "one.capsule"
    ask("snapshot", "one")
    ask("export", "one", str(path))
    assert ask("explain", "one")["fits"] is True
    assert ask("explain", str(path))["differences"] == []
    code, out, _ = flashrt("capsule", "explain", str(path), str(path), "--engine", "nobody")
    assert code == 0  # two files need no engine
    assert "every field is equal" in out


def test_a_persisted_snapshot_is_listed_as_one(
    ask: Callable[..., Any], stepped: EngineClient
) -> None:
    ask("snapshot", "one", "--persist")
    found = {one["name"]: one for one in ask("list", "--prefix", "on")["capsules"]}
    assert found["one"]["persist"] is True
    assert ask("list", "--tier", "disk")["capsules"] == []
    assert {one["name"] for one in ask("list", "--pinned")["capsules"]} == {"home"}
    assert ask("list", "--until", "1h")["capsules"] == []
    assert ask("list", "--since", "1h")["capsules"]


def test_a_collection_only_shows_unless_told(
    ask: Callable[..., Any], flashrt: Flashrt, engine: str, stepped: EngineClient
) -> None:
    for index in range(4):
        ask("snapshot", f"run{index}", "--label", "k=gc")
    words = ("gc", "--label", "k=gc", "--keep-last", "1")
    for dry in (words, (*words, "--dry-run")):
        answer = ask(*dry)
        assert answer["dry_run"] is True
        assert [one["name"] for one in answer["dropped"]] == ["run0", "run1", "run2"]
    assert len(ask("list", "--label", "k=gc")["capsules"]) == 4
    assert len(ask(*words, "--yes")["dropped"]) == 3
    assert [one["name"] for one in ask("list", "--label", "k=gc")["capsules"]] == ["run3"]
    code, _, err = flashrt("capsule", "gc", "--yes", "--engine", engine)
    assert code == 1
    assert "names no rule" in err
    assert flashrt("capsule", "gc", "--yes", "--dry-run", "--engine", engine)[0] == 2


def test_the_tree_is_drawn_into_files(
    ask: Callable[..., Any], stepped: EngineClient, tmp_path: Path
) -> None:
    ask("snapshot", "one", "--label", "note=<b>&")
    ask("fork", "2", "--capsule", "one")
    svg, page = tmp_path / "tree.svg", tmp_path / "tree.html"
    plain = ask("tree", "--svg", str(svg), "--html", str(page))
    assert {line["branch"] for line in plain["timelines"]} == {-1, 0, 1}
    root = ElementTree.fromstring(svg.read_text())
    cards = root.findall(f".//{SVG}rect[@class='card']")
    assert len(cards) == len(plain["capsules"])
    text = page.read_text()
    assert "<b>" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # it needs no network
    assert "branch 1 of environment 0" in text


# drawing and reading ---------------------------------------------------------------------------


def info(key: str, parent: str = "", **facts: Any) -> CapsuleInfo:
    values: dict[str, Any] = {
        "id": key,
        "name": key,
        "parent": parent,
        "labels": (),
        "created_ns": int(key[1:]),
        "tick": 0,
        "position": 0,
        "num_bytes": 4096,
        "tier": "host",
        "pinned": False,
        "fingerprint": "f",
        "digest": "",
    }
    return CapsuleInfo(**{**values, **facts})


def test_every_child_has_its_line_and_every_mark_its_chip() -> None:
    capsules = [
        info("c1", pinned=True, persist=True),
        info("c2", "c1", tier="disk"),
        info("c3", "c2", is_automatic=True),
        info("c4", "c1"),
        info("c5", "gone"),
    ]
    lines = [TimelineInfo(0, -1, 3, "c3", 9, 1), TimelineInfo(1, -1, 4, "", 2, 1)]
    drawing = Drawing("e: m", capsules, lines, [TierInfo("host", 4, 5, 6)], "now")
    root = ElementTree.fromstring(drawing.svg())
    assert len(root.findall(f".//{SVG}path[@class='line']")) == 3
    marks = [str(mark.text) for mark in root.findall(f".//{SVG}text[@class='mark']")]
    assert sorted(marks) == sorted(
        ["host", "pinned", "persisted", "disk", "host", "environment 0 · lane 3", "host", "host"]
    )
    assert len(root.findall(f".//{SVG}g[@class='own']")) == 1
    assert "environment 1 at tick 2 descends from none" in drawing.html()


def test_a_long_line_is_a_column() -> None:
    chain = [info(f"c{n}", f"c{n - 1}") for n in range(1, 1500)]
    root = ElementTree.fromstring(Drawing("t", chain, (), (), "now").svg())
    cards = root.findall(f".//{SVG}rect[@class='card']")
    assert len(cards) == 1499
    assert len({card.get("x") for card in cards}) == 1
    assert len(root.findall(f".//{SVG}path[@class='line']")) == 1498


def test_where_lines_part_the_children_stand_to_the_right() -> None:
    capsules = [info("c1"), info("c2", "c1"), info("c3", "c2"), info("c4", "c2"), info("c5", "c3")]
    root = ElementTree.fromstring(Drawing("t", capsules, (), (), "now").svg())
    xs = [int(card.get("x", "")) for card in root.findall(f".//{SVG}rect[@class='card']")]
    assert xs[0] == xs[1] < xs[2] == xs[3] == xs[4]  # c1, c2, c3, c5, c4


def test_tiers_show_how_full_they_are() -> None:
    tiers = [TierInfo("host", 1, 5_000, 20_000), TierInfo("disk", 0, 9, 0)]
    page = Drawing("t", (), (), tiers, "now").html()
    assert "5000 B" in page
    assert "20 kB" in page
    assert "width:25.0%" in page
    assert "width:100.0%" in page


def test_no_capsules_are_a_drawing_too() -> None:
    assert "no capsules" in Drawing("t", (), (), (), "now").html()


def test_ages_and_times_are_read() -> None:
    assert [age_ns(text) for text in ("90s", "1.5m", "2h", "7d")] == [
        90 * 10**9,
        90 * 10**9,
        7200 * 10**9,
        604_800 * 10**9,
    ]
    assert abs(moment_ns("1h") - (time.time_ns() - 3600 * 10**9)) < 10**9
    assert moment_ns("2026-01-31T12:00+00:00") == 1_769_860_800 * 10**9
    for read, text in ((age_ns, "7"), (age_ns, "x"), (moment_ns, "yesterday")):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_sizes_are_written_short() -> None:
    sizes = (0, 9_999, 10_000, 4_200_000, 256_000_000, 12_000_000_000)
    assert [size_text(size) for size in sizes] == ["0", "9999", "10 k", "4200 k", "256 M", "12 G"]
