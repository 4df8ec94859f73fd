"""Whether two captures of one policy, from the same state and inputs, make the same actions.

On a host they must. On a device nothing is promised; what was found is noted with the test's
result (``pytest --junitxml=FILE``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.models.flow_policy import FlowPolicy

NUM_CHUNKS = 3

Chunks = npt.NDArray[np.float32]


def make_chunks(device: str, *, seed: int = 7) -> Chunks:
    """Capture the policy and have it make chunks, each from where the one before has led."""
    config = EngineConfig(device=device, seed=seed, num_standby_lanes=0, num_branch_lanes=0)
    with Engine(FlowPolicy.untrained(3), config) as engine:
        engine.handle(protocol.Activate(1, 0, "step", 10.0))
        EmbeddedWriter(engine, "goal").write(stamp_ns=1, values=[0.3, 0.2])
        observations = EmbeddedWriter(engine, "observation")
        made = []
        for number in range(1, NUM_CHUNKS + 1):
            generator = np.random.default_rng(number)
            observations.write(
                stamp_ns=number,
                image=generator.integers(0, 255, (96, 96, 3), dtype=np.uint8),
                agent_pos=generator.random(2, dtype=np.float32) * 0.5,
            )
            stepped = engine.step(protocol.Step(2, 0, 8, -1, 0, 0))
            made += [np.frombuffer(chunk.actions, np.float32) for chunk in stepped.chunks]
    return np.stack(made)


def made_elsewhere(device: str) -> Chunks:
    """Have another process make the chunks."""
    done = subprocess.run(
        [sys.executable, __file__, device], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(bytes.fromhex(done.stdout.decode()), np.float32)


@pytest.mark.parametrize(
    ("where", "make"),
    [("a process", make_chunks), ("two processes", made_elsewhere)],
    ids=["in_a_process", "in_two_processes"],
)
def test_the_same_actions_across_captures(
    device: str,
    where: str,
    make: Callable[[str], Chunks],
    record_property: Callable[[str, object], None],
) -> None:
    expected = make_chunks(device)
    assert len(expected) == NUM_CHUNKS
    found = make(device).reshape(expected.shape)
    is_same = found.tobytes() == expected.tobytes()
    record_property(f"same_actions_in_two_captures_of_{where.replace(' ', '_')}", is_same)
    record_property("largest_difference", f"{np.abs(found - expected).max():.3g}")
    if device == "cpu":
        assert is_same
    np.testing.assert_allclose(found, expected, atol=2e-3)
    # the control: from other noise come other actions
    other = make_chunks(device, seed=8)
    assert np.abs(other - expected).max() > 2e-2


if __name__ == "__main__":
    print(make_chunks(sys.argv[1]).tobytes().hex())
