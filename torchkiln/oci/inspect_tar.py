"""Bytes of a tar as they come -> its faults, and the names in it. The format is read anew here: an oracle.

Known: ustar, GNU (long names, base-256 numbers) and pax headers.
"""

from __future__ import annotations

from collections.abc import Callable

_BLOCK = 512
_EXTENDED_LIMIT = 1 << 20  # bytes of one pax or long-name header
_FAULT_LIMIT = 20
_OWNER_LIMIT = 1 << 16  # a rootless engine has 65,536 ids to map to
_FILES, _HARD, _SYMBOLIC, _FOLDER = b"0\07", b"1", b"2", b"5"
_DEVICES = b"346"


class TarInspector:
    """Fed with a tar in pieces of any length. `folders` and `others` are the plain names seen."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.others: set[str] = set()
        self._faults: list[str] = []
        self._more_faults = 0
        self._orphans: dict[str, str] = {}  # folder not seen before its first child -> that child
        self._head = bytearray()
        self._left = 0  # bytes of content and padding still to come
        self._collected: bytearray | None = None  # content of an extended header
        self._then: Callable[[bytes], None] = self._pax
        self._extended_size = 0
        self._long: dict[str, str] = {}  # what extended headers say of the next entry
        self._zero_blocks = 0
        self._lost = False
        self._name = ""

    def faults(self) -> tuple[str, ...]:
        """What was wrong, the first twenty in words."""
        more = (f"and {self._more_faults} more faults",) if self._more_faults else ()
        return (*self._faults, *more)

    def wants(self) -> list[str]:
        """Folders that have children here but must come from a layer below."""
        return [folder for folder in self._orphans if folder not in self.folders]

    def feed(self, data: bytes) -> None:
        """The next piece."""
        at, end = 0, len(data)
        while at < end and not self._lost:
            if self._left:
                count = min(self._left, end - at)
                if self._collected is not None:
                    self._collected += data[at : at + count]
                self._left -= count
                at += count
                if not self._left and self._collected is not None:
                    content, self._collected = bytes(self._collected[: self._extended_size]), None
                    self._then(content)
            else:
                count = min(_BLOCK - len(self._head), end - at)
                self._head += data[at : at + count]
                at += count
                if len(self._head) == _BLOCK:
                    block = bytes(self._head)
                    self._head.clear()
                    self._block(block)

    def close(self) -> None:
        """The tar is over: is it whole?"""
        if self._lost:
            return
        if self._left or self._head:
            self._fault(
                "the tar is cut off" + (f" within {self._name}" if self._left else " within a header")
            )
        elif self._zero_blocks < 2:
            self._fault("the tar does not end with two zero blocks")

    def _fault(self, text: str) -> None:
        if len(self._faults) < _FAULT_LIMIT:
            self._faults.append(text)
        else:
            self._more_faults += 1

    def _block(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            self._zero_blocks += 1
        elif self._zero_blocks:
            self._fault("bytes behind the end of the tar")
            self._lost = True
        else:
            try:
                self._header(block)
            except ValueError as error:
                # Where the next header is depends on this one: nothing behind it can be trusted.
                self._fault(f"a tar header that cannot be read (behind {self._name or 'the start'}): {error}")
                self._lost = True

    def _header(self, block: bytes) -> None:
        if sum(block) - sum(block[148:156]) + 8 * 32 != _number(block[148:156]):
            raise ValueError("its checksum is wrong")
        kind, magic = block[156:157], block[257:263]
        if magic not in (b"ustar\0", b"ustar "):
            raise ValueError("it is not ustar")
        size = _number(block[124:136])
        if kind in b"xgLK":
            self._extend(kind, size)
            return
        if "size" in self._long:
            size = _decimal(self._long["size"])
        name = _text(block[:100])
        if magic == b"ustar\0" and (prefix := _text(block[345:500])):
            name = f"{prefix}/{name}"
        target = self._long.get("linkpath", _text(block[157:257]))
        self._name = self._long.get("path", name)
        self._long = {}
        self._entry(kind, self._name, target, size)
        self._rights(kind, _number(block[100:108]), (_number(block[108:116]), _number(block[116:124])))
        _number(block[136:148])
        self._left = -(-size // _BLOCK) * _BLOCK

    def _extend(self, kind: bytes, size: int) -> None:
        if size > _EXTENDED_LIMIT:
            raise ValueError(f"an extended header of {size} bytes")
        self._then = {
            b"x": self._pax,
            b"g": lambda content: None,
            b"L": lambda content: self._long.update(path=_text(content)),
            b"K": lambda content: self._long.update(linkpath=_text(content)),
        }[kind]
        self._extended_size = size
        self._left = -(-size // _BLOCK) * _BLOCK
        self._collected = bytearray() if size else None

    def _pax(self, content: bytes) -> None:
        """Lines of `<length> <key>=<value>`, the length counting all of the line."""
        while content:
            length, _, _ = content[:9].partition(b" ")
            line = content[: int(length)] if length.isdigit() else b""
            key, equals, value = line[len(length) + 1 : -1].partition(b"=")
            if not equals or line[-1:] != b"\n" or len(line) != int(length):
                self._fault("a pax header that cannot be read")
                return
            self._long[_text(key)] = value.decode("utf-8", "surrogateescape")
            content = content[len(line) :]

    def _entry(self, kind: bytes, raw: str, target: str, size: int) -> None:
        name = self._plain(raw, folder=kind == _FOLDER)
        if name is None:
            return
        if kind not in _FILES and size:
            self._fault(f"{name}: not a file, yet it has content")
        if kind == _HARD:
            to = target.removeprefix("./")
            if to not in self.others:
                self._fault(f"{name}: a hard link to {to!r}, which is no file before it in the layer")
        elif kind == _SYMBOLIC:
            if not target or "\0" in target:
                self._fault(f"{name}: a symbolic link to {target!r}")
        elif kind != _FOLDER and kind not in _FILES and kind not in _DEVICES:
            self._fault(f"{name}: of unknown type {kind!r}")
        if name in self.folders or name in self.others:
            self._fault(f"{name}: twice in the layer")
        if name in self._orphans and kind == _FOLDER:
            self._fault(f"{self._orphans[name]}: comes before its parent folder {name}")
        (self.folders if kind == _FOLDER else self.others).add(name)
        parent = name.rpartition("/")[0]
        if parent in self.others:
            self._fault(f"{name}: its parent {parent} is not a folder")
        elif parent and parent not in self.folders:
            self._orphans.setdefault(parent, name)

    def _plain(self, raw: str, *, folder: bool) -> str | None:
        """The name without a leading "./" and a folder's trailing "/"; None when it is refused."""
        name = raw.removesuffix("/") if folder else raw
        if folder and raw in (".", "./"):
            return "."
        name = name.removeprefix("./")
        parts = name.split("/")
        if raw.startswith("/"):
            why = "an absolute name"
        elif ".." in parts:
            why = "a name that leaves its folder by .."
        elif "" in parts or "." in parts:
            why = "not a plain name"
        elif len(max(parts, key=len).encode("utf-8", "surrogateescape")) > 255:
            why = "a part of the name has more than 255 bytes"
        else:
            return name
        self._fault(f"{raw[:300]!r}: {why}")
        return None

    def _rights(self, kind: bytes, mode: int, owners: tuple[int, int]) -> None:
        if mode & ~0o7777:
            self._fault(f"{self._name}: mode {mode:o} has more than permission bits")
        if kind in _FILES and mode & 0o002:
            self._fault(f"{self._name}: mode {mode:o} lets everybody write")
        if max(owners) >= _OWNER_LIMIT:
            self._fault(f"{self._name}: owner {owners[0]}:{owners[1]} is beyond what rootless engines map")


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"its size is {text!r}")
    return int(text)


def _number(field: bytes) -> int:
    """Octal with blanks or NULs around it, or GNU's base 256."""
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise ValueError("a number below zero or beyond all bounds")
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if text.strip(b"01234567"):
        raise ValueError(f"{field!r} is not an octal number")
    return int(text, 8) if text else 0
