"""Writes /etc/ld.so.cache as ldconfig does, for a tree of any platform: no program of the tree runs."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from torchkiln.base.plain_tree import Tree, file_at
from torchkiln.elf.sections import BadElf, soname_of
from torchkiln.model.platform import Platform

PATH = "etc/ld.so.cache"
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = struct.Struct("<20sIIB3xI12x"), struct.Struct("<iIIIQ")
_LITTLE_ENDIAN = 2
_EXTENSIONS = struct.Struct("<IIIIII")  # magic, number; then of the only one: kind, flags, offset, size
_EXTENSION_MAGIC, _GENERATOR = 0xEAA42174, 0
_NAME = re.compile(r"(lib|ld-).*\.so.*")


def loader_cache(tree: Tree, platform: Platform, glibc: str) -> bytes:
    """The cache of the libraries in *tree*'s folders for *platform*.

    :param glibc: the version of the package libc6, "2.36-9+deb12u14".
    """
    folders = (platform.libraries, "usr/lib")
    found = dict.fromkeys(pair for folder in folders for pair in _libraries(tree, folder))
    libraries = sorted(found, key=lambda pair: _order(pair[0]), reverse=True)
    start = _HEADER.size + _ENTRY.size * len(libraries)
    table, places = _strings(text for pair in libraries for text in pair)
    rows = (
        _ENTRY.pack(platform.cache_flags, start + places[name], start + places[path], 0, 0)
        for name, path in libraries
    )
    generator = f"ldconfig (Debian GLIBC {glibc}) stable release version {glibc.partition('-')[0]}".encode()
    end = -(-(start + len(table)) // 4) * 4
    extensions = (_EXTENSION_MAGIC, 1, _GENERATOR, 0, end + _EXTENSIONS.size, len(generator))
    head = _HEADER.pack(_MAGIC, len(libraries), len(table), _LITTLE_ENDIAN, end)
    body = b"".join((head, *rows, table)).ljust(end, b"\0")
    return body + _EXTENSIONS.pack(*extensions) + generator


def _libraries(tree: Tree, folder: str) -> Iterator[tuple[str, str]]:
    """The names by which programs find libraries, SONAMEs or links ("libz.so"), and their paths."""
    for path, node in tree.items():
        place, _, name = path.rpartition("/")
        if place != folder or not _NAME.fullmatch(name):
            continue
        file = file_at(path, tree)
        with suppress(BadElf):  # some are scripts of the linker
            soname = soname_of(memoryview(b"".join(file.pieces()))) if file else ""
            is_short = node.entry.kind == "link" and name.endswith(".so")
            if file:
                name = name if is_short else soname or name
                # ldconfig finds the folders first below /lib, which is a link to usr/lib.
                yield name, f"/{folder.removeprefix('usr/')}/{name}"


def _order(name: str) -> list[tuple[int, int]]:
    """The key by which ldconfig sorts: numbers by value, and after all other characters."""
    parts = re.findall(r"[0-9]+|[^0-9]", name)
    return [(256, int(part)) if part.isdigit() else (ord(part), 0) for part in parts]


def _strings(texts: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """The string table, in which a text that ends another is not repeated; and the place of each."""
    table, places, last = b"", dict[str, int](), ""
    for text in sorted(set(texts), key=lambda text: text[::-1], reverse=True):
        if last.endswith(text):
            places[text] = places[last] + len(last) - len(text)
            continue
        places[text], last = len(table), text
        table += text.encode() + b"\0"
    return table, places
