"""Builds wheels from sdists with their build backends, in a sandbox with the image's files and no network.

Sdists and backends are not trusted. An sdist is unpacked only in the sandbox, and the output of its build is
accepted only if it is a valid wheel.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version

from torchkiln.base import artefact, tools
from torchkiln.base.interpreter import HOME, python_name
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import BadWheel, BuildFailed, printable
from torchkiln.index.choose import tags_of
from torchkiln.model.cell import PythonArchive, Source
from torchkiln.model.digest import Digest
from torchkiln.model.index import read_metadata
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.oci.unpack import LayerBlob, unpacked_root
from torchkiln.projects.sources.sdists import BuiltSdist, Resolve, SourceCode
from torchkiln.projects.sources.workshop import Limits, run_enclosed
from torchkiln.runtimes.command import Bind, Program
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree
from torchkiln.util.strict_json import json_of
from torchkiln.util.toml import toml_of
from torchkiln.util.wheel_names import parse_wheel_filename
from torchkiln.wheel.metadata import metadata_in

_DRIVER = Path(__file__).with_name("sdist_driver.py")
_EPOCH = "315532800"  # 1980-01-01, the first day that a zip file can have
_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp/build",
    "TMPDIR": "/tmp",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "SOURCE_DATE_EPOCH": _EPOCH,
    "PIP_NO_INDEX": "1",
}
_QUICK = Limits(seconds=120.0, output=1 << 20)  # for pyproject.toml and requirements
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,250}\.whl")
_SHOWN = 12  # lines of a log
_NO_COMPILER = re.compile(
    r"(unable to execute|command) '[^']{0,200}' failed: No such file"
    r"|(gcc|g\+\+|cc|c\+\+|nvcc|gfortran|rustc|cargo|cmake|ninja): (command )?not found"
    r"|CUDA_HOME|CMAKE_\w+_COMPILER|can't find Rust compiler|Unknown compiler",
    re.IGNORECASE,
)
_NO_HISTORY = re.compile(
    r"setuptools.scm was unable to detect version|Versioning for this project requires either an sdist"
)
_UNLISTED = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_ELSEWHERE = "build a wheel elsewhere, and put it into the folder of the setting `wheels`"
_MOST = 100  # requirements
_LONGEST = 500  # characters of a requirement
_BACKEND = re.compile(r"[A-Za-z_][\w.]{0,199}(:[A-Za-z_][\w.]{0,199})?", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSystem:
    """The build backend of an sdist and its requirements; the defaults apply if it has no pyproject.toml."""

    requires: tuple[str, ...] = ("setuptools>=40.8.0",)  # PEP 508
    backend: str = "setuptools.build_meta:__legacy__"
    path: tuple[str, ...] = ()  # backend-path: folders of the sdist from which the backend is imported


@dataclass(frozen=True, kw_only=True, slots=True)
class _Build:
    """What is built, for which image, and the root file system in which it is built."""

    code: SourceCode
    cell: LockedCell
    root: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxedBuilder:
    """Builds sdists; see `project.sdists.SdistBuilder`."""

    store: Store
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    report: Reporting = UNREPORTED
    limits: Limits = field(default_factory=Limits)
    # The root file system for builds; None: that of base, tools and standalone Python.
    root: Callable[[LockedCell], Path] | None = None
    locate: Callable[[PythonArchive], str] = lambda _: ""  # the path or URL of a standalone Python's archive

    def build(self, code: SourceCode, cell: LockedCell, resolve: Resolve) -> BuiltSdist:
        """See SdistBuilder."""
        build = _Build(code=code, cell=cell, root=self._root(cell))
        self.report.say(f"building {code.archive.filename} in a sandbox")
        with _named(code):
            system = self._system(build)
            requires = resolve(system.requires)
            answer = self._run(build, requires, ("requires", system.backend, *system.path), _QUICK)
            more = build_requirements(json_of(answer))
            if set(more) - set(system.requires):
                requires = resolve((*system.requires, *more))
            return self._wheel(build, requires, system)

    def again(self, code: SourceCode, cell: LockedCell, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        """See SdistBuilder."""
        build = _Build(code=code, cell=cell, root=self._root(cell))
        with _named(code):
            return self._wheel(build, requires, self._system(build))

    def _root(self, cell: LockedCell) -> Path:
        """The unpacked base of *cell*, with its tools and standalone Python if it has them."""
        if self.root:
            return self.root(cell)
        base, _ = artefact.ensure(cell.base, self.store, environ=self.environ, report=self.report)
        layers = [LayerBlob(path=self.store.blob(base.digest), diff_id=base.diff_id)]
        if cell.tools:
            found, _ = tools.ensure(cell.tools, base, self.store, environ=self.environ, report=self.report)
            layers.append(LayerBlob(path=self.store.blob(found.digest), diff_id=found.diff_id))
        if own := cell.standalone:
            pythons = StandalonePythons(store=self.store, environ=self.environ, locate=self.locate)
            pythons.ensure(own, base, report=self.report)
            layers.append(LayerBlob(path=self.store.blob(own.digest), diff_id=own.diff_id))
        key = hashlib.sha256("\n".join(layer.diff_id for layer in layers).encode()).hexdigest()
        return unpacked_root(Digest(f"sha256:{key}"), layers, self.store)

    def _system(self, build: _Build) -> BuildSystem:
        return build_system(self._run(build, (), ("read", "-"), _QUICK))

    def _wheel(self, build: _Build, requires: tuple[LockedWheel, ...], system: BuildSystem) -> BuiltSdist:
        """Build the wheel, check it, and put it into the cache."""
        answer = self._run(build, requires, ("wheel", system.backend, *system.path), self.limits)
        line, _, data = answer.partition(b"\n")
        name, sdist = line.decode(errors="replace"), build.code.archive
        version = sdist.version or _version(name)
        if not _FILE_NAME.fullmatch(name) or not version:
            raise ValueError("its build made no wheel")
        wheel = LockedWheel(
            name=sdist.name,
            version=version,
            filename=name,
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            index=Source.PROJECT,
        )
        temporary = self.store.temporary("built")
        try:
            with self.store.writable():
                temporary.write_bytes(data)
            metadata = metadata_in(temporary, wheel.filename)
            if why := _fault(wheel, metadata, build.cell):
                raise BadWheel(wheel.filename, why)
            self.store.adopt(temporary, self.store.wheel(wheel))
        except (BadWheel, ValueError) as error:
            why = error.reason if isinstance(error, BadWheel) else str(error)
            raise ValueError(f"its build made an invalid wheel: {why}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return BuiltSdist(wheel=wheel, metadata=metadata, requires=requires)

    def _run(
        self, build: _Build, requires: Iterable[LockedWheel], words: tuple[str, ...], limits: Limits
    ) -> bytes:
        """What the driver prints for *words*: an action, the backend and its path.

        :raises BuildFailed: the driver failed.
        :raises ValueError: it exceeded *limits*.
        """
        programs, python = _python_of(build.cell)
        action, *backend = words
        with self._staged(build.code.archive, requires) as folder:
            program = Program(
                argv=(f"{programs}/{python}", "-B", "/in/driver.py", action, build.code.folder, *backend),
                env={**_ENV, "PATH": ":".join(dict.fromkeys((programs, *_ENV["PATH"].split(":"))))},
                binds=(Bind(source=folder, target="/in"),),
            )
            ended = run_enclosed(build.root, program, limits)
        if ended.code:
            log = ended.stderr.decode(errors="replace")
            lines = [printable(line[:500]) for line in log.splitlines() if line.strip()][-_SHOWN:]
            raise BuildFailed(
                "\n".join((f"its build failed (exit {ended.code}):", *lines)), hint=_hint(log, build.cell)
            )
        return ended.stdout

    @contextmanager
    def _staged(self, sdist: LockedWheel, requires: Iterable[LockedWheel]) -> Iterator[Path]:
        """A folder with the driver, the sdist and the build requirements; the sandbox mounts it at /in."""
        folder = self.store.temporary("sdist")
        try:
            with self.store.writable():
                (folder / "wheels").mkdir(parents=True, mode=0o755)
                for place in (folder, folder / "wheels"):
                    place.chmod(0o755)  # regardless of the umask: the unprivileged user must read it
                shutil.copyfile(_DRIVER, folder / "driver.py")
                (folder / "driver.py").chmod(0o444)
                os.link(self.store.wheel(sdist), folder / "source.tar.gz")
                for wheel in requires:
                    os.link(self.store.wheel(wheel), folder / "wheels" / wheel.filename)
            yield folder
        finally:
            remove_tree(folder)


def build_system(text: bytes) -> BuildSystem:
    """The build system in *text*, a pyproject.toml; an empty *text* stands for a missing file.

    :raises ValueError: it is invalid.
    """
    table = toml_of(text).get("build-system")
    if table is None:
        return BuildSystem()
    if not isinstance(table, dict):
        raise ValueError("[build-system] is not a table")
    requires, path = table.get("requires", []), table.get("backend-path", [])
    backend = table.get("build-backend", BuildSystem().backend)
    for key, value in (("requires", requires), ("backend-path", path)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"[build-system] {key} is not a list of strings")
    if not isinstance(backend, str) or not _BACKEND.fullmatch(backend):
        raise ValueError("[build-system] build-backend is not the name of a module")
    if any(not _PART.fullmatch(part) or ".." in part.split("/") for part in path if part != "."):
        raise ValueError("[build-system] backend-path is not a relative path inside the sdist")
    return BuildSystem(requires=build_requirements(requires), backend=backend, path=tuple(path))


def build_requirements(texts: object) -> tuple[str, ...]:
    """The requirements in *texts* (PEP 508), without duplicates.

    :raises ValueError: *texts* is not a list or too long, or a requirement is invalid or has a URL.
    """
    if not isinstance(texts, list):
        raise ValueError("its build requirements are not a list")
    if len(texts) > _MOST:
        raise ValueError(f"its build requires more than {_MOST} packages")
    found = []
    for text in texts:
        shown = str(text)[:100]
        try:
            if not isinstance(text, str) or len(text) > _LONGEST:
                raise InvalidRequirement
            requirement = Requirement(text)
        except InvalidRequirement:
            raise ValueError(f"its build requires {shown!r}, which is not a valid requirement") from None
        if requirement.url:
            raise ValueError(f"its build requires {requirement.name} by a direct URL")
        found.append(str(requirement))
    return tuple(dict.fromkeys(found))


@contextmanager
def _named(code: SourceCode) -> Iterator[None]:
    """Let an error name the sdist.

    :raises BuildFailed: in place of a ValueError or another BuildFailed.
    """
    try:
        yield
    except (ValueError, BuildFailed) as error:
        hint = error.hint if isinstance(error, BuildFailed) else _ELSEWHERE
        raise BuildFailed(f"{code.archive.filename}: {error}", hint=hint) from error


def _python_of(cell: LockedCell) -> tuple[str, str]:
    """Folder and file name of the Python from which the image's virtual environment was made."""
    if cell.standalone:
        return f"/{HOME}/bin", python_name(cell.standalone.version)
    return "/usr/bin", python_name(cell.base.python)


def _fault(wheel: LockedWheel, metadata: bytes, cell: LockedCell) -> str:
    """Why *wheel* is not the wheel that the build should make; empty if it is.

    :raises ValueError: METADATA is invalid.
    """
    found, (name, version, _, tags) = read_metadata(metadata), parse_wheel_filename(wheel.filename)
    if name != wheel.name or canonicalize_name(found.name) != wheel.name:
        return f"its name is {found.name[:100]}"
    if version != Version(wheel.version) or Version(found.version) != version:
        return f"its version is {found.version[:100]}"
    image = cell.resolution.cell
    accepted = tags_of(image.python, operating_system(image.os).glibc)
    return "" if not tags.isdisjoint(accepted) else "its tags do not match the image's Python and Linux"


def _version(filename: str) -> str:
    """The version in *filename*; empty if that is not the name of a wheel."""
    try:
        return str(parse_wheel_filename(filename)[1])
    except InvalidWheelFilename:
        return ""


def _hint(log: str, cell: LockedCell) -> str:
    if found := _UNLISTED.search(log):
        return f"it imports {found[1]}, which is not in its [build-system] requires: {_ELSEWHERE}"
    if _NO_HISTORY.search(log):
        return f"its version comes from git's history, which the build does not have: {_ELSEWHERE}"
    if _NO_COMPILER.search(log) and cell.tools is None:
        return f"it may need a compiler that this image does not have: use --flavor devel; or {_ELSEWHERE}"
    return _ELSEWHERE
