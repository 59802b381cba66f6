"""A folder with a matrix and the committed base, and a local index with the packages of its cells."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.planned import FACTS
from tests.servers.index_server import IndexServer
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import KilnError
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.session import LockRequest, LockResult, LockSession
from torchkiln.matrix.matrix import read
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

OLD, LATER = "2026-06-01T00:00:00Z", "2026-11-21T00:00:00Z"
MATRIX = """\
torch: ["2.6.0", "2.7.1"]
cuda: ["12.1"]
flavors: [runtime, devel]
os:
  debian12: {python: "3.11"}
packages: [numpy, pip]
repository: pytorch-cuda
"""


class RecordingObserver:
    """An observer that records its events."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.results: list[LockResult] = []
        self.failures: list[tuple[str, KilnError]] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def reporting(self) -> AbstractContextManager[Reporting]:
        return nullcontext(Reporting(say=self.say))

    def locked(self, result: LockResult) -> None:
        self.results.append(result)

    def failed(self, tag: str, error: KilnError) -> None:
        self.failures.append((tag, error))


class Workspace:
    """A local index, and a folder of images with the committed base and tools."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        shutil.copytree(ROOT / "images" / "base-debian12", root / "images" / "base-debian12")
        (root / "matrix.yaml").write_text(MATRIX)
        self.server, self.store, self.observer = server, Store(root / "cache"), RecordingObserver()
        self.folder = LockFolder(root / "images", read(root / "matrix.yaml", FACTS), FACTS)
        self.environ = {
            "UV_DEFAULT_INDEX": server.url("default"),
            "UV_CACHE_DIR": str(root / "uv"),
            "UV_HTTP_RETRIES": "0",
            "PIP_CONFIG_FILE": "/dev/null",
        }

    def session(self, as_of: str | None = None, upgrade: tuple[str, ...] = ()) -> LockSession:
        request = LockRequest(as_of=as_of, upgrade=upgrade)
        pythons = StandalonePythons(store=self.store, environ=self.environ, locate=self.folder.matrix.locate)
        return LockSession(
            self.folder,
            request,
            self.store,
            environ=self.environ,
            observer=self.observer,
            pythons=pythons,
        )


@pytest.fixture(name="workspace")
def a_workspace(tmp_path: Path) -> Iterator[Workspace]:
    with IndexServer() as server:
        for name in ("numpy", "pip", "filelock"):
            server.add("default", name, "1.0", date=OLD)
        server.add("default", "torch", "2.7.1", requires=["filelock"], date=OLD)
        server.add("default", "torchvision", "0.22.1", requires=["torch==2.7.1", "numpy"], date=OLD)
        server.add("default", "torchaudio", "2.7.1", requires=["torch==2.7.1"], date=OLD)
        server.add("default", "numpy", "2.0", date=LATER)
        yield Workspace(server, tmp_path)
