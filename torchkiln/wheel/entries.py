"""Reads the entries of a wheel, in the order of the file, and refuses unsafe ones.

It refuses names that lead out of the folder or are displayed misleadingly, entries that are not regular
files, compression methods that wheels must not use, duplicate paths, and files that are too large. An entry
never inflates to more than the directory says; the sizes in the directory are limited here, far above the
largest known wheels.
"""

from __future__ import annotations

import stat
import struct
import unicodedata
from collections.abc import Iterable

from torchkiln.errors import BadWheel
from torchkiln.wheel.directory import (
    DEFLATED,
    STORED,
    STREAMED,
    BadZip,
    WheelEntry,
    directory,
    extra_fields,
    unusual,
    widened,
)
from torchkiln.wheel.install import is_script
from torchkiln.wheel.source import WheelFile

_LOCAL = struct.Struct("<4s5H3L2H")  # the local header before the data of an entry
_MAX_PART, _MAX_NAME = 255, 4000  # bytes; Linux allows 4,095 for the whole path
_MAX_SOURCE_NAME = _MAX_PART - len(".cpython-311.pyc") + len(".py")  # its byte-code has a longer name


def entries(wheel: WheelFile, filename: str) -> tuple[WheelEntry, ...]:
    """All files of the wheel *filename*, sorted by offset; without folders, as installers do.

    :raises BadWheel: the directory is corrupt, or an entry is refused.
    """
    found, start = directory(wheel, filename)
    found.sort(key=lambda entry: entry.offset)
    end = 0
    for entry in found:
        if fault := _fault(entry):
            raise BadWheel(filename, f"entry {entry.name!r}: {fault}")
        if entry.offset < end:
            raise BadWheel(filename, f"entry {entry.name!r} overlaps the previous entry")
        end = entry.offset + _LOCAL.size + len(entry.raw_name) + entry.compressed
        if end > start:
            raise BadWheel(filename, f"entry {entry.name!r} overlaps the central directory")
    if found and found[0].offset != 0:
        raise BadWheel(filename, "extra bytes before the first entry")
    found = [entry for entry in found if not entry.name.endswith("/")]
    _refuse_collisions(found, filename)
    if fault := _size_fault(found, wheel.size):
        raise BadWheel(filename, fault)
    return tuple(found)


def skip_local_header(wheel: WheelFile, entry: WheelEntry, filename: str) -> None:
    """Skip the local header of *entry* and check that it agrees with the central directory."""
    if wheel.position > entry.offset:  # the length of a local header is in that header only
        raise BadWheel(filename, f"entry {entry.name!r} overlaps the previous entry")
    wheel.skip_to(entry.offset)
    fields = _LOCAL.unpack(wheel.read_exactly(_LOCAL.size))
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = fields
    if wheel.position + name_length + extra_length + entry.compressed > wheel.size:
        raise BadWheel(filename, f"entry {entry.name!r} extends beyond the end of the file")
    name = wheel.read_exactly(name_length)
    try:
        extra = extra_fields(wheel.read_exactly(extra_length), entry.name)
        size, compressed = widened((size, compressed), extra, entry.name)
    except BadZip as error:
        raise BadWheel(filename, f"local header: {error}") from error
    values = ((crc, entry.crc), (compressed, entry.compressed), (size, entry.size))
    same = (
        signature == b"PK\x03\x04"
        and name == entry.raw_name
        and flags == entry.flags
        and method == entry.method
        # A streamed entry has these values after its data; in its local header they may be zero.
        and all(local == central or (flags & STREAMED and not local) for local, central in values)
    )
    if not same:
        raise BadWheel(filename, f"entry {entry.name!r}: local header and central directory disagree")


def data_offset(wheel: WheelFile, entry: WheelEntry) -> int:
    """The offset of the data of *entry*, in a wheel whose local headers were checked."""
    header = wheel.at(entry.offset, _LOCAL.size)
    name_length, extra_length = _LOCAL.unpack(header)[-2:]
    return int(entry.offset + _LOCAL.size + name_length + extra_length)


def _fault(entry: WheelEntry) -> str:
    """Why an entry of the directory is refused; empty if it is not."""
    kind = stat.S_IFMT(entry.mode)
    if fault := _name_fault(entry.name):
        return fault
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "not a regular file or directory"
    if entry.name.endswith("/") and entry.size:
        return "a directory with content"
    if fault := unusual(entry.flags):
        return fault
    if entry.method not in (STORED, DEFLATED):
        return f"unsupported compression method {entry.method}; only stored and deflated are supported"
    if entry.method == STORED and entry.compressed != entry.size:
        return "stored, but with two different sizes"
    return ""


def _name_fault(name: str) -> str:
    """Why the name is refused; empty if it is not."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        return "an absolute path, a drive letter or a backslash"
    if not _UNNORMALIZED.isdisjoint(parts):
        return "the path is not normalized (empty component, '.' or '..')"
    plain = name.isascii() and name.isprintable()  # nearly all; checking each character is slow
    if not plain and any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
        return "control characters in the name"
    if not plain and any(unicodedata.bidirectional(char) in _BIDI_CONTROLS for char in name):
        return "bidirectional control characters in the name: it is displayed differently"
    encoded = name.encode()
    if len(encoded) > _MAX_SOURCE_NAME:
        longest = max(map(len, encoded.split(b"/")))
        if longest > _MAX_PART or len(encoded) > _MAX_NAME:
            return "file name too long"
        if name.endswith(".py") and len(parts[-1].encode()) > _MAX_SOURCE_NAME:
            return "file name too long for its byte-code"
    if ".wh." in name and any(part.startswith(".wh.") for part in parts):
        return "a whiteout name (.wh.), which deletes files in layers"
    return ""


_UNNORMALIZED = frozenset({"", ".", ".."})
_BIDI_CONTROLS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def _refuse_collisions(found: Iterable[WheelEntry], filename: str) -> None:
    """Refuse duplicate paths, paths that are both file and folder, and too many folders."""
    names: set[str] = set()
    folders: set[str] = set()
    for entry in found:
        if entry.name in names:
            raise BadWheel(filename, f"entry {entry.name!r} is a duplicate")
        names.add(entry.name)
        folder = entry.name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(folders) > MAX_FOLDERS:
            raise BadWheel(filename, f"more than {MAX_FOLDERS} directories")
    for name in sorted(names & folders):
        raise BadWheel(filename, f"entry {name!r} is both a file and a directory")


MAX_FOLDERS = 50_000  # jedi has 960; each is a header in the layer
MAX_UNPACKED = 20_000_000_000  # bytes of all files of a wheel; torch 2.7.1 has 1.6 GB
# Unpacked bytes for each byte of the wheel; the largest ratio in torch 2.7.1's 127 wheels is 7.5.
MAX_RATIO = 100
_SMALL = 1_000_000_000  # unpacked bytes that are allowed with any ratio
SCRIPT = 1 << 20  # bytes; scripts up to this size are buffered and may be rewritten
_SCRIPTS = 64 << 20  # bytes of buffered scripts
_SOURCE = 16 << 20  # bytes of a Python source, which the compiler reads at once; torch's largest has 1.2 MB
# Bytes of files of .dist-info, which are read at once; the largest real ones have 57 kB and 1.2 MB.
_METADATA = {"METADATA": 4 << 20, "WHEEL": 1 << 20, "entry_points.txt": 1 << 20, "RECORD": 16 << 20}


def _size_fault(found: Iterable[WheelEntry], wheel: int) -> str:
    """Why a wheel of *wheel* bytes with the entries *found* is too large; empty if it is not."""
    total = scripts = 0
    for name, size in ((entry.name, entry.size) for entry in found):
        limit = _limit(name)
        if limit is not None and size > limit:
            return f"entry {name!r} is too large: {size} bytes, at most {limit} are allowed"
        total += size
        if is_script(name) and size <= SCRIPT:
            scripts += size
    if scripts > _SCRIPTS:
        return f"{scripts} bytes of scripts, at most {_SCRIPTS} are allowed"
    if total > MAX_UNPACKED or total > max(_SMALL, wheel * MAX_RATIO):
        return (
            f"unpacks to {total} bytes, {total // max(1, wheel)} times its own size; "
            f"at most {MAX_UNPACKED} bytes and {MAX_RATIO} times are allowed"
        )
    return ""


def _limit(name: str) -> int | None:
    """The most bytes that the entry *name* may have; None: only the sum of all entries is limited."""
    top, _, rest = name.partition("/")
    if top.endswith(".dist-info") and rest in _METADATA:
        return _METADATA[rest]
    return _SOURCE if name.endswith(".py") else None
