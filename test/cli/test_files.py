"""Files that could not be written at the end are refused at the beginning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flashrt_ros.cli.files import check_picture, check_target
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
