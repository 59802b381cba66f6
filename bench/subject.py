"""The wheels that a benchmark builds: the real set from the user's cache (only read), or a generated set."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.generated import WheelShape, write_wheel
from tests.servers.index_server import IndexServer
from torchkiln.base import artefact
from torchkiln.errors import ConfigError
from torchkiln.locks.lock import load_locked, on_base, save
from torchkiln.model.layer import ImageLayer
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
_INDEX_SETTINGS = ("PIP_", "UV_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A locked cell, with a store that has its wheels, bytecode and base."""

    name: str
    images: Path
    locked: LockedCell
    store: Store  # only read
    scratch: Path  # on the same file system as the store
    environ: Mapping[str, str]
    generated: bool = False  # whether the wheels are generated
    options: tuple[str, ...] = ()  # arguments of torchkiln's build, in addition to those that name the cell

    @property
    def wheel_bytes(self) -> int:
        """The bytes of all wheels."""
        return sum(wheel.size for wheel in self.locked.wheels)

    def cache(
        self,
        name: str,
        *,
        wheels: bool = False,
        bytecode: bool = False,
        python: bool = False,
        base: bool = True,
    ) -> Path:
        """A new cache folder.

        :param bytecode: with the .pyc packs and the base's Python.
        :param python: with the base's Python, which a first build extracts in a few seconds.
        :param base: with the base.
        """
        root = self.scratch / name
        shutil.rmtree(root, ignore_errors=True)
        target = Store(root)
        if base:
            digest = self.locked.base.digest
            _link(self.store.blob(digest), target.blob(digest))
        if wheels:
            for wheel in self.locked.wheels:
                _link(self.store.wheel(wheel), target.wheel(wheel))
        kept = self.store.root
        packs = (kept / "bytecode", self.kept_packs) if bytecode else ()
        pythons = (kept / "interpreters",) if bytecode or python else ()
        for found in filter(Path.is_dir, (*packs, *pythons)):
            into = root / (found.name if found in pythons else "bytecode")
            shutil.copytree(found, into, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        return root

    @property
    def kept_packs(self) -> Path:
        """The folder of bytecode that the store lacked, and that a run has compiled."""
        return self.scratch / "packs"

    def packs(self, cache: Path) -> int:
        """The number of wheels with bytecode in *cache*."""
        return sum(1 for _ in (cache / "bytecode").glob("*.pack"))

    def command(self, images: Path | None = None) -> list[str]:
        """The command of torchkiln's build of the cell, without --output."""
        cell = self.locked.resolution.cell
        chosen = ["--torch", cell.torch, "--cuda", cell.cuda, "--images", str(images or self.images)]
        return [*KILN, "build", *chosen, *self.options, "--no-smoke", "--json", "--quiet"]

    def read_wheels(self) -> None:
        """Read the wheels into the page cache."""
        for wheel in self.locked.wheels:
            with self.store.wheel(wheel).open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass

    def without_records(self) -> Path:
        """An images/ folder with this cell's lock, from which the recorded layers are removed."""
        folder = self.scratch / "images-without-records"
        save(folder, replace(self.locked, layers=()))
        return folder


KILN = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py")]


def real(store: Store, scratch: Path) -> Subject:
    """The cell of TAG.

    If the locked base cannot be had, the cell is measured on today's, with a lock of its own.

    :raises ConfigError: the cell's wheels are not in *store*.
    """
    locked = _on_present_base(load_locked(ROOT / "images", TAG), store)
    if missing := [wheel.filename for wheel in locked.wheels if not store.has_wheel(wheel)]:
        raise ConfigError(f"{len(missing)} wheels of {TAG} are not in the cache", hint="run: make image")
    save(scratch / "images", locked)
    return Subject(
        name=f"the real set of {TAG}",
        images=scratch / "images",
        locked=locked,
        store=store,
        scratch=scratch,
        environ=os.environ,
    )


def _on_present_base(locked: LockedCell, store: Store) -> LockedCell:
    """*locked* on its base, or on that of today's archive; its blob is in *store*."""
    base, _ = artefact.ensure(locked.base, store)
    return on_base(locked, base, locked.tools)


def shrunk(tag: str, base: Store, store: Store, scratch: Path, *, divisor: int) -> Subject:
    """The cell *tag* with generated wheels of the real names and 1/*divisor* of the real sizes.

    :param base: the user's cache, with the base.
    """
    locked = load_locked(ROOT / "images", tag)
    wheels = tuple(_shrunk(wheel, store, divisor) for wheel in locked.wheels)
    return of_wheels(wheels, locked, base, store, scratch, name=f"{tag} at 1/{divisor} of its size")


def of_wheels(
    wheels: Iterable[LockedWheel], locked: LockedCell, base: Store, store: Store, scratch: Path, *, name: str
) -> Subject:
    """The cell of *locked* with other *wheels*, which are in *store*; its lock is in the scratch folder.

    The base is in the user's cache, *base*.
    """
    locked = _on_present_base(locked, base)
    _link(base.blob(locked.base.digest), store.blob(locked.base.digest))
    other = replace(locked, wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)), layers=())
    images = scratch / "images" / re.sub(r"\W+", "-", name)
    save(images, other)
    return Subject(
        name=name,
        images=images,
        locked=other,
        store=store,
        scratch=scratch,
        environ=dict(os.environ),
        generated=True,
    )


def recorded(subject: Subject, layers: tuple[ImageLayer, ...]) -> Subject:
    """*subject* with *layers* in its lock."""
    locked = replace(subject.locked, layers=layers)
    save(subject.images, locked)
    return replace(subject, locked=locked)


def served(subject: Subject, server: IndexServer) -> Subject:
    """*subject* with its wheels on *server* as its only index."""
    for wheel in subject.locked.wheels:
        server.files["simple", wheel.name, wheel.filename] = subject.store.wheel(wheel).read_bytes()
    environ = {key: value for key, value in os.environ.items() if not key.startswith(_INDEX_SETTINGS)}
    environ |= {"PIP_INDEX_URL": server.url("simple"), "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
    return replace(subject, environ=environ)


def _shrunk(wheel: LockedWheel, store: Store, divisor: int) -> LockedWheel:
    """A generated wheel, created once per store."""
    key = f"{wheel.sha256}-{divisor}"
    if known := store.record("shrunk", key):
        return replace(wheel, sha256=known["sha256"], size=known["size"])
    size = wheel.size // divisor
    made = write_wheel(wheel, WheelShape(size=size, words=0.5, modules=min(20, size // 5000)), store)
    store.put_record("shrunk", key, {"sha256": made.sha256, "size": made.size})
    return made


def _link(source: str | Path, target: str | Path) -> None:
    """Hard-link, or copy between file systems."""
    if not Path(target).exists():
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy(source, target)
