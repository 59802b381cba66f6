"""A default index and PyTorch's own beside it, both on this machine, and commands that know of no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.standin.index_server import IndexServer
from tests.standin.pytorch_index import DEFAULT, fill, pytorch
from torchkiln.base import artefact
from torchkiln.index.package_index import PackageIndex, open_index
from torchkiln.matrix import facts, matrix
from torchkiln.model.lock import LockedBase
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT


@dataclass(frozen=True)
class House:
    """Both indexes, a folder to work in, and a cache."""

    server: IndexServer
    root: Path
    cache: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    def environ(self, index: str | None = "untrusted+") -> dict[str, str]:
        """With these indexes alone; *index* stands before the address of PyTorch's, None leaves that out."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
        return environ | {
            "UV_DEFAULT_INDEX": self.server.url(DEFAULT),
            "UV_CACHE_DIR": str(self.root / "uv"),
            "TORCHKILN_INDEX_PYTORCH": "" if index is None else index + self.server.url(pytorch("cu118")),
            "TORCHKILN_CACHE": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "no_proxy": "127.0.0.1",
        }

    def index(self, index: str | None = "") -> PackageIndex:
        """What a lock asks of them."""
        return open_index(self.environ(index), Store(self.cache))

    def kiln(self, *words: str, index: str | None = "untrusted+") -> subprocess.CompletedProcess[str]:
        """A command as a user types it."""
        images = () if words[0] == "run" else ("--images", str(self.images))
        return subprocess.run(
            [sys.executable, str(ROOT / "build.py"), words[0], *images, *words[1:]],
            env=self.environ(index),
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def furnished(root: Path, *releases: str) -> Iterator[House]:
    """With the real base, from the user's cache, and the wheels of torch *releases* for CUDA 11.8."""
    packages = matrix.read(ROOT / "matrix.yaml", facts.load()).packages
    artefact.write_lock(root / "images", _with_base(root / "cache"))
    with IndexServer() as server:
        for torch in releases:
            fill(server, torch, "cu118", "3.11", (*packages, "setuptools"))
        yield House(server, root, root / "cache")


def with_another_cache(house: House, cache: Path) -> House:
    """*house*, whose *cache* holds the base and nothing else."""
    _with_base(cache)
    return replace(house, cache=cache)


def _with_base(cache: Path) -> LockedBase:
    """The locked base, which the user's own cache has, in *cache*."""
    kept, store = Store(cache_root()), Store(cache)
    base, _ = artefact.ensure(artefact.read_lock(ROOT / "images", "debian12"), kept, os_name="debian12")
    store.blob(base.digest).parent.mkdir(parents=True)
    shutil.copy(kept.blob(base.digest), store.blob(base.digest))
    return base
