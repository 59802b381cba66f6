"""Write shared libraries with valid and broken fatbin containers, without torchkiln's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PTX, CUBIN, LTO = 1, 2, 8
STORED, LZ4, ZSTD = 0x11, 0x2011, 0x8011
_WIDTHS = {
    "kind": 2,
    "version": 2,
    "header": 4,
    "payload": 8,
    "packed": 4,
    "options": 4,
    "minor": 2,
    "major": 2,
    "architecture": 4,
    "name": 4,
    "name_length": 4,
    "flags": 8,
    "key": 8,
    "unpacked": 8,
}
_VARIANTS = {"a": 0x100000, "f": 0x200000}
_KINDS = {"sm": CUBIN, "compute": PTX, "lto": LTO}


@dataclass(frozen=True, kw_only=True)
class Made:
    """An entry of a fatbin container: its bytes, and the length of its header."""

    name: str  # "sm_90a"
    data: bytes
    header: int


def entry(name: str, body: bytes = b"code", *, form: int = STORED, extra: bytes = b"", **false: int) -> Made:
    """An entry with *body* as code for *name*, such as "sm_90a" or "compute_90".

    :param extra: additional bytes of the header, a multiple of 8.
    :param false: wrong values that replace header fields.
    """
    packed = form & 0xA000
    kind, _, architecture = name.partition("_")
    variant = architecture.lstrip("0123456789")
    content = _content(kind, body, form)
    padded = content + bytes(-len(content) % 8)
    fields = {
        "kind": _KINDS[kind],
        "version": 0x101,
        "header": 64 + len(extra),
        "payload": len(padded),
        "packed": len(content) if packed else 0,
        "options": 64 if extra else 0,
        "minor": 7,
        "major": 1,
        "architecture": int(architecture.removesuffix(variant)),
        "name": 0,
        "name_length": 0,
        "flags": form | _VARIANTS.get(variant, 0),
        "key": 0,
        "unpacked": 3 * len(content) if packed else 0,
        **false,
    }
    header = b"".join(fields[key].to_bytes(width, "little") for key, width in _WIDTHS.items())
    return Made(name=name, data=header + extra + padded, header=64 + len(extra))


def _content(kind: str, body: bytes, form: int) -> bytes:
    if form & 0x8000:
        return b"\x28\xb5\x2f\xfd" + body
    return (b"\x7fELF" if kind == "sm" and not form & 0xA000 else b"") + body


def container(
    *entries: Made, magic: int = 0xBA55ED50, version: int = 1, header: int = 16, more: int = 0
) -> bytes:
    """A fatbin container; the length in its header is *more* bytes too large."""
    data = b"".join(made.data for made in entries)
    numbers = ((magic, 4), (version, 2), (header, 2), (len(data) + more, 8))
    return b"".join(number.to_bytes(width, "little") for number, width in numbers) + data


@dataclass(kw_only=True)
class Elf:
    """Fields of an ELF file, with valid defaults; a test replaces some."""

    ident: bytes = b"\x7fELF\x02\x01\x01"
    kind: int = 3
    machine: int = 62
    section_header: int = 64  # bytes
    names: int | None = None  # index of the section with section names
    count: int | None = None
    table: int | None = None
    segments: tuple[int, int] = (0, 0)  # offset and number of program headers
    sections: dict[str, dict[str, int]] = field(default_factory=dict)  # replaced header fields, by section


_START = 64


def library(sections: Mapping[str, bytes], elf: Elf | None = None) -> bytes:
    """A shared library with *sections*, in this order from byte 64 on, each at a multiple of 8."""
    elf = elf or Elf()
    names, texts, body = b"\0", b"", b""
    rows = [_row({})]
    for name, data in {**sections, ".shstrtab": b""}.items():
        at = len(names)
        names += name.encode() + b"\0"
        texts = names if name == ".shstrtab" else data
        kind = 3 if name == ".shstrtab" else 1
        fields = {"name": at, "type": kind, "flags": 2, "offset": _START + len(body), "size": len(texts)}
        rows.append(_row({**fields, **elf.sections.get(name, {})}))
        body += texts + bytes(-len(texts) % 8)
    table = _START + len(body)
    header = elf.ident.ljust(16, b"\0")
    for number, width in (
        *((elf.kind, 2), (elf.machine, 2), (1, 4), (0, 8), (elf.segments[0], 8)),
        *((elf.table if elf.table is not None else table, 8), (0, 4), (64, 2), (56, 2), (elf.segments[1], 2)),
        (elf.section_header, 2),
        (elf.count if elf.count is not None else len(rows), 2),
        (elf.names if elf.names is not None else len(rows) - 1, 2),
    ):
        header += number.to_bytes(width, "little")
    return header + body + b"".join(rows)


def _row(fields: Mapping[str, int]) -> bytes:
    order = {"name": 4, "type": 4, "flags": 8, "address": 8, "offset": 8, "size": 8, "link": 4, "info": 4}
    order |= {"align": 8, "entry": 8}
    return b"".join(fields.get(key, 0).to_bytes(width, "little") for key, width in order.items())
