"""A proof passes what ships, raises with a name, and is written for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashrt_ros.errors import DeviceLostError, ProofError
from flashrt_ros.models import registry
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.proof import prove as prove_module
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import CheckName, Proof
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.spec import Role
from test.proof.changed_policy import CARRIED, DEVICES, carry, changed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(registry.MODELS))
def test_every_model_of_the_registry_is_proved(name: str, device: str) -> None:
    proof = prove(lambda: registry.create(name), device=device)
    assert proof.findings == ()
    assert proof.device == device
    proof.require()
    assert [check.check for check in proof.checks] == list(CheckName)
    assert all(check.passed and check.num_runs > 0 for check in proof.checks)
    state = [b.name for b in registry.create(name).buffers() if b.role is Role.STATE]
    assert [result.buffer for result in proof.buffers] == state


def test_two_proofs_of_one_model_agree() -> None:
    def facts(proof: Proof) -> object:
        return proof.checks, proof.buffers, proof.findings

    assert facts(prove(MinimalPolicy)) == facts(prove(MinimalPolicy))


@pytest.mark.parametrize("device", DEVICES)
def test_declared_state_that_crosses_chunks_is_proved(device: str) -> None:
    # the twin of the tests below: the same programs with the buffer declared
    assert changed(carry(Role.STATE), after=CARRIED, device=device).findings == ()


class LosesTheDevice(CpuBackend):
    """A backend whose device is lost at its thousandth reading."""

    num_reads = 0

    def read(self, address: int, num_bytes: int) -> bytes:
        self.num_reads += 1
        if self.num_reads > 1000:
            raise DeviceLostError("the device is lost")
        return super().read(address, num_bytes)


def test_a_device_that_is_lost_ends_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_module, "make_backend", lambda device: LosesTheDevice())
    with pytest.raises(DeviceLostError):
        prove(MinimalPolicy)


def test_a_failed_proof_raises_with_the_buffers_name() -> None:
    proof = changed(carry(Role.SCRATCH), after=CARRIED)
    with pytest.raises(ProofError, match="'carry'"):
        proof.require()


def test_a_proof_is_written_as_json(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    prove(MinimalPolicy, num_ticks=6, seed=3).write(file)
    plain = json.loads(file.read_text())
    assert plain["proved"] is True
    assert (plain["device"], plain["num_ticks"], plain["seed"]) == ("cpu", 6, 3)
    assert plain["findings"] == []
    assert {buffer["verdict"] for buffer in plain["buffers"]} == {"inert", "matters", "noise"}
