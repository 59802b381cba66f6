"""Make wheels with device code, and cut installations of these wheels. The code is random bytes.

It does not use torchkiln's code, because it tests the smoke check `device-code`, which checks the output of
that code.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PTX, MACHINE, LTO = 1, 2, 8
ONE_CHIP = 1 << 20  # the flag of code for one capability only, such as sm_90a


class Code(NamedTuple):
    """An entry of a fatbin container."""

    arch: int  # 90
    kind: int = MACHINE
    flags: int = 0x2011
    size: int = 4096
    head: int = 64  # bytes


class Placed(NamedTuple):
    """The position of an entry's code in the library."""

    code: Code
    container: int  # index of the container in the section
    start: int
    stop: int


def library(
    containers: Sequence[Sequence[Code]], seed: int = 1, *, section: str = ".nv_fatbin"
) -> tuple[bytes, list[Placed]]:
    """An ELF file of more than 1 MB with *containers* in *section*, and the positions of their code.

    One more container is outside of that section, as in NVIDIA's libraries with JIT compilers.
    """
    draw = random.Random(seed)
    data = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0") + draw.randbytes(1_000_000))
    data += _container((Code(70), Code(90)), draw)[0]
    data += bytes(-len(data) % 8)
    first, placed = len(data), []
    for number, entries in enumerate(containers):
        container, places = _container(entries, draw)
        placed += [Placed(code, number, len(data) + at, len(data) + at + code.size) for code, at in places]
        data += container + bytes(-len(container) % 8)
    _add_sections(data, {section: (first, len(data) - first), ".data": (64, 1000)})
    return bytes(data), placed


def _container(entries: Sequence[Code], draw: random.Random) -> tuple[bytes, list[tuple[Code, int]]]:
    """A container, and for each entry the offset of its code in the container."""
    size = sum(code.head + code.size for code in entries)
    data, places = bytearray(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, size)), []
    for code in entries:
        head = struct.pack("<HHIQ", code.kind, 0x101, code.head, code.size)
        head += struct.pack("<IIHHIIIQQQ", 0, 0, 7, 1, code.arch, 0, 0, code.flags, 0, 0)
        places.append((code, len(data) + code.head))
        data += head.ljust(code.head, b"\x01") + draw.randbytes(code.size)
    return bytes(data), places


def _add_sections(data: bytearray, sections: Mapping[str, tuple[int, int]]) -> None:
    """Append the names and headers of *sections*, and set their position in the ELF header."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    rows = {**sections, ".shstrtab": (len(data), len(names))}
    data += names + bytes(-len(names) % 8)
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<HHH", data, 58, 64, len(rows) + 1, len(rows))
    data += bytes(64)
    for name, (offset, size) in rows.items():
        data += struct.pack("<I20xQQ24x", names.index(name.encode() + b"\0"), offset, size)


def zeroed(data: bytes, places: Sequence[Placed]) -> bytes:
    """*data* without the code at *places*."""
    result = bytearray(data)
    for place in places:
        result[place.start : place.stop] = bytes(place.stop - place.start)
    return bytes(result)


def record(files: Mapping[str, bytes], info: str) -> bytes:
    """The RECORD of *files*."""
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*rows, f"{info}/RECORD,,\n"]).encode()


def with_metadata(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files of the distribution *name* 1.0: *files*, METADATA and RECORD."""
    info = f"{name}-1.0.dist-info"
    whole = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()}
    return {**whole, f"{info}/RECORD": record(whole, info)}


def write_wheel(path: Path, files: Mapping[str, bytes]) -> str:
    """Write the wheel; returns its SHA-256 in hex."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened:
        for name, data in files.items():
            opened.writestr(name, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(site: Path, files: Mapping[str, bytes]) -> None:
    """Write *files* below *site*."""
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
