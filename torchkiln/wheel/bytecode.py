"""Python sources → a pack of .pyc files, made by the image's own interpreter beside the main work.

Sources are handed over as they come by; the interpreter compiles them in a process of its own and writes
one file, the pack, which ends in its own hash. A pack is a function of (wheel, exact Python, prefix), so
it is kept by that key and read again instead of compiling.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed

_LENGTH = struct.Struct("<I")
_END = 0xFFFFFFFF


class Compiler:
    """One worker process writing one pack. Sources are absolute paths in the image, "/opt/venv/...".

    :param interpreter: the command that starts the base's Python.
    """

    def __init__(self, interpreter: Sequence[str], pack: Path) -> None:
        self.pack = pack
        worker = str(files("torchkiln.wheel") / "compile_worker.py")
        self._process = subprocess.Popen(
            [*interpreter, worker, str(pack)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
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
        """Wait for the pack to be whole.

        :raises BuildFailed: the worker died.
        """
        _, errors = self._process.communicate()
        if self._process.returncode:
            raise BuildFailed(
                f"the base's Python stopped while compiling: {errors.decode(errors='replace')[-400:].strip()}"
            )

    def kill(self) -> None:
        """End the worker, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def read_pack(pack: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The (path of the source, .pyc) pairs of a pack, in order.

    :raises ValueError: the pack is cut short or was changed.
    """
    total = hashlib.sha256()

    def length() -> int:
        head = pack.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the pack is cut short")
        total.update(head)
        return int(_LENGTH.unpack(head)[0])

    def content(count: int) -> bytes:
        data = pack.read(count)
        total.update(data)
        return data

    while True:
        before = total.digest()
        if (count := length()) == _END:
            if pack.read() != before:
                raise ValueError("the pack does not match its own hash")
            return
        path = content(count)
        yield path.decode(), content(length())


def cached_name(source: str, python: str) -> str:
    """`a/b.py` → `a/__pycache__/b.cpython-311.pyc` for *python* "3.11"."""
    folder, _, name = source.rpartition("/")
    tag = "cpython-" + "".join(python.split(".")[:2])
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc".lstrip("/")
