"""The facts that decide whether a capsule's bytes mean the same to an engine."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ArenaLayout, ShapeKey


class Identifiable(Protocol):
    """What every kind of model says of itself."""

    @property
    def name(self) -> str:
        """Of the model."""

    def weights_digest(self) -> str:
        """Return a hash over every weight's name, dtype, shape and bytes, as hex."""

    def programs(self) -> Mapping[ShapeKey, object]:
        """Return every program, by its key."""


def fingerprint_of(
    model: PolicyModel, layout: ArenaLayout, backend: Backend, config: EngineConfig
) -> Fingerprint:
    """Gather the fingerprint of an engine of a policy.

    Fields: those of :func:`common_facts`, ``dtypes`` (of the buffers a capsule holds) and
    ``channels`` (schema of goals and observations).
    """
    return Fingerprint.of(
        {
            **common_facts(model, layout, backend, config.num_threads),
            "dtypes": dtypes_of(layout),
            "channels": schema_of(model),
        }
    )


def common_facts(
    model: Identifiable, layout: ArenaLayout, backend: Backend, num_threads: int
) -> dict[str, object]:
    """Gather the facts that the fingerprint of every kind of engine has.

    Fields: ``model``, ``weights`` (digest over names, dtypes, shapes and bytes, so that
    another quantisation is another digest), ``layout``, ``graphs`` (shape keys), ``torch``,
    ``cuda``, ``device`` (architecture), ``threads`` (of the host's kernels; they decide the
    bytes there and are "any" elsewhere) and ``byte_order``.

    Args:
        model: On its device.
        layout: Of a lane.
        backend: Where the lanes are.
        num_threads: Intra-op threads of the process.
    """
    is_host = backend.name == "cpu"
    return {
        "model": model.name,
        "weights": model.weights_digest(),
        "layout": layout.digest(),
        "graphs": graphs_of(model.programs()),
        "torch": torch.__version__,
        "cuda": "none" if is_host else torch.version.cuda or "none",
        "device": architecture(backend),
        "threads": num_threads if is_host else "any",
        "byte_order": sys.byteorder,
    }


def dtypes_of(layout: ArenaLayout) -> str:
    """Count the buffers that a capsule holds, by dtype."""
    kept = [p.spec for p in layout.placements if p.offset < layout.capsule_bytes]
    dtypes = Counter(spec.dtype for spec in kept)
    return " ".join(f"{dtype}:{count}" for dtype, count in sorted(dtypes.items()))


def graphs_of(keys: Iterable[ShapeKey]) -> str:
    """Name programs by their keys, in an order that does not hang on the model's."""
    return ",".join(sorted("/".join(map(str, key)) for key in keys))


def schema_of(model: PolicyModel) -> str:
    """Digest what a policy's channels hold."""
    return hashlib.sha256(repr(model.channels()).encode()).hexdigest()[:16]


def architecture(backend: Backend) -> str:
    """Name the kind of device that a backend runs on; kinds may round differently."""
    if backend.device.type != "cuda":
        return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    properties = torch.cuda.get_device_properties(backend.device)
    return f"cuda sm_{properties.major}{properties.minor} {properties.name}"
