"""Reads a tar stream entry by entry; all untrusted tars are read by this module.

Unpacking, verifying and comparing use the same reader, so what is checked is what is used. It accepts
the tars that Go, GNU tar, bsdtar, Python and torchkiln write for layers and refuses everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar

from torchkiln.oci.tar_header import (
    BLOCK,
    EXTENDED_LIMIT,
    OWNER_LIMIT,
    DamagedTar,
    Header,
    decimal,
    long_text,
    parse_header,
    pax_records,
    seconds,
    size_of,
    xattrs_of,
)

T = TypeVar("T")
EntryKind = Literal["file", "hard link", "link", "char", "block", "folder", "pipe"]

#: Most entries of one layer, and of a whole image in one tar; the largest known have 60,000 and 90,000.
ENTRIES, TREE_ENTRIES = 200_000, 500_000
#: A layer unpacks to at most this many times its size, or to 1 GiB if that is more. Real layers: 2 to 8.
RATIO = 100
_MIN_UNPACKED = 1 << 30
_TEXTS = 64 << 20  # bytes of all names, link targets and attributes of one tar
_PADDING = 1 << 20  # bytes of zeros after the end of a tar; GNU tar pads to a record of 10 KiB
_PATH = 4095  # bytes of a path on Linux
_PART = 255  # bytes of a component of a path
_SHORT = _PART // 4  # characters; their UTF-8 is never longer than _PART
_PIECE = 1 << 20
_CUT_OFF = "unexpected end of the tar"
_KINDS: Mapping[bytes, EntryKind] = {
    b"0": "file",
    b"1": "hard link",
    b"2": "link",
    b"3": "char",
    b"4": "block",
    b"5": "folder",
    b"6": "pipe",
}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One entry. Paths are normalized and relative to the root, `usr/bin/env`; the root's is empty."""

    path: str
    kind: EntryKind
    mode: int  # as written; may have more than permission bits
    uid: int
    gid: int
    mtime: int  # seconds
    size: int  # bytes of content; 0 unless a file
    target: str  # of a link as written, of a hard link a normalized path
    device: tuple[int, int]  # major, minor
    xattrs: tuple[tuple[str, str], ...]


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most *size* bytes; none at the end."""
        ...


def pieces_of(stream: Stream) -> Iterator[bytes]:
    return iter(partial(stream.read, _PIECE), b"")


class IteratorFile:
    """A readable file with the bytes of an iterator."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most *size* bytes; none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        part, self._rest = self._rest[:size], self._rest[size:]
        return bytes(part)

    def readinto(self, buffer: memoryview) -> int:
        """Read at most as many bytes as *buffer* has."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def read_fully(stream: Stream, length: int) -> bytes:
    """*length* bytes of *stream*, fewer only at the end; a pipe returns fewer at each read."""
    parts: list[bytes] = []
    while length and (part := stream.read(length)):
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def most_unpacked(size: int) -> int:
    """Most bytes to which a blob of *size* bytes may unpack."""
    return max(_MIN_UNPACKED, RATIO * size)


class TarReader:
    """Iterates over the entries; `content` yields the bytes of the current one. Unread content is skipped.

    :param most: most entries that the tar may have.
    :param report: called with the reason when an entry is refused and can be skipped; without it, the reason
        is raised.
    """

    def __init__(
        self, pieces: Iterable[bytes], *, most: int = ENTRIES, report: Callable[[str], None] | None = None
    ) -> None:
        self._pieces, self._most = iter(pieces), most
        self._report = report
        self._piece = memoryview(b"")
        self._left = 0  # bytes of content still to come
        self._padding = 0
        self._texts = 0
        self._count = 0
        self._where = "the start"  # the previous entry, for messages

    def __iter__(self) -> Iterator[TarEntry]:
        """The entries in order.

        :raises DamagedTar: the tar is truncated, damaged or of an unknown format.
        """
        while (entry := self._next()) is not None:
            yield entry

    def content(self) -> Iterator[memoryview]:
        """The bytes of the current entry.

        :raises DamagedTar: the tar is truncated.
        """
        while self._left:
            if not self._piece:
                self._fetch(f"{_CUT_OFF}, within {self._where}")
            part, self._piece = self._piece[: self._left], self._piece[self._left :]
            self._left -= len(part)
            yield part
        padding, self._padding = self._padding, 0
        if padding:
            self._take(padding, f"{_CUT_OFF}, within {self._where}")

    def _next(self) -> TarEntry | None:
        while True:
            for _ in self.content():
                pass
            extended, header = self._headers()
            if header is None:
                return None
            self._count += 1
            if self._count > self._most:
                raise DamagedTar(f"the tar has more than {self._most} entries")
            try:
                entry = self._entry(header, extended)
            except DamagedTar as error:
                self._where = repr(extended.get("path", header.name)[:300])
                if self._report is None or not isinstance(error, _Skippable):
                    raise
                self._report(str(error))
                continue
            self._texts += len(entry.path) + len(entry.target) + sum(len(k) + len(v) for k, v in entry.xattrs)
            if self._texts > _TEXTS:
                raise DamagedTar(f"the names in the tar have more than {_TEXTS >> 20} MiB in total")
            return entry

    def _headers(self) -> tuple[dict[str, str], Header | None]:
        """The next header and the records of its extended headers; None at the end of the tar."""
        extended: dict[str, str] = {}
        kinds = b""
        while True:
            block = self._block()
            if block is None:
                if kinds:
                    raise DamagedTar(f"{_CUT_OFF}, after an extended header")
                return {}, None
            header = self._parsed(parse_header, block)
            if kinds and header.gnu == (kinds == b"x"):
                raise DamagedTar("an extended header belongs to another format than its entry")
            if header.kind not in (b"x", b"L", b"K"):
                return extended, header
            if header.kind in kinds or b"x" in kinds or header.gnu == (header.kind == b"x"):
                raise DamagedTar("two extended headers for one entry, or one of another format")
            kinds += header.kind
            content = self._extension(header.size)
            if header.kind == b"x":
                extended = self._parsed(pax_records, content)
            else:
                name = "path" if header.kind == b"L" else "linkpath"
                extended[name] = self._parsed(long_text, content)

    def _parsed(self, parse: Callable[[bytes], T], data: bytes) -> T:
        try:
            return parse(data)
        except DamagedTar as error:
            # The position of the next header depends on this one, so nothing can be read after it.
            raise DamagedTar(f"invalid tar header (after {self._where}): {error}") from None

    def _extension(self, size: int) -> bytes:
        if size > EXTENDED_LIMIT:
            raise DamagedTar(f"an extended header of {size} bytes, more than {EXTENDED_LIMIT}")
        return self._take(-(-size // BLOCK) * BLOCK, f"{_CUT_OFF}, within an extended header")[:size]

    def _block(self) -> bytes | None:
        """The block of the next header; None at the end, after which only zeros may follow."""
        if not self._piece and not self._fetch(""):
            raise DamagedTar("the tar does not end with two zero blocks")
        block = self._take(BLOCK, f"{_CUT_OFF}, within a header")
        if any(block):
            return block
        zeros = 0
        while self._piece or self._fetch(""):
            if any(self._piece):
                raise DamagedTar("trailing data after the end of the tar")
            zeros += len(self._piece)
            self._piece = memoryview(b"")
            if zeros > _PADDING:
                raise DamagedTar(f"more than {_PADDING >> 20} MiB of zeros after the end of the tar")
        if zeros < BLOCK or zeros % BLOCK:
            raise DamagedTar("the tar does not end with two zero blocks")
        return None

    def _take(self, count: int, cut_off: str) -> bytes:
        if len(self._piece) >= count:
            data, self._piece = bytes(self._piece[:count]), self._piece[count:]
            return data
        parts = []
        while count:
            if not self._piece:
                self._fetch(cut_off)
            part, self._piece = self._piece[:count], self._piece[count:]
            parts.append(bytes(part))
            count -= len(part)
        return b"".join(parts)

    def _fetch(self, cut_off: str) -> bool:
        """Get the next piece. At the end, raise DamagedTar with *cut_off*; if that is "", return False."""
        for piece in self._pieces:
            if piece:
                self._piece = memoryview(piece)
                return True
        if cut_off:
            raise DamagedTar(cut_off)
        return False

    def _entry(self, header: Header, extended: Mapping[str, str]) -> TarEntry:
        raw = extended.get("path", header.name)
        kind = _KINDS.get(header.kind)
        if kind is None:
            raise DamagedTar(f"{raw[:300]!r} has the unsupported type {header.kind!r}")
        self._left = size_of(header, extended)
        self._padding = -self._left % BLOCK
        path = plain_path(raw, folder=kind == "folder")
        self._where = path[:300] or "."
        target = extended.get("linkpath", header.target)
        if kind != "file" and self._left:
            raise DamagedTar(f"{path[:300]!r} is not a file, but has content")
        if "linkpath" in extended and kind not in ("link", "hard link"):
            raise DamagedTar(f"{path[:300]!r} is not a link, but has a link target")
        if kind == "hard link":
            target = plain_path(target, what="hard link target")
        elif kind == "link" and (not target or len(_encoded(target)) > _PATH):
            raise _Skippable(f"{path[:300]!r} has an empty or too long link target: {target[:80]!r}")
        return TarEntry(
            path=path,
            kind=kind,
            mode=header.mode,
            uid=decimal(extended["uid"], "user id", OWNER_LIMIT) if "uid" in extended else header.uid,
            gid=decimal(extended["gid"], "group id", OWNER_LIMIT) if "gid" in extended else header.gid,
            mtime=seconds(extended["mtime"]) if "mtime" in extended else header.mtime,
            size=self._left,
            target=target if kind in ("link", "hard link") else "",
            device=header.device if kind in ("char", "block") else (0, 0),
            xattrs=xattrs_of(extended),
        )


class _Skippable(DamagedTar):
    """An entry that is refused, but can be skipped: the position of the next one is known."""


def plain_path(raw: str, *, folder: bool = False, what: str = "name") -> str:
    """*raw* without a leading "./" and a folder's trailing "/"; empty for the root folder.

    :raises DamagedTar: it is absolute, contains "..", is too long, or readers could understand it
        differently.
    """
    if folder and raw in (".", "./"):
        return ""
    name = (raw.removesuffix("/") if folder else raw).removeprefix("./")
    parts = name.split("/")
    if raw.startswith("/"):
        why = f"the {what} is absolute"
    elif ".." in parts:
        why = f"the {what} contains '..'"
    elif "" in parts or "." in parts:
        why = f"the {what} is not normalized"
    elif len(name) > _SHORT and len(max(map(_encoded, parts), key=len)) > _PART:
        why = f"a component of the {what} has more than {_PART} bytes"
    elif len(name) > _SHORT and len(_encoded(name)) > _PATH:
        why = f"the {what} has more than {_PATH} bytes"
    else:
        return name
    raise _Skippable(f"{raw[:300]!r}: {why}")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
