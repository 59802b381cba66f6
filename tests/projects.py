"""A small parent image, whose base has a shell, and projects on it, for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from tests.cells import HostPython
from tests.planned import FACTS, MATRIX, locked
from tests.pool_worker import in_this_process
from tests.roots import entries_of, tar_of, tiny_root
from tests.stored import put_tar
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import make_wheel
from torchkiln.engine import wheel_layers
from torchkiln.engine.build import BuildOptions
from torchkiln.engine.environment import Environment
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Silent
from torchkiln.model.project import ProjectLock
from torchkiln.projects.asked import ProjectNeeds
from torchkiln.projects.build import BuiltProject, ProjectSource, build_project, rebuild_project
from torchkiln.projects.code import read_code
from torchkiln.projects.settings import read_settings
from torchkiln.store.store import Store

NAME = "my-project"
SITE = f"opt/venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
TAG = "2.7.1-cuda12.1-cudnn9-runtime"
_CODE = b"VALUE = 1\n"
PARENT: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("torch", "2.7.1"): ("torch/__init__.py", "torch/lib/libtorch.so"),
    ("triton", "3.3.1"): ("triton/__init__.py",),
    ("fsspec", "2"): ("fsspec/__init__.py", "fsspec/impl/local.py", "fsspec_single.py", "shared/one.py"),
    ("six", "1"): ("six.py", "shared/two.py"),
}


@dataclass(kw_only=True)
class Bench:
    """A folder with a cache, a layout, wheels and a project; functions lock and build this project."""

    folder: Path
    cell: LockedCell
    index: FakeIndex
    said: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache")

    @property
    def layout(self) -> Path:
        return self.folder / "dist"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def wheel(self, name: str, version: str, *paths: str, **options: object) -> Path:
        """Add a wheel to the index."""
        files = {path: _CODE + f"# {name} {version} {path}\n".encode() for path in paths}
        made = make_wheel(self.folder / "wheels", name, version, files, **options)
        self.index.files[made.name] = made.read_bytes()
        return made

    def lock(self, *wheels: Path, requirements: Iterable[str] = ()) -> ProjectLock:
        """A lock of the project with *wheels*, which replace wheels of the same name in the parent image."""
        named = tuple(sorted(map(locked_wheel, wheels), key=lambda wheel: wheel.name))
        there = {wheel.name for wheel in self.cell.wheels}
        return ProjectLock(
            name=NAME,
            parent=TAG,
            parent_lock=lock_digest(self.cell),
            as_of="2026-11-25",
            inputs=Digest("sha256:" + "3" * 64),
            requirements=tuple(requirements),
            wheels=named,
            removed=tuple(wheel.name for wheel in named if wheel.name in there),
        )

    def build(self, lock: ProjectLock, options: BuildOptions | None = None) -> BuiltProject:
        """Build the project."""
        with _small_build():
            return build_project(
                self._source(lock), MATRIX, FACTS, self.layout, self._environment(), options or BuildOptions()
            )

    def rebuild(self, before: BuiltProject, lock: ProjectLock) -> BuiltProject:
        """Build the project again with its current code."""
        with _small_build():
            return rebuild_project(
                before, self._source(lock), MATRIX, self.layout, self._environment(), BuildOptions()
            )

    def _source(self, lock: ProjectLock) -> ProjectSource:
        return ProjectSource(
            cell=self.cell,
            lock=lock,
            code=read_code(self.project, without=[origin.path for origin in lock.origins]),
            folder=self.project,
            needs=ProjectNeeds(name=NAME, source="requirements.txt", requirements=()),
            settings=read_settings(self.project),
        )

    def _environment(self) -> Environment:
        return Environment(store=self.store, fetcher=self.index, observer=Silent(), say=self.said.append)


@contextmanager
def _small_build() -> Iterator[None]:
    """Within this context, builds compile with this Python and start no workers."""
    host = patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython())
    with host, in_this_process():
        yield


def bench(
    folder: Path,
    python: str = "",
    packages: Mapping[tuple[str, str], tuple[str, ...]] = PARENT,
    launchers: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Bench:
    """A new folder with a project (train.py), and the cell of its parent image: `tiny_root` with *packages*.

    :param python: a shell script in place of the image's Python; empty for none.
    :param launchers: names of console scripts, by package.
    :param files: more files of the base, by path.
    """
    made = Bench(folder=folder, cell=locked(), index=FakeIndex([]))
    wheels = [
        made.wheel(name, version, *paths, console=_console(name, launchers or {}))
        for (name, version), paths in packages.items()
    ]
    encoded = put_tar(_base(folder / "root", python, files or {}), made.store)
    base = replace(made.cell.base, python=".".join(map(str, sys.version_info[:3])), **asdict(encoded))
    named = tuple(sorted(map(locked_wheel, wheels), key=lambda wheel: wheel.name))
    made.cell = replace(made.cell, base=base, wheels=named)
    assert tag_of(made.cell.resolution) == TAG
    made.project.mkdir()
    (made.project / "train.py").write_text("print('one')\n")
    return made


def _console(name: str, launchers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return ((launchers[name], f"{name}:main"),) if name in launchers else ()


def _base(root: Path, python: str, files: Mapping[str, bytes]) -> bytes:
    tiny_root(root)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o644)
    if python:
        program = root / "opt/venv/bin/python"
        program.parent.mkdir(parents=True)
        program.write_text(python)
        program.chmod(0o755)
    return tar_of(entries_of(root))
