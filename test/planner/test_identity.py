"""Digests of fingerprints outlive a release: the facts are spelled out here once more."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

from flashrt_ros.capsule.fingerprint import Fingerprint


def test_a_planner_engine_keeps_its_digest(make_rig: Callable[..., Any]) -> None:
    core = make_rig().engine.core
    expected = Fingerprint.of(
        {
            "model": "hybrid_lm",
            "weights": core.model.weights_digest(),
            "dtypes": "float32:6 int64:3",
            "layout": core.layout.digest(),
            "graphs": "choose,decode,prefill",
            "kernels": "torch",
            "torch": torch.__version__,
            "cuda": "none",
            "device": f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "threads": 1,
            "byte_order": sys.byteorder,
        }
    )
    assert not expected.differences(core.fingerprint)
    assert core.fingerprint.digest == expected.digest
