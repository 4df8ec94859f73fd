"""Texts and planner engines of the bench ``barge_in``: one set of weights, a fixed prefix."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flashrt_ros.bench.cohost_planner import CharacterTokenizer
from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.ttft_models import BIG, SMALL, TINY, TextScale
from flashrt_ros.models.hybrid_borders import split_at_borders
from flashrt_ros.models.hybrid_checkpoint import random_tensors
from flashrt_ros.models.hybrid_kernels import select_kernels
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_weights import pack
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.engine import PlannerEngine
from flashrt_ros.runtime.spec import ArenaLayout

NUM_INSTRUCTED = 50
"""Tokens of the instruction that barges in; under 64, as most are, so that one node takes it."""

LONG_PLAN, SHORT_PLAN = 64, 24
"""Most tokens of the plan that is interrupted, and of the new one, which is one subgoal."""

START = "prefix.start"
"""Capsule from which a whole prefix is still to be computed: it ends on the border at 0."""

_BLOCK = 256  # of positions: more than any kernel takes at a time

_NUM_CAPSULES = 4
"""Callers' blocks: two prefixes, the home, and one to replace any of them."""

_SEED = 0


@dataclass(frozen=True, slots=True)
class BargeScale:
    """How large everything is.

    Attributes:
        model: Sizes and dtype.
        prefix: Tokens of the pinned prefix, a multiple of 64.
        long: Tokens of the instruction that is interrupted.
        chunks: Chunk lengths. The first one is what a planner would set, for which the
            targets are; the other one shows what a longer one costs.
    """

    model: TextScale
    prefix: int
    long: int
    chunks: tuple[int, int]

    @property
    def max_positions(self) -> int:
        """Tokens that a lane holds: prefix, the long turn, and up to a whole number of blocks."""
        needed = self.prefix + self.long + LONG_PLAN
        return -(-needed // _BLOCK) * _BLOCK


SCALES: Mapping[str, BargeScale] = {
    "cuda": BargeScale(BIG, prefix=4096, long=2080, chunks=(512, 2048)),
    "cpu": BargeScale(SMALL, prefix=2048, long=544, chunks=(64, 256)),
    "tiny": BargeScale(TINY, prefix=128, long=288, chunks=(64, 128)),
}
"""By device, and for a look."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What is said; one token for each character.

    Attributes:
        prefixes: Parts of the prefix as a configuration has them. The first one is a single
            token, so that its capsule holds nothing yet.
        long: Instruction that is interrupted.
        short: Instruction that barges in.
        cold: Tokens of the prefix past its first one, and of the short instruction.
    """

    prefixes: tuple[str, str]
    long: bytes
    short: bytes
    cold: tuple[int, ...]

    @classmethod
    def of(cls, scale: BargeScale) -> Texts:
        """Draw them; the same each time."""
        rng = random.Random(_SEED)
        breaks = 2  # before an instruction and after it
        rest = _words(rng, scale.prefix - breaks)  # after the first token, and its line break
        long, short = (_words(rng, n - breaks) for n in (scale.long, NUM_INSTRUCTED))
        cold = CharacterTokenizer().encode(f"\n{rest}\n{short}\n")
        return cls(("start = P", f"rest = {rest}"), long.encode(), short.encode(), tuple(cold))


class BargeInStand:
    """Builds planner engines over one set of weights; one engine at a time.

    Args:
        device: Where they run.
        scale: How large they are.

    Attributes:
        texts: What they are told.
    """

    def __init__(self, device: Device, scale: BargeScale) -> None:
        self.scale = scale
        self.texts = Texts.of(scale)
        self._device = device
        self._target = str(device.torch_device)
        config, dtype = scale.model.config, scale.model.dtype
        tensors = random_tensors(config, _SEED, dtype=dtype, device=self._target)
        self._weights = pack(tensors, config, dtype=dtype, device=self._target)

    def model(self, chunk_length: int) -> HybridLm:
        """Make a model that prefills by chunks of a length; the weights are shared."""
        return HybridLm(
            self.scale.model.config,
            self._weights,
            max_positions=self.scale.max_positions,
            chunk_length=chunk_length,
            kernels=select_kernels(self._target),
        )

    def engine(self, model: HybridLm, clock_ns: Callable[[], int]) -> PlannerEngine:
        """Build an engine with its prefix in place; the caller closes it.

        Args:
            model: Of :meth:`model`; engines may share it.
            clock_ns: Its clock.
        """
        block_bytes = ArenaLayout.of(model.buffers()).capsule_bytes
        config = PlannerConfig(
            model="random",
            device=self._device.name,
            max_positions=model.max_positions,
            chunk_length=model.chunk_length,
            prefixes=self.texts.prefixes,
            max_tokens=LONG_PLAN,
            may_refuse=False,
            rollback_depth=1,
            interrupt_depth=1,
            capsule_quota_bytes=_NUM_CAPSULES * block_bytes,
            capsule_host_quota_bytes=0,
        )
        return PlannerEngine(model, CharacterTokenizer(), config, clock_ns=clock_ns)

    def num_prefill_nodes(self, chunk_length: int) -> int:
        """Count the nodes that take the long instruction in."""
        return len(list(split_at_borders(self.scale.prefix, self.scale.long, chunk_length)))


def _words(rng: random.Random, length: int) -> str:
    """Draw letters and single blanks, none of them at an end."""
    letters = rng.choices(string.ascii_lowercase, k=length)
    for at in range(5, length - 1, 6):
        letters[at] = " "
    return "".join(letters)
