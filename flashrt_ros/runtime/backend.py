"""What a backend offers: arenas, slots and captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Buffers = Mapping[str, torch.Tensor]
"""Views over one lane, by buffer name."""

Slots = Mapping[str, torch.Tensor]
"""Views over all slots of a channel's field, by ``"channel.field"``: ``[num_slots, *shape]``.

``"noise.values"`` is the engine-owned ring of drawn noise where the model has a
``noise_shape``.
"""

Program = Callable[[Buffers, Slots], object]
"""Reads and writes buffers in place; reads slots. What it returns is ignored; it keeps nothing."""
