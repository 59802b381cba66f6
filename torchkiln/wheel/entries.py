"""Zip directory → the entries of a wheel, in the order in which they lie in the file.

Here the directory is doubted: a name that could leave its folder or hide what it is, a kind that is no
plain file, a method nobody may use in a wheel, two entries in one place, more than a wheel may cost: refused
by name.

The sizes that a wheel's directory tells → whether it may cost that much. Pure.

What an entry inflates to is bounded by what the directory says; here the directory itself is bounded. The
limits lie far above the largest wheels known, and below what would fill a machine.
"""

from __future__ import annotations

import stat
import struct
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from torchkiln.errors import BadWheel
from torchkiln.wheel.directory import STREAMED, Line, Unreadable, directory, extra_fields, unusual, widened
from torchkiln.wheel.install import is_script
from torchkiln.wheel.source import WheelFile

_LOCAL = struct.Struct("<4s5H3L2H")  # the header before each entry's data
_STORED, _DEFLATED = 0, 8
_LONGEST_PART, _LONGEST_NAME = 255, 4000  # bytes; Linux allows 4,095 with what comes in front
_LONGEST_SOURCE = _LONGEST_PART - len(".cpython-311.pyc") + len(".py")  # its byte-code has a name too


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
    lines, start = directory(wheel, filename)
    end = 0
    for line in sorted(lines, key=lambda line: line.offset):
        if fault := _fault(line):
            raise BadWheel(filename, f"entry {line.name!r}: {fault}")
        if line.offset < end:
            raise BadWheel(filename, f"entry {line.name!r} overlaps the one before it")
        end = line.offset + _LOCAL.size + len(line.raw_name) + line.compressed
        if end > start:
            raise BadWheel(filename, f"entry {line.name!r} reaches into the directory")
    if lines and min(line.offset for line in lines) != 0:
        raise BadWheel(filename, "bytes stand before the first entry")
    found = [_entry(line) for line in lines if not line.name.endswith("/")]
    found.sort(key=lambda entry: entry.offset)
    _refuse_collisions(found, filename)
    if fault := size_fault(((entry.name, entry.size) for entry in found), wheel.size):
        raise BadWheel(filename, fault)
    return tuple(found)


def skip_local_header(wheel: WheelFile, entry: Entry, filename: str) -> None:
    """Read past the local header of *entry*, having seen that it tells the same as the directory."""
    if wheel.position > entry.offset:  # only the header before told how long it is
        raise BadWheel(filename, f"entry {entry.name!r} overlaps the one before it")
    wheel.skip_to(entry.offset)
    fields = _LOCAL.unpack(wheel.read_exactly(_LOCAL.size))
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = fields
    if wheel.position + name_length + extra_length + entry.compressed > wheel.size:
        raise BadWheel(filename, f"entry {entry.name!r} runs on behind the end of the file")
    name = wheel.read_exactly(name_length)
    try:
        extra = extra_fields(wheel.read_exactly(extra_length), entry.name)
        size, compressed = widened((size, compressed), extra, entry.name)
    except Unreadable as error:
        raise BadWheel(filename, f"in the entry's own header: {error}") from error
    told = ((crc, entry.crc), (compressed, entry.compressed), (size, entry.size))
    same = (
        signature == b"PK\x03\x04"
        and name == entry.raw_name
        and flags == entry.flags
        and method == (_DEFLATED if entry.deflated else _STORED)
        # Of a streamed entry they follow the data, where nobody reads them: here they may be zero.
        and all(here == there or (flags & STREAMED and not here) for here, there in told)
    )
    if not same:
        raise BadWheel(filename, f"entry {entry.name!r}: its header and the directory disagree")


def data_offset(wheel: WheelFile, entry: Entry) -> int:
    """Where the data of *entry* begins, in a wheel whose headers were seen to be sound."""
    header = wheel.at(entry.offset, _LOCAL.size)
    name_length, extra_length = _LOCAL.unpack(header)[-2:]
    return int(entry.offset + _LOCAL.size + name_length + extra_length)


def _entry(line: Line) -> Entry:
    return Entry(
        name=line.name,
        offset=line.offset,
        compressed=line.compressed,
        size=line.size,
        crc=line.crc,
        deflated=line.method == _DEFLATED,
        executable=stat.S_ISREG(line.mode) and bool(line.mode & 0o111),
        flags=line.flags,
        raw_name=line.raw_name,
    )


def _fault(line: Line) -> str:
    """What is wrong with one line of the directory; empty when nothing is."""
    kind = stat.S_IFMT(line.mode)
    if fault := _name_fault(line.name):
        return fault
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "neither a file nor a folder (a link or a device)"
    if line.name.endswith("/") and line.size:
        return "a folder with content"
    if fault := unusual(line.flags):
        return fault
    if line.method not in (_STORED, _DEFLATED):
        return f"compression method {line.method}; wheels use stored and deflated"
    if line.method == _STORED and line.compressed != line.size:
        return "stored, but of two sizes"
    return ""


def _name_fault(name: str) -> str:
    """Why no file may be called *name*; empty when it may."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        return "an absolute path, a drive or a backslash"
    if any(part in ("", ".", "..") for part in parts):
        return "a path that is not plain (empty part, '.' or '..')"
    plain = name.isascii() and name.isprintable()  # nearly all; the looks at each letter cost something
    if not plain and any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
        return "control characters in the name"
    if not plain and any(unicodedata.bidirectional(char) in _TURNING for char in name):
        return "characters that turn the direction of writing: the name is not what it looks like"
    if any(len(part.encode()) > _LONGEST_PART for part in parts) or len(name.encode()) > _LONGEST_NAME:
        return "a name too long for any file system"
    if name.endswith(".py") and len(parts[-1].encode()) > _LONGEST_SOURCE:
        return "a name too long for its byte-code"
    if any(part.startswith(".wh.") for part in parts):
        return "a name that layers use to delete files (.wh.)"
    return ""


_TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def _refuse_collisions(found: Iterable[Entry], filename: str) -> None:
    """Two files at one path, a file where another needs a folder, or more folders than one may have."""
    names: set[str] = set()
    folders: set[str] = set()
    for entry in found:
        if entry.name in names:
            raise BadWheel(filename, f"entry {entry.name!r} occurs twice")
        names.add(entry.name)
        folder = entry.name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(folders) > MOST_FOLDERS:
            raise BadWheel(filename, f"more than {MOST_FOLDERS} folders")
    for name in sorted(names & folders):
        raise BadWheel(filename, f"entry {name!r} is a file and a folder")


MOST_FOLDERS = 50_000  # jedi has 960; each is a header in the layer
MOST_UNPACKED = 20_000_000_000  # bytes of a wheel's files together; torch 2.7.1 has 1.6 GB
# Unpacked bytes for each byte of the wheel; 7.5 is the most among torch 2.7.1's 127 wheels.
MOST_RATIO = 100
_SMALL = 1_000_000_000  # unpacked bytes that are nothing to worry about, whatever their ratio
SCRIPT = 1 << 20  # bytes; scripts up to this size are held back and may be rewritten
_SCRIPTS = 64 << 20  # bytes of scripts held at a time
_SOURCE = 16 << 20  # bytes of one Python source: a compiler makes many more; torch's largest has 1.2 MB
# What is held whole, by its name in .dist-info; the largest real ones have 57 kB and 1.2 MB.
_METADATA = {"METADATA": 4 << 20, "WHEEL": 1 << 20, "entry_points.txt": 1 << 20, "RECORD": 16 << 20}


def size_fault(files: Iterable[tuple[str, int]], wheel: int) -> str:
    """What is too large about a wheel of *wheel* bytes with *files* (name, bytes); empty for nothing."""
    total = scripts = 0
    for name, size in files:
        most = _most(name)
        if most is not None and size > most:
            return f"entry {name!r} is {size} bytes; {most} at most for its kind"
        total += size
        if is_script(name) and size <= SCRIPT:
            scripts += size
    if scripts > _SCRIPTS:
        return f"{scripts} bytes of scripts; {_SCRIPTS} at most"
    if total > MOST_UNPACKED or total > max(_SMALL, wheel * MOST_RATIO):
        return (
            f"unpacks to {total} bytes, {total // max(1, wheel)} times its own size; "
            f"{MOST_UNPACKED} bytes and {MOST_RATIO} times at most"
        )
    return ""


def _most(name: str) -> int | None:
    """The bytes that the entry *name* may have; None where only the sum counts."""
    top, _, rest = name.partition("/")
    if top.endswith(".dist-info") and rest in _METADATA:
        return _METADATA[rest]
    return _SOURCE if name.endswith(".py") else None
