"""Python sources → a pack of .pyc files, made by the image's own interpreter beside the main work.

Sources are handed over as they come by; the interpreter compiles them in a process of its own, which is not
trusted: what it writes is bounded, and must answer each source that was asked, in order. Its .pyc files are
compressed, once, as layers will hold them, into the pack. A pack is a function of (wheel, exact Python,
prefix), so it is kept by that key and read again instead of compiling.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from isal import isal_zlib

from torchkiln.errors import BuildFailed
from torchkiln.oci.encode import deflated

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_LENGTH = struct.Struct("<I")
_SIZES = struct.Struct("<II")  # of a .pyc: its length and CRC-32
_END = 0xFFFFFFFF
_MAGIC = b"torchkiln pack 2\n"


_PATIENCE = 30.0  # seconds that we wait for a worker in all
_RATE = 50_000  # bytes of sources for which we wait another second; most machines compile a million
_MOST_SAID = 64 << 10  # bytes of its error output
_MOST_PATH = 1 << 16
_MOST_CODE = 64 << 20  # bytes of a .pyc
_MOST_MADE = 256 << 20  # bytes of all that a worker writes; torch's has 60 MB
_LEAST, _TIMES = 64 << 10, 64  # bytes of a .pyc that any source may give, and for each byte of it


class Compiler:
    """One worker process writing the file *made*. Sources are absolute paths in the image, "/opt/venv/...".

    :param interpreter: the command that starts the base's Python.
    """

    def __init__(self, interpreter: Sequence[str], made: Path) -> None:
        self.made = made
        self.asked: list[tuple[str, int]] = []  # path and bytes of each source
        worker = (files("torchkiln.wheel") / "compile_worker.py").read_text()
        with made.open("wb") as out:
            self._process = subprocess.Popen(
                [*interpreter, "-c", worker, "compile_worker"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._process.stdin
        assert self._process.stderr
        self._in, self._errors = self._process.stdin.fileno(), self._process.stderr.fileno()
        os.set_blocking(self._in, False)
        self._said = b""
        self._patience = _PATIENCE

    def add(self, path: str, source: bytes) -> None:
        """Hand over one source; waits while the worker is behind.

        :raises BuildFailed: the worker died, or does nothing any more.
        """
        self.asked.append((path, len(source)))
        self._patience += len(source) / _RATE
        name = path.encode()
        left = memoryview(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(source)) + source)
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._errors, select.POLLIN)
        while left:
            for descriptor, _ in self._wait(poll):
                if descriptor == self._errors:
                    if not self._hear():
                        poll.unregister(self._errors)
                    continue
                try:
                    left = left[os.write(self._in, left[: 1 << 20]) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    self.finish()
                    self._refuse("stopped reading")

    def finish(self) -> None:
        """Wait for the file to be whole.

        :raises BuildFailed: the worker failed, or does not end.
        """
        assert self._process.stdin
        assert self._process.stderr
        self._process.stdin.close()
        poll = select.poll()
        poll.register(self._errors, select.POLLIN)
        while self._wait(poll) and self._hear():
            pass
        try:
            self._process.wait(max(0.0, self._patience))
        except subprocess.TimeoutExpired:
            self._refuse("did not end in time")
        finally:
            self._process.stderr.close()
        if self._process.returncode:
            if self.made.is_file() and self.made.stat().st_size >= _MOST_MADE:
                self._refuse(f"wrote more than {_MOST_MADE >> 20} MiB")
            last = self._said.decode(errors="replace").strip().rpartition("\n")[2][-400:]
            full = os.strerror(errno.ENOSPC) in last or os.strerror(errno.EDQUOT) in last
            raise BuildFailed(
                f"the base's Python stopped while compiling: {last or f'exit {self._process.returncode}'}",
                hint="make room, or set TORCHKILN_CACHE to another folder" if full else "",
            )

    def kill(self) -> None:
        """End the worker, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream
            stream.close()

    def _wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """What can be read or written now."""
        began = time.monotonic()
        ready = poll.poll(max(0.0, self._patience * 1000))
        self._patience -= time.monotonic() - began
        if not ready:
            self._refuse("did not go on in time")
        return ready

    def _hear(self) -> bool:
        """Take some of its error output; False at the end of it."""
        said = os.read(self._errors, 4096)
        self._said += said
        if len(self._said) > _MOST_SAID:
            self._refuse("wrote too many errors")
        return bool(said)

    def _refuse(self, why: str) -> NoReturn:
        self.kill()
        raise BuildFailed(f"the base's Python was killed while compiling: it {why}")


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


def press(made: Path, pack: Path, asked: Sequence[tuple[str, int]]) -> None:
    """What the worker left in *made* → a *pack* to keep: the same .pyc files, compressed.

    :param asked: path and bytes of each source, `Compiler.asked`.
    :raises ValueError: *made* does not answer what was asked, or is cut short.
    """
    total = hashlib.sha256()
    if made.stat().st_size > _MOST_MADE:
        raise ValueError(f"it wrote more than {_MOST_MADE >> 20} MiB")
    left = iter(asked)
    with made.open("rb") as file, pack.open("wb") as out:

        def write(data: bytes) -> None:
            out.write(data)
            total.update(data)

        def most(path: str) -> int:
            wanted, size = next(left, (None, 0))
            if path != wanted:
                raise ValueError(f"it answered for {path[-80:]!r}, which was not its turn")
            return min(_MOST_CODE, _LEAST + _TIMES * size)

        write(_MAGIC)
        for path, content in _pairs(file, hashlib.sha256(), most):
            if not content:  # a source that does not compile
                continue
            if len(content) < 16 or content[4:8] != b"\1\0\0\0":
                raise ValueError(f"what it made of {path!r} is no byte-code")
            code = Code.of(path, content)
            for part in (path.encode(), _SIZES.pack(code.size, code.crc) + code.deflate):
                write(_LENGTH.pack(len(part)) + part)
        if unanswered := next(left, None):
            raise ValueError(f"it did not answer for {unanswered[0]!r}")
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


def _pairs(
    file: BinaryIO, total: Hash, most: Callable[[str], int] = lambda _: _MOST_CODE
) -> Iterator[tuple[str, bytes]]:
    """(path, body) frames up to a hash over them, which follows on what *total* has seen.

    :param most: of a path, how long its body may be.
    """

    def length() -> int:
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the pack is cut short")
        total.update(head)
        return int(_LENGTH.unpack(head)[0])

    def content(count: int, limit: int) -> bytes:
        if count > limit:
            raise ValueError(f"the pack has an entry of {count} bytes; {limit} at most")
        data = file.read(count)
        total.update(data)
        return data

    while True:
        before = total.digest()
        if (count := length()) == _END:
            if file.read(len(before) + 1) != before:
                raise ValueError("the pack does not match its own hash")
            return
        path = content(count, _MOST_PATH).decode()
        yield path, content(length(), most(path))


def cached_name(source: str, python: str) -> str:
    """`a/b.py` → `a/__pycache__/b.cpython-311.pyc` for *python* "3.11"."""
    folder, _, name = source.rpartition("/")
    tag = "cpython-" + "".join(python.split(".")[:2])
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc".lstrip("/")
