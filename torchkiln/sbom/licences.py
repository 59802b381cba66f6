"""Converts a package's licence metadata to SPDX expressions.

Nothing is guessed. A valid SPDX expression is kept. Debian's short names are converted by the table in their
specification (machine-readable copyright files, 1.0). Anything else keeps the original name and, if the
package has it, the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from torchkiln.errors import printable

_MAX_EXPRESSION = 2000  # characters; the longest one in our images has 60
_MAX_NAME = 80  # maximum characters; some packages write a whole text, which is cut
_REF = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_JOINED = re.compile(r"\s+(and|or)\s+")
_DEBIAN_FAMILY = re.compile(r"(GPL|LGPL|AGPL|GFDL|GFDL-NIV)-(\d+(?:\.\d+)?)(\+?)")
_FAMILIES = {"GFDL-NIV": "GFDL-{}-no-invariants"}
_DEBIAN = {"Expat": "MIT", "Apache-2": "Apache-2.0", "Artistic-2": "Artistic-2.0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    words: str  # as the package writes it
    expression: str = ""  # SPDX; empty: not all its names are in SPDX's list
    texts: tuple[str, ...] = ()  # one for each name that is not in the list


def of_expression(words: str) -> Licence | None:
    """*words* as an SPDX expression; None if they are not one."""
    found = _canonical(words)
    if found is None:
        return None
    texts = tuple(
        f"The licence that a Python package's metadata calls {ref}; its text is in the package."
        for ref in sorted(set(_REF.findall(found)))
    )
    return Licence(words=found, expression="" if texts else found, texts=texts)


def of_words(words: str) -> Licence:
    """A licence from text that is not an expression: a name, or a whole licence."""
    clean = "\n".join(line.strip() for line in printable(words).strip().split("\n"))
    return _unlisted(name_of(clean), clean)


def of_debian(synopsis: str, texts: Mapping[str, str]) -> Licence:
    """A licence from the first line of a License field; *texts* are the licence texts of the file, by name.

    Names are joined by `and` and `or`; `and` has precedence, as in SPDX. A comma changes the precedence, so
    such a line is kept as a single name.
    """
    words = " ".join(printable(synopsis).split())[:_MAX_EXPRESSION]
    parts = [words] if "," in words or "(" in words else _JOINED.split(words)
    found = [_of_debian_name(name, texts.get(name, texts.get(words, ""))) for name in parts[::2]]
    if unlisted := tuple(text for licence in found for text in licence.texts):
        return Licence(words=words or "unnamed", texts=unlisted)
    expression = " ".join(
        part
        for licence, operator in zip(found, [*parts[1::2], ""], strict=True)
        for part in (licence.expression, operator.upper())
        if part
    )
    return Licence(words=words, expression=expression)


def joined(licences: Iterable[Licence]) -> str:
    """One expression for all *licences*, joined with AND; empty if there are none."""
    parts = dict.fromkeys(licence.expression for licence in licences)
    if len(parts) == 1:
        return next(iter(parts))
    return " AND ".join(f"({part})" if " OR " in part else part for part in parts)


def name_of(words: str) -> str:
    """The first non-empty line of *words*, shortened."""
    line = next((line for line in words.split("\n") if line.strip()), "").strip()
    return line if len(line) <= _MAX_NAME else line[: _MAX_NAME - 1] + "…"


def _canonical(words: str) -> str | None:
    if not words or len(words) > _MAX_EXPRESSION or not words.isascii():
        return None
    try:
        return str(canonicalize_license_expression(words))
    except InvalidLicenseExpression:
        return None


def _of_debian_name(name: str, text: str) -> Licence:
    found = "".join(_debian_families(name)) or _DEBIAN.get(name, name)
    expression = None if " " in found else _canonical(found)
    if expression is None or expression.startswith("LicenseRef-"):
        return _unlisted(
            name_of(name), text or f"{name}\n\nThe package's copyright file contains no other text about it."
        )
    return Licence(words=name, expression=expression)


def _debian_families(name: str) -> Iterator[str]:
    """`GPL-2+` is GPL-2.0-or-later, `GPL-2` is GPL-2.0-only."""
    if match := _DEBIAN_FAMILY.fullmatch(name):
        family, version, later = match.groups()
        full = version if "." in version else f"{version}.0"
        yield _FAMILIES.get(family, family + "-{}").format(full)
        yield "-or-later" if later else "-only"


def _unlisted(name: str, text: str) -> Licence:
    return Licence(words=name or "unnamed", texts=(text,))
