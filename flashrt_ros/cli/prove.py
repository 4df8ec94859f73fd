"""``flashrt-ros prove MODEL``: is the declared state the whole state?"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flashrt_ros.cli.consoles import make_console
from flashrt_ros.cli.files import check_target, target, writing
from flashrt_ros.models.registry import MODELS, create
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import QUESTIONS, CheckName, Proof, Verdict

_STYLES = {
    Verdict.MATTERS: "green",
    Verdict.NOISE: "green",
    Verdict.INERT: "cyan",
    Verdict.DEAD: "bold red",
    Verdict.MISMARKED: "bold red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``prove``."""
    parser.add_argument(
        "model",
        help=f"registry name: {', '.join(sorted(MODELS))}; or module:function for your own",
    )
    parser.add_argument("--weights", type=Path, help="safetensors file, not the packaged one")
    parser.add_argument(
        "--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N"
    )
    parser.add_argument(
        "--ticks", type=int, metavar="N", help="ticks compared (default: three chunks)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the histories (default 0)")
    parser.add_argument("--json", type=target, metavar="FILE", help="write the proof there too")


def run(arguments: argparse.Namespace) -> int:
    """Prove and print.

    Returns:
        0 if the declared state is the whole state, 1 if not.

    Raises:
        ConfigError: The proof can't be written where it was to be.
    """
    if arguments.json is not None:
        check_target(arguments.json)
    console = make_console()
    with console.status("") as status:

        def on_check(check: CheckName) -> None:
            status.update(f"{check.value}: {QUESTIONS[check]}")

        proof = prove(
            lambda: create(arguments.model, arguments.weights),
            device=arguments.device,
            num_ticks=arguments.ticks,
            seed=arguments.seed,
            on_check=on_check,
        )
    console.print(shown(proof))
    if arguments.json is not None:
        with writing(arguments.json):
            proof.write(arguments.json)
    return 0 if proof.is_proved else 1


def shown(proof: Proof) -> RenderableType:
    """Show a proof: checks, STATE buffers, findings, verdict."""
    parts: list[RenderableType] = [_checks(proof)]
    if proof.buffers:
        parts += [Text(), _buffers(proof)]
    for finding in proof.findings:
        head = Text.assemble("\n", (finding.subject, "bold red"), f" ({finding.check.value})")
        parts += [head, Padding.indent(Text(finding.message), 5)]
    parts += [Text(), _verdict(proof)]
    return Group(*parts)


def _checks(proof: Proof) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "", "runs", "question"):
        table.add_column(heading, justify="right" if heading == "runs" else "left")
    for check in proof.checks:
        mark = Text("ok", style="green") if check.passed else Text("FAIL", style="bold red")
        table.add_row(check.check.value, mark, str(check.num_runs), check.question)
    return table


def _buffers(proof: Proof) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("STATE buffer", "bytes", "mark", "verdict", "ticks", "what changed"):
        is_number = heading in ("bytes", "ticks")
        table.add_column(heading, justify="right" if is_number else "left")
    for buffer in proof.buffers:
        table.add_row(
            buffer.buffer,
            str(buffer.num_bytes),
            buffer.mark,
            Text(buffer.verdict.value, style=_STYLES[buffer.verdict]),
            str(buffer.after_ticks) if buffer.after_ticks >= 0 else "",
            ", ".join(buffer.reached),
        )
    return table


def _verdict(proof: Proof) -> Text:
    about = f"{proof.device}, {proof.num_ticks} ticks, seed {proof.seed}, {proof.duration_s:.1f} s"
    if proof.is_proved:
        return Text.assemble(
            ("proved", "bold green"),
            f": the declared state of '{proof.model}' is its whole state ({about})",
        )
    return Text.assemble(
        ("not proved", "bold red"), f": '{proof.model}', {len(proof.findings)} findings ({about})"
    )
