"""Digests of fingerprints outlive a release: the facts are spelled out here once more."""

from __future__ import annotations

import hashlib
import platform
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.batched import BatchedEngine
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.identity import common_facts, fingerprint_of
from flashrt_ros.models.base import Program
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.batch import with_row_mask
from flashrt_ros.runtime.batch_programs import over_rows
from flashrt_ros.runtime.spec import ArenaLayout, ShapeKey

GRAPHS = "commit,flush,latch,pop,step/0,step/1,step/2"


def schema() -> str:
    return hashlib.sha256(repr(MinimalPolicy().channels()).encode()).hexdigest()[:16]


def of_the_host(**changes: object) -> dict[str, object]:
    return {
        "model": "minimal",
        "weights": "none",
        "graphs": GRAPHS,
        "channels": schema(),
        "torch": torch.__version__,
        "cuda": "none",
        "device": f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": 1,
        "byte_order": sys.byteorder,
        **changes,
    }


def assert_same(found: Fingerprint, facts: dict[str, object]) -> None:
    expected = Fingerprint.of(facts)
    assert not expected.differences(found)
    assert found.digest == expected.digest


def test_an_engine_of_a_policy_keeps_its_digest() -> None:
    with Engine(MinimalPolicy(), EngineConfig(model="minimal")) as engine:
        layout = ArenaLayout.of(MinimalPolicy().buffers())
        expected = of_the_host(layout=layout.digest(), dtypes="float32:5 int64:6")
        assert_same(engine.core.fingerprint, expected)


def test_a_batched_engine_keeps_its_digest() -> None:
    policy = MinimalPolicy()
    replaced: dict[ShapeKey, Program] = {("pop",): over_rows(policy.programs()[("pop",)])}
    layout = ArenaLayout.of(with_row_mask(policy.buffers()))
    for programs, names in ((None, ""), (replaced, "pop")):
        with BatchedEngine(policy, num_environments=3, programs=programs) as engine:
            expected = of_the_host(layout=layout.digest(), rows=3, replaced_graphs=names)
            assert_same(engine.fingerprint, expected)


def test_threads_count_on_the_host_alone_and_cuda_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    policy = MinimalPolicy()
    layout = ArenaLayout.of(policy.buffers())
    device = torch.device("cpu")  # its architecture can be told without a GPU
    elsewhere = cast("Backend", SimpleNamespace(name="cuda", device=device))
    found = fingerprint_of(policy, layout, elsewhere, EngineConfig(num_threads=4))
    expected = of_the_host(
        layout=layout.digest(), dtypes="float32:5 int64:6", cuda="13.0", threads="any"
    )
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "other"}, "model"),
        ({"weights_digest": lambda: "b"}, "weights"),
        ({"programs": lambda: {("step", 1): None}}, "graphs"),
    ],
)
def test_another_model_is_another_fact(change: dict[str, Any], field: str) -> None:
    given = {"name": "one", "weights_digest": lambda: "a", "programs": lambda: {("step", 0): None}}
    layout = ArenaLayout.of(MinimalPolicy().buffers())
    backend = cast("Backend", SimpleNamespace(name="cpu", device=torch.device("cpu")))
    one, other = (
        Fingerprint.of(common_facts(cast("Any", SimpleNamespace(**model)), layout, backend, 1))
        for model in (given, {**given, **change})
    )
    assert [name for name, _, _ in one.differences(other)] == [field]
