"""Translates texts that exist only in English: titles of layers, and the reasons of skipped checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

_FILE = Path(__file__).with_name("phrases.yaml")
_LONGEST = 2000  # characters; the time of a match grows with their square
_DEPTH = 5  # levels of texts within texts
_WORD, _TEXT = r"\S+?", r".+?"

Table = Literal["layers", "messages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Phrase:
    english: re.Pattern[str]
    chinese: str


def in_chinese(text: str, table: Table, depth: int = _DEPTH) -> str | None:
    """*text* in Chinese; None: *table* does not have it."""
    if len(text) > _LONGEST or not depth:
        return None
    for phrase in _phrases()[table]:
        if found := phrase.english.fullmatch(text):
            values = {
                name: in_chinese(value, table, depth - 1) or value
                for name, value in found.groupdict().items()
            }
            return phrase.chinese.format(**values)
    return None


@cache
def _phrases() -> Mapping[str, Sequence[_Phrase]]:
    raw: dict[str, dict[str, str]] = yaml.safe_load(_FILE.read_text("utf-8"))
    return {
        table: [_Phrase(english=_pattern(english), chinese=chinese) for english, chinese in pairs.items()]
        for table, pairs in raw.items()
    }


def _pattern(english: str) -> re.Pattern[str]:
    """`"{os} base"` as a pattern with a group `os`."""
    pieces = re.split(r"(\{\w+\.{0,2}\})", english)
    return re.compile("".join(_piece(piece) for piece in pieces))


def _piece(piece: str) -> str:
    if piece == "{s}":
        return "s?"
    if found := re.fullmatch(r"\{(\w+)(\.\.)?\}", piece):
        return f"(?P<{found[1]}>{_TEXT if found[2] else _WORD})"
    return re.escape(piece)
