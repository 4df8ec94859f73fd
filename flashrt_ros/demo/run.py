"""The demo from curtain to curtain: robot, checks, controls, report, picture."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from flashrt_ros.demo import plot
from flashrt_ros.demo.report import Report, host
from flashrt_ros.demo.scenarios import (
    branching,
    leaks,
    lockstep,
    naming,
    stale,
    timings,
    transport,
)
from flashrt_ros.demo.scenarios.episodes import run_episodes
from flashrt_ros.demo.scenarios.words import run_words
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.stage import Hire, InterruptedBySignal, Stage
from flashrt_ros.demo.table import Board, LiveView, View, summary
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.configuration import Configuration

PLOT_FILE = Path("flashrt_demo.png")
"""Where the picture goes when nobody says, unless headless."""

_GOAL: Point = (0.20, 0.20)
_OTHER_GOAL: Point = (0.32, 0.12)
_LOG_LINES = 25
_LOG_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        num_episodes: To run.
        is_headless: Plain lines instead of a live table; a picture only if asked for.
        json_file: Where the report goes, None for nowhere.
        plot_file: Where the picture goes, None for the default.
    """

    num_episodes: int = 20
    is_headless: bool = False
    json_file: Path | None = None
    plot_file: Path | None = None


def run_demo(options: Options, configuration: Configuration, hire: Hire) -> int:
    """Run everything; whatever happens, what was started is stopped.

    Args:
        options: Of the command line.
        configuration: Of engine and nodes.
        hire: Starts the processes.

    Returns:
        0 if every check and every control held, else 1.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _LOG_COLUMNS
    board = Board(num_episodes=options.num_episodes)
    is_live = not options.is_headless and console.is_terminal
    view: View = LiveView(board, console) if is_live else View(board, console)
    report = Report(on_change=view.entry)
    stage = Stage(hire, configuration)
    scene = Scene(stage, report, view)
    with view, _signals_interrupt(stage):
        _part(scene, "the robot", lambda: _on_stage(scene, options))
        _part(scene, "what is left", lambda: leaks.check_processes(scene))
        _part(scene, "without ROS", lambda: _off_stage(scene, options, configuration))
    _conclude(scene, options, console)
    return 0 if report.is_passed else 1


def _on_stage(scene: Scene, options: Options) -> None:
    view = scene.view
    view.phase("starting engine, nodes, robot and planner")
    with scene.stage:
        names = ", ".join(f"{name} {pid}" for name, pid in scene.stage.pids.items())
        view.say(f"up: {names}")
        run_episodes(scene, options.num_episodes)
        run_words(scene)
        view.phase("lockstep: snapshot, restore, interrupt, resume")
        lockstep.enter_lab(scene, _GOAL)
        lockstep.check_replay(scene)
        lockstep.check_resume(scene, _OTHER_GOAL)
        lockstep.control_latency(scene, _OTHER_GOAL)
        branching.control_forks(scene, _GOAL)
        view.phase("the reset as a barrier")
        stale.check_stale(scene, _GOAL)
        naming.check_names(scene)
        view.phase("goals: copies, torn reads")
        transport.check_copies(scene, _GOAL)
        transport.check_torn(scene)
        view.phase("what a reset costs")
        timings.measure(scene)
        view.phase("clients come and go")
        leaks.check_leaks(scene)
        view.phase("stopping")


def _off_stage(scene: Scene, options: Options, configuration: Configuration) -> None:
    # Here, because it takes torch, and the curtain should not wait for that.
    from flashrt_ros.demo.scenarios import without_ros
    from flashrt_ros.models import registry

    scene.view.phase("controls: untrained weights, black image")
    engine = configuration.engine
    weights = Path(engine.weights) if engine.weights else None
    model = registry.create(engine.model, weights)
    without_ros.control_copies(scene, model)
    without_ros.control_reach(scene, model, options.num_episodes)
    scene.view.phase("prove: is the declared state the whole state?")
    without_ros.check_state(scene, engine.model, weights)


def _part(scene: Scene, name: str, body: Callable[[], None]) -> None:
    """Run a part; if it can't go on, say why, and let the others have their turn."""
    try:
        scene.stage.require_going()
        body()
        scene.stage.require_going()
    except (ScenarioError, FlashrtError) as error:
        scene.report.fail(f"{name}: {error}")
        scene.view.say(f"{name} ended early: {error}")
    except Exception as error:  # noqa: BLE001 - the boundary of a part of the demo
        scene.report.fail(f"{name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")
        scene.view.say(f"{name} ended early: {type(error).__name__}: {error}")


def _conclude(scene: Scene, options: Options, console: Console) -> None:
    report = scene.report
    console.print()
    console.print(summary(scene.view.board.entries))
    console.print()
    for failure in report.failures:
        console.print(f"[bold red]✗[/bold red] {escape(failure)}", highlight=False, soft_wrap=True)
    if report.failures:
        for line in list(scene.stage.log)[-_LOG_LINES:]:
            console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    if report.missing:
        console.print("not measured: " + ", ".join(report.missing), style="red")
    facts = host()
    if options.json_file is not None:
        report.write(options.json_file, command=" ".join(sys.argv))
        console.print(f"report: {options.json_file}", highlight=False)
    picture = options.plot_file or (None if options.is_headless else PLOT_FILE)
    drawn = [trace for trace in scene.traces if len(trace.path) > 1]
    if picture is not None and drawn:
        plot.save(
            picture,
            drawn,
            report.figures,
            host=facts,
            is_passed=report.is_passed,
            words=scene.words if scene.words is not None and scene.words.sayings else None,
        )
        console.print(f"picture: {picture}", highlight=False)
    elapsed = report.document()["duration_s"]
    verdict = (
        "[bold green]every check held[/bold green]"
        if report.is_passed
        else "[bold red]not every check held[/bold red]"
    )
    console.print(f"{verdict}, {elapsed:.0f} s", highlight=False)


@contextmanager
def _signals_interrupt(stage: Stage) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a KeyboardInterrupt that can't get lost.

    One that is raised while a callback from foreign code runs may be swallowed there,
    so the stage is told too, and raises it again at the next wait. SIGHUP stays ignored
    where it was, for ``nohup``.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        stage.is_interrupted = True
        raise InterruptedBySignal

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
