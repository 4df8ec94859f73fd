"""``python -m flashrt_ros.engine``: engines in a process of their own, until told to stop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.host import Member
from flashrt_ros.engine.host_channels import Commons
from flashrt_ros.engine.host_process import MemberPlan, request_priority, serve_members
from flashrt_ros.engine.hosting import (
    Stopper,
    add_options,
    read_settings,
    run_process,
)
from flashrt_ros.engine.leaving import leave

if TYPE_CHECKING:
    from flashrt_ros.models.base import PolicyModel

__all__ = ["load_model", "main", "member_plan", "read_config", "request_priority"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one engine, or several in one process, until a signal or a client's stop.

    Prints one line for each that starts with "ready" on standard output once clients can
    connect; everything else goes to standard error.

    Returns:
        0 after a stop, 1 when it could not start, 3 after the device was lost.
    """
    options = _parser().parse_args(arguments)

    def work(stopper: Stopper) -> None:
        files = options.config or [""]
        names = [options.name, *([""] * len(files))]
        configs = [
            read_config(file, name=name, device=options.device)
            for file, name in zip(files, names, strict=False)
        ]
        plans = [member_plan(config, options.model_factory) for config in configs]
        serve_members(plans, stopper, ready_fd=options.ready_fd)

    return run_process("flashrt_ros.engine", options.log_level, work)


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.engine", description=main.__doc__)
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="parameters as a YAML or JSON mapping; '-' reads standard input; given again, another "
        "engine in the same process",
    )
    add_options(
        parser,
        builds="each model",
        takes="the path of the weights or None, and returns a PolicyModel",
    )
    return parser


if __name__ == "__main__":
    leave(main())
