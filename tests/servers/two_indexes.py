"""A local default index and a local PyTorch index: small wheels with the requirements of the real wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests import forked
from tests.cells import noise
from tests.servers.index_server import IndexServer
from tests.stored import committed_base
from torchkiln.base import artefact
from torchkiln.index.package_index import PackageIndex, open_index
from torchkiln.matrix import facts, matrix
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix.facts import Facts, Release
from torchkiln.model.lock import LockedBase
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT
from torchkiln.util.versions import numbers

DEFAULT, OLD = "simple", "2020-01-01T00:00:00Z"
_OLD_ENOUGH = {"numpy": "1.26.4", "setuptools": "69.5.1"}  # versions that the oldest torch releases need
_CODE = b"__version__ = 'a test'\n"


def pytorch(variant: str) -> str:
    """The path of the index of *variant*."""
    return f"whl/{variant}"


def fill(server: IndexServer, torch: str, variant: str, python: str, companions: tuple[str, ...]) -> None:
    """Serve everything that the cell of *torch* and *variant* requires, and packages that it must not use."""
    facts = facts_of.load()
    release, cpython = facts.releases[torch], "cp" + python.replace(".", "")
    server.metadata = server.etags = True
    here, local = pytorch(variant), f"+{variant}"
    # Before torch 2.7, PyTorch's index has the platform tag linux_x86_64.
    platform = release.default.platform if numbers(torch) >= (2, 7) else "linux_x86_64"
    built = {"tag": f"{cpython}-{cpython}-{platform}", "python": ">=3.8", "date": OLD}
    pins = _pins(facts, release, variant)
    requires = [f'{name}=={version}; platform_system == "Linux"' for name, version in pins.items()]
    requires += [*release.default.requires, f"triton=={release.default.triton}"]
    big = {"payload": _CODE + b"# " + noise(torch + variant, 50_000).hex().encode()}
    server.add(here, "torch", torch + local, requires=requires, **built, **big)
    server.add(here, "torch", torch + local, requires=["not-this-python"], **built | {"tag": "cp38-cp38-any"})
    wants = [f"torch=={torch}"]
    vision = [*(release.torchvision_requires or ["numpy"]), *wants]
    server.add(here, "torchvision", release.torchvision + local, requires=vision, **built)
    server.add(here, "torchaudio", release.torchaudio + local, requires=wants, **built)
    server.add(here, "triton", release.default.triton, payload=_CODE, **built)
    # Like PyTorch's, the index also has other packages; a lock must not use them.
    server.add(here, "numpy", "99.0")
    server.add(DEFAULT, "torch", torch, requires=["from-the-wrong-index"], date=OLD)
    server.add(DEFAULT, "triton", release.default.triton, payload=b"another", date=OLD)
    for name, version in pins.items():
        server.add(DEFAULT, name, version, tag="py3-none-manylinux1_x86_64", date=OLD, payload=_CODE)
    names = (text.partition(">")[0].partition(";")[0] for text in release.default.requires)
    for name in {*companions, *names, *(re.split("[^a-z-]", text)[0] for text in vision)} - {"torch"}:
        server.add(DEFAULT, name, _OLD_ENOUGH.get(name, "99.0"), date=OLD, payload=_CODE)


def _pins(facts: Facts, release: Release, variant: str) -> dict[str, str]:
    """The versions of NVIDIA's packages that the METADATA of the real wheel requires.

    All releases for CUDA 11.8 require the same versions. The first releases require none, because their
    wheels contain the libraries.
    """
    assert variant == "cu118", variant
    wheels = release.variant(variant)
    if wheels.bundled:
        return {}
    assert wheels.cudnn
    assert wheels.nccl
    return dict(facts.cu118_pins) | {"nvidia-cudnn-cu11": wheels.cudnn, "nvidia-nccl-cu11": wheels.nccl}


@dataclass(frozen=True)
class IndexWorkspace:
    """Both indexes, a folder to work in, and a cache."""

    server: IndexServer
    root: Path
    cache: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    def environ(self, index: str | None = "untrusted+") -> dict[str, str]:
        """An environment with only these indexes; *index* is a prefix of PyTorch's URL, None omits it."""
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
        """The indexes, opened as for a lock."""
        return open_index(self.environ(index), Store(self.cache))

    def kiln(self, *words: str, index: str | None = "untrusted+") -> subprocess.CompletedProcess[str]:
        """Run a torchkiln command in the workspace; *index* as in `environ`."""
        images = () if words[0] == "run" else ("--images", str(self.images))
        return forked.run((words[0], *images, *words[1:]), env=self.environ(index), cwd=self.root)


@contextmanager
def furnished(root: Path, *releases: str) -> Iterator[IndexWorkspace]:
    """A workspace with the real base, from the user's cache, and wheels of torch *releases* for CUDA 11.8."""
    packages = matrix.read(ROOT / "matrix.yaml", facts.load()).packages
    artefact.write_lock(root / "images", _with_base(root / "cache"))
    with IndexServer() as server:
        for torch in releases:
            fill(server, torch, "cu118", "3.11", (*packages, "setuptools"))
        yield IndexWorkspace(server, root, root / "cache")


def with_another_cache(workspace: IndexWorkspace, cache: Path) -> IndexWorkspace:
    """*workspace* with another *cache*, which has only the base."""
    _with_base(cache)
    return replace(workspace, cache=cache)


def _with_base(cache: Path) -> LockedBase:
    """Copy the locked base from the user's cache into *cache*."""
    user_cache, store = Store(cache_root()), Store(cache)
    base, _ = artefact.ensure(committed_base(), user_cache)
    store.blob(base.digest).parent.mkdir(parents=True)
    shutil.copy(user_cache.blob(base.digest), store.blob(base.digest))
    return base
