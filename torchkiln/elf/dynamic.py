"""Reads the libraries, symbols and versions that a shared library requires and defines.

It uses the section table, as `readelf` does. The file is not trusted: the work is linear in its size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torchkiln.elf.sections import DYNAMIC, DYNSYM, STRTAB, BadElf, Data, Section, sections

LIBRARY = re.compile(r"[^/]+\.so(\.\d+)*")  # the file name of a shared library

_VERDEF, _VERNEED, _VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_KINDS = (DYNAMIC, DYNSYM, _VERDEF, _VERNEED, _VERSYM)
_NEEDED, _SONAME = 1, 14
_PAIR = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_INDEX = struct.Struct("<H")
_NEED, _NEED_PART = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DEFINITION, _DEFINITION_PART = struct.Struct("<HHHHIII"), struct.Struct("<II")
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_HIDDEN = (1, 2)  # visibilities: internal, hidden
_WEAK_VERSION = 0x2
_LOCAL_VERSION, _NO_VERSION = 0, 1
_MOST = 64 << 20  # bytes of a section; the names in libtorch_cpu.so of 2.7.1 have 14 MB
_MOST_SYMBOLS = 500_000  # that library has 80,000
_MOST_ENTRIES = 10_000  # maximum entries of the dynamic section, and maximum versions
_SHARING = 2  # names may share bytes; all together are at most this many times as long as their table


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamic:
    """The dynamic symbols of a library, without weak undefined ones, which may be missing."""

    soname: str  # "" if it has none
    needed: tuple[str, ...]
    required: Mapping[str, frozenset[str]]  # library -> the versions that it must have; without weak ones
    undefined: frozenset[tuple[str, str, str]]  # symbol, its version, the version's library; "" without one
    versions: frozenset[str]  # the versions that the library itself defines
    defined: Mapping[str, frozenset[str]]  # version -> symbols; "" for symbols without a version


def parts_of(data: Data) -> tuple[tuple[int, int], ...]:
    """Start and stop of the parts of *data* that `read_dynamic` reads, besides header and section table.

    :raises BadElf: as `read_dynamic`, or a part is too large.
    """
    rows = sections(data).rows
    found = [row for row in rows if row.kind in _KINDS]
    found += [rows[row.link] for row in found if row.link < len(rows)]
    if large := [row for row in found if row.stop - row.start > _MOST]:
        raise BadElf(f"a section of more than {_MOST >> 20} MiB", large[0].at)
    return tuple(sorted({(row.start, row.stop) for row in found if row.start < row.stop}))


def read_dynamic(data: Data, *, keep: Callable[[str], bool] = lambda _: True) -> Dynamic:
    """The dynamic symbols of the shared library *data*.

    :param keep: whether to return a defined symbol of this name.
    :raises BadElf: it is not a shared library for x86-64, is malformed, or exceeds the limits.
    """
    tables = _Tables(data)
    dynamic, symbols = tables.only(DYNAMIC), tables.only(DYNSYM)
    needed, soname = _libraries(tables, dynamic) if dynamic else ((), "")
    needs, required = _needs(tables, tables.only(_VERNEED))
    definitions = _definitions(tables, tables.only(_VERDEF))
    undefined: set[tuple[str, str, str]] = set()
    defined: dict[str, set[str]] = {}
    for name, bind, is_undefined, version in _symbols(tables, symbols, tables.only(_VERSYM)):
        if not is_undefined:
            if keep(name):
                defined.setdefault(definitions.get(version, ""), set()).add(name)
        elif bind != _WEAK:
            undefined.add((name, *needs.get(version, ("", ""))))
    return Dynamic(
        soname=soname,
        needed=needed,
        required={library: frozenset(versions) for library, versions in required.items()},
        undefined=frozenset(undefined),
        versions=frozenset(definitions.values()),
        defined={version: frozenset(names) for version, names in defined.items()},
    )


class _Tables:
    """The sections of a file, and the names in its string tables."""

    def __init__(self, data: Data) -> None:
        self._data, self._rows = data, sections(data).rows
        self._strings: dict[int, bytes] = {}
        self._left: dict[int, int] = {}

    def only(self, kind: int) -> Section | None:
        """The section whose type is *kind*; None if the file has none.

        :raises BadElf: the file has two; a linker writes at most one section of each type that is read here.
        """
        found = [row for row in self._rows if row.kind == kind]
        if len(found) > 1:
            raise BadElf(f"two sections of kind {kind:#x}", found[1].at)
        return found[0] if found else None

    def content(self, section: Section) -> memoryview:
        if section.stop - section.start > _MOST:
            raise BadElf(f"a section of more than {_MOST >> 20} MiB", section.at)
        return self._data[section.start : section.stop]

    def rows(self, section: Section, form: struct.Struct) -> Iterator[tuple[int, ...]]:
        """The entries of *section*, an array of structs of the format *form*."""
        data = self.content(section)
        return form.iter_unpack(data[: len(data) // form.size * form.size])

    def name(self, section: Section, offset: int) -> str:
        strings = self._strings.get(section.link)
        if strings is None:
            row = self._rows[section.link] if section.link < len(self._rows) else None
            if row is None or row.kind != STRTAB:
                raise BadElf("a section without its string table", section.at)
            strings = self._strings[section.link] = bytes(self.content(row))
            self._left[section.link] = _SHARING * len(strings) + 4096
        end = strings.find(b"\0", offset) if offset < len(strings) else -1
        if end < 0:
            raise BadElf("a name is outside of its table", section.at)
        self._left[section.link] -= end - offset
        if self._left[section.link] < 0:
            raise BadElf("the names are longer than their table", section.at)
        return strings[offset:end].decode("utf-8", "backslashreplace")


def _libraries(tables: _Tables, section: Section) -> tuple[tuple[str, ...], str]:
    """The names in DT_NEEDED and DT_SONAME of *section*, the dynamic section."""
    needed, soname = [], ""
    for number, (tag, value) in enumerate(tables.rows(section, _PAIR)):
        if number > _MOST_ENTRIES:
            raise BadElf(f"more than {_MOST_ENTRIES} entries in the dynamic section", section.at)
        if tag == _NEEDED:
            needed.append(tables.name(section, value))
        elif tag == _SONAME:
            soname = tables.name(section, value)
        elif not tag:
            break
    return tuple(needed), soname


def _symbols(
    tables: _Tables, section: Section | None, versions: Section | None
) -> Iterator[tuple[str, int, bool, int]]:
    """Name, binding, whether it is undefined, and version of each symbol that other libraries see."""
    if section is None:
        return
    count = (section.stop - section.start) // _SYMBOL.size
    if count > _MOST_SYMBOLS:
        raise BadElf(f"more than {_MOST_SYMBOLS} symbols", section.at)
    if versions is not None and (versions.stop - versions.start) // _INDEX.size != count:
        raise BadElf("the numbers of symbols and of their versions differ", versions.at)
    indices = tables.rows(versions, _INDEX) if versions else iter([(_NO_VERSION,)] * count)
    symbols = tables.rows(section, _SYMBOL)
    for (name, info, other, place, _, _), (index,) in zip(symbols, indices, strict=True):
        bind, version = info >> 4, index & 0x7FFF
        if not name or bind not in (_GLOBAL, _WEAK, _UNIQUE) or other & 3 in _HIDDEN:
            continue
        if not place or version != _LOCAL_VERSION:
            yield tables.name(section, name), bind, not place, version


def _needs(
    tables: _Tables, section: Section | None
) -> tuple[dict[int, tuple[str, str]], dict[str, set[str]]]:
    """Map each version's number to its name and library, and each library to the versions it must define."""
    numbers: dict[int, tuple[str, str]] = {}
    required: dict[str, set[str]] = {}
    if section is None:
        return numbers, required
    data, left = tables.content(section), _MOST_ENTRIES
    for at, (_, count, file, part, _) in _chain(section, data, _NEED):
        library = tables.name(section, file)
        at += part
        for _ in range(count):
            left -= 1
            _, flags, number, name, following = _at(section, data, _NEED_PART, at, left)
            version = tables.name(section, name)
            numbers[number & 0x7FFF] = (version, library)
            if not flags & _WEAK_VERSION:
                required.setdefault(library, set()).add(version)
            at += following
            if not following:
                break
    return numbers, required


def _definitions(tables: _Tables, section: Section | None) -> dict[int, str]:
    """The name of each version that the library defines, by number."""
    if section is None:
        return {}
    data = tables.content(section)
    return {
        number & 0x7FFF: tables.name(section, _at(section, data, _DEFINITION_PART, at + part, 0)[0])
        for at, (_, _, number, _, _, part, _) in _chain(section, data, _DEFINITION)
    }


def _chain(section: Section, data: memoryview, form: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The entries of *form* in *data* with their offsets; the last field is the distance to the next."""
    at = 0
    for left in range(_MOST_ENTRIES, -2, -1):
        fields = _at(section, data, form, at, left)
        yield at, fields
        if not fields[-1]:
            return
        at += fields[-1]


def _at(section: Section, data: memoryview, form: struct.Struct, at: int, left: int) -> tuple[int, ...]:
    """The struct of the format *form* at *at*; *left*: how many more may follow."""
    if left < 0:
        raise BadElf(f"more than {_MOST_ENTRIES} versions", section.at)
    if at + form.size > len(data):
        raise BadElf("an entry is outside of its section", section.at)
    return form.unpack_from(data, at)
