"""Hostile interpreters of a base: the dynamic loader, which runs first, is replaced by a C program."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from torchkiln.base.confined import ConfinedPython
from torchkiln.base.interpreter import LOADER, Interpreter
from torchkiln.engine.worker import Bytecode
from torchkiln.errors import BuildFailed
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store

VERSION = "3.11.2"
_HEAD = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void read_all(void) { char buffer[65536]; while (read(0, buffer, sizeof buffer) > 0); }
static void report(const char *what, long got) {
  fprintf(stderr, "%s=%ld/%d\n", what, got, got < 0 ? errno : 0);
}
int main(int argc, char **argv, char **envp) {
"""


@cache
def program(body: str) -> bytes:
    """A static executable whose `main` runs the C code *body*, then exits with 9.

    *body* may call `read_all` (read stdin to its end) and `report` (print a result and errno to stderr).
    """
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "hostile.c"), Path(folder, "hostile")
        source.write_text(_HEAD + body + "\nreturn 9; }\n")
        subprocess.run(["gcc", "-static", "-O1", "-w", "-o", made, source], check=True)
        return made.read_bytes()


def hostile(body: str, folder: Path, *, inside: bool = True) -> ConfinedPython:
    """A base's Python, unpacked in *folder*; its loader is the program with the C code *body*."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "python" / LOADER
    place.parent.mkdir(parents=True)
    place.write_bytes(program(body))
    place.chmod(0o755)
    return ConfinedPython(python=Interpreter(root=folder / "python", version=VERSION), sandboxed=inside)


def answer(frames: Iterable[tuple[str, bytes]], end: bytes | None = None) -> bytes:
    """The output of a worker: *frames* and their SHA-256, or *end* in place of the hash."""
    body = b"".join(
        struct.pack("<I", len(part)) + part for path, code in frames for part in (path.encode(), code)
    )
    return body + struct.pack("<I", 0xFFFFFFFF) + (hashlib.sha256(body).digest() if end is None else end)


def answering(data: bytes, folder: Path) -> ConfinedPython:
    """A base's Python that reads all input, writes *data* and exits with 0."""
    python = hostile(
        'read_all(); static char out[1 << 16]; int file = open("/answer", O_RDONLY);'
        " write(1, out, read(file, out, sizeof out)); _exit(0);",
        folder,
    )
    (folder / "python/answer").write_bytes(data)
    return python


WHEEL = LockedWheel(name="a", version="1", filename="a.whl", sha256="1" * 64, size=1, index=Source.DEFAULT)
SOURCES = {"/a/one.py": b"x = 1\n", "/a/two.py": b"y = 2\n"}
PYC = b"\xa7\x0d\x0d\x0a\1\0\0\0" + bytes(8) + b"N"


def compiled(work: Bytecode, sources: dict[str, bytes]) -> list[tuple[str, bytes]]:
    for path, source in sources.items():
        work.source(path, source)
    return [(code.source, code.content()) for code in work.result()]


def refused(python: ConfinedPython, cache: Path, sources: dict[str, bytes] = SOURCES) -> str:
    """The message of the error if *python* compiles *sources*; nothing may be stored in *cache*."""
    work = Bytecode(WHEEL, Store(cache), ImagePython.of_base(VERSION), tuple(python.argv()))
    try:
        with pytest.raises(BuildFailed) as caught:
            compiled(work, sources)
    finally:
        work.close()
    assert list((cache / "bytecode").glob("*")) == []
    assert list((cache / "tmp").glob("*")) == []
    message = caught.value.message
    assert message.startswith("the image's Python ")
    assert "\n" not in message
    return message
