"""How the answers of ``flashrt-ros capsule`` look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flashrt_ros.capsule.lineage import walk
from flashrt_ros.cli.capsule_text import size_text, time_text, timeline_title
from flashrt_ros.cli.consoles import make_console
from flashrt_ros.engine.protocol import CapsuleInfo, TimelineInfo

_TONES = {"device": "magenta", "host": "blue", "disk": "yellow"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb gave, for programs and for people.

    Attributes:
        plain: For JSON; stable names.
        shown: For a terminal.
    """

    plain: Mapping[str, object]
    shown: RenderableType

    def print(self, *, as_json: bool) -> None:
        """Print one of the two on standard output."""
        if as_json:
            print(msgspec.json.format(msgspec.json.encode(self.plain), indent=2).decode())
        else:
            make_console().print(self.shown)


def facts(rows: Mapping[str, str]) -> RenderableType:
    """Show names and values, one a line."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def capsule_table(capsules: Sequence[CapsuleInfo], *, title: str = "") -> RenderableType:
    """Show capsules, one a line."""
    if not capsules:
        return Text("no capsules")
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for heading in ("name", "id", "tick", "bytes", "tier", "created", "parent", "labels"):
        table.add_column(
            heading,
            justify="right" if heading in ("tick", "bytes") else "left",
            no_wrap=heading not in ("name", "labels"),
            overflow="fold",
        )
    for one in capsules:
        table.add_row(
            Text(one.name, style="bold"),
            Text(one.id),
            Text(str(one.tick)),
            Text(size_text(one.num_bytes)),
            Text(one.tier, style=_TONES.get(one.tier, "")),
            Text(time_text(one.created_ns)),
            Text(one.parent),
            _marks(one),
            style="dim" if one.is_automatic else "",
        )
    return table


def comparison(rows: Sequence[tuple[str, str, str]], names: tuple[str, str]) -> RenderableType:
    """Show the fields in which two fingerprints differ, with both values."""
    if not rows:
        return Text(f"{names[0]} fits {names[1]}: every field is equal")
    table = Table(box=None, pad_edge=False)
    for heading in ("field", *names):
        table.add_column(heading, overflow="fold")
    for name, one, other in rows:
        table.add_row(Text(name, style="bold"), Text(one or "absent"), Text(other or "absent"))
    return table


def lineage(
    capsules: Sequence[CapsuleInfo], *, title: str, timelines: Sequence[TimelineInfo] = ()
) -> RenderableType:
    """Draw capsules below those they came from, older ones first.

    One whose parent is not among them stands at the top. Environments and branches are
    named at the capsule that their state came from.
    """
    root = Tree(Text(title, style="bold"))
    here: dict[str, list[TimelineInfo]] = {}
    for one in timelines:
        here.setdefault(one.parent, []).append(one)
    line: list[Tree] = [root]
    for depth, capsule in walk(sorted(capsules, key=lambda one: one.created_ns)):
        del line[depth + 1 :]
        line.append(line[depth].add(_leaf(capsule, here.get(capsule.id, []))))
    if not capsules:
        root.add(Text("no capsules", style="dim"))
    return root


def _leaf(one: CapsuleInfo, here: Sequence[TimelineInfo]) -> Text:
    text = Text(style="dim" if one.is_automatic else "")
    if one.name:
        text.append(f"{one.name}  ", style="bold")
    text.append(one.id, style="dim" if one.name else "cyan")
    text.append(f"  tick {one.tick}  {size_text(one.num_bytes)} ")
    text.append(f"{one.tier}  ", style=_TONES.get(one.tier, ""))
    marks = _marks(one)
    text.append_text(marks)
    for line in here:
        text.append("  " if marks.plain else "")
        text.append(f"◀ {timeline_title(line)}, lane {line.lane}", style="bold green")
    text.rstrip()
    return text


def _marks(one: CapsuleInfo) -> Text:
    text = Text()
    if one.pinned:
        text.append("pinned ", style="yellow")
    if one.persist:
        text.append("persisted ", style="green")
    text.append(" ".join(one.labels))
    text.rstrip()
    return text
