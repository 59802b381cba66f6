"""Python sources → a pack of .pyc files, made by the image's own interpreter beside the main work.

Sources are handed over as they come by; the interpreter compiles them in a process of its own and writes
one file, which ends in its own hash. Its .pyc files are compressed, once, as layers will hold them, into the
pack. A pack is a function of (wheel, exact Python, prefix), so it is kept by that key and read again instead
of compiling.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from isal import isal_zlib

from torchkiln.errors import BuildFailed
from torchkiln.oci.encode import deflated

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_LENGTH = struct.Struct("<I")
_SIZES = struct.Struct("<II")  # of a .pyc: its length and CRC-32
_END = 0xFFFFFFFF
_MAGIC = b"torchkiln pack 2\n"


class Compiler:
    """One worker process writing the file *made*. Sources are absolute paths in the image, "/opt/venv/...".

    :param interpreter: the command that starts the base's Python.
    """

    def __init__(self, interpreter: Sequence[str], made: Path) -> None:
        self.made = made
        worker = str(files("torchkiln.wheel") / "compile_worker.py")
        self._process = subprocess.Popen(
            [*interpreter, worker, str(made)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def add(self, path: str, source: bytes) -> None:
        """Hand over one source; waits while the worker is behind."""
        assert self._process.stdin
        name = path.encode()
        try:
            self._process.stdin.write(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(source)) + source)
        except BrokenPipeError:
            self.finish()

    def finish(self) -> None:
        """Wait for the file to be whole.

        :raises BuildFailed: the worker died.
        """
        _, errors = self._process.communicate()
        if self._process.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2][-400:]
            full = os.strerror(errno.ENOSPC) in last or os.strerror(errno.EDQUOT) in last
            raise BuildFailed(
                f"the base's Python stopped while compiling: {last or f'exit {self._process.returncode}'}",
                hint="make room, or set TORCHKILN_CACHE to another folder" if full else "",
            )

    def kill(self) -> None:
        """End the worker, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """One .pyc, compressed as it stands in layers; `source` is the path in the image of its source."""

    source: str
    size: int
    crc: int
    deflate: bytes

    @classmethod
    def of(cls, source: str, content: bytes) -> Code:
        """The .pyc *content*, compressed."""
        return cls(source=source, size=len(content), crc=isal_zlib.crc32(content), deflate=deflated(content))

    def content(self) -> bytes:
        """The .pyc itself.

        :raises ValueError: the compressed bytes are not those that `press` wrote.
        """
        content = bytes(isal_zlib.decompress(self.deflate, -15))
        if (len(content), isal_zlib.crc32(content)) != (self.size, self.crc):
            raise ValueError(f"byte-code of {self.source} is damaged")
        return content


def press(made: Path, pack: Path) -> None:
    """What the worker left in *made* → a *pack* to keep: the same .pyc files, compressed.

    :raises ValueError: *made* is cut short or was changed.
    """
    total = hashlib.sha256()
    with made.open("rb") as file, pack.open("wb") as out:

        def write(data: bytes) -> None:
            out.write(data)
            total.update(data)

        write(_MAGIC)
        for path, content in _pairs(file, hashlib.sha256()):
            code = Code.of(path, content)
            for part in (path.encode(), _SIZES.pack(code.size, code.crc) + code.deflate):
                write(_LENGTH.pack(len(part)) + part)
        out.write(_LENGTH.pack(_END) + total.digest())


def read_pack(pack: BinaryIO) -> Iterator[Code]:
    """The .pyc files of a kept pack, in order.

    :raises ValueError: it is no pack, or is cut short, or was changed; perhaps only behind the last of them.
    """
    magic = pack.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError("not a pack of byte-code")
    for path, body in _pairs(pack, hashlib.sha256(magic)):
        if len(body) < _SIZES.size:
            raise ValueError("the pack does not match its own hash")
        size, crc = _SIZES.unpack_from(body)
        yield Code(source=path, size=size, crc=crc, deflate=body[_SIZES.size :])


def _pairs(file: BinaryIO, total: Hash) -> Iterator[tuple[str, bytes]]:
    """(path, body) frames up to a hash over them, which follows on what *total* has seen."""

    def length() -> int:
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the pack is cut short")
        total.update(head)
        return int(_LENGTH.unpack(head)[0])

    def content(count: int) -> bytes:
        data = file.read(count)
        total.update(data)
        return data

    while True:
        before = total.digest()
        if (count := length()) == _END:
            if file.read() != before:
                raise ValueError("the pack does not match its own hash")
            return
        path = content(count)
        yield path.decode(), content(length())


def cached_name(source: str, python: str) -> str:
    """`a/b.py` → `a/__pycache__/b.cpython-311.pyc` for *python* "3.11"."""
    folder, _, name = source.rpartition("/")
    tag = "cpython-" + "".join(python.split(".")[:2])
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc".lstrip("/")
