"""Extracts the Python of a base and returns the command that runs it.

Byte-code must be compiled by exactly the image's interpreter. The interpreter's files are extracted from the
base once. It is started with the base's loader, so that it does not use the host's Python or C library.

Links are created last, each as a relative path to its extracted target. Links to other targets are left out.
So no link leads out of the folder, with or without a chroot.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase, LockedStandalone
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.compression import GZIP
from torchkiln.oci.extract import Extractor
from torchkiln.oci.opening import bounded, open_layer
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar import parents
from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of
from torchkiln.oci.vendor_archive import ArchivePaths
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


LIBRARIES = LINUX_AMD64.libraries
LOADER = f"{LIBRARIES}/{LINUX_AMD64.loader}"
HOME = "opt/python"  # of a standalone Python
_MAX_FILES = 20_000  # extracted; a Python has two thousand
_MAX_FILE = 256 << 20  # bytes of a file; a standalone Python with its symbols has 100 million
_MAX_TOTAL = 512 << 20  # bytes of all extracted files
_MAX_READ = 8 << 30  # bytes of the tar, most of which is skipped
_MAX_TARGET = 4096  # characters of a link target
_MAX_LINKS = 40  # links followed in a path, the limit of the kernel


def python_name(version: str) -> str:
    """The name of the program and of its library folder: "3.11.2" → "python3.11"."""
    return "python" + ".".join(version.split(".")[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A base's Python, or a standalone Python with the base's C library, in the cache's folder `root`."""

    root: Path
    version: str  # full, "3.11.2"
    home: str = "usr"  # the folder of its bin/ and lib/, below root

    def argv(self, root: Path | None = None) -> list[str]:
        """The command that starts Python; the caller appends Python's arguments.

        :param root: the path of `root` in the sandbox in which the command runs, "/"; None: the command runs
            in no sandbox.
        """
        name, at = python_name(self.version), self.root if root is None else root
        own = [] if self.home == "usr" else [str(at / self.home / "lib")]
        return [
            *(str(at / LOADER), "--inhibit-cache", "--library-path", ":".join((str(at / LIBRARIES), *own))),
            *(str(at / self.home / "bin" / name), "-s", "-S"),
            *(["-P"] if name != "python3.10" else []),
        ]

    def env(self, root: Path | None = None) -> dict[str, str]:
        """The complete environment of that command.

        It does not depend on the caller's environment, home folder or site-packages; the hash seed is fixed,
        so that byte-code is reproducible; no byte-code is written to disk.
        """
        return {
            "LC_ALL": "C",
            "PYTHONUTF8": "1",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHOME": str((self.root if root is None else root) / self.home),
        }


def folder_name(base: LockedBase, standalone: LockedStandalone | None = None) -> str:
    """The name of the cache's folder with the Python of *base*, or the *standalone* one on it."""
    name = base.digest.removeprefix("sha256:")
    return f"{name}-{standalone.digest.removeprefix('sha256:')}" if standalone else name


def interpreter(
    base: LockedBase,
    store: Store,
    standalone: LockedStandalone | None = None,
    *,
    native: LockedBase | None = None,
) -> Interpreter:
    """The Python of *base*, or the *standalone* one; extracted at the first call (~2 s, 60 MB).

    :param native: the base for this machine's platform whose Python is extracted in place of that of *base*,
        which is for another platform: byte-code depends on the version only.

    :raises BuildFailed: a blob is not in *store*, is damaged, or has no such Python.
    """
    root = store.root / "interpreters" / folder_name(base, standalone)
    found = (
        Interpreter(root=root, version=standalone.version, home=HOME)
        if standalone
        else Interpreter(root=root, version=base.python)
    )
    if root.is_dir():
        return found
    with store.lock(f"interpreter-{base.os}", f"extracts the Python of the base of {base.os}"):
        if root.is_dir():
            return found
        temporary = store.temporary("interpreter")
        try:
            runs = native or base
            extract_python(store.blob(runs.digest), runs, temporary)
            if standalone:
                with GZIP.open(store.blob(standalone.digest)) as stream:
                    extract_standalone(stream, standalone.version, temporary, diff_id=standalone.diff_id)
            root.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, root)
        except DAMAGED as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise BuildFailed(
                f"the Python of base {base.digest} cannot be extracted: {error}",
                hint="free disk space, or set TORCHKILN_CACHE to another folder" if full else "",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return found


def extract_standalone(stream: BinaryIO, version: str, into: Path, *, diff_id: Digest | None = None) -> None:
    """Add the standalone Python of the tar *stream* to *into*, which has the base's Python.

    :param diff_id: the expected diff_id of the tar; None: it is unknown.
    :raises BuildFailed: the tar has another diff_id, no such Python, or a forbidden entry; the extracted
        files must not be run.
    :raises OSError: reading or writing failed; ValueError: the tar is damaged.
    """
    name = python_name(version)
    wanted = re.compile(
        rf"{HOME}/(bin/{re.escape(name)}|lib/[^/]+\.so[^/]*|lib/{re.escape(name)}/.+)", re.DOTALL
    )
    _extract_all(
        stream,
        into,
        wanted,
        what="the standalone Python",
        expected=(f"the layer of Python {version}", diff_id) if diff_id else None,
        needed=(f"{HOME}/bin/{name}",),
    )


def extract_python(blob: Path, base: LockedBase, into: Path, *, also: str = "") -> None:
    """Extract the Python of *base* and its libraries from its *blob* to the new folder *into*.

    :param also: a regular expression for more paths, "usr/bin/tar".
    :raises BuildFailed: *blob* is another base, has no such Python, or a forbidden entry; the extracted files
        must not be run.
    :raises OSError: reading or writing failed; ValueError: the blob is damaged.
    """
    with open_layer(blob) as stream:
        extract_python_of(stream, base.python, into, also=also, expected=(str(blob), base.diff_id))


def extract_python_of(
    stream: BinaryIO, version: str, into: Path, *, also: str = "", expected: tuple[str, Digest] | None = None
) -> None:
    """`extract_python` from the tar *stream* of a base with the Python *version*.

    :param expected: the name of the tar in messages, and its diff_id; None: it is unknown.
    """
    name = python_name(version)
    wanted = re.compile(
        rf"usr/bin/{re.escape(name)}|usr/lib/{re.escape(name)}/(?!config-|test/).+|"
        rf"{re.escape(LOADER)}|{LIBRARIES}/(lib(c|m|dl|pthread|util|rt|z|expat|ffi|crypto|ssl|lzma|bz2|uuid)\.so\.[^/]+)"
        + (f"|{also}" if also else ""),
        re.DOTALL,
    )
    needed = (f"usr/bin/{name}", f"usr/lib/{name}/os.py", LOADER)
    _extract_all(stream, into, wanted, what="the base", expected=expected, needed=needed)


def _extract_all(
    stream: BinaryIO,
    into: Path,
    wanted: re.Pattern[str],
    *,
    what: str,
    expected: tuple[str, Digest] | None,
    needed: Iterable[str],
) -> None:
    """`extract`, and check the diff_id of the tar, and that the *needed* files are there."""
    try:
        found = extract(stream, into, lambda path: wanted.fullmatch(path) is not None)
    except (ExtractionRefused, DamagedTar) as error:
        raise BuildFailed(f"{what} cannot be extracted: {error}") from error
    if expected and found != expected[1]:
        raise BuildFailed(
            f"{expected[0]} is damaged: diff_id mismatch: expected {expected[1]}, got {found}",
            hint="run: torchkiln cache verify --repair; then build again",
        )
    for path in needed:
        if not (into / path).is_file():  # links stay inside the folder
            raise BuildFailed(f"{what} has no /{path}")


class ExtractionRefused(ValueError):
    """The tar has an entry that is not allowed."""


def extract(stream: BinaryIO, into: Path, wanted: Callable[[str], bool]) -> Digest:
    """Extract the files of the tar *stream* whose paths are *wanted* to the folder *into*.

    :returns: the digest of the whole tar, from the same read.
    :raises ExtractionRefused: a name, link or size is not allowed; the message names it.
    :raises OSError: a file cannot be written; `read_tar.DAMAGED`: the tar is damaged.
    """
    total = hashlib.sha256()
    into.mkdir(parents=True, exist_ok=True)
    into.chmod(0o755)  # regardless of the umask: another user reads it
    extractor = Extractor(into)
    try:
        extraction = _Extraction(extractor)
        tar = TarReader(_hashed(bounded(stream, _MAX_READ, _too_large), total))
        for entry in tar:
            if wanted(entry.path):
                extraction.add(entry, tar)
        extraction.make_links()
        extractor.finish()
    finally:
        extractor.close()
    return Digest(f"sha256:{total.hexdigest()}")


def _too_large() -> ExtractionRefused:
    return ExtractionRefused(f"it unpacks to more than {_MAX_READ >> 30} GiB")


def _hashed(stream: BinaryIO, total: Hash) -> Iterator[bytes]:
    for piece in pieces_of(stream):
        total.update(piece)
        yield piece


class _Extraction:
    """Extracts files at once and links at the end; folders are created with their first file."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor, self._paths = extractor, ArchivePaths(ExtractionRefused)
        self._files, self._folders = set[str](), set[str]()
        self._links: dict[str, TarEntry] = {}
        self._size = 0

    def add(self, entry: TarEntry, tar: TarReader) -> None:
        """Check the next entry, and extract a file; its owner and time do not matter."""
        path = entry.path
        self._paths.add(path, folder=entry.kind == "folder")
        if len(self._files) + len(self._links) >= _MAX_FILES:
            raise ExtractionRefused(f"its Python has more than {_MAX_FILES} files")
        self._size += entry.size
        if entry.size > _MAX_FILE or self._size > _MAX_TOTAL:
            raise ExtractionRefused(f"{path}: its Python is too large ({entry.size} bytes)")
        if entry.kind == "link":
            self._links[path] = entry
        elif entry.kind == "hard link" and entry.target not in self._files:
            raise ExtractionRefused(f"{path} is a hard link to {entry.target}, which was not extracted")
        elif entry.kind in ("file", "hard link"):
            self._write(entry, tar.content())
            self._files.add(path)
        elif entry.kind != "folder":
            raise ExtractionRefused(f"{path} is not a file or link")

    def _write(self, entry: TarEntry, content: Iterable[memoryview]) -> None:
        for folder in parents(entry.path):
            if folder not in self._folders:
                self._folders.add(folder)
                self._extractor.add(replace(entry, path=folder, kind="folder", mode=0o755, uid=0, gid=0), ())
        mode = 0o755 if entry.mode & 0o111 else 0o644
        self._extractor.add(replace(entry, mode=mode, uid=0, gid=0), content)

    def make_links(self) -> None:
        """Create the links whose target was extracted."""
        for path, entry in self._links.items():
            if (target := self._resolve(path)) is not None:
                relative = posixpath.relpath(f"/{target}", f"/{posixpath.dirname(path)}")
                self._write(replace(entry, target=relative), ())

    def _resolve(self, path: str) -> str | None:
        """The extracted file or folder to which *path* resolves in this root; None if it does not exist."""
        left, at, steps = path.split("/"), "", 0
        while left:
            part = left.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            there = f"{at}/{part}" if at else part
            if there in self._links:
                steps += 1
                target = self._links[there].target
                if steps > _MAX_LINKS or len(target) > _MAX_TARGET:
                    return None
                left = [*target.split("/"), *left]
                at = "" if target.startswith("/") else at
            elif there in self._folders or (there in self._files and not left):
                at = there
            else:
                return None
        return at or None
