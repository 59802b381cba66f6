"""Zip directory → the entries of a wheel, in the order in which they lie in the file.

The standard library reads the directory; here it is doubted: a name that could leave its folder, a kind
that is no plain file, a method nobody may use in a wheel, two entries in one place: refused by name.
"""

from __future__ import annotations

import stat
import struct
import zipfile
from dataclasses import dataclass

from torchkiln.errors import BadWheel
from torchkiln.wheel.source import WheelFile

_LOCAL = struct.Struct("<4s5H3L2H")  # the header before each entry's data
_STORED, _DEFLATED = 0, 8
MOST_ENTRIES = 200_000  # torch has 11,000; memory is bounded by this


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file in a wheel."""

    name: str
    offset: int  # of its local header
    compressed: int
    size: int
    crc: int
    deflated: bool
    executable: bool
    flags: int
    raw_name: bytes  # as the local header must repeat it


def entries(wheel: WheelFile, filename: str) -> tuple[Entry, ...]:
    """All files of the wheel *filename*, by offset; folders are left out, as installers do.

    :raises BadWheel: the directory is broken, or holds what a wheel may not hold.
    """
    try:
        with zipfile.ZipFile(wheel.directory_view()) as archive:
            infos, start = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise BadWheel(filename, f"not a readable zip: {error}") from error
    if len(infos) > MOST_ENTRIES:
        raise BadWheel(filename, f"{len(infos)} entries; {MOST_ENTRIES} at most")
    found = []
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if fault := _fault(info):
            raise BadWheel(filename, f"entry {info.orig_filename!r}: {fault}")
        if info.header_offset < end:
            raise BadWheel(filename, f"entry {info.filename!r} overlaps the one before it")
        end = info.header_offset + _LOCAL.size + info.compress_size
        if end > start:
            raise BadWheel(filename, f"entry {info.filename!r} reaches into the directory")
        if not info.is_dir():
            found.append(_entry(info))
    if infos and min(info.header_offset for info in infos) != 0:
        raise BadWheel(filename, "bytes stand before the first entry")
    _refuse_collisions(found, filename)
    return tuple(found)


def skip_local_header(wheel: WheelFile, entry: Entry, filename: str) -> None:
    """Read past the local header of *entry*, having seen that it tells the same as the directory."""
    wheel.skip_to(entry.offset)
    fields = _LOCAL.unpack(wheel.read_exactly(_LOCAL.size))
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = fields
    name = wheel.read_exactly(name_length)
    wheel.read_exactly(extra_length)
    streamed = flags & 0x08  # sizes and CRC follow the data
    zip64 = 0xFFFFFFFF in (compressed, size)
    same = (
        signature == b"PK\x03\x04"
        and name == entry.raw_name
        and flags == entry.flags
        and method == (_DEFLATED if entry.deflated else _STORED)
        and (streamed or crc == entry.crc)
        and (streamed or zip64 or (compressed, size) == (entry.compressed, entry.size))
    )
    if not same:
        raise BadWheel(filename, f"entry {entry.name!r}: its header and the directory disagree")


def _entry(info: zipfile.ZipInfo) -> Entry:
    mode = info.external_attr >> 16
    return Entry(
        name=info.filename,
        offset=info.header_offset,
        compressed=info.compress_size,
        size=info.file_size,
        crc=info.CRC,
        deflated=info.compress_type == _DEFLATED,
        executable=stat.S_ISREG(mode) and bool(mode & 0o111),
        flags=info.flag_bits,
        raw_name=info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"),
    )


def _fault(info: zipfile.ZipInfo) -> str:
    """What is wrong with one directory entry; empty when nothing is."""
    name = info.orig_filename
    parts = name.rstrip("/").split("/")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        return "an absolute path, a drive or a backslash"
    if any(part in ("", ".", "..") for part in parts):
        return "a path that is not plain (empty part, '.' or '..')"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return "control characters in the name"
    if info.filename != name:  # newer Pythons take another name from an extra field
        return f"a second name, {info.filename!r}"
    if any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in parts) or len(name) > 4000:
        return "a name too long for any file system"
    if any(part.startswith(".wh.") for part in parts):
        return "a name that layers use to delete files (.wh.)"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "neither a file nor a folder (a link or a device)"
    if info.flag_bits & 0x1:
        return "encrypted"
    if info.compress_type not in (_STORED, _DEFLATED):
        return f"compression method {info.compress_type}; wheels use stored and deflated"
    if info.compress_type == _STORED and info.compress_size != info.file_size:
        return "stored, but of two sizes"
    return ""


def _refuse_collisions(found: list[Entry], filename: str) -> None:
    """Two files at one path, or a file where another needs a folder."""
    names: set[str] = set()
    for entry in found:
        if entry.name in names:
            raise BadWheel(filename, f"entry {entry.name!r} occurs twice")
        names.add(entry.name)
    for entry in found:
        folder = entry.name
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            if folder in names:
                raise BadWheel(filename, f"entry {folder!r} is a file and a folder")
