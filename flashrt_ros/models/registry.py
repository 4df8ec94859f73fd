"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashrt_ros.errors import UnknownModelError, WeightsError
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.models.factories import load_factory

ModelFactory = Callable[[Path | None], PolicyModel]
"""Builds a model from a weights file; None takes the weights that ship with the package."""


def _flow_policy(weights: Path | None) -> PolicyModel:
    from flashrt_ros.models.flow_policy import FlowPolicy

    return FlowPolicy.load(weights)


def _minimal(weights: Path | None) -> PolicyModel:
    from flashrt_ros.models.minimal import MinimalPolicy

    if weights is not None:
        raise WeightsError("the model 'minimal' takes no weights", found=weights)
    return MinimalPolicy()


MODELS: dict[str, ModelFactory] = {"flow_policy": _flow_policy, "minimal": _minimal}
"""Every model that ships; each passes ``flashrt-ros prove``."""


def create(name: str, weights: Path | None = None) -> PolicyModel:
    """Build a model of the registry, or one of your own.

    Args:
        name: A key of :data:`MODELS`, or ``"module:function"``: a :data:`ModelFactory` that can
            be imported.
        weights: A safetensors file, or None for the weights in the package.

    Raises:
        UnknownModelError: No model or function has this name, or it makes something else.
        WeightsError: The file is missing, damaged or of another architecture.
    """
    if ":" in name:
        made = load_factory(name)(weights)
        if not isinstance(made, PolicyModel):
            raise UnknownModelError(
                f"'{name}' makes no model", expected="a PolicyModel", found=type(made).__name__
            )
        return made
    try:
        factory = MODELS[name]
    except KeyError:
        raise UnknownModelError(
            f"no model is named '{name}'",
            expected=f"one of {', '.join(sorted(MODELS))}, or module:function",
        ) from None
    return factory(weights)
