"""``flashrt-ros trace``: when goals were written, committed, latched and first acted on."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import msgspec

from flashrt_ros.cli.consoles import make_console
from flashrt_ros.cli.files import check_picture, check_target, target, writing
from flashrt_ros.cli.trace_plot import draw_trace
from flashrt_ros.cli.trace_records import Trace
from flashrt_ros.cli.trace_views import trace_view
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.protocol import Event, OutputKind
from flashrt_ros.errors import ConfigError, EngineGoneError, FlashrtError
from flashrt_ros.nodes.names import check_namespace, is_topic

_ENGINE_S = 2.0
_WAIT_S = 0.1
_OFFSET_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--engine", default=EngineConfig().name, help="engine's name, with its namespace"
    )
    parser.add_argument("--env", type=int, default=0, metavar="N", help="environment (default 0)")
    parser.add_argument(
        "--seconds",
        type=_duration,
        default=10.0,
        metavar="S",
        help="listen so long, or until Ctrl-C; 0 until Ctrl-C alone (default 10)",
    )
    parser.add_argument(
        "--last", type=_duration, default=0.0, metavar="S", help="show the last S seconds alone"
    )
    parser.add_argument("--json", type=target, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--plot", type=target, metavar="FILE", help="draw it (.png, .svg, .pdf)")
    parser.add_argument(
        "--ros",
        action="store_true",
        help="listen to the nodes' topics instead of the engine; names planners and commits",
    )
    parser.add_argument("--namespace", default="", metavar="NAME", help="of the nodes, with --ros")
    for kind in ("policy", "planner"):
        parser.add_argument(
            f"--{kind}-node",
            default=f"{kind}_node",
            metavar="NAME",
            help=f"which {kind} node, with --ros (default {kind}_node)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Listen, then show, write and draw.

    Returns:
        0; 1 where the engine went away meanwhile, after what was heard was shown.

    Raises:
        FlashrtError: There is no engine, no ROS or no matplotlib, no such namespace, or
            nothing can be written where it was to be.
    """
    check_namespace(arguments.namespace)
    for name in (arguments.policy_node, arguments.planner_node):
        if not is_topic(name):
            raise ConfigError("there is no node of such a name", found=repr(name))
    if arguments.json is not None:
        check_target(arguments.json)
    if arguments.plot is not None:
        check_picture(arguments.plot)
    error: FlashrtError | None = None
    trace = Trace(time.time_ns())
    with _Stop(arguments.seconds) as stop:
        if arguments.ros:
            _listen_to_nodes(trace, arguments, stop)
        else:
            try:
                _listen_to_engine(trace, arguments, stop)
            except EngineGoneError as gone:
                if not trace.goals and not trace.moves:
                    raise
                error = gone
    trace.ended_ns = time.time_ns()
    shown = trace.last(arguments.last) if arguments.last else trace
    make_console().print(trace_view(shown))
    if arguments.json is not None:
        plain = {"engine": arguments.engine, "env_index": arguments.env, **shown.plain()}
        with writing(arguments.json):
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2))
    if arguments.plot is not None:
        what = arguments.namespace or "nodes" if arguments.ros else arguments.engine
        title = f"goals of {what}, environment {arguments.env}"
        with writing(arguments.plot):
            draw_trace(shown, arguments.plot, title=title)
    if error is not None:
        raise error
    return 0


class _Stop:
    """Says when to stop: after a time, or at SIGINT or SIGTERM, which end nothing else.

    Args:
        seconds: How long to go on; 0 without end.
    """

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds if seconds else math.inf
        self._is_asked = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __call__(self) -> bool:
        return self._is_asked or time.monotonic() >= self._end_s

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True


def _listen_to_engine(
    trace: Trace, arguments: argparse.Namespace, stop: Callable[[], bool]
) -> None:
    with EngineClient(arguments.engine, client="trace", wait_s=_ENGINE_S) as client:
        client.subscribe(env_index=arguments.env, actions=True, chunks=True, events=True)
        read_s, offset_ns = -math.inf, 0
        while not stop():
            if time.monotonic() - read_s > _OFFSET_S:  # the wall clock may be set
                read_s, offset_ns = time.monotonic(), time.time_ns() - time.monotonic_ns()
            message = client.receive(_WAIT_S)
            if isinstance(message, Event):
                trace.event(message, time.time_ns(), monotonic_to_wall_ns=offset_ns)
            elif message is not None:
                client.release(message)
                kind = OutputKind(message.kind)
                trace.output(message.provenance, kind, message.produced_ns + offset_ns)


def _listen_to_nodes(trace: Trace, arguments: argparse.Namespace, stop: Callable[[], bool]) -> None:
    try:
        from flashrt_ros.nodes.trace_source import listen
    except ImportError as error:
        raise ConfigError(
            "the nodes' topics need ROS", found=str(error), fix="leave --ros out"
        ) from error
    listen(
        arguments.namespace,
        policy=arguments.policy_node,
        planner=arguments.planner_node,
        env_index=arguments.env,
        on_event=trace.event,
        on_output=trace.output,
        on_found=lambda topic: print(f"listening to {topic}", file=sys.stderr, flush=True),
        on_heard=lambda topic: print(f"hears {topic}", file=sys.stderr, flush=True),
        stop=stop,
    )


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds of at least 0, found {text!r}")
    return seconds
