"""The planner's checkpoint that ships: its size, its texts, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors

from flashrt_ros.errors import ConfigError, WeightsError
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer
from flashrt_ros.models.planner_lm import PACKAGED_PLANNER, load_planner_lm
from flashrt_ros.models.planner_text import (
    MAX_ANSWER_TOKENS,
    PLANNER_PREFIX,
    scene_text,
    turn_text,
)

MOST_BYTES = 8_000_000
NINE = "".join(f"go 0.{at}12 0.34{at}; " for at in range(1, 10)) + "done"


@pytest.fixture(scope="module")
def planner() -> tuple[HybridLm, HybridTokenizer]:
    return load_planner_lm()


def test_the_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in PACKAGED_PLANNER.iterdir()) < MOST_BYTES


def test_the_weights_say_how_they_were_trained() -> None:
    with safetensors.safe_open(PACKAGED_PLANNER / "model.safetensors", framework="pt") as file:
        figures = json.loads(file.metadata()["training"])
    assert figures["threads"] == 1
    assert figures["steps"] > 0


def test_the_prefix_ends_on_a_border(planner: tuple[HybridLm, HybridTokenizer]) -> None:
    assert len(planner[1].encode(PLANNER_PREFIX)) == 64


def test_the_longest_answer_fits(planner: tuple[HybridLm, HybridTokenizer]) -> None:
    assert len(planner[1].encode(NINE)) <= MAX_ANSWER_TOKENS


def test_texts_go_through_the_tokenizer_and_back(
    planner: tuple[HybridLm, HybridTokenizer],
) -> None:
    _, tokenizer = planner
    turn = turn_text("go to 12.5 cm, 30 cm; then naïvely on ☃", scene_text((0.2, 0.3), (0.1, 0.4)))
    for text in (PLANNER_PREFIX.lower(), turn, NINE):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_turn_is_one_line_for_the_scene_and_one_for_the_instruction() -> None:
    scene = scene_text((0.2434, 0.3), (0.1, 0.4))
    assert scene == "block at 0.243 0.300; pusher at 0.100 0.400"
    assert turn_text(" go\n to  the\tcentre ", scene) == f"\n{scene}\ngo to the centre\n"
    assert turn_text("stay") == "\nstay\n"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_planner_lm(tmp_path)
    config = (PACKAGED_PLANNER / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(WeightsError):
        load_planner_lm(tmp_path)
