from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.members import load_model, read_config
from flashrt_ros.errors import (
    ConfigError,
    ParameterTypeError,
    UnknownModelError,
    UnknownParameterError,
)


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("engine.yaml", "name: a/b\nrefill_delay_ms: 2   # an int where a float is meant\n"),
        ("engine.json", '{"name": "a/b", "refill_delay_ms": 2}'),
    ],
)
def test_yaml_and_json_are_read(tmp_path: Path, name: str, text: str) -> None:
    config = read_config(write(tmp_path, name, text))
    assert (config.name, config.refill_delay_ms) == ("a/b", 2.0)
    told = read_config(write(tmp_path, name, text), name="c", device="cuda:1")
    assert (told.name, told.device) == ("c", "cuda:1")


def test_without_a_file_the_defaults_hold() -> None:
    assert read_config("") == EngineConfig()


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("rate: 3", UnknownParameterError, "no parameter 'rate'"),
        ("num_thread: 3", UnknownParameterError, "num_threads"),
        ("3: 3", UnknownParameterError, "'3'"),
        ("num_threads: 1.5", ParameterTypeError, "num_threads"),
        ("test_hooks: 1", ParameterTypeError, "test_hooks"),
        ("device: 3", ParameterTypeError, "device"),
        ("device: tpu", ConfigError, "'cuda:N'"),
        ("num_threads: 0", ConfigError, "out of range"),
        ("- 1", ConfigError, "no mapping"),
        ("a: [", ConfigError, "can't be read"),
    ],
)
def test_a_bad_file_is_refused(
    tmp_path: Path, text: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        read_config(write(tmp_path, "engine.yaml", text))


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cuda:N'"):
        read_config("", device="gpu")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "factory", ["nothing", "no_such_module:make", "json:no_such", ":", "json:"]
)
def test_a_factory_that_is_not_there(factory: str) -> None:
    with pytest.raises(UnknownModelError, match=factory):
        load_model(EngineConfig(), factory)


def test_numbers_are_no_words(tmp_path: Path) -> None:
    numbers = read_config(write(tmp_path, "numbers.yaml", "seam_max_step: [0.05, 1]"))
    assert numbers.seam_max_step == (0.05, 1.0)
    with pytest.raises(ParameterTypeError, match="seam_max_step"):
        read_config(write(tmp_path, "wrong.yaml", 'seam_max_step: ["0.05"]'))
