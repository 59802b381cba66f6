"""The reader of dynamic symbols finds in libraries what pyelftools finds; its work is limited."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs_gcc
from tests.shared_libraries import Lib
from tests.symbol_scene import CUDART, LIBC, LIBSTDCPP, TORCH_PYTHON, compiled
from torchkiln.elf.dynamic import Dynamic, parts_of, read_dynamic
from torchkiln.elf.sections import BadElf
from torchkiln.projects.symbols import wheels
from torchkiln.projects.symbols.wheels import library_in

MIXED = Lib(
    name="mixed.so",
    defines=("PyInit_mixed", "_ZN3c103oneEv"),
    uses=("cudaMalloc", "malloc", "arc4random", "_ZSt4cout", "nowhere"),
    weak=("perhaps",),
    needs=(CUDART, LIBC, LIBSTDCPP),
)
LIBRARIES = (MIXED, CUDART, LIBC, LIBSTDCPP, TORCH_PYTHON)


def read(data: bytes) -> Dynamic:
    return read_dynamic(memoryview(data))


def by_pyelftools(data: bytes) -> Dynamic:
    """The dynamic symbols that pyelftools finds."""
    elf = ELFFile(io.BytesIO(data))
    needs: dict[int, tuple[str, str]] = {}
    required: dict[str, set[str]] = {}
    definitions: dict[int, str] = {}
    numbers: list[int] = []
    needed, soname = [], ""
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            needed = [tag.needed for tag in section.iter_tags("DT_NEEDED")]
            soname = next((tag.soname for tag in section.iter_tags("DT_SONAME")), "")
        elif isinstance(section, GNUVerNeedSection):
            for library, versions in section.iter_versions():
                for version in versions:
                    needs[version["vna_other"]] = (version.name, library.name)
                    required.setdefault(library.name, set()).add(version.name)
        elif isinstance(section, GNUVerDefSection):
            for version, names in section.iter_versions():
                definitions[version["vd_ndx"]] = next(iter(names)).name
        elif isinstance(section, GNUVerSymSection):
            numbers = [_number(symbol["ndx"]) for symbol in section.iter_symbols()]
    undefined, defined = set(), dict[str, set[str]]()
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        bind, version = symbol["st_info"]["bind"], numbers[number] if numbers else 1
        if bind == "STB_LOCAL" or not symbol.name:
            continue
        if symbol["st_shndx"] == "SHN_UNDEF":
            if bind != "STB_WEAK":
                undefined.add((symbol.name, *needs.get(version, ("", ""))))
        elif version:
            defined.setdefault(definitions.get(version, ""), set()).add(symbol.name)
    return Dynamic(
        soname=soname,
        needed=tuple(needed),
        required={library: frozenset(versions) for library, versions in required.items()},
        undefined=frozenset(undefined),
        versions=frozenset(definitions.values()),
        defined={version: frozenset(names) for version, names in defined.items()},
    )


def _number(index: int | str) -> int:
    named = {"VER_NDX_LOCAL": 0, "VER_NDX_GLOBAL": 1}
    return named[index] if isinstance(index, str) else index & 0x7FFF


@needs_gcc
@pytest.mark.parametrize("lib", LIBRARIES, ids=lambda lib: lib.name)
def test_a_library_is_read_as_by_another_reader(lib: Lib) -> None:
    found = read(compiled(lib))

    assert found == by_pyelftools(compiled(lib))
    assert found.soname == lib.name
    assert found.needed == tuple(other.name for other in lib.needs)
    assert {name for names in found.defined.values() for name in names} >= {*lib.defines}
    assert {name for name, _, _ in found.undefined} == {*lib.uses}


def test_the_libraries_of_this_python_are_read_as_by_another_reader() -> None:
    found = sorted(Path(sys.base_prefix).rglob("*.cpython-*.so"))[:5]
    if not found:
        pytest.skip("this Python has no extension modules in files")
    for path in found:
        assert read(path.read_bytes()) == by_pyelftools(path.read_bytes()), path


@needs_gcc
@given(data=st.data())
def test_any_changed_library_is_read_or_refused(data: st.DataObject) -> None:
    """Most of the changed bytes are in tables of the library."""
    whole = bytearray(compiled(data.draw(st.sampled_from(LIBRARIES))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        value = data.draw(
            st.sampled_from((b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x01", b"\0\0\0\x80", b"\x08"))
        )
        whole[at : at + len(value)] = value
    try:
        found = read(bytes(whole))
    except BadElf:
        return
    assert isinstance(found, Dynamic)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(rest: bytes) -> None:
    with pytest.raises(BadElf):
        read(b"\x7fELF\x02\x01\x01" + rest)


# --- files made without gcc, for limits --------------------------------------------------------------------


def library(sections: Iterable[tuple[int, bytes, int]]) -> bytes:
    """An ELF file with *sections*, each as (type, content, link). Section 1 is an empty table of names."""
    body, rows = bytearray(), [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for kind, content, link in ((3, b"\0", 0), *sections):
        at = 64 + len(body)
        rows.append(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, len(content), link, 0, 0, 0))
        body += content
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(rows), 1),
    )
    return head + bytes(body) + b"".join(rows)


def symbols(names: Iterable[int]) -> bytes:
    """A symbol table with defined symbols, whose names are at these offsets."""
    return b"".join(struct.pack("<IBBHQQ", name, 0x12, 0, 1, 0, 0) for name in names)


def test_a_small_file_is_read() -> None:
    found = read(library([(11, symbols([1, 5]), 3), (3, b"\0one\0two\0", 0)]))

    assert found.defined == {"": frozenset({"one", "two"})}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        pytest.param(
            [(11, symbols([1] * 1000), 3), (3, b"\0" + b"x" * 10_000 + b"\0", 0)],
            "the names are longer than their table",
            id="one long name a thousand times",
        ),
        pytest.param([(11, bytes(24 * 500_001), 3), (3, b"\0", 0)], "more than 500000 symbols", id="symbols"),
        pytest.param([(11, symbols([9]), 3), (3, b"\0ab", 0)], "outside of its table", id="name outside"),
        pytest.param(
            [(11, symbols([1]), 3), (3, b"\0ab", 0)], "outside of its table", id="unterminated name"
        ),
        pytest.param([(11, symbols([1]), 9), (3, b"\0a\0", 0)], "without its string table", id="no table"),
        pytest.param([(11, b"", 1), (11, b"", 1)], "two sections of kind 0xb", id="two"),
        pytest.param(
            [(11, symbols([1]), 3), (3, b"\0a\0", 0), (0x6FFFFFFF, b"", 2)],
            "the numbers of symbols and of their versions differ",
            id="versions",
        ),
        pytest.param([(6, bytes(16), 1), (0x6FFFFFFE, bytes(8), 1)], "outside of its section", id="cut"),
        pytest.param(
            [(0x6FFFFFFE, struct.pack("<HHIII", 1, 0, 0, 0, 16) * 20_000, 1)],
            "more than 10000 versions",
            id="needed versions",
        ),
        pytest.param(
            [(0x6FFFFFFE, struct.pack("<HHIII", 1, 65535, 0, 0, 16) * 12_000, 1)],
            "more than 10000 versions",
            id="needed versions that share entries",
        ),
        pytest.param(
            [(0x6FFFFFFD, struct.pack("<HHHHIII", 1, 0, 2, 1, 0, 8, 20) * 20_000, 1)],
            "more than 10000 versions",
            id="defined versions",
        ),
        pytest.param(
            [(6, struct.pack("<QQ", 1, 0) * 20_000, 1)], "more than 10000 entries", id="needed libraries"
        ),
        pytest.param([(3, bytes((64 << 20) + 1), 1), (11, b"", 2)], "", id="a long table that is not read"),
    ],
)
def test_limits_of_what_is_read(sections: list[tuple[int, bytes, int]], why: str) -> None:
    data = library(sections)
    if not why:
        assert read(data).defined == {}
        with pytest.raises(BadElf, match="more than 64 MiB"):
            parts_of(memoryview(data))
        return
    with pytest.raises(BadElf, match=why):
        read(data)


def test_hidden_symbols_and_weak_versions_do_not_count() -> None:
    """Other libraries cannot use a hidden symbol, and a weak version may be missing."""
    hidden = struct.pack("<IBBHQQ", 5, 0x12, 2, 1, 0, 0)
    need = struct.pack("<HHIII", 1, 2, 1, 16, 0)
    parts = struct.pack("<IHHII", 0, 2, 2, 5, 16) + struct.pack("<IHHII", 0, 0, 3, 1, 0)
    names = b"\0one\0two\0"
    found = read(library([(11, symbols([1]) + hidden, 3), (3, names, 0), (0x6FFFFFFE, need + parts, 3)]))

    assert found.defined == {"": frozenset({"one"})}
    assert found.required == {"one": frozenset({"one"})}


# --- parts of a large file --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [64, 1000, 5000, 1 << 20])
@needs_gcc
def test_a_library_is_read_in_pieces(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The symbols may be at the beginning or the end, which are kept in memory, or in the middle."""
    data, passes = compiled(MIXED), [0]
    monkeypatch.setattr(wheels, "_START", 64)
    monkeypatch.setattr(wheels, "_KEPT", end)

    def pieces() -> Iterator[bytes]:
        passes[0] += 1
        return (data[at : at + 700] for at in range(0, len(data), 700))

    assert library_in(pieces, len(data), lambda _: True) == read(data)
    assert passes[0] == (2 if end < 5000 else 1)


def test_a_huge_library_takes_little_memory() -> None:
    size = 2 << 30
    tail = library([(11, symbols([1]), 3), (3, b"\0one\0", 0)])
    head = tail[:64].replace(
        struct.pack("<Q", struct.unpack_from("<Q", tail, 40)[0]),
        struct.pack("<Q", size - len(tail) + struct.unpack_from("<Q", tail, 40)[0]),
    )
    zeros = bytes(1 << 20)

    def pieces() -> Iterator[bytes]:
        yield head
        at = len(head)
        while at < size - len(tail):
            piece = zeros[: min(len(zeros), size - len(tail) - at)]
            at += len(piece)
            yield piece
        yield tail

    tracemalloc.start()
    found = library_in(pieces, size, lambda _: True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.defined == {}  # the file's end, where the symbol table would be, is zeros
    assert peak < 200e6


def test_a_part_that_is_not_there_ends_the_reading() -> None:
    """The header gives an offset of the section table that is after the end of the file."""
    data = bytearray(library([]))
    struct.pack_into("<Q", data, 40, 1 << 62)

    assert library_in(lambda: iter([bytes(data)]), len(data), lambda _: True) is None
    assert library_in(lambda: iter([b"no library"]), 10, lambda _: True) is None
    assert library_in(lambda: iter([]), 0, lambda _: True) is None
