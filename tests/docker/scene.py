"""A small cell for tests with Docker engines: lock, wheels, a slim copy of the real base, and devel tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from tests import forked, parity
from tests.archive_proxy import held_archive
from tests.cells import small_wheels
from tests.once import once
from tests.planned import FACTS, MATRIX
from tests.programs import run_program
from tests.realpip import locked_pip
from tests.stored import committed_base
from tests.unpublished import locked_wheel
from torchkiln.base import artefact, tools
from torchkiln.index.download import open_downloads
from torchkiln.locks.lock import inputs_digest, load_locked, save
from torchkiln.matrix.os_tools import packages_of
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase, LockedTools
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import encode
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
NAME = f"pytorch-cuda:{TAG}"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A cell that a real engine can build in seconds."""

    images: Path
    cache: Path
    environ: Mapping[str, str]

    def kiln(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`build --torch 2.7 --cuda 12.1 ...` as a user types it."""
        cell = ("--torch", "2.7", "--cuda", "12.1", "--images", str(self.images))
        return self.command("build", *cell, *arguments, **environ)

    def parity(self, a: str, b: str) -> parity.Compared:
        """The differences of *a* and *b*, each an image of `dist` or `docker:NAME`, file by file."""
        return parity.compare(a, b, self.images.parent / "dist", self.settings(), parity.allowed())

    def publish(self, target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`publish TAG` under the tag `trial`, with an override of the gate."""
        words = ("--images", str(self.images), "--to", target, "--tag", "trial", "--override", "a test")
        return self.command("publish", TAG, *words, *arguments)

    def command(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a torchkiln command in the folder that contains `dist`."""
        return forked.run(arguments, env=self.settings(**environ), cwd=self.images.parent)

    def argv(self, *arguments: str) -> list[str]:
        """The command line of *arguments*."""
        return [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), *arguments]

    def settings(self, **environ: str) -> dict[str, str]:
        """The environment in which commands run."""
        return {**self.environ, "TORCHKILN_CACHE": str(self.cache), **environ}

    def docker(self, *arguments: str) -> str:
        """The output of Docker's client."""
        return run_program(["docker", *arguments], env=dict(self.environ), check=True).stdout


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory, engine: Mapping[str, str]) -> Scene:
    """A new scene. Its base comes from the user's cache if the cache has it."""
    root = tmp_path_factory.mktemp("docker")
    user_cache, store = Store(cache_root()), Store(root / "cache")
    locked = load_locked(ROOT / "images", TAG)
    full_base, _ = artefact.ensure(locked.base, user_cache, environ=os.environ)
    base = slim_base(full_base, user_cache, store, tmp_path_factory)
    pip = locked_pip()
    files = [*small_wheels(root), open_downloads(os.environ, user_cache).fetch_wheel(pip, user_cache)]
    wheels = tuple(sorted((*(locked_wheel(file) for file in files[:-1]), pip), key=lambda wheel: wheel.name))
    cell = replace(locked, base=base, wheels=wheels, layers=())
    save(root / "images", cell)
    for wheel, file in ((wheel, file) for file in files for wheel in wheels if wheel.filename == file.name):
        place = store.wheel(wheel)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file) if file.stat().st_dev != root.stat().st_dev else os.link(file, place)
    return Scene(images=root / "images", cache=store.root, environ=engine)


# --- the slim base ---------------------------------------------------------------------------------


_LIB = "usr/lib/x86_64-linux-gnu"
_LEFT_OUT = re.compile(
    rf"\./(usr/(lib/gcc|lib/git-core|lib/python3[^/]*/config-[^/]+|include|share/perl|share/perl5)/.+"
    rf"|usr/bin/(x86_64-linux-gnu-[^/]+|git[^/]*|scalar)|{_LIB}/[^/]+\.a"
    rf"|{_LIB}/(perl/.+|gconv/.+|lib[atlu]?san\.so[^/]*|libubsan\.so[^/]*))"
)


def slim_base(
    base: LockedBase, user_cache: Store, store: Store, factory: pytest.TempPathFactory
) -> LockedBase:
    """Write a slim copy of *base*, which is in *user_cache*, into *store*; it is made once in a test run."""

    def make(folder: Path) -> None:
        tar = folder / "base.tar"
        with (
            GZIP.open(user_cache.blob(base.digest)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as full_tar,
            tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as slimmed,
        ):
            for member in full_tar:
                if not _LEFT_OUT.fullmatch(member.name) and not _LEFT_OUT.fullmatch(member.linkname):
                    slimmed.addfile(member, full_tar.extractfile(member) if member.isfile() else None)
        encoded = encode(tar, folder / "base.tar.gz")
        tar.unlink()
        (folder / "encoded.json").write_text(json.dumps(asdict(encoded)))

    made = once(factory, "slim-base", make)
    known = json.loads((made / "encoded.json").read_text())
    slim = replace(base, **known | {key: Digest(known[key]) for key in ("digest", "diff_id")})
    place = store.blob(slim.digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made / "base.tar.gz", place)
    return slim


# --- tools -----------------------------------------------------------------------------------------


DEVEL = "2.11.0-cuda13.0-cudnn9-devel"
CELL = ("--torch", "2.11", "--cuda", "13.0", "--flavor", "devel")
TELL_TALE = "tell-tale"


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Newly built devel tools; `store` has the blobs of these tools and of the base."""

    base: LockedBase
    tools: LockedTools
    store: Store
    environ: Mapping[str, str]  # in which the archive does not change

    def again(self, folder: Path) -> LockedTools:
        """Build the same tools again, with a cache in *folder*."""
        return tools.build(
            "devel", packages_of("devel"), self.base, cached_base(self.base, folder), environ=self.environ
        )


def present_base(os_name: str = "debian12") -> LockedBase:
    """The committed base, or if it cannot be had, that of today's archive; it is in the user's cache."""
    return artefact.ensure(committed_base(os_name), Store(cache_root()), environ=os.environ)[0]


def cached_base(base: LockedBase, folder: Path) -> Store:
    """A store in *folder* that has *base*."""
    user_cache, store = Store(cache_root()), Store(folder)
    artefact.ensure(base, user_cache, environ=os.environ)
    place = store.blob(base.digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_dev == user_cache.root.stat().st_dev:
        os.link(user_cache.blob(base.digest), place)
    else:
        shutil.copyfile(user_cache.blob(base.digest), place)
    return store


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Tools whose build had variables with unusual values, so that tests can detect a leak."""
    base = present_base()
    assert base is not None
    store = cached_base(base, tmp_path_factory.mktemp("cache"))
    with held_archive("debian12", os.environ) as held:
        unusual = {"LANG": f"xy_{TELL_TALE}.UTF-8", "SOMETHING": TELL_TALE}
        environ = {**held, **unusual, "no_proxy": TELL_TALE}
        made = tools.build("devel", packages_of("devel"), base, store, environ=environ)
        yield Fresh(base=base, tools=made, store=store, environ=held)


@pytest.fixture(scope="session")
def devel(scene: Scene, fresh: Fresh) -> Scene:
    """The scene with a devel lock beside the runtime lock."""
    runtime = load_locked(scene.images, TAG)
    cell = Cell(torch="2.11.0", cuda="13.0", flavor="devel", os="debian12", python="3.11")
    resolution = resolve(cell, MATRIX, FACTS)
    images = scene.images.parent / "devel" / "images"
    save(
        images,
        replace(
            runtime,
            resolution=resolution,
            inputs=inputs_digest(resolution, ()),
            tools=replace(fresh.tools, base=runtime.base.digest),
        ),
    )
    place = Store(scene.cache).blob(fresh.tools.digest)
    shutil.copyfile(fresh.store.blob(fresh.tools.digest), place)
    return replace(scene, images=images)
