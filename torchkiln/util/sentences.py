"""Defines a sentence as the name of a text and its values, so that it can be shown in any language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The texts by name; `{value}` is replaced.
Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence, or a part of one."""

    text: str  # the name of its text
    values: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Several parts of a sentence, and the name of the text that separates them."""

    between: str
    parts: tuple[str | Sentence, ...]


Value = str | Sentence | Listing


def sentence(text: str, **values: Value) -> Sentence:
    return Sentence(text=text, values=tuple(values.items()))


def said(value: Value, texts: Texts) -> str:
    """*value* in the language of *texts*; a string is the same in every language.

    >>> said(sentence("old", driver="470"), {"old": "driver {driver} is too old"})
    'driver 470 is too old'

    :raises KeyError: *texts* lacks a text.
    """
    match value:
        case Sentence():
            return texts[value.text].format(**{name: said(inner, texts) for name, inner in value.values})
        case Listing():
            return texts[value.between].join(said(part, texts) for part in value.parts)
        case _:
            return value
