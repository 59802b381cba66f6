"""Statements that are made to be heavy: `verify` ends with a sentence, and takes little memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.press import Press
from tests.published import Scene, a_built_press
from tests.standin.registry_server import RegistryServer
from torchkiln.attest.statement import PAYLOAD_TYPE
from torchkiln.util.places import ROOT

__all__ = ["a_built_press"]

MOST = 400  # MiB

# Runs the command, then tells its peak.
PROGRAM = """
import sys
from torchkiln.cli import torchkiln
from torchkiln.errors import KilnError
code = 0
try:
    torchkiln(sys.argv[1:], standalone_mode=False)
except KilnError as error:
    code = error.exit_code
    print(error.message[:400], file=sys.stderr)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, int(peak.split()[1]) >> 10)
"""

PREDICATES = {
    "empty lists": lambda size: b"[" + b"[]," * (size // 3) + b"[]]",
    "empty mappings": lambda size: b"[" + b"{}," * (size // 3) + b"{}]",
    "short strings": lambda size: b'["' + b'","'.join(b"%x" % n for n in range(size // 9)) + b'"]',
    "many keys": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 10)) + b"}",
    "letters of four bytes": lambda size: json.dumps("\U0001f600" * (size // 4), ensure_ascii=False).encode(),
}


@pytest.fixture(name="scene")
def a_scene(built: Press, tmp_path: Path) -> Iterator[Scene]:
    """By referrers alone: the same statements come by either list."""
    with RegistryServer() as server:
        server.manners.lists_referrers = True
        yield Scene(Press(folder=shutil.copytree(built.folder, tmp_path / "desk")), server)


@pytest.mark.parametrize("what", PREDICATES)
def test_heavy_statements(scene: Scene, what: str) -> None:
    """Without a key all of them count, and are kept."""
    scene.publish()
    subject = [{"name": "", "digest": {"sha256": scene.image.manifest.removeprefix("sha256:")}}]
    head = json.dumps({"_type": "https://in-toto.io/Statement/v1", "subject": subject})[:-1].encode()
    for number in range(2):
        kind = b', "predicateType": "urn:x:%d", "predicate": ' % number
        scene.beside(PAYLOAD_TYPE, head + kind + PREDICATES[what](7 << 20) + b"}")
    words = ("verify", f"{scene.target}@{scene.image.manifest}", "--suite", str(scene.desk.suite))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, **scene.desk.environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    code, peak = map(int, done.stdout.split()[-2:])
    assert code == 0, done.stderr[-2000:]
    assert peak < MOST, f"{peak} MiB"


def test_more_than_is_read(scene: Scene) -> None:
    """It is refused: behind what is read a retraction could stand."""
    scene.publish()
    for number in range(6):
        scene.beside(PAYLOAD_TYPE, b"%d" % number + b" " * (6 << 20))

    done = scene.verify()
    assert getattr(done.exception, "exit_code", None) == 12
    assert "at most 33554432 are read" in str(done.exception)


def test_one_that_is_longer_than_any(scene: Scene) -> None:
    scene.publish()
    scene.beside(PAYLOAD_TYPE, b" " * (9 << 20))

    assert "longer than 8388608 bytes" in scene.refused()
