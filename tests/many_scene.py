"""Three small cells that share layers, and any number of machines: caches and environments of processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import scene as campaign
from tests.servers.index_server import IndexServer
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.locks.lock import inputs_digest, save
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedBase, LockedCell, OsPackage
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.util.places import ROOT

TORCHES = ("2.6.0", "2.7.1", "2.8.0")
LAYERS = 9  # base; torch of each cell; triton of 2.6 and of the others; two of NVIDIA; dependencies
_MATRIX = f"""\
torch: {json.dumps(TORCHES)}
cuda: ["12.1"]
flavors: [runtime]
os: {{debian12: {{python: "3.11"}}}}
packages: [numpy]
repository: many
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Locks, an index of their wheels, a vault with their base, and the digests that one machine makes."""

    folder: Path
    server: IndexServer
    tags: tuple[str, ...]
    digests: dict[str, str] = field(default_factory=dict)  # by tag

    @property
    def images(self) -> Path:
        return self.folder / "images"

    def environ(self, machine: str) -> dict[str, str]:
        """The environment of a process of *machine*, which has its own cache and home."""
        home = self.folder / "machines" / machine
        home.mkdir(parents=True, exist_ok=True)
        paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(filter(None, paths)),
            "UV_INDEX_URL": self.server.url("simple"),
            "TORCHKILN_CACHE": str(home / "cache"),
            "TORCHKILN_VAULT": str(self.folder / "vault"),
            "TORCHKILN_SMOKE": "no",
        }

    def argv(self, *words: str) -> list[str]:
        """A command line of torchkiln."""
        return [sys.executable, "-m", "torchkiln", *words]

    def run(self, machine: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run torchkiln on *machine*, in the folder of the locks."""
        environ = self.environ(machine)
        return subprocess.run(self.argv(*words), env=environ, cwd=self.folder, capture_output=True, text=True)

    def build(self, machine: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Build on *machine*, into a layout of its own; prints JSON."""
        return self.run(machine, "build", "--json", "--output", machine, *words)

    def plan(self, form: str, *words: str) -> str:
        """The jobs of all cells, as a file of *form*."""
        done = self.run("planner", "plan", "--as", form, "--all", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self, *words: str) -> list[dict[str, Any]]:
        return list(json.loads(self.plan("json", *words))["jobs"])

    def fetched(self) -> list[str]:
        """The wheels that the index sent from the first byte on."""
        return [sent.path.rpartition("/")[2] for sent in self.server.sent if not sent.requested]


def objects(output: str) -> list[dict[str, Any]]:
    """The JSON objects that jobs printed, one on each line."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def made(output: str) -> Counter[str]:
    """What jobs of layers printed: "made", "reused" or "there", with the number of jobs."""
    return Counter(line["how"] for line in objects(output) if "how" in line)


def digests(output: str) -> dict[str, str]:
    """The digests of images that jobs printed, by tag."""
    return {line["tag"]: line["digest"] for line in objects(output) if "tag" in line}


def _python_of_debian12() -> bool:
    done = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, check=False)
    return "3.11." in done.stdout


needs_base = pytest.mark.skipif(not _python_of_debian12(), reason="the base has the Python 3.11 of Debian 12")


@pytest.fixture(scope="module", name="many")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A scene whose locks record the layers, as one machine made them."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "matrix.yaml").write_text(_MATRIX)
    with IndexServer() as server:
        found = Scene(folder=folder, server=server, tags=tuple(_lock(folder, server)))
        for tag in found.tags:
            done = found.run("one", "build", tag, "--json")
            assert done.returncode == 0, done.stderr
            assert found.run("one", "lock", tag, "--record").returncode == 0
            found.digests[tag] = json.loads(done.stdout)["digest"]
        server.sent.clear()
        yield found


def _lock(folder: Path, server: IndexServer) -> Iterator[str]:
    facts = facts_of.load()
    matrix = matrix_of.read(folder / "matrix.yaml", facts)
    base = _base(folder)
    for cell in select(Selection(every=True), matrix):
        resolution = resolve(cell, matrix, facts)
        wheels = []
        for name, version in _versions(cell.torch).items():
            wheel = write_wheel(_spec(name, version), folder / "wheels" / version)
            wheels.append(locked_wheel(wheel))
            server.files["simple", wheels[-1].name, wheel.name] = wheel.read_bytes()
        locked = LockedCell(
            resolution=resolution,
            wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
            base=base,
            as_of="2026-01-01",
            epoch=1_767_225_600,
            inputs=inputs_digest(resolution, ()),
            layers=(),
        )
        save(folder / "images", locked)
        yield tag_of(resolution)


def _versions(torch: str) -> dict[str, str]:
    triton = "3.2.0" if torch == TORCHES[0] else "3.3.1"
    same = ("nvidia-cublas-cu12", "nvidia-cudnn-cu12", "jinja2", "sympy")
    return {"torch": torch, "triton": triton, **dict.fromkeys(same, "1.0")}


def _spec(name: str, version: str) -> WheelSpec:
    module, dice = name.replace("-", "_"), random.Random(f"{name} {version}")
    files = [File(path=f"{module}/__init__.py", data=f"VERSION = '{version}'\n".encode())]
    files.append(File(path=f"{module}/lib.so", data=dice.randbytes(200_000), mode=0o755))
    return WheelSpec(name=name, version=version, files=tuple(files))


def _base(folder: Path) -> LockedBase:
    """The base of the campaign, in a vault."""
    (folder / "base.tar").write_bytes(campaign._base(random.Random(1)))
    encoded = encode(folder / "base.tar", folder / "base.tar.gz")
    kept = folder / "vault/blobs/sha256" / encoded.digest.removeprefix("sha256:")
    kept.parent.mkdir(parents=True)
    (folder / "base.tar.gz").rename(kept)
    package = OsPackage(name="python3.11-minimal", version="3.11.2-6")
    return LockedBase(os="debian12", python="3.11.2", **asdict(encoded), encoder=ENCODER, packages=(package,))
