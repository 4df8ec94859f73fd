"""A save that waits for its disk does not hold up the thread that hears of a new ``home``."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from flashrt_ros.engine import address
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.msg import CapsuleInfo
from flashrt_ros.nodes.reports import FACT_QOS
from flashrt_ros.srv import SaveCapsule

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"

_NUM_HOMES = 20
"""By the last of them the node has long sent the save."""


def is_told(homes: list[CapsuleInfo], capsule_id: str) -> bool:
    return bool(homes[-1].id == capsule_id)


def test_a_new_home_is_told_while_a_save_waits_for_the_disk(
    fresh_bench: Bench, fresh_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = fresh_peer
    for variable in ("XDG_RUNTIME_DIR", address.FOLDER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", fresh_bench.environment["XDG_RUNTIME_DIR"])
    folder = fresh_bench.folder / "capsules"
    fresh_bench.engine(capsule_folder=str(folder))
    fresh_bench.policy(joint_names=["agent_x", "agent_y"])
    homes = peer.listen(CapsuleInfo, f"{NODE}/home", FACT_QOS)
    peer.bring_up(NODE)
    first = peer.until(lambda: homes and homes[-1].id, "home")

    # The disk: a save is whole once its name is, and names change under this lock.
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with EngineClient("engine", client="test") as client:
            client.snapshot("slow")
            request = SaveCapsule.Request(capsule="slow")
            saved = peer.send(SaveCapsule, f"{NODE}/capsule/save", request)
            for _ in range(_NUM_HOMES):
                made = client.snapshot("home", replace=True).capsule.id
                assert made != first
                peer.until(partial(is_told, homes, made), "the new home")
        assert not saved.done()
    finally:
        os.close(lock)
    peer.until(saved.done, "the save")
    assert saved.result().success, saved.result().error_msg
