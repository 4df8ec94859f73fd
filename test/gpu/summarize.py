"""Gathers what benches and tests have left, for people and as one file; the standard library only.

python test/gpu/summarize.py JSON_FOLDER FOLDER

Writes ``benches.json`` and ``summary.txt`` to FOLDER, from the ``NAME.json`` of each bench that
has ended and from the ``tests-*.xml`` in FOLDER, and prints the rows that have a target, those
that are absent, and what failed.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 62
MAX_SHOWN = 9000
"""Characters printed; all of it is in the file."""


def main(json_folder: Path, folder: Path) -> None:
    """Gather, write and print."""
    results, cut = read_results(json_folder)
    failed = sorted({*cut, *(path.stem for path in json_folder.glob("*.failed"))})
    put(folder / "benches.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    tests = list(test_lines(folder))
    ends = [f"FAILED: bench {name}; see log.txt" for name in failed]
    every = [line for result in results for line in result_lines(result, is_brief=False)]
    put(folder / "summary.txt", "\n".join([*tests, *every, *ends, ""]))
    brief = [line for result in results for line in result_lines(result, is_brief=True)]
    shown = "\n".join([*tests, *brief, *ends])
    print(shown if len(shown) <= MAX_SHOWN else f"...\n{shown[-MAX_SHOWN:]}")


def read_results(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the result of each bench that has ended, in the order in which they ended.

    Returns:
        The results, and the names of those that are not written to their end.
    """
    found, cut = [], []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            cut.append(path.stem)
            continue
        found += value if isinstance(value, list) else [value]
    return found, cut


def put(path: Path, text: str) -> None:
    """Write a file that is there as a whole, or as it was before."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def test_lines(folder: Path) -> Iterator[str]:
    """Say how many tests passed, which did not, and what they noted."""
    for path in sorted(folder.glob("tests-*.xml")):
        try:
            suites = ET.parse(path).getroot()
        except ET.ParseError:
            yield f"{path.stem}: not written to its end"
            continue
        cases = list(suites.iter("testcase"))
        bad = [case for case in cases if {"failure", "error"} & {part.tag for part in case}]
        skipped = [case for case in cases if case.find("skipped") is not None]
        num_passed = len(cases) - len(bad) - len(skipped)
        yield f"{path.stem}: {num_passed} passed, {len(bad)} failed, {len(skipped)} skipped"
        for case in bad:
            yield f"  FAILED {case.get('classname')}::{case.get('name')}"
        for case in cases:
            for note in case.iter("property"):
                yield f"  {case.get('name')}: {note.get('name')} = {note.get('value')}"


def result_lines(result: dict[str, Any], *, is_brief: bool) -> Iterator[str]:
    """Show a bench's rows; if brief, those with a target and those that are absent."""
    yield f"{result['bench']}: {result['device']}"
    for row in result["rows"]:
        is_absent = row["median"] is None
        if is_brief and row["target"] is None and not is_absent:
            continue
        if is_absent:
            yield f"  {row['name']}"
            continue
        name = row["name"][:WIDTH] if is_brief else row["name"]
        figures = "".join(f"{number(row[key]):>9}" for key in ("median", "p99", "ratio"))
        end = "" if row["target"] is None else f"  {row['target']} {verdict(row['met'])}"
        yield f"  {name:<{WIDTH}} {row['unit']:>5}{figures}{end}"


def number(value: float | None) -> str:
    """Write a figure short."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def verdict(met: bool | None) -> str:
    """Say whether a target was met."""
    return {True: "met", False: "MISSED", None: "unknown"}[met]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
