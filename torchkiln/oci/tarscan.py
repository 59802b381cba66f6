"""A tar's bytes as they pass → its entries' names, kinds and link targets; nothing is held back or copied.

Faster than a tar reader, for it skips contents by arithmetic; it knows ustar, pax and GNU long names, as
layers have them.
"""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: name and link target as they stand in the tar, its kind as tar's type letter."""

    name: str
    kind: str  # "0" file, "1" hard link, "2" symbolic link, "3" "4" devices, "5" folder, "6" pipe
    target: str


class TarScan:
    """Feed it the stream in pieces of any length; each `feed` returns the entries that came to light."""

    def __init__(self) -> None:
        self._buffer = b""  # of what must be read: headers and the contents of extension headers
        self._skip = 0  # bytes of content still to pass
        self._said: dict[str, str] = {}  # by extension headers, for the next entry
        self._extension: tuple[str, int, int] | None = None  # kind, size, padded size
        self._zeros = 0
        self.ended = False
        """Whether the tar's end mark was seen; whatever follows is padding."""

    def feed(self, data: bytes) -> list[Entry]:
        """The entries whose headers end in *data*.

        :raises ValueError: this is no tar.
        """
        found: list[Entry] = []
        position = 0
        while position < len(data) and not self.ended:
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            wanted = self._extension[2] if self._extension else _BLOCK
            part = data[position : position + wanted - len(self._buffer)]
            self._buffer += part
            position += len(part)
            if len(self._buffer) == wanted:
                block, self._buffer = self._buffer, b""
                if self._extension:
                    self._extend(block)
                elif (entry := self._header(block)) is not None:
                    found.append(entry)
        return found

    def _header(self, block: bytes) -> Entry | None:
        if not any(block):
            self._zeros += 1
            self.ended = self._zeros == 2
            return None
        self._zeros = 0
        kind = block[156:157].decode("latin-1").replace("\0", "0")
        size = _number(block[124:136])
        padded = -(-size // _BLOCK) * _BLOCK
        if kind in "xgLK":
            if padded > 16 << 20:
                raise ValueError("an extension header of a tar is too long")
            if padded:
                self._extension = (kind, size, padded)
            return None
        said, self._said = self._said, {}
        if "size" in said:
            padded = -(-int(said["size"]) // _BLOCK) * _BLOCK
        self._skip = padded if kind in "07S" else 0
        name = _text(block[:100])
        if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
            name = f"{prefix}/{name}"
        return Entry(said.get("path", name), kind, said.get("linkpath", _text(block[157:257])))

    def _extend(self, block: bytes) -> None:
        assert self._extension is not None
        (kind, size, _), self._extension = self._extension, None
        body = block[:size]
        if kind in "LK":
            self._said["path" if kind == "L" else "linkpath"] = _text(body)
            return
        while kind == "x" and body:
            digits, _, _ = body.partition(b" ")
            length = int(digits)
            if length <= len(digits):
                raise ValueError("a pax record of a tar has no length")
            key, _, value = body[len(digits) + 1 : length - 1].partition(b"=")
            self._said[key.decode()] = value.decode(errors="surrogateescape")
            body = body[length:]


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's form for what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)
