"""What an event's ``detail`` says to programs: a word, facts, and text for people.

``failed turn=7 code=406 name=PAYLOAD_RANGE: no plan goes there`` has all three, and any may be
missing. Facts are ``key=value`` with a blank between them. A value, or the word, that has blanks
or double quotes or ends in a colon is quoted as JSON quotes strings, and so is a word with ``=``;
every other one stands as it is. Numbers of a list have one blank between them and no quotes. The
text takes the rest, after a colon and a blank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_BLURS_A_VALUE = re.compile(r'[\s"]|:\Z')
_BLURS_A_WORD = re.compile(r'[\s"=]|:\Z')

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]\d+)?|inf|nan)"
_END = r"(: |\s+|\Z)"
_WORD = re.compile(rf'\s*({_QUOTED}|(?!")[^\s=:]*(?::(?! )[^\s=:]*)*){_END}')
_PLAIN = r'(?!")[^\s:]*(?::(?! )[^\s:]*)*'
_FACT = re.compile(rf'([^\s="]+)=({_QUOTED}|{_NUMBER}(?: {_NUMBER})+|{_PLAIN}){_END}')


@dataclass(frozen=True, slots=True)
class Detail:
    """What an event says beside its kind.

    Attributes:
        word: What happened, "" where the facts say it.
        facts: By key, in the order in which they were told; a list's numbers with a blank
            between them.
        text: For people; nothing in it is a fact.
    """

    word: str
    facts: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def format_detail(
    word: str, /, *, text: str = "", **facts: str | int | Sequence[float] | None
) -> str:
    """Return the detail of an event, which :func:`parse_detail` reads back.

    Args:
        word: What happened, "" for none.
        text: For people, at the end.
        facts: In the order given; a list's numbers are written with six digits, None leaves
            a fact out.
    """
    parts = [_quoted(word) if _BLURS_A_WORD.search(word) else word] if word else []
    for key, value in facts.items():
        if isinstance(value, int):
            parts.append(f"{key}={value}")
        elif isinstance(value, str):
            parts.append(f"{key}={_quoted(value) if _BLURS_A_VALUE.search(value) else value}")
        elif value is not None:
            parts.append(f"{key}={' '.join([f'{number:.6g}' for number in value])}")
    said = " ".join(parts)
    return f"{said}: {text}" if text else said


def parse_detail(detail: str) -> Detail:
    """Read a detail; of one that is in another form the first word alone, and "" before a fact.

    An engine of another version may say anything: nothing is raised.
    """
    word, at, end = "", 0, ""
    facts: dict[str, str] = {}
    try:
        part = _WORD.match(detail)
        if part is not None:
            word, at, end = _plain(part[1]), part.end(), part[2]
        while at < len(detail) and end != ": ":
            part = _FACT.match(detail, at)
            if part is None or part[1] in facts:
                return Detail(word)
            facts[part[1]] = _plain(part[2])
            at, end = part.end(), part[3]
    except ValueError:  # quotes around what is no JSON
        return Detail(word)
    return Detail(word, facts, detail[at:])


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: str) -> str:
    return str(json.loads(value)) if value.startswith('"') else value
