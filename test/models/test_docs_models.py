"""The policy of docs/models.md is one: it is accepted, proved, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flashrt_ros.models.checks import check_model
from flashrt_ros.models.registry import create
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "policy_of_docs.py").write_text(blocks[0])
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_proved() -> None:
    check_model(create("policy_of_docs:make"))
    proof = prove(lambda: create("policy_of_docs:make"), num_ticks=20)
    assert proof.is_proved, proof.findings
    verdicts = {buffer.buffer: buffer.verdict for buffer in proof.buffers}
    assert verdicts["heading"] is Verdict.MATTERS


def test_its_weights_come_from_a_file(tmp_path: Path) -> None:
    shipped = create("policy_of_docs:make")
    network = getattr(shipped, "_network")  # noqa: B009
    state = {name: value.clone() for name, value in network.state_dict().items()}
    state["head.bias"] = torch.ones_like(state["head.bias"])
    save_file(state, tmp_path / "mine.safetensors")
    other = create("policy_of_docs:make", tmp_path / "mine.safetensors")
    assert shipped.weights_digest() == create("policy_of_docs:make").weights_digest()
    assert shipped.weights_digest() != other.weights_digest()
