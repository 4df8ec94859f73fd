"""How the answers of ``flashrt-ros capsule`` look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flashrt_ros.cli.consoles import make_console
from flashrt_ros.engine.protocol import CapsuleInfo

AUTOMATIC = "automatic="
"""Start of the label on capsules that the engine takes by itself."""


def is_automatic(one: CapsuleInfo) -> bool:
    """Tell whether the engine took a capsule by itself, and drops it by itself."""
    return any(label.startswith(AUTOMATIC) for label in one.labels)


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
    for heading in ("name", "id", "tick", "bytes", "created", "parent", "labels"):
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
            Text(_size(one.num_bytes)),
            Text(_time(one.created_ns)),
            Text(one.parent),
            _marks(one),
            style="dim" if is_automatic(one) else "",
        )
    return table


def lineage(capsules: Sequence[CapsuleInfo], *, title: str) -> RenderableType:
    """Draw capsules below those they came from, older ones first.

    One whose parent is not among them stands at the top.
    """
    root = Tree(Text(title, style="bold"))
    by_age = sorted(capsules, key=lambda one: one.created_ns)
    known = {one.id for one in by_age}
    children: dict[str, list[CapsuleInfo]] = {}
    for one in by_age:
        children.setdefault(one.parent if one.parent in known else "", []).append(one)
    # by hand rather than by recursion: a long episode is a deep line
    waiting = [(root, one) for one in reversed(children.get("", []))]
    while waiting:
        above, one = waiting.pop()
        node = above.add(_leaf(one))
        waiting.extend((node, child) for child in reversed(children.get(one.id, [])))
    if not capsules:
        root.add(Text("no capsules", style="dim"))
    return root


def _leaf(one: CapsuleInfo) -> Text:
    text = Text(style="dim" if is_automatic(one) else "")
    if one.name:
        text.append(f"{one.name}  ", style="bold")
    text.append(one.id, style="dim" if one.name else "cyan")
    text.append(f"  tick {one.tick}  ")
    text.append_text(_marks(one))
    text.rstrip()
    return text


def _marks(one: CapsuleInfo) -> Text:
    text = Text()
    if one.pinned:
        text.append("pinned ", style="yellow")
    text.append(" ".join(one.labels))
    text.rstrip()
    return text


def _size(num_bytes: int) -> str:
    if num_bytes < 10_000:
        return f"{num_bytes}"
    return f"{num_bytes / 1e3:.0f} k" if num_bytes < 10_000_000 else f"{num_bytes / 1e6:.0f} M"


def _time(created_ns: int) -> str:
    return datetime.fromtimestamp(created_ns / 1e9).astimezone().strftime("%H:%M:%S")
