"""Files that could not be written at the end are refused at the beginning."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from flashrt_ros.cli.files import check_picture, check_target, target, writing
from flashrt_ros.cli.main import main
from flashrt_ros.errors import ConfigError


def test_a_file_in_a_folder_that_is_there_may_be_written(tmp_path: Path) -> None:
    check_target(tmp_path / "new.json")
    (tmp_path / "old.json").touch()
    check_target(tmp_path / "old.json")


def test_neither_a_missing_folder_nor_a_folder_itself_is_a_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        check_target(tmp_path / "missing" / "new.json")
    with pytest.raises(ConfigError, match="is a folder"):
        check_target(tmp_path)


def test_what_may_not_be_written_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may everything
    with pytest.raises(ConfigError, match="may not be written"):
        check_target(tmp_path / "new.json")


@pytest.mark.parametrize("text", ["", "-"])
def test_neither_nothing_nor_standard_output_is_a_file(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"found '{text}'"):
        target(text)
    assert target("./-") == Path("-")


@pytest.mark.parametrize(
    "words",
    [("prove", "minimal", "--json"), ("trace", "--json"), ("trace", "--plot"), ("demo", "--json")],
)
def test_every_command_refuses_a_name_that_is_none(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, ""])
    assert caught.value.code == 2
    assert "expected the name of a file, found ''" in capsys.readouterr().err


@pytest.mark.parametrize("path", [Path("/dev/full"), Path("/proc/x.json")])
def test_a_file_that_can_t_be_written_after_all_is_told_in_words(path: Path) -> None:
    with pytest.raises(ConfigError, match=f"'{path}' can't be written: found "), writing(path):
        path.write_text("{}")


def test_an_ending_names_a_picture_s_format(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "a.SVG", "a.b.pdf"):
        check_picture(tmp_path / name)
    for name in ("a", "a.", "a.xyz", "png"):
        with pytest.raises(ConfigError, match=r"\.png"):
            check_picture(tmp_path / name)
    with pytest.raises(ConfigError, match="no folder"):
        check_picture(tmp_path / "missing" / "a.png")


def test_no_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"flashrt_ros\[demo\]"):
        check_picture(tmp_path / "a.png")
