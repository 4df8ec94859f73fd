"""A node attaches again to an engine that was started again, and finds what was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.msg import CapsuleInfo
from flashrt_ros.srv import ListCapsules, RestoreCapsule, SnapshotCapsule

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"


def capsules(peer: Peer) -> dict[str, CapsuleInfo]:
    listed = peer.call(ListCapsules, f"{NODE}/capsule/list")
    assert listed.success, listed.error_msg
    return {one.name: one for one in listed.capsules if one.name}


def test_homes_and_persisted_capsules_are_there_after_a_kill(bench: Bench, peer: Peer) -> None:
    folder = str(bench.folder / "kept")
    engine = bench.engine(capsule_folder=folder)
    bench.policy(connect_timeout_s=5.0)
    peer.bring_up(NODE)
    for name, persist in (("kept", True), ("lost", False)):
        made = peer.call(
            SnapshotCapsule, f"{NODE}/capsule/snapshot", name=name, persist=persist, labels=["k=v"]
        )
        assert made.success, made.error_msg
    peer.until(lambda: all(capsules(peer)[name].digest for name in ("home", "kept")), "files")
    before = capsules(peer)

    engine.kill()
    peer.until(lambda: peer.state(NODE) == "unconfigured", "the end of the session")
    bench.engine(capsule_folder=folder)
    peer.bring_up(NODE)
    after = capsules(peer)
    assert set(after) == {"home", "kept"}
    for name, one in after.items():
        assert (one.id, one.digest) == (before[name].id, before[name].digest)
        assert one.labels == before[name].labels
    restored = peer.call(RestoreCapsule, f"{NODE}/capsule/restore", capsule="kept")
    assert restored.success, restored.error_msg
