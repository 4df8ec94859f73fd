"""``transformers`` over the same checkpoint, for the bench ``ttft``."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.ttft_models import TextScale

MAX_ERROR = {torch.float32: 3e-3, torch.bfloat16: 0.2}
"""Largest root mean square error of logits, by their deviation, that the same model may show."""

_RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
_FLA = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")

Rule = Callable[..., Any]
"""Computes one layer's linear attention, as ``transformers`` calls it."""


def why_absent() -> str:
    """Say why there is no ``transformers`` to compare with; "" where there is."""
    if importlib.util.find_spec("transformers") is None:
        return "pip install transformers"
    try:
        module = _module()
    except ImportError as error:
        return f"transformers {_version('transformers')} has no Qwen3-Next ({error})"
    if not all(hasattr(module, name) for name in _RULES):
        return f"transformers {_version('transformers')} picks its kernels in a way unknown here"
    return ""


def why_no_fla(device: str) -> str:
    """Say why ``transformers`` can't run on flash-linear-attention here; "" where it can."""
    if device != "cuda":
        return "flash-linear-attention needs a CUDA device"
    missing = importlib.util.find_spec("fla") is None
    return "pip install flash-linear-attention" if missing else ""


def versions() -> dict[str, str]:
    """Return the versions of what peers and kernels come from."""
    names = ("transformers", "triton", "fla-core", "flash-linear-attention", "causal-conv1d")
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version}


class TransformersPeer:
    """The checkpoint as ``Qwen3NextForCausalLM``, its linear attention chosen by the caller.

    ``transformers`` uses flash-linear-attention by itself wherever it can be imported. So
    the functions that its model looks up are replaced, for the time of a call, by the ones
    that are asked for, and their calls are counted.

    Args:
        scale: How large it is.
        tensors: The checkpoint; shared, not copied.
        device: Where it runs.
    """

    def __init__(
        self, scale: TextScale, tensors: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        self._transformers = transformers = importlib.import_module("transformers")
        # What it would say of packages that are missing, the rows say.
        transformers.logging.set_verbosity_error()
        sizes = {name: value for name, value in scale.sizes.items() if name != "model_type"}
        self._device = device
        with torch.device(device):
            network = transformers.Qwen3NextForCausalLM._from_config(
                transformers.Qwen3NextConfig(**sizes), dtype=scale.dtype
            )
        network.load_state_dict(dict(tensors), assign=True)
        self._network = network.eval().requires_grad_(False)
        named = inspect.signature(network.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._max_error = MAX_ERROR[scale.dtype]
        self._num_calls = 0

    def cold(self, tokens: Sequence[int], *, uses_fla: bool) -> Callable[[], int]:
        """Return a call that computes a text and gives the token after it."""

        def run() -> int:
            with self._rules(uses_fla=uses_fla), torch.no_grad():
                return self._first(tokens, self._empty())[0]

        return run

    def copied(
        self, prefix: Sequence[int], suffix: Sequence[int], *, uses_fla: bool
    ) -> Callable[[], int]:
        """Return a call that copies the cache of a prefix, and computes a suffix on the copy."""
        with self._rules(uses_fla=uses_fla), torch.no_grad():
            cache = self._empty()
            self._first(prefix, cache)

        def run() -> int:
            with self._rules(uses_fla=uses_fla), torch.no_grad():
                return self._first(suffix, copy.deepcopy(cache))[0]

        return run

    def check(self, tokens: Sequence[int], logits: torch.Tensor, *, uses_fla: bool) -> float:
        """Compare logits, and make sure that the linear attention asked for is what ran.

        Args:
            tokens: A text.
            logits: Ours after it, ``float32[V]`` on the host.
            uses_fla: Which linear attention.

        Returns:
            Root mean square error of the logits, by their deviation.

        Raises:
            WrongResultError: It is another model, or ran on something else.
        """
        self._num_calls = 0
        with self._rules(uses_fla=uses_fla), torch.no_grad():
            _, found = self._first(tokens, self._empty())
        if not self._num_calls:
            raise WrongResultError("transformers did not run the linear attention it was given")
        error = float((found.float().cpu() - logits).square().mean().sqrt() / logits.std())
        if not error <= self._max_error:
            raise WrongResultError(
                f"the logits of transformers are off by {error:.3g} of their deviation: "
                "it is not the same model"
            )
        return error

    def _empty(self) -> object:
        return self._transformers.DynamicCache(config=self._network.config)

    def _first(self, tokens: Sequence[int], cache: object) -> tuple[int, torch.Tensor]:
        """Run a text on a cache, which takes it in; return the token after it, and its logits."""
        output = self._network(
            input_ids=torch.tensor([tokens], device=self._device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        logits: torch.Tensor = output.logits[0, -1]
        return int(logits.argmax()), logits

    @contextmanager
    def _rules(self, *, uses_fla: bool) -> Iterator[None]:
        """Have the model find these implementations, and put back what it found before."""
        module = _module()
        before = [getattr(module, name) for name in _RULES]
        for name, rule in zip(_RULES, _rules_of(uses_fla=uses_fla), strict=True):
            setattr(module, name, self._counted(rule))
        try:
            yield
        finally:
            for name, rule in zip(_RULES, before, strict=True):
                setattr(module, name, rule)

    def _counted(self, rule: Rule) -> Rule:
        def counted(*args: object, **kwargs: object) -> object:
            self._num_calls += 1
            return rule(*args, **kwargs)

        return counted


@functools.cache
def _rules_of(*, uses_fla: bool) -> tuple[Rule, ...]:
    """Return the implementations, taking the arguments that they know and no others."""
    if uses_fla:
        source = importlib.import_module("fla.ops.gated_delta_rule")
        return tuple(_knowing(getattr(source, name)) for name in _FLA)
    module = _module()
    # What transformers looks up wraps its own code, or flash-linear-attention's; its own
    # code is what was wrapped.
    return tuple(_knowing(inspect.unwrap(getattr(module, name))) for name in _RULES)


def _knowing(rule: Rule) -> Rule:
    known = frozenset(inspect.signature(rule).parameters)

    @functools.wraps(rule)
    def call(*args: object, **kwargs: object) -> object:
        return rule(*args, **{name: value for name, value in kwargs.items() if name in known})

    return call


def _module() -> Any:
    return importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
