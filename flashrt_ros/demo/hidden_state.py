"""A policy with hidden state on purpose: what ``prove`` has to catch."""

from __future__ import annotations

from dataclasses import replace

from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, Role

HIDDEN = "momentum"
"""Buffer of the minimal policy that is declared as something else than state."""


class HiddenStatePolicy(MinimalPolicy):
    """Declares as scratch what one chunk leaves to the next, so that no capsule carries it."""

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return the buffers of the base, one of them under the wrong role."""
        return tuple(
            replace(spec, role=Role.SCRATCH) if spec.name == HIDDEN else spec
            for spec in super().buffers()
        )
