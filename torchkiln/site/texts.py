"""Reads the texts of the pages, in English and Chinese."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from torchkiln.matrix import pick, sentences
from torchkiln.matrix.facts import Facts
from torchkiln.model.report import Finding
from torchkiln.publishing.warnings import WARNINGS
from torchkiln.util.sentences import Texts, Value, said

_PHRASES = Path(__file__).with_name("phrases.yaml")
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
    raw: dict[str, dict[str, str]] = yaml.safe_load(_PHRASES.read_text("utf-8"))
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


_FILE = Path(__file__).with_name("texts.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A text of a page."""

    text: str
    lang: str = ""  # "en": an English message of a program; empty: the language of the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A language of the pages, and the texts by name."""

    code: str  # as in HTML's `lang`
    folder: str  # of its pages, with a slash at its end; empty: the root
    texts: Texts

    @property
    def is_english(self) -> bool:
        """Whether messages of programs, which are English, are in the language of the page."""
        return self.code == "en"

    def sentences(self) -> dict[str, str]:
        """The sentences of `pick`, by their names there."""
        return {name: self.texts[name] for name in pick.SENTENCES}

    def said(self, value: Value) -> str:
        """*value* as a sentence in this language."""
        return said(value, self.texts)

    def layer(self, title: str) -> str:
        """The title of a layer, translated into this language."""
        return title if self.is_english else in_chinese(title, "layers") or title

    def notice(self, value: Value) -> Shown:
        """A warning about an image: a sentence, or an English message about invalid statements."""
        return self._quoted(value) if isinstance(value, str) else Shown(text=self.said(value))

    def reason(self, finding: Finding) -> Shown:
        """Why a check does not apply, was skipped or failed; it is empty if the check passed."""
        if finding.outcome == "not-applicable":
            names = (f"{table}.{finding.message}" for table in ("checks", "traps"))
            if name := next((name for name in names if name in self.texts), None):
                return Shown(text=self.texts[name])
        return self._quoted(finding.message)

    def _quoted(self, text: str) -> Shown:
        if self.is_english or not text:
            return Shown(text=text)
        chinese = in_chinese(text, "messages")
        return Shown(text=chinese) if chinese else Shown(text=text, lang="en")


def languages(facts: Facts) -> tuple[Language, ...]:
    """The languages of the site, English first; *facts* has the English sentences of limits."""
    pairs = _pairs()
    english = {name: text for name, (text, _) in pairs.items() if text}
    limits = {f"checks.{name}": text for name, text in facts.checks.items()} | dict(facts.limit_texts)
    tables: tuple[Texts, ...] = (pick.SENTENCES, sentences.SENTENCES, WARNINGS, limits)
    for table in tables:
        english |= table
    chinese = {name: text for name, (_, text) in pairs.items()}
    return (
        Language(code="en", folder="", texts=english),
        Language(code="zh-Hans", folder="zh/", texts=chinese),
    )


@cache
def _pairs() -> Mapping[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = yaml.safe_load(_FILE.read_text("utf-8"))
    return found
