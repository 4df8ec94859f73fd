"""What a manifest says is told as far as a message can say it; one odd file hides no other."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from rclpy.serialization import serialize_message

from flashrt_ros.episode.manifest import Manifest, Part, decode_manifest, encode_manifest
from flashrt_ros.nodes.episode_services import episode_info


@pytest.mark.parametrize("tick", ["", "-1", "1.5", "9" * 20, "9" * 5000, "²"])
def test_a_number_that_is_none_is_told_as_zero(tick: str) -> None:
    part = Part("arm", "policy", "c0ffee", facts={"tick": tick, "position": "3"})
    manifest = decode_manifest(encode_manifest(Manifest("one", 2**31 * 10**9 - 1, 0, (part,))))
    info = episode_info(manifest)
    assert (info.tick, info.position, info.capsule_id) == (0, 3, "c0ffee")
    assert serialize_message(info)
