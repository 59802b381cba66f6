"""Makes the layer of a standalone Python from its archive, or provides the locked one.

The matrix has the path or URL of the archive, and its hash. The same archive gives the same layer on every
machine, so a lock needs no copy of the layer. The byte-code of the standard library is compiled by the
archive's Python, with the base's C library, in a sandbox.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.base import artefact
from torchkiln.base.archive import sha256_of
from torchkiln.base.confined import ConfinedPython, require_sandbox
from torchkiln.base.interpreter import HOME, Interpreter, extract_python, extract_standalone
from torchkiln.base.python_archive import PythonFiles, content_of, layer_tar, read_python, sources
from torchkiln.base.remake import scratch_folder
from torchkiln.errors import BadPythonArchive, BuildFailed, ConfigError
from torchkiln.model.cell import PythonArchive
from torchkiln.model.lock import LockedBase, LockedStandalone
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.model.recipe import PYTHON_RULE, minor
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.oci.tar_reader import IteratorFile
from torchkiln.store.store import Store
from torchkiln.util import codec
from torchkiln.wheel.bytecode import cached_name

_RECORDS = "bases"  # the records of rebuilt bases: the cache keeps blobs of both kinds equally long


@dataclass(frozen=True, kw_only=True, slots=True)
class StandalonePythons:
    """Makes layers of standalone Pythons, with their blobs in *store*."""

    store: Store
    environ: Mapping[str, str]
    locate: Callable[[PythonArchive], str]  # the path or URL of an archive; empty: not in the matrix

    def make(
        self, archive: PythonArchive, python: str, base: LockedBase, report: Reporting = UNREPORTED
    ) -> LockedStandalone:
        """The layer of *archive*, which must have the version *python* ("3.12"), for images with *base*.

        :raises ConfigError: the path of the archive does not exist, or cannot be read.
        :raises ToolMissing: this host has no sandbox; a Python that a matrix names is not trusted.
        :raises BuildFailed: the archive cannot be downloaded, has a different hash
            or Python, or is malformed; or the base cannot be provided.
        """
        key = _key(archive, python, base)
        with self.store.lock(f"standalone-{archive.sha256}", f"makes the layer of {archive.filename}"):
            if known := self._recorded(key):
                return replace(known, filename=archive.filename)  # the same archive may have another name
            require_sandbox()
            with scratch_folder(self.store, "standalone") as folder:
                path = self._archive(archive, folder, report)
                report.say(f"building the Python {python} layer from {archive.filename}")
                with self.store.writable():
                    made = self._made(path, archive, python, base, folder, report)
            self.store.put_record(_RECORDS, key, codec.plain(made))
        return made

    def ensure(self, locked: LockedStandalone, base: LockedBase, *, report: Reporting = UNREPORTED) -> None:
        """Put the blob of *locked* into the store, if it is not there.

        :raises BuildFailed: as `make`; or the archive's layer has a different digest.
        """
        if self.store.has_blob(locked.digest, locked.size):
            return
        archive = PythonArchive(filename=locked.filename, sha256=locked.sha256)
        found = self.make(archive, minor(locked.version), base, report).digest
        if found == locked.digest:
            return
        raise BuildFailed(
            f"the layer of {locked.filename} differs from the lock: expected {locked.digest}, got {found}",
            hint="another version of torchkiln made the lock: lock the cell again",
        )

    def _recorded(self, key: str) -> LockedStandalone | None:
        record = self.store.record(_RECORDS, key)
        if record is None:
            return None
        try:
            found = codec.typed(LockedStandalone, record)
        except ValueError:  # written by another version of torchkiln
            return None
        return found if self.store.has_blob(found.digest, found.size) else None

    def _archive(self, archive: PythonArchive, folder: Path, report: Reporting) -> Path:
        """The verified file: the user's, or downloaded to *folder*."""
        location = self.locate(archive)
        if not location:
            raise BuildFailed(
                f"the layer of {archive.filename} (sha256 {archive.sha256}) is not in the cache, and"
                " matrix.yaml names no such archive",
                hint="name the archive in matrix.yaml, under pythons",
            )
        path = Path(location)
        if "://" in location:
            from torchkiln.index.download import download  # slow to import, and most builds need none

            path, observer, name = folder / "archive", report.observer, archive.filename
            download(
                archive,
                location,
                path,
                self.store,
                environ=self.environ,
                began=lambda size: observer.begin("download", name, size),
                on_progress=lambda count: observer.advance("download", name, count),
            )
            observer.end("download", name)
        try:
            if not path.is_file():  # a pipe would hang
                raise FileNotFoundError(errno.ENOENT, "no such file")
            found = sha256_of(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}", hint="correct the path in matrix.yaml, under pythons"
            ) from error
        if found != archive.sha256:
            raise BadPythonArchive(
                archive.filename, f"checksum mismatch: sha256 {found}, {archive.sha256} in matrix.yaml"
            )
        return path

    def _made(
        self,
        path: Path,
        archive: PythonArchive,
        python: str,
        base: LockedBase,
        folder: Path,
        report: Reporting,
    ) -> LockedStandalone:
        blob = folder / "layer"
        with (folder / "contents").open("w+b") as contents:
            found = read_python(path, archive, python, contents)
            contents.flush()
            artefact.ensure(base, self.store, locked_only=True, environ=self.environ, report=report)
            extract_python(self.store.blob(base.digest), base, folder / "root")
            try:
                bytecode = self._bytecode(found, contents, base, folder)
            except BuildFailed as error:
                raise BadPythonArchive(
                    archive.filename, f"its Python does not run on {base.os}: {error}"
                ) from error
            encoded = encode(
                IteratorFile(layer_tar(found, contents, base=base.python, bytecode=bytecode)), blob
            )
        self.store.adopt(blob, self.store.blob(encoded.digest))
        return LockedStandalone(
            version=found.version,
            filename=archive.filename,
            sha256=archive.sha256,
            archive_size=path.stat().st_size,
            **asdict(encoded),
            encoder=ENCODER,
        )

    def _bytecode(
        self, found: PythonFiles, contents: BinaryIO, base: LockedBase, folder: Path
    ) -> dict[str, bytes]:
        """The .pyc files of the standard library, by path; *folder* has a root with the base's libraries."""
        root, version = folder / "root", found.version
        tar = cast(BinaryIO, IteratorFile(layer_tar(found, contents, base=base.python, bytecode={})))
        extract_standalone(tar, version, root)
        own = Interpreter(root=root, version=version, home=HOME)
        modules = ((f"/{path}", content_of(found.files[path], contents)) for path in sources(found))
        codes = ConfinedPython(python=own, sandboxed=True).compiled(modules, folder / "output")
        return {cached_name(path, version): code for path, code in codes.items()}


def _key(archive: PythonArchive, python: str, base: LockedBase) -> str:
    parts = [archive.sha256, python, minor(base.python), PYTHON_RULE, ENCODER]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
