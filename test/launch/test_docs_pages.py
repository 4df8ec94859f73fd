"""The scripts of the README and of docs/trainer.md, as they stand there, do what they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("gym_pusht")

if TYPE_CHECKING:
    from test.nodes.conftest import Bench

ROOT = Path(__file__).resolve().parents[2]
README, TRAINER = ROOT / "README.md", ROOT / "docs" / "trainer.md"


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(bench: Bench, folder: Path, text: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    child = bench.start([sys.executable, str(script)])
    assert child.wait() == 0, child.output
    return child.output


def test_a_trainer_without_ros(fresh_bench: Bench, tmp_path: Path) -> None:
    fresh_bench.engine("train")
    lines = run(fresh_bench, tmp_path, blocks(TRAINER, "python")[0]).splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]


def test_a_trainer_and_a_planner_of_the_nodes(fresh_bench: Bench, tmp_path: Path) -> None:
    config = tmp_path / "lockstep.yaml"
    config.write_text(blocks(TRAINER, "yaml")[0])
    words = ["up", "--sim", "--config", str(config)]
    fresh_bench.start([sys.executable, "-m", "flashrt_ros.cli.main", *words])
    assert "home restored" in run(fresh_bench, tmp_path, blocks(README, "python")[0])
    output = run(fresh_bench, tmp_path, blocks(TRAINER, "python")[1])
    ends = [
        tuple(float(part) for part in found)
        for found in re.findall(r"'agent_x': ([0-9.]+), 'agent_y': ([0-9.]+)", output)
    ]
    assert ends == [pytest.approx((0.4, 0.4), abs=0.015)] * 2
