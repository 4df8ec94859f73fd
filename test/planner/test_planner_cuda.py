"""A planner engine on a device: the same tokens from a capsule, after an interruption, and cold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.planner.engine import PlannerEngine
from flashrt_ros.runtime.cuda import CudaBackend
from flashrt_ros.runtime.cuda_streams import Streams
from test.planner import toy_planner
from test.planner.conftest import Rig, make_config
from test.planner.test_turns import cold, tokens_of

pytestmark = pytest.mark.gpu


def test_on_a_device_a_turn_is_the_whole_text_computed_cold(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(device="cuda")
    rig.instruct("Something else entirely, so that the lane is dirty.")
    done = rig.instruct("go round the block")
    tokens, _ = cold(rig, tokens_of("\ngo round the block\n"), len(done.tokens))
    assert tuple(tokens) == done.tokens


@pytest.mark.parametrize("num_nodes", [1, 3, 9])
def test_on_a_device_an_interrupted_turn_goes_on(
    make_rig: Callable[..., Rig], num_nodes: int
) -> None:
    rig = make_rig(device="cuda")
    long = "go round the block, " * 8
    alone = rig.instruct(long)
    rig.begin(long)
    rig.run(num_nodes)
    rig.instruct("stop there")
    assert rig.ask(protocol.ResumeTurn).tokens == alone.tokens


def test_on_a_device_candidates_are_what_each_seed_gives(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(device="cuda")
    alone = [rig.instruct("go left", temperature=2.0, seed=seed) for seed in (3, 1)]
    best = rig.instruct("go left", temperature=2.0, seeds=(3, 1))
    assert [one.text for one in best.candidates] == [done.text for done in alone]


def test_on_a_device_a_background_engine_writes_the_same_and_gives_way() -> None:
    config = make_config(device="cuda")
    model, tokenizer = toy_planner.make(None, config)
    with PlannerEngine(model, tokenizer, config) as alone:
        expected = Rig(alone).instruct("go round the block").tokens
        urgent = _streams(alone)
    with (
        PlannerEngine(model, tokenizer, config, is_background=True) as background,
        Engine(MinimalPolicy(), EngineConfig(model="minimal", device="cuda")) as policy,
    ):
        rig = Rig(background)
        assert {"prefill", "decode"} == background.rehearse().keys()
        assert rig.instruct("go round the block").tokens == expected
        streams = _streams(background)
        assert streams.state.torch.priority == streams.plan.torch.priority
        for own in (urgent, _streams(policy)):
            assert own.plan.torch.priority < streams.state.torch.priority
            assert own.state.torch.priority < streams.state.torch.priority


def test_on_a_device_no_node_is_waited_for(make_rig: Callable[..., Rig]) -> None:
    """What is submitted is asked for; the engine never submits a node over another."""
    rig = make_rig(device="cuda")
    answers = rig.begin("go round the block")
    num_submitted = 0
    while not answers:
        if rig.engine.is_waiting and not rig.engine.has_work:
            assert rig.engine.next_node == ""
            assert rig.engine.wait()
        num_submitted += not rig.engine.is_waiting
        rig.engine.advance()
    assert num_submitted > len(answers[0].tokens)


def _streams(engine: Engine | PlannerEngine) -> Streams:
    backend = engine.core.backend
    assert isinstance(backend, CudaBackend)
    return backend._streams
