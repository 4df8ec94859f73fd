"""``python -m flashrt_ros.planner``: one planner engine in a process, until told to stop."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.hosting import DEVICE_LOST, FAILURE, Stopper, announce, read_settings
from flashrt_ros.engine.logs import LossyHandler
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.errors import DeviceLostError, FlashrtError, UnknownModelError
from flashrt_ros.planner.config import PlannerConfig, PrefixText

if TYPE_CHECKING:
    from flashrt_ros.models.hybrid_lm import HybridLm
    from flashrt_ros.planner.vocabulary import Tokenizer

PACKAGED = "planner_lm"
"""Name of the model that ships."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a planner engine until a signal or a client's stop.

    Prints one line that starts with "ready" on standard output once clients can
    connect; everything else goes to standard error.

    Returns:
        0 after a stop, 1 when it could not start, 3 after the device was lost.
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
        config = read_settings(
            options.config, PlannerConfig, name=options.name, device=options.device
        )
        serve(config, stopper, factory=options.model_factory, ready_fd=options.ready_fd)
    except FlashrtError as error:
        print(f"flashrt_ros.planner: {error.name}: {error}", file=sys.stderr)
        return DEVICE_LOST if isinstance(error, DeviceLostError) else FAILURE
    return 0


def load_model(
    config: PlannerConfig, factory: str = ""
) -> tuple[HybridLm, Tokenizer, tuple[PrefixText, ...]]:
    """Build the model: a checkpoint's, or what a factory of the user's own makes.

    Args:
        config: Names the checkpoint; "" means the one in the package.
        factory: ``"module:function"``; the function takes the checkpoint's path or None,
            and the configuration, and returns model and tokenizer.

    Returns:
        The model, its tokenizer, and the prefixes that it was trained with, if it was
        with any.

    Raises:
        UnknownModelError: No such module or function, or a name without a checkpoint.
        ConfigError: Config or tokenizer can't be used.
        WeightsError: The weights can't be used.
    """
    checkpoint = Path(config.checkpoint) if config.checkpoint else None
    if factory:
        module, _, function = factory.partition(":")
        try:
            make = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise UnknownModelError(
                f"no model factory '{factory}'", expected="module:function", found=error
            ) from error
        model, tokenizer = make(checkpoint, config)
        return model, tokenizer, ()
    if checkpoint is None and config.model != PACKAGED:
        raise UnknownModelError(
            f"no language model is named '{config.model}'",
            expected=f"'{PACKAGED}', or a checkpoint",
            fix="set the engine parameter 'checkpoint' to a folder",
        )
    from flashrt_ros.models.planner_lm import load_planner_lm
    from flashrt_ros.models.planner_text import PLANNER_PREFIX

    own, text = load_planner_lm(
        checkpoint,
        max_positions=config.max_positions,
        chunk_length=config.chunk_length,
        device=config.device,
    )
    is_packaged = config.model == PACKAGED
    return own, text, (PrefixText("task", PLANNER_PREFIX),) if is_packaged else ()


def serve(
    config: PlannerConfig, stopper: Stopper, *, factory: str = "", ready_fd: int = -1
) -> None:
    """Claim the name, build the engine, serve until stopped; what was taken is given back.

    Raises:
        EngineRunningError: An engine of this name runs.
        DeviceLostError: The device's context is gone; the process must end.
        FlashrtError: The model can't be built or captured.
    """
    # The name first: a second engine is refused before it loads anything.
    with EngineSocket(config.name, group=config.socket_group) as address:
        from flashrt_ros.planner.engine import PlannerEngine

        model, tokenizer, prefixes = load_model(config, factory)
        with (
            PlannerEngine(model, tokenizer, config, prefixes=prefixes) as engine,
            EngineServer(engine, address) as server,
        ):
            # What was loaded stays: the collector need not look at it in the loop.
            gc.collect()
            gc.freeze()
            stopper.attach(server)
            announce(config.name, engine.epoch, ready_fd)
            server.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.planner", description=main.__doc__)
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
        help="build model and tokenizer with this function; it takes the path of the checkpoint "
        "or None, and the PlannerConfig",
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
