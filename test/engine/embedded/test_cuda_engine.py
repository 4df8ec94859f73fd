"""The flow policy in an engine on a device: the same promises, and near the host's figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.errors import BackendError, DeviceMemoryError
from flashrt_ros.models.flow_policy import FlowPolicy

pytestmark = pytest.mark.gpu


class Policy:
    """An engine over untrained weights, stepped."""

    def __init__(self, device: str) -> None:
        config = EngineConfig(device=device, test_hooks=True, num_standby_lanes=1)
        self.engine = Engine(FlowPolicy.untrained(3), config)
        self.engine.handle(protocol.Activate(1, 0, "step", 10.0))
        goals = EmbeddedWriter(self.engine, "goal")
        self.observations = EmbeddedWriter(self.engine, "observation")
        goals.write(stamp_ns=1, values=[0.3, 0.2])
        self.observe(1)

    def observe(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.observations.write(
            stamp_ns=seed,
            image=generator.integers(0, 255, (96, 96, 3), dtype=np.uint8),
            agent_pos=generator.random(2, dtype=np.float32) * 0.5,
        )

    def chunks(self, count: int, first: int = 2) -> list[bytes]:
        made = []
        for index in range(count):
            self.observe(first + index)
            stepped = self.engine.step(protocol.Step(2, 0, 8, -1, 0, 0))
            made += [chunk.actions for chunk in stepped.chunks]
        return made

    def restore(self, capsule: str, **more: Any) -> str:
        options = {"keep_goal": True, "seed": None, "reset": False, "episode_id": "", **more}
        reply = self.engine.handle(protocol.Restore(4, 0, capsule, stamp_ns=0, **options))
        assert isinstance(reply, protocol.Moved)
        return reply.path


@pytest.fixture
def policy() -> Iterator[Policy]:
    policy = Policy("cuda")
    yield policy
    policy.engine.close()


def test_a_restore_repeats_the_bytes_and_without_it_they_differ(policy: Policy) -> None:
    policy.chunks(2)
    policy.engine.handle(protocol.Snapshot(3, 0, "here", (), False, False, False))
    expected = policy.chunks(3, first=10)
    assert policy.chunks(3, first=10) != expected
    assert policy.restore("here") == "copy"
    assert policy.chunks(3, first=10) == expected


def test_a_flip_repeats_the_bytes_of_the_first_episode(policy: Policy) -> None:
    expected = policy.chunks(2)
    for _ in range(3):
        while policy.engine.next_background_ns() is not None:
            policy.engine.background(1 << 62)
        assert policy.restore("home", reset=False) == "flip"
        assert policy.chunks(2) == expected


def test_the_goal_is_read_where_it_was_written(policy: Policy) -> None:
    policy.chunks(1)
    inspection = policy.engine.handle(protocol.Inspect(8, 0))
    assert isinstance(inspection, protocol.Inspection)
    assert inspection.goal_transport_copies == 0
    assert inspection.read_inode != 0
    assert inspection.torn_reads == 0


def test_actions_are_near_those_of_the_host(policy: Policy) -> None:
    host = Policy("cpu")
    try:
        pairs = zip(policy.chunks(2), host.chunks(2), strict=True)
        for device, expected in pairs:
            np.testing.assert_allclose(
                np.frombuffer(device, np.float32), np.frombuffer(expected, np.float32), atol=2e-3
            )
    finally:
        host.engine.close()


def test_ticks_allocate_no_device_memory(policy: Policy) -> None:
    policy.chunks(3)
    before = torch.cuda.memory_stats()
    free = torch.cuda.mem_get_info()[0]
    policy.chunks(40)
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] == before["allocation.all.allocated"]
    assert torch.cuda.mem_get_info()[0] == free


def test_a_configuration_that_does_not_fit_leaves_nothing_allocated() -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    config = EngineConfig(device="cuda", rollback_depth=1024, num_branch_lanes=256)

    class Large(FlowPolicy):
        def buffers(self) -> Any:
            from flashrt_ros.runtime.spec import BufferSpec, Role

            return (*super().buffers(), BufferSpec("large", (1 << 28,), "float32", Role.STATE))

    with pytest.raises(DeviceMemoryError, match="bytes free"):
        Engine(Large.untrained(3), config)
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BackendError, match="no device 'cuda:77'"):
        Engine(FlowPolicy.untrained(3), EngineConfig(device="cuda:77"))
