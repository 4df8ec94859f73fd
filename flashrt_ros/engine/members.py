"""Engines of policies as members of a process: configuration, model, and how each is built."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.host import Member
from flashrt_ros.engine.host_channels import Commons
from flashrt_ros.engine.host_process import MemberPlan
from flashrt_ros.engine.hosting import read_settings

if TYPE_CHECKING:
    from flashrt_ros.models.base import PolicyModel


def read_config(file: str, *, name: str = "", device: str = "") -> EngineConfig:
    """Read a configuration from a YAML or JSON file.

    Args:
        file: Its path; "-" for standard input, "" for the defaults.
        name: Takes the place of the file's name for the engine, unless "".
        device: Takes the place of the file's device, unless "".

    Raises:
        ConfigError: The file can't be read, or is no mapping.
        UnknownParameterError: Nothing declares a parameter in it.
        ParameterTypeError: A parameter has another type.
    """
    return read_settings(file, EngineConfig, name=name, device=device)


def load_model(config: EngineConfig, factory: str = "") -> PolicyModel:
    """Build the model: the registry's, or what a factory of the user's own makes.

    Args:
        config: Names the model and its weights.
        factory: ``"module:function"``, in place of the configuration's model.

    Raises:
        UnknownModelError: No such model, module or function.
        WeightsError: The weights can't be used.
    """
    from flashrt_ros.models import registry

    weights = Path(config.weights) if config.weights else None
    return registry.create(factory or config.model, weights)


def member_plan(config: EngineConfig, factory: str = "") -> MemberPlan:
    """Plan an engine of a policy as a member of a process; nothing is loaded yet.

    Args:
        config: Validated.
        factory: As of :func:`load_model`.
    """

    def build(address: EngineSocket, owned: ExitStack, commons: Commons) -> Member:
        from flashrt_ros.engine.engine import Engine

        model = load_model(config, factory)
        shared = commons.shared(config, model, owned)
        engine = Engine(model, config, shared=shared, feeds=commons.feeds(config))
        commons.add(config.name, owned.enter_context(engine))
        return Member(engine, address)

    return MemberPlan(
        name=config.name,
        socket_group=config.socket_group,
        device=config.device,
        num_threads=config.num_threads,
        build=build,
        settings=config,
    )
