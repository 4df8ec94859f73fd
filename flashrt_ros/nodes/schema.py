"""What goals are expected to be, said in the YAML and compared with the model at configure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.entries import Entry, parse_entries

_KEYS = ("shape", "dtype", "low", "high", "frame", "units")


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """What the YAML says of one field of a goal channel; None where it says nothing.

    Attributes:
        channel: Name of the channel.
        field: Name of the field.
        shape: Extents.
        dtype: NumPy's name of it.
        low: Smallest value.
        high: Largest value.
        frame: Frame that the channel's values stand in.
        units: SI unit.
    """

    channel: str
    field: str
    shape: tuple[int, ...] | None
    dtype: str | None
    low: float | None
    high: float | None
    frame: str | None
    units: str | None


def parse_schema(texts: Sequence[str]) -> tuple[FieldSchema, ...]:
    """Read the parameter ``goal_schema``.

    Args:
        texts: ``"channel.field shape=2 dtype=float32 low=-1 high=1 frame=table units=m"``
            each, any key left out; several extents as ``shape=2x3``.

    Raises:
        ConfigError: An entry can't be read, or comes twice.
    """
    schemas: list[FieldSchema] = []
    for entry in parse_entries("goal_schema", texts, _KEYS):
        channel, dot, field = entry.name.partition(".")
        if not (channel and dot and field):
            raise entry.refused("an entry names no field", expected="'channel.field ...'")
        if (channel, field) in {(known.channel, known.field) for known in schemas}:
            raise entry.refused("a field has two entries", expected="one")
        schemas.append(
            FieldSchema(
                channel,
                field,
                _shape(entry),
                entry.values.get("dtype"),
                entry.number("low", 0.0) if "low" in entry.values else None,
                entry.number("high", 0.0) if "high" in entry.values else None,
                entry.values.get("frame"),
                entry.values.get("units"),
            )
        )
    return tuple(schemas)


def apply_schema(model: ModelInfo, schemas: Sequence[FieldSchema]) -> ModelInfo:
    """Return the model with the narrower ranges of the schema in its goal channels.

    Raises:
        ConfigError: The model has no such goal channel or field, or it is another one
            than the schema says: names what differs. A range wider than the model's is
            one too.
    """
    channels = {channel.name: channel for channel in model.channels}
    for schema in schemas:
        channel = channels.get(schema.channel)
        fields = {field.name: field for field in channel.fields} if channel is not None else {}
        if channel is None or channel.role != "goal" or schema.field not in fields:
            raise ConfigError(
                "parameter 'goal_schema' names what the model lacks",
                expected=", ".join(
                    f"{c.name}.{f.name}"
                    for c in model.channels
                    if c.role == "goal"
                    for f in c.fields
                ),
                found=f"{schema.channel}.{schema.field}",
            )
        narrowed = _narrow(channel, fields[schema.field], schema)
        parts = tuple(narrowed if part.name == narrowed.name else part for part in channel.fields)
        channels[channel.name] = msgspec.structs.replace(channel, fields=parts)
    return msgspec.structs.replace(model, channels=tuple(channels.values()))


def _narrow(channel: ChannelInfo, field: FieldInfo, schema: FieldSchema) -> FieldInfo:
    for what, wanted, found in (
        ("shape", schema.shape, tuple(field.shape)),
        ("dtype", schema.dtype, field.dtype),
        ("frame", schema.frame, channel.frame),
        ("units", schema.units, field.units),
    ):
        if wanted is not None and wanted != found:
            raise _differs(schema, what, wanted, found)
    low = -math.inf if field.low is None else field.low
    high = math.inf if field.high is None else field.high
    if schema.low is not None and schema.low < low:
        raise _differs(schema, "low", schema.low, low)
    if schema.high is not None and schema.high > high:
        raise _differs(schema, "high", schema.high, high)
    return msgspec.structs.replace(
        field,
        low=field.low if schema.low is None else schema.low,
        high=field.high if schema.high is None else schema.high,
    )


def _differs(schema: FieldSchema, what: str, wanted: object, found: object) -> ConfigError:
    return ConfigError(
        f"{what} of '{schema.channel}.{schema.field}' is another one in the model than parameter "
        "'goal_schema' says",
        expected=wanted,
        found=found,
        fix="correct the parameter, or load the model that it was written for",
    )


def _shape(entry: Entry) -> tuple[int, ...] | None:
    text = entry.values.get("shape")
    if text is None:
        return None
    parts = text.split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise entry.refused("'shape' can't be read", expected="shape=2 or shape=2x3")
    return tuple(int(part) for part in parts)
