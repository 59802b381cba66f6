"""Compiles Python sources to a pack of .pyc files with the image's own interpreter, while wheels are spliced.

Sources are passed to a worker process as they are read. The worker is not trusted: its output is limited in
size and must contain a result for each source, in order. The .pyc files are compressed once, as layers
contain them, and stored in the pack. A pack depends only on (wheel, exact Python, prefix), so it is cached by
that key.
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


_TIMEOUT = 30.0  # seconds of waiting for a worker in total
_RATE = 50_000  # bytes of source for which one second is added; most machines compile 1,000,000 in it
_MAX_STDERR = 64 << 10  # bytes
_MAX_PATH = 1 << 16  # bytes
_MAX_CODE = 64 << 20  # bytes of a .pyc
_MAX_OUTPUT = 256 << 20  # bytes of all .pyc files; torch's have 60 MB
_MIN_CODE, _CODE_RATIO = 64 << 10, 64  # a .pyc may have _MIN_CODE + _CODE_RATIO * (bytes of source)


class Compiler:
    """A worker process that compiles sources and writes the .pyc files to *output*.

    Paths of sources are absolute, "/opt/venv/...".

    :param interpreter: the command that starts the image's Python.
    """

    def __init__(self, interpreter: Sequence[str], output: Path) -> None:
        self.output = output
        self.requested: list[tuple[str, int]] = []  # path and bytes of each source
        worker = (files("torchkiln.wheel") / "compile_worker.py").read_text()
        with output.open("wb") as out:
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
        self._stderr = b""
        self._time_left = _TIMEOUT

    def add(self, path: str, source: bytes) -> None:
        """Write one source to the worker's stdin; wait while the pipe is full.

        :raises BuildFailed: the worker ended or timed out.
        """
        self.requested.append((path, len(source)))
        self._time_left += len(source) / _RATE
        name = path.encode()
        left = memoryview(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(source)) + source)
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._errors, select.POLLIN)
        while left:
            for descriptor, _ in self._wait(poll):
                if descriptor == self._errors:
                    if not self._read_stderr():
                        poll.unregister(self._errors)
                    continue
                try:
                    left = left[os.write(self._in, left[: 1 << 20]) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    self.finish()
                    self._fail("stopped reading")

    def finish(self) -> None:
        """Wait until the output is complete.

        :raises BuildFailed: the worker failed or timed out.
        """
        assert self._process.stdin
        assert self._process.stderr
        self._process.stdin.close()
        poll = select.poll()
        poll.register(self._errors, select.POLLIN)
        while self._wait(poll) and self._read_stderr():
            pass
        try:
            self._process.wait(max(0.0, self._time_left))
        except subprocess.TimeoutExpired:
            self._fail("timed out")
        finally:
            self._process.stderr.close()
        if self._process.returncode:
            if self.output.is_file() and self.output.stat().st_size >= _MAX_OUTPUT:
                self._fail(f"wrote more than {_MAX_OUTPUT >> 20} MiB")
            last = self._stderr.decode(errors="replace").strip().rpartition("\n")[2][-400:]
            full = os.strerror(errno.ENOSPC) in last or os.strerror(errno.EDQUOT) in last
            raise BuildFailed(
                f"the image's Python failed to compile: {last or f'exit status {self._process.returncode}'}",
                hint="free disk space, or set TORCHKILN_CACHE to another folder" if full else "",
            )

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream
            stream.close()

    def _wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """The descriptors that can be read or written now."""
        began = time.monotonic()
        ready = poll.poll(max(0.0, self._time_left * 1000))
        self._time_left -= time.monotonic() - began
        if not ready:
            self._fail("timed out")
        return ready

    def _read_stderr(self) -> bool:
        """Read some of the error output; False at its end."""
        data = os.read(self._errors, 4096)
        self._stderr += data
        if len(self._stderr) > _MAX_STDERR:
            self._fail("wrote too many errors")
        return bool(data)

    def _fail(self, why: str) -> NoReturn:
        self.kill()
        raise BuildFailed(f"the image's Python was killed while compiling: it {why}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """One .pyc, compressed as layers contain it; `source` is the path of its source in the image."""

    source: str
    size: int
    crc: int
    deflate: bytes

    @classmethod
    def of(cls, source: str, content: bytes) -> Code:
        """Compress the .pyc *content*."""
        return cls(source=source, size=len(content), crc=isal_zlib.crc32(content), deflate=deflated(content))

    def content(self) -> bytes:
        """The .pyc.

        :raises ValueError: the compressed bytes are damaged.
        """
        content = bytes(isal_zlib.decompress(self.deflate, -15))
        if (len(content), isal_zlib.crc32(content)) != (self.size, self.crc):
            raise ValueError(f"byte-code of {self.source} is damaged")
        return content


def write_pack(output: Path, pack: Path, requested: Sequence[tuple[str, int]]) -> None:
    """Compress the .pyc files of a worker's *output* into the file *pack*.

    :param requested: path and bytes of each source, `Compiler.requested`.
    :raises ValueError: *output* does not match the requested sources or is truncated.
    """
    total = hashlib.sha256()
    if output.stat().st_size > _MAX_OUTPUT:
        raise ValueError(f"it wrote more than {_MAX_OUTPUT >> 20} MiB")
    remaining = iter(requested)
    with output.open("rb") as file, pack.open("wb") as out:

        def write(data: bytes) -> None:
            out.write(data)
            total.update(data)

        def limit(path: str) -> int:
            expected, size = next(remaining, (None, 0))
            if path != expected:
                raise ValueError(f"unexpected byte-code of {path[-80:]!r}")
            return min(_MAX_CODE, _MIN_CODE + _CODE_RATIO * size)

        write(_MAGIC)
        for path, content in _pairs(file, hashlib.sha256(), limit):
            if not content:  # a source that does not compile
                continue
            if len(content) < 16 or content[4:8] != b"\1\0\0\0":
                raise ValueError(f"invalid byte-code of {path!r}")
            code = Code.of(path, content)
            for part in (path.encode(), _SIZES.pack(code.size, code.crc) + code.deflate):
                write(_LENGTH.pack(len(part)) + part)
        if missing := next(remaining, None):
            raise ValueError(f"no byte-code of {missing[0]!r}")
        out.write(_LENGTH.pack(_END) + total.digest())


def read_pack(pack: BinaryIO) -> Iterator[Code]:
    """The .pyc files of a cached pack, in order.

    :raises ValueError: *pack* is not a pack, or is truncated or changed. Some .pyc files may already have
        been returned: the hash is at the end.
    """
    magic = pack.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError("not a pack of byte-code")
    for path, body in _pairs(pack, hashlib.sha256(magic)):
        if len(body) < _SIZES.size:
            raise ValueError("the hash of the pack does not match")
        size, crc = _SIZES.unpack_from(body)
        yield Code(source=path, size=size, crc=crc, deflate=body[_SIZES.size :])


def _pairs(
    file: BinaryIO, total: Hash, limit_of: Callable[[str], int] = lambda _: _MAX_CODE
) -> Iterator[tuple[str, bytes]]:
    """Read (path, body) pairs from *file*, then check the hash at its end.

    :param total: the hash of the bytes before the first pair.
    :param limit_of: called with each path; returns the largest allowed size of its body.
    :raises ValueError: *file* is truncated, a pair is too large, or the hash does not match.
    """

    def length() -> int:
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the pack is truncated")
        total.update(head)
        return int(_LENGTH.unpack(head)[0])

    def content(count: int, limit: int) -> bytes:
        if count > limit:
            raise ValueError(f"the pack has an entry of {count} bytes, more than {limit}")
        data = file.read(count)
        total.update(data)
        return data

    while True:
        before = total.digest()
        if (count := length()) == _END:
            if file.read(len(before) + 1) != before:
                raise ValueError("the hash of the pack does not match")
            return
        path = content(count, _MAX_PATH).decode()
        yield path, content(length(), limit_of(path))


def cached_name(source: str, python: str) -> str:
    """`a/b.py` → `a/__pycache__/b.cpython-311.pyc` for *python* "3.11"."""
    folder, _, name = source.rpartition("/")
    tag = "cpython-" + "".join(python.split(".")[:2])
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc".lstrip("/")
