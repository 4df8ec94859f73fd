"""Brings the parts of one observation together by stamp and writes them into a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sensor_msgs.msg import Image, JointState

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import ConfigError, PayloadTypeError, UnknownChannelError
from flashrt_ros.nodes.conversions import (
    Array,
    fit_image,
    image_view,
    joint_positions,
)

_DEPTH = 16


class StampSync:
    """Finds one message of every source that belong together.

    Equal stamps are preferred: a source that has matched exactly before is waited
    for until a later message of it shows that the equal one is not coming. A source
    that never did is matched at once with its nearest message within the slop.

    A message that was in no set when it was left behind, pushed out, or became older
    than ``patience_ns`` beside the newest of any source found no partner in time; it is
    counted in :attr:`num_alone`.

    Args:
        sources: Names of the sources; the first one's stamp is the set's.
        slop_ns: Largest difference between stamps of one set.
        patience_ns: Longest wait for partners, by stamps.

    Attributes:
        num_alone: Messages of each source that found no partner in time. A source that
            is faster than the slowest has some by nature.
    """

    def __init__(self, sources: Sequence[str], *, slop_ns: int, patience_ns: int) -> None:
        self._sources = tuple(sources)
        self._slop_ns = slop_ns
        self._patience_ns = patience_ns
        self.num_alone = dict.fromkeys(sources, 0)
        self._queues: dict[str, deque[tuple[int, Any]]] = {source: deque() for source in sources}
        self._is_exact = dict.fromkeys(sources, False)
        self._before_ns = dict.fromkeys(sources, -1)
        self._last_ns = -1

    def add(self, source: str, stamp_ns: int, message: Any) -> tuple[int, dict[str, Any]] | None:
        """Take a message in; return the newest whole set that it completes.

        Messages that are not newer than the last set's stamp complete nothing, so
        that sets come in order. What a set leaves behind is forgotten.

        Args:
            source: One of the sources.
            stamp_ns: The message's stamp.
            message: Kept until it was matched or pushed out by newer ones.

        Returns:
            The first source's stamp and the messages by source, or None.
        """
        self._queues[source].append((stamp_ns, message))
        self._let_go()
        first = self._sources[0]
        for lead_ns, lead in sorted(self._queues[first], key=lambda item: item[0], reverse=True):
            if lead_ns <= self._last_ns:
                break
            matched: dict[str, tuple[int, Any]] = {first: (lead_ns, lead)}
            for other in self._sources[1:]:
                match = self._match(other, lead_ns)
                if match is None:
                    break
                matched[other] = match
            if len(matched) == len(self._sources):
                self._last_ns = lead_ns
                for name, (used_ns, _) in matched.items():
                    self._is_exact[name] |= used_ns == lead_ns
                    queue = self._queues[name]
                    keep = [item for item in queue if item[0] > used_ns]
                    # Repeats of what was used, or of sets before it, were in a set.
                    left = {at for at, _ in queue if self._before_ns[name] < at < used_ns}
                    self.num_alone[name] += len(left)
                    self._before_ns[name] = used_ns
                    queue.clear()
                    queue.extend(keep)
                return lead_ns, {name: item for name, (_, item) in matched.items()}
        return None

    def rewind(self, now_ns: int) -> None:
        """Let older stamps in again if the last set's lies in the future.

        Otherwise a clock set back, as simulated time is, or one frame with a stamp
        ahead of its time would shut out every frame until the clock gets there.

        Args:
            now_ns: Clock of the stamps.
        """
        if self._last_ns > now_ns + self._slop_ns:
            self._last_ns = -1
            self._before_ns = dict.fromkeys(self._sources, -1)
            for queue in self._queues.values():
                keep = [item for item in queue if item[0] <= now_ns + self._slop_ns]
                queue.clear()
                queue.extend(keep)

    def forget(self) -> None:
        """Let the last set, and older ones, in again; what waits to be matched stays."""
        self._last_ns = -1

    def _let_go(self) -> None:
        """Forget what has waited too long, or is too much."""
        newest_ns = max(at for queue in self._queues.values() for at, _ in queue)
        for name, queue in self._queues.items():
            while queue and (len(queue) > _DEPTH or queue[0][0] < newest_ns - self._patience_ns):
                self.num_alone[name] += queue.popleft()[0] > self._before_ns[name]

    def _match(self, source: str, lead_ns: int) -> tuple[int, Any] | None:
        queue = self._queues[source]
        if not queue:
            return None
        stamp_ns, message = min(queue, key=lambda item: abs(item[0] - lead_ns))
        if abs(stamp_ns - lead_ns) > self._slop_ns:
            return None
        if stamp_ns != lead_ns and self._is_exact[source] and max(s for s, _ in queue) < lead_ns:
            return None
        return stamp_ns, message


@dataclass(frozen=True, slots=True)
class ObservationMap:
    """Which source fills which field of the observation channel.

    Attributes:
        channel: The model's observation channel.
        cameras: Field of each image topic.
        joints: Field that joint states fill, or None.
        joint_names: Joints of that field, in its order.
    """

    channel: ChannelInfo
    cameras: Mapping[str, FieldInfo]
    joints: FieldInfo | None
    joint_names: tuple[str, ...]


def map_observation(
    model: ModelInfo,
    *,
    cameras: Sequence[str],
    camera_fields: Sequence[str],
    joint_field: str,
    joint_names: Sequence[str],
) -> ObservationMap:
    """Decide which source fills which field; every field must be filled by one.

    Args:
        model: What the engine said of its model.
        cameras: Image topics.
        camera_fields: Field of each, or empty: the field named like the topic, or the
            only one of uint8.
        joint_field: Field of the joint states; "" means the only float field.
        joint_names: Joints in the field's order; empty means the model's.

    Raises:
        ConfigError: A field stays empty, or is named twice, or does not exist.
        UnknownChannelError: The model has not exactly one observation channel.
    """
    channels = [channel for channel in model.channels if channel.role == "observation"]
    if len(channels) != 1:
        raise UnknownChannelError(
            f"model '{model.name}' has no single observation channel",
            expected="one",
            found=", ".join(channel.name for channel in channels) or "none",
        )
    channel = channels[0]
    fields = {field.name: field for field in channel.fields}
    images = [field.name for field in channel.fields if field.dtype == "uint8"]
    floats = [field.name for field in channel.fields if field.dtype.startswith("float")]
    wanted = list(camera_fields)
    if not wanted:
        one = len(cameras) == 1 and len(images) == 1
        wanted = images if one else [camera.rsplit("/", 1)[-1] for camera in cameras]
    if len(wanted) != len(cameras):
        raise ConfigError(
            "parameter 'camera_fields' has not one entry for each camera",
            expected=f"{len(cameras)} names",
            found=", ".join(wanted) or "none",
        )
    joint = joint_field or (floats[0] if len(floats) == 1 else "")
    used = [*wanted, *([joint] if joint else [])]
    if sorted(used) != sorted(fields):
        raise ConfigError(
            f"the observation of model '{model.name}' is not filled field by field",
            expected=", ".join(f"{f.name} ({f.dtype}{list(f.shape)})" for f in fields.values()),
            found=", ".join(used) or "no source",
            fix="set cameras, camera_fields and joint_field"
            if images
            else 'set cameras: [""], as the model has no image field, and joint_field',
        )
    names = tuple(joint_names) or model.joint_names
    if joint and int(np.prod(fields[joint].shape)) != len(names):
        raise ConfigError(
            f"parameter 'joint_names' does not fit observation field '{joint}'",
            expected=f"{int(np.prod(fields[joint].shape))} names",
            found=", ".join(names),
        )
    return ObservationMap(
        channel,
        {camera: fields[field] for camera, field in zip(cameras, wanted, strict=True)},
        fields[joint] if joint else None,
        names,
    )


def prepare(
    plan: ObservationMap, images: Mapping[str, Image], joints: JointState | None
) -> dict[str, Array]:
    """Return values by field; images stay views over their messages.

    So each byte of an image is copied once, into the slot. The writer judges the rest before it
    touches a slot: dtype, range, and a position that the field's dtype makes Inf.

    Args:
        plan: Which source fills which field.
        images: One message for each camera.
        joints: The joint state, where the plan wants one.

    Raises:
        PayloadTypeError: An encoding that is not taken, or no joint state.
        PayloadShapeError: An image of another size, or inconsistent.
        JointStateError: A joint is missing or named twice, or has no position.
        NonFiniteError: A position is NaN or Inf.
    """
    values: dict[str, Array] = {}
    for camera, field in plan.cameras.items():
        values[field.name] = fit_image(image_view(images[camera]), field)
    if plan.joints is not None:
        if joints is None:
            raise PayloadTypeError("the observation has no joint state")
        positions = joint_positions(joints, plan.joint_names)
        values[plan.joints.name] = positions.astype(plan.joints.dtype).reshape(plan.joints.shape)
    return values
