"""Reads the texts of the pages, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from torchkiln.matrix.pick import SENTENCES

_FILE = Path(__file__).with_name("texts.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A language of the pages, and the texts by name."""

    code: str  # as in HTML's `lang`
    folder: str  # of its pages, with a slash at its end; empty: the root
    texts: Mapping[str, str]

    def sentences(self) -> dict[str, str]:
        """The sentences of `pick`, by their names there."""
        return {name: self.texts[name] for name in SENTENCES}


@cache
def languages() -> tuple[Language, ...]:
    """English first, which is at the root of the site."""
    texts: dict[str, list[str]] = yaml.safe_load(_FILE.read_text("utf-8"))
    english = {name: pair[0] for name, pair in texts.items()} | SENTENCES
    chinese = {name: pair[1] for name, pair in texts.items()}
    return (
        Language(code="en", folder="", texts=english),
        Language(code="zh-Hans", folder="zh/", texts=chinese),
    )
