"""``python -m flashrt_ros.engine``: one engine in a process of its own, until told to stop."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.hosting import DEVICE_LOST, FAILURE, Stopper, announce, read_settings
from flashrt_ros.engine.logs import LossyHandler
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.errors import DeviceLostError, FlashrtError, UnknownModelError

if TYPE_CHECKING:
    from flashrt_ros.models.base import PolicyModel

logger = logging.getLogger("flashrt_ros.engine")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an engine until a signal or a client's stop.

    Prints one line that starts with "ready" on standard output once clients can
    connect; everything else goes to standard error.

    Returns:
        0 after a stop, :data:`FAILURE` when it could not start, :data:`DEVICE_LOST`.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        handlers=[LossyHandler(sys.stderr.fileno())],
        format="%(levelname)s %(name)s: %(message)s",
    )
    stopper = Stopper()
    stopper.install()
    try:
        config = read_config(options.config, name=options.name, device=options.device)
        serve(config, stopper, factory=options.model_factory, ready_fd=options.ready_fd)
    except FlashrtError as error:
        print(f"flashrt_ros.engine: {error.name}: {error}", file=sys.stderr)
        return DEVICE_LOST if isinstance(error, DeviceLostError) else FAILURE
    return 0


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
        factory: ``"module:function"``; the function takes a weights path or None.

    Raises:
        UnknownModelError: No such model, module or function.
        WeightsError: The weights can't be used.
    """
    from flashrt_ros.models import registry

    weights = Path(config.weights) if config.weights else None
    if not factory:
        return registry.create(config.model, weights)
    module, _, function = factory.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownModelError(
            f"no model factory '{factory}'", expected="module:function", found=error
        ) from error
    model: PolicyModel = make(weights)
    return model


def serve(config: EngineConfig, stopper: Stopper, *, factory: str = "", ready_fd: int = -1) -> None:
    """Claim the name, build the engine, serve until stopped; what was taken is given back.

    Raises:
        EngineRunningError: An engine of this name runs.
        DeviceLostError: The device's context is gone; the process must end.
        FlashrtError: The model can't be built or captured.
    """
    # The name first: a second engine is refused before it loads anything.
    with EngineSocket(config.name, group=config.socket_group) as address:
        from flashrt_ros.engine.engine import Engine

        with (
            Engine(load_model(config, factory), config) as engine,
            EngineServer(
                engine,
                address,
                poll_reserve_us=config.poll_reserve_us,
                busy_poll_us=config.busy_poll_us,
            ) as server,
        ):
            if config.rt_priority:
                request_priority(config.rt_priority)
            # What was loaded stays: the collector need not look at it in the loop.
            gc.collect()
            gc.freeze()
            stopper.attach(server)
            announce(config.name, engine.epoch, ready_fd)
            server.run()


def request_priority(priority: int) -> bool:
    """Ask for SCHED_FIFO; a refusal is logged with its cure, and the engine goes on without.

    Returns:
        Whether it was granted.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except (PermissionError, OSError) as error:
        logger.warning(
            "SCHED_FIFO priority %d was refused (%s): ticks will be late when the cores are busy; "
            "raise the limit of rtprio for this user, e.g. in /etc/security/limits.d",
            priority,
            error,
        )
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.engine", description=main.__doc__)
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="parameters as a YAML or JSON mapping; '-' reads standard input",
    )
    parser.add_argument("--name", default="", help="engine name, instead of the file's")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N, instead of the file's")
    parser.add_argument(
        "--model-factory",
        default="",
        metavar="MODULE:FUNCTION",
        help="build the model with this function instead of the registry; it takes the path of "
        "the weights or None and returns a PolicyModel",
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        default=-1,
        metavar="FD",
        help="write 'ready' to this descriptor and close it, once clients can connect",
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
