"""The facts that decide whether a capsule's bytes mean the same to an engine."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import Counter

import torch

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ArenaLayout


def fingerprint_of(
    model: PolicyModel, layout: ArenaLayout, backend: Backend, config: EngineConfig
) -> Fingerprint:
    """Gather the fingerprint of an engine.

    Fields: ``model``, ``weights`` (digest over names, dtypes, shapes and bytes, so that
    another quantisation is another digest), ``dtypes`` (of the buffers a capsule holds),
    ``layout``, ``graphs`` (shape keys), ``channels`` (schema of goals and observations),
    ``torch``, ``cuda``, ``device`` (architecture), ``threads`` (of the host's kernels; they
    decide the bytes there and are "any" elsewhere) and ``byte_order``.
    """
    schema = repr(model.channels()).encode()
    kept = [p.spec for p in layout.placements if p.offset < layout.capsule_bytes]
    dtypes = Counter(spec.dtype for spec in kept)
    is_host = backend.name == "cpu"
    return Fingerprint.of(
        {
            "model": model.name,
            "weights": model.weights_digest(),
            "dtypes": " ".join(f"{dtype}:{count}" for dtype, count in sorted(dtypes.items())),
            "layout": layout.digest(),
            "graphs": ",".join(sorted("/".join(map(str, key)) for key in model.programs())),
            "channels": hashlib.sha256(schema).hexdigest()[:16],
            "torch": torch.__version__,
            "cuda": "none" if is_host else torch.version.cuda or "none",
            "device": architecture(backend),
            "threads": config.num_threads if is_host else "any",
            "byte_order": sys.byteorder,
        }
    )


def architecture(backend: Backend) -> str:
    """Name the kind of device that a backend runs on; kinds may round differently."""
    if backend.device.type != "cuda":
        return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    properties = torch.cuda.get_device_properties(backend.device)
    return f"cuda sm_{properties.major}{properties.minor} {properties.name}"
