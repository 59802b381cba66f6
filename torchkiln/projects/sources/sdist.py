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

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
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
from torchkiln.projects.sources.build_system import BuildSystem, build_requirements, build_system
from torchkiln.projects.sources.sdists import BuiltSdist, Resolve, SourceCode
from torchkiln.projects.sources.workshop import Limits, run_enclosed
from torchkiln.runtimes.command import Bind, Program
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree
from torchkiln.util.strict_json import json_of
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
_FILE_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,250}\.whl")
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
        root, sdist = self._root(cell), code.archive
        self.report.say(f"building {sdist.filename} in a sandbox")
        try:
            text = self._run(sdist, root, cell, (), ("read", code.folder, "-"), _QUICK)
            system = build_system(text)
            requires = resolve(system.requires)
            words = ("requires", code.folder, system.backend, *system.path)
            more = build_requirements(json_of(self._run(sdist, root, cell, requires, words, _QUICK)))
            if set(more) - set(system.requires):
                requires = resolve((*system.requires, *more))
        except ValueError as error:
            raise BuildFailed(f"{sdist.filename}: {error}", hint=_ELSEWHERE) from error
        except BuildFailed as error:
            raise BuildFailed(_named(sdist, error.message), hint=error.hint) from error
        return self._wheel(code, root, cell, requires, system)

    def same(self, code: SourceCode, cell: LockedCell, built: BuiltSdist) -> bool:
        """See SdistBuilder."""
        return self.again(code, cell, built.requires).wheel.sha256 == built.wheel.sha256

    def again(self, code: SourceCode, cell: LockedCell, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        """The wheel of *code*, built with the wheels *requires* of a lock; all these files are in the cache.

        :raises BuildFailed: as `build`.
        """
        root, sdist = self._root(cell), code.archive
        try:
            system = build_system(self._run(sdist, root, cell, (), ("read", code.folder, "-"), _QUICK))
        except ValueError as error:
            raise BuildFailed(f"{sdist.filename}: {error}", hint=_ELSEWHERE) from error
        return self._wheel(code, root, cell, requires, system)

    def _root(self, cell: LockedCell) -> Path:
        """The unpacked base of *cell*, with its tools and standalone Python if it has them."""
        if self.root:
            return self.root(cell)
        base, _ = artefact.ensure(
            cell.base,
            self.store,
            os_name=cell.resolution.cell.os,
            environ=self.environ,
            report=self.report,
        )
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

    def _wheel(
        self,
        code: SourceCode,
        root: Path,
        cell: LockedCell,
        requires: tuple[LockedWheel, ...],
        system: BuildSystem,
    ) -> BuiltSdist:
        """Build the wheel, check it, and put it into the cache."""
        sdist, words = code.archive, ("wheel", code.folder, system.backend, *system.path)
        name, _, data = self._run(sdist, root, cell, requires, words, self.limits).partition(b"\n")
        version = sdist.version or _version(name.decode(errors="replace"))
        if not _FILE_NAME.fullmatch(name) or not version:
            raise BuildFailed(f"{sdist.filename}: its build made no wheel", hint=_ELSEWHERE)
        wheel = LockedWheel(
            name=sdist.name,
            version=version,
            filename=name.decode(),
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            index=Source.PROJECT,
        )
        temporary = self.store.temporary("built")
        try:
            with self.store.writable():
                temporary.write_bytes(data)
            metadata = metadata_in(temporary, wheel.filename)
            if why := _fault(wheel, metadata, cell):
                raise BadWheel(wheel.filename, why)
            self.store.adopt(temporary, self.store.wheel(wheel))
        except (BadWheel, ValueError) as error:
            why = error.reason if isinstance(error, BadWheel) else str(error)
            raise BuildFailed(
                f"{sdist.filename}: its build made an invalid wheel: {why}", hint=_ELSEWHERE
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        return BuiltSdist(wheel=wheel, metadata=metadata, requires=requires)

    def _run(
        self,
        sdist: LockedWheel,
        root: Path,
        cell: LockedCell,
        requires: Iterable[LockedWheel],
        words: tuple[str, ...],
        limits: Limits,
    ) -> bytes:
        """The stdout of the driver.

        :raises BuildFailed: the driver failed, or exceeded *limits*.
        """
        programs, python = _python_of(cell)
        with self._staged(sdist, requires) as folder:
            program = Program(
                argv=(f"{programs}/{python}", "-B", "/in/driver.py", *words),
                env={**_ENV, "PATH": ":".join(dict.fromkeys((programs, *_ENV["PATH"].split(":"))))},
                binds=(Bind(source=folder, target="/in"),),
            )
            ended = run_enclosed(root, program, limits)
        if ended.exceeded:
            raise BuildFailed(
                f"{sdist.filename}: its build was stopped: it used more than {ended.exceeded}",
                hint=_ELSEWHERE,
            )
        if ended.code:
            lines = [printable(line[:500]) for line in ended.log.splitlines() if line.strip()][-_SHOWN:]
            raise BuildFailed(
                "\n".join((f"{sdist.filename}: its build failed (exit {ended.code}):", *lines)),
                hint=_hint(ended.log, cell),
            )
        return ended.output

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


def _named(sdist: LockedWheel, message: str) -> str:
    return message if message.startswith(sdist.filename) else f"{sdist.filename}: {message}"


def _hint(log: str, cell: LockedCell) -> str:
    if found := _UNLISTED.search(log):
        return f"it imports {found[1]}, which is not in its [build-system] requires: {_ELSEWHERE}"
    if _NO_HISTORY.search(log):
        return f"its version comes from git's history, which the build does not have: {_ELSEWHERE}"
    if _NO_COMPILER.search(log) and cell.tools is None:
        return f"it may need a compiler that this image does not have: use --flavor devel; or {_ELSEWHERE}"
    return _ELSEWHERE
