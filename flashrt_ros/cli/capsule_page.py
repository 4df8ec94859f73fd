"""The lineage of capsules as a drawing: SVG, or a page that opens from disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from flashrt_ros.capsule.lineage import walk
from flashrt_ros.cli.capsule_text import size_text, time_text, timeline_title
from flashrt_ros.engine.protocol import CapsuleInfo, TierInfo, TimelineInfo

_INDENT = 34
_ROW = 66
_CARD_WIDTH = 520
_CARD_HEIGHT = 52
_MARGIN = 24
_CHIP_GAP = 8
_FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', sans-serif"
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

_STYLE = f"""
:root {{ --page:#f6f7f9; --card:#ffffff; --line:#c9ced6; --ink:#1b1f24; --dim:#667080;
  --edge:#dde1e7; --device:#7a4fd6; --host:#1b74c5; --disk:#8a6d1d; --pin:#b3541e;
  --kept:#2a7d4f; --here:#0f7b6c; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page:#14171b; --card:#1d2127; --line:#4a525d;
  --ink:#e8ebef; --dim:#98a2b0; --edge:#313842; --device:#a98bf0; --host:#62aef0;
  --disk:#d4b04e; --pin:#ee9560; --kept:#6cc795; --here:#4fd1bd; }} }}
.lineage text {{ font-family:{_FONT}; font-size:13px; fill:var(--ink); }}
.lineage .name {{ font-weight:600; font-size:14px; }}
.lineage .id {{ font-family:{_MONO}; font-size:12px; fill:var(--dim); }}
.lineage .facts {{ fill:var(--dim); font-size:12px; }}
.lineage .card {{ fill:var(--card); stroke:var(--edge); stroke-width:1; }}
.lineage .own .card {{ stroke-dasharray:4 3; }}
.lineage .own .name {{ font-weight:400; fill:var(--dim); }}
.lineage .line {{ fill:none; stroke:var(--line); stroke-width:1.5; }}
.lineage .chip {{ fill:none; stroke-width:1; }}
.lineage .mark {{ font-size:11px; font-weight:600; }}
.device {{ --tone:var(--device); }} .host {{ --tone:var(--host); }} .disk {{ --tone:var(--disk); }}
.pin {{ --tone:var(--pin); }} .kept {{ --tone:var(--kept); }} .here {{ --tone:var(--here); }}
.lineage .bar {{ fill:var(--tone); }}
.lineage .chip {{ stroke:var(--tone); }} .lineage .mark {{ fill:var(--tone); }}
"""

_PAGE_STYLE = f"""
body {{ margin:0; background:var(--page); color:var(--ink); font-family:{_FONT}; }}
main {{ padding:28px 24px 48px; }}
h1 {{ font-size:20px; margin:0 0 4px; }}
p {{ color:var(--dim); font-size:13px; margin:0 0 18px; }}
table {{ border-collapse:collapse; font-size:13px; margin:0 0 22px; }}
td, th {{ text-align:left; padding:4px 22px 4px 0; border-bottom:1px solid var(--edge); }}
th {{ font-weight:500; color:var(--dim); }}
td.number {{ text-align:right; font-variant-numeric:tabular-nums; }}
td.tier {{ color:var(--tone); font-weight:600; }}
.meter {{ width:180px; height:7px; border-radius:4px; background:var(--edge); overflow:hidden; }}
.meter i {{ display:block; height:100%; background:var(--tone); }}
.drawing {{ overflow:auto; }}
"""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn.

    Attributes:
        title: Of the engine.
        capsules: In the order they were made.
        timelines: Where environments and branches stand.
        tiers: What each tier holds; may be empty.
        made: When, for people.
    """

    title: str
    capsules: Sequence[CapsuleInfo]
    timelines: Sequence[TimelineInfo]
    tiers: Sequence[TierInfo]
    made: str

    def svg(self, *, is_alone: bool = True) -> str:
        """Draw the tree: a card for each capsule, below what it came from.

        An only child stands straight below, so that a long episode is a column; where lines
        part, the children stand to the right.

        Args:
            is_alone: A file of its own, with its style and a background.
        """
        rows = self._rows()
        widest = max((self._row_width(level, one) for level, one in rows), default=_CARD_WIDTH)
        width = 2 * _MARGIN + widest
        height = 2 * _MARGIN + max(1, len(rows)) * _ROW
        parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" class="lineage" width="{width}" '
                f'height="{height}" viewBox="0 0 {width} {height}" role="img">'
            ),
            f"<title>{escape(self.title)}</title>",
        ]
        if is_alone:
            parts.append(f"<style>{_STYLE}</style>")
            parts.append(f'<rect width="{width}" height="{height}" style="fill:var(--page)"/>')
        parts += self._lines(rows)
        for row, (level, one) in enumerate(rows):
            parts += self._card(one, _MARGIN + level * _INDENT, _MARGIN + row * _ROW)
        if not rows:
            parts.append(f'<text x="{_MARGIN}" y="{_MARGIN + 20}">no capsules</text>')
        parts.append("</svg>")
        return "\n".join(parts) + "\n"

    def html(self) -> str:
        """Draw a page that needs nothing but itself."""
        homeless = [one for one in self.timelines if not one.parent]
        note = "".join(
            f"<p>{escape(timeline_title(one))} at tick {one.tick} descends from none.</p>"
            for one in homeless
        )
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(self.title)}</title>
<style>{_STYLE}{_PAGE_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(self.title)}</h1>
<p>{len(self.capsules)} capsules, {escape(self.made)}. A line leads down to what came from one.
A dashed frame is the engine's own; it goes by itself.</p>
{self._tier_table()}
{note}
<div class="drawing">
{self.svg(is_alone=False)}</div>
</main>
</body>
</html>
"""

    def _tier_table(self) -> str:
        if not self.tiers:
            return ""
        rows = "".join(
            f'<tr class="{escape(tier.name)}"><td class="tier">{escape(tier.name)}</td>'
            f'<td class="number">{tier.num_capsules}</td>'
            f'<td class="number">{_bytes_text(tier.used_bytes)}</td>'
            f'<td class="number">{_bytes_text(tier.quota_bytes)}</td>'
            f'<td><div class="meter"><i style="width:{_percent(tier):.1f}%"></i></div></td></tr>'
            for tier in self.tiers
        )
        return (
            "<table><tr><th>tier</th><th>capsules</th><th>in use</th><th>quota</th><th></th></tr>"
            f"{rows}</table>"
        )

    def _rows(self) -> list[tuple[int, CapsuleInfo]]:
        """Return the capsules from top to bottom, each with how far to the right it stands."""
        rows = [one for _, one in walk(sorted(self.capsules, key=lambda one: one.created_ns))]
        num_children = Counter(one.parent for one in rows)
        levels: dict[str, int] = {}
        for one in rows:
            above = levels.get(one.parent)
            levels[one.id] = 0 if above is None else above + (num_children[one.parent] > 1)
        return [(levels[one.id], one) for one in rows]

    def _lines(self, rows: Sequence[tuple[int, CapsuleInfo]]) -> list[str]:
        """Draw a line from each capsule up to its parent: straight, or an elbow."""
        places = {one.id: (level, row) for row, (level, one) in enumerate(rows)}
        lines = []
        for row, (level, one) in enumerate(rows):
            if one.parent not in places:
                continue
            above_level, above_row = places[one.parent]
            x = _MARGIN + above_level * _INDENT + 14
            y_from = _MARGIN + above_row * _ROW + _CARD_HEIGHT
            if level == above_level:
                lines.append(f'<path class="line" d="M{x} {y_from} V{_MARGIN + row * _ROW}"/>')
                continue
            y_to = _MARGIN + row * _ROW + _CARD_HEIGHT / 2
            x_to = _MARGIN + level * _INDENT
            lines.append(f'<path class="line" d="M{x} {y_from} V{y_to - 8} q0 8 8 8 H{x_to}"/>')
        return lines

    def _chips(self, one: CapsuleInfo) -> list[tuple[str, str]]:
        """Return tone and text of each mark beside a card."""
        here = [line for line in self.timelines if line.parent == one.id]
        return [
            (one.tier, one.tier),
            *([("pin", "pinned")] if one.pinned else []),
            *([("kept", "persisted")] if one.persist else []),
            *(("here", f"{timeline_title(line)} · lane {line.lane}") for line in here),
        ]

    def _row_width(self, level: int, one: CapsuleInfo) -> int:
        chips = sum(_chip_width(text) + _CHIP_GAP for _, text in self._chips(one))
        return level * _INDENT + _CARD_WIDTH + _CHIP_GAP + chips

    def _card(self, one: CapsuleInfo, x: int, y: int) -> list[str]:
        name = one.name or one.id
        labels = " ".join(one.labels)
        facts = f"tick {one.tick} · {_bytes_text(one.num_bytes)} · {time_text(one.created_ns)}" + (
            f" · {labels}" if labels else ""
        )
        told = "\n".join(
            (
                f"{name} ({one.id})",
                facts,
                f"fingerprint {one.fingerprint}",
                *([f"digest {one.digest}"] if one.digest else []),
            )
        )
        parts = [
            f'<g class="{"own" if one.is_automatic else "kept-by-caller"}">',
            f"<title>{escape(told)}</title>",
            (
                f'<rect class="card" x="{x}" y="{y}" width="{_CARD_WIDTH}" height="{_CARD_HEIGHT}" '
                'rx="9"/>'
            ),
            (
                f'<rect class="bar {escape(one.tier)}" x="{x}" y="{y + 10}" width="4" '
                f'height="{_CARD_HEIGHT - 20}" rx="2"/>'
            ),
            f'<text class="name" x="{x + 16}" y="{y + 22}">{escape(_short(name, 34))}</text>',
            f'<text class="facts" x="{x + 16}" y="{y + 41}">{escape(_short(facts, 78))}</text>',
        ]
        if one.name:
            parts.append(
                f'<text class="id" x="{x + _CARD_WIDTH - 14}" y="{y + 22}" '
                f'text-anchor="end">{escape(one.id)}</text>'
            )
        left = x + _CARD_WIDTH + _CHIP_GAP + 4
        for tone, text in self._chips(one):
            width = _chip_width(text)
            parts.append(
                f'<g class="{escape(tone)}"><rect class="chip" x="{left}" y="{y + 15}" '
                f'width="{width}" height="22" rx="11"/><text class="mark" '
                f'x="{left + width / 2}" y="{y + 30}" text-anchor="middle">'
                f"{escape(text)}</text></g>"
            )
            left += width + _CHIP_GAP
        parts.append("</g>")
        return parts


def _bytes_text(num_bytes: int) -> str:
    size = size_text(num_bytes)
    return f"{size}B" if " " in size else f"{size} B"


def _percent(tier: TierInfo) -> float:
    """Return how much of its quota a tier has in use, 0 to 100."""
    return min(100.0, 100 * tier.used_bytes / max(1, tier.quota_bytes))


def _chip_width(text: str) -> int:
    return 16 + round(6.8 * len(text))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
