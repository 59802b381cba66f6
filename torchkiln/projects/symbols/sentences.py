"""Writes sentences about what a library lacks in an image, and for what it was probably built. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torchkiln.projects.symbols.names import (
    ABI_TAG,
    is_cuda_library,
    qualified,
    readable,
    string_abi,
    version_of,
)

_LONGEST = 160  # characters of a mangled name
_MOST = 20  # symbols that are compared with those of the image

_OTHER = ": it has this function with other parameters, so this was built for another torch"
_NEW_ABI = ": built with the C++11 ABI, torch has the pre-C++11 ABI"
_OLD_ABI = ": built with the pre-C++11 ABI, torch has the C++11 ABI"
_RANK = ("", _OTHER, _NEW_ABI, _OLD_ABI)  # of the reasons found, the last in this order is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """What a library lacks: `library` is missing, or lacks a symbol or a version."""

    library: str
    sentence: str


def missing_library(name: str, others: Sequence[str], torch: str) -> Lack:
    """The image lacks the library *name*; it has the versions *others* of it, or the release *torch*."""
    if others:
        major = version_of(name).partition(".")[0]
        built = f": built for CUDA {major}" if name.startswith(("libcudart", "libcublas")) and major else ""
        return Lack(library=name, sentence=f"needs {name}, the image has {', '.join(others)}{built}")
    return Lack(library=name, sentence=f"needs {name}, which {torch} does not have: built for another torch")


def missing_version(name: str, version: str, versions: Collection[str]) -> Lack:
    """The library *name* has *versions*, but not *version*."""
    alike = [one for one in versions if _family(one) == _family(version)]
    newest = f"; its newest is {max(alike, key=_numbers)}" if alike else ""
    return Lack(library=name, sentence=f"needs {version} of {name}, which the image does not have{newest}")


def missing_symbols(symbols: Sequence[str], library: str, release: str, there: Iterable[str]) -> Lack:
    """The libraries of *release* lack *symbols*; the symbols that they have are *there*."""
    present = [(symbol.replace(ABI_TAG, ""), symbol) for symbol in there]
    reasons = [(symbol, _why(symbol, present)) for symbol in symbols[:_MOST]]
    first, why = max(reasons, key=lambda one: _RANK.index(one[1]))
    name = readable(first)
    shown = first if name == first else f"{name} ({first[:_LONGEST]}{'…' if len(first) > _LONGEST else ''})"
    more = f" and {len(symbols) - 1} more" if len(symbols) > 1 else ""
    of = f" of {library}" if is_cuda_library(library) else ""
    return Lack(library=library, sentence=f"needs {shown}{of}{more}, which {release} does not have{why}")


def _why(symbol: str, present: Iterable[tuple[str, str]]) -> str:
    """What the symbols of the same function suggest about the build; "" if there are none.

    :param present: the symbols that the searched libraries define, each without and with its ABI tags.
    """
    prefix = qualified(symbol)
    if not prefix:
        return ""
    plain = symbol.replace(ABI_TAG, "")
    alike = [(other, whole) for other, whole in present if other.startswith(prefix)]
    own, others = string_abi(symbol), {string_abi(whole) for _, whole in alike}
    tagged = any(other == plain and whole != symbol for other, whole in alike)
    if (own == "old" and "new" in others) or (tagged and own == ""):
        return _OLD_ABI
    if own == "new" and ("old" in others or tagged):
        return _NEW_ABI
    return _OTHER if alike else ""


def _family(version: str) -> str:
    """GLIBCXX of GLIBCXX_3.4.32."""
    return re.sub(r"[\d.]+$", "", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))
