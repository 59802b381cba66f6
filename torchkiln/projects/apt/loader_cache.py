"""Reads /etc/ld.so.cache, in which the loader looks up the libraries that a program needs. Pure.

The format is that of glibc 2.2 and later: a header, entries that refer to strings by offset, and the strings.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

PATH = "etc/ld.so.cache"
LIMIT = 16 << 20  # bytes; with a thousand libraries it has 60,000
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII16x4x")  # magic, entries, bytes of strings
_NUMBER = re.compile(r"[0-9]+")
_LONGEST = 4096  # bytes of a path
_ENTRY = struct.Struct("<iIIIQ")  # flags, offsets of name and path, version of the kernel, capabilities

#: Name of a library -> the paths at which the loader would search it, in that order.
LoaderCache = Mapping[str, tuple[str, ...]]


def parse_cache(data: bytes) -> LoaderCache:
    """The libraries in *data*.

    :raises ValueError: it is not in this format, or is truncated.
    """
    if not data.startswith(_MAGIC) or len(data) < _HEADER.size:
        raise ValueError("invalid ld.so.cache")
    _, count, _ = _HEADER.unpack_from(data)
    if _HEADER.size + count * _ENTRY.size > len(data):
        raise ValueError("ld.so.cache is truncated")
    found: dict[str, list[str]] = {}
    for number in range(count):
        _, name, path, _, _ = _ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size)
        found.setdefault(_text(data, name), []).append(_text(data, path))
    return {name: tuple(paths) for name, paths in found.items()}


def changed_libraries(before: LoaderCache, after: LoaderCache) -> Iterator[str]:
    """A message for each library of *before* that the loader would not find, or would find elsewhere."""
    new = _by_key(after)
    for name, paths in sorted(_by_key(before).items()):
        now = new.get(name, [])
        if not now:
            yield f"{name} would no longer be found"
        elif now != paths:
            other = next((path for path in now if path not in paths), now[0])
            yield f"{name} would be loaded from {other.lstrip('/')}, not from {paths[0].lstrip('/')}"


def name_key(library: str) -> str:
    """*library* in the form in which the loader compares names: libc.so.06 is libc.so.6.

    The loader compares numbers in a name by their value, an integer of 32 bits.
    """
    return _NUMBER.sub(lambda found: str(int(found[0]) & 0xFFFFFFFF), library)


def _by_key(cache: LoaderCache) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, paths in cache.items():
        found.setdefault(name_key(name), []).extend(paths)
    return found


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + _LONGEST)
    if end < 0:
        raise ValueError("ld.so.cache is truncated")
    return data[offset:end].decode(errors="backslashreplace")
