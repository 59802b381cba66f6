"""What a package says of its licence -> Licence: an SPDX expression, and what of it SPDX's list lacks.

Nothing is guessed. Words that are an SPDX expression are that expression. Debian's short names are turned by
the table of the specification that defines them (machine-readable copyright files, 1.0). All else becomes a
LicenseRef, which says the words and, where the package has it, the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from torchkiln.errors import printable

_LONGEST = 2000  # characters of an expression; the longest of ours has 60
_NAME = 80  # characters of a licence's name; a text in its place is known by how it begins
_REF = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_JOINED = re.compile(r"\s+(and|or)\s+")
_DEBIAN_FAMILY = re.compile(r"(GPL|LGPL|AGPL|GFDL|GFDL-NIV)-(\d+(?:\.\d+)?)(\+?)")
_FAMILIES = {"GFDL-NIV": "GFDL-{}-no-invariants"}
_DEBIAN = {"Expat": "MIT", "Apache-2": "Apache-2.0", "Artistic-2": "Artistic-2.0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A licence that SPDX's list does not have."""

    id: str  # "LicenseRef-Beerware-1a2b3c4d"
    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    """One statement of a package."""

    said: str  # in the package's own words
    expression: str  # SPDX
    references: tuple[Reference, ...] = ()  # for each LicenseRef in it


def of_expression(words: str) -> Licence | None:
    """*words* as the SPDX expression that they are; None where they are none."""
    found = _canonical(words)
    if found is None:
        return None
    references = tuple(
        Reference(
            id=ref,
            name=ref.removeprefix("LicenseRef-"),
            text=f"What a Python package's metadata calls {ref}; its text is among the package's files.",
        )
        for ref in sorted(set(_REF.findall(found)))
    )
    return Licence(said=found, expression=found, references=references)


def of_words(words: str) -> Licence:
    """What is no expression: a name, or a whole text."""
    clean = "\n".join(line.strip() for line in printable(words).strip().split("\n"))
    return _referred(name_of(clean), clean)


def of_debian(synopsis: str, texts: Mapping[str, str]) -> Licence:
    """A License field's first line; *texts* has, by their names, those that the file spells out.

    Names are joined by `and` and `or`, of which the first binds closer, there as in SPDX. A comma before them
    changes that; the whole is then one LicenseRef, for who reads the file.
    """
    words = " ".join(printable(synopsis).split())[:_LONGEST]
    parts = [words] if "," in words or "(" in words else _JOINED.split(words)
    found = [_of_debian_name(name, texts.get(name, texts.get(words, ""))) for name in parts[::2]]
    expression = " ".join(
        part
        for one, operator in zip(found, [*parts[1::2], ""], strict=True)
        for part in (one.expression, operator.upper())
        if part
    )
    references = tuple(reference for one in found for reference in one.references)
    return Licence(said=words or "unnamed", expression=expression, references=references)


def joined(licences: Iterable[Licence]) -> str:
    """The expression of all *licences* together: each of them holds. Empty without any."""
    parts = dict.fromkeys(licence.expression for licence in licences)
    if len(parts) == 1:
        return next(iter(parts))
    return " AND ".join(f"({part})" if " OR " in part else part for part in parts)


def name_of(words: str) -> str:
    """The first line of *words* that says something, as a name."""
    line = next((line for line in words.split("\n") if line.strip()), "").strip()
    return line if len(line) <= _NAME else line[: _NAME - 1] + "…"


def _canonical(words: str) -> str | None:
    if not words or len(words) > _LONGEST or not words.isascii():
        return None
    try:
        return str(canonicalize_license_expression(words))
    except InvalidLicenseExpression:
        return None


def _of_debian_name(name: str, text: str) -> Licence:
    found = "".join(_debian_families(name)) or _DEBIAN.get(name, name)
    expression = None if " " in found else _canonical(found)
    if expression is None or expression.startswith("LicenseRef-"):
        return _referred(name_of(name), text or f"{name}\n\nThe package's copyright file says no more of it.")
    return Licence(said=name, expression=expression)


def _debian_families(name: str) -> Iterator[str]:
    """`GPL-2+` is GPL-2.0-or-later, `GPL-2` is GPL-2.0-only."""
    if match := _DEBIAN_FAMILY.fullmatch(name):
        family, version, later = match.groups()
        full = version if "." in version else f"{version}.0"
        yield _FAMILIES.get(family, family + "-{}").format(full)
        yield "-or-later" if later else "-only"


def _referred(name: str, text: str) -> Licence:
    """By name and text: what two packages call alike may be two texts."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:40].rstrip("-.") or "unnamed"
    short = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:8]
    reference = Reference(id=f"LicenseRef-{slug}-{short}", name=name or "unnamed", text=text)
    return Licence(said=name or "unnamed", expression=reference.id, references=(reference,))
