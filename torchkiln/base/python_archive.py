"""Makes the layer of a standalone CPython from its archive: /opt/python, and a /opt/venv that uses it.

The format is that of python-build-standalone's `install_only` archives: a gzip tar with one folder, python/.
`oci/vendor_archive.py` checks the entries; those that grant privileges are refused, too. Owners, modes and
times are normalized.

/opt/venv is the base's virtual environment. The layer replaces its pyvenv.cfg and its links to Python.
Packages stay in the folder of the base's Python version, and the folder of the new version is a link to that
folder. So the images of both Pythons can share a layer of packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchkiln.base.interpreter import HOME, python_name
from torchkiln.errors import BadArchive, BadPythonArchive, printable
from torchkiln.model.cell import PythonArchive
from torchkiln.model.plan import WHITEOUT
from torchkiln.model.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.compression import GZIP
from torchkiln.oci.opening import bounded
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of
from torchkiln.oci.vendor_archive import VendorArchive

_TOP = "python"
_VENV = PREFIX.lstrip("/")
_CONFIG = """\
home = /{home}/bin
include-system-site-packages = true
version = {version}
executable = /{home}/bin/{name}
"""
_MAX_READ = 4 << 30  # bytes unpacked; real archives have 100 to 400 million
_MAX_FILE = 256 << 20  # bytes of a file, as for `extraction`
# Left out: packages (the image has those of its lock), byte-code (it is compiled again), tests, manuals, and
# what Debian's python3 does not have either: Tk, and IDLE, which requires Tk.
_LEFT_OUT = re.compile(
    r"(.+/)?__pycache__(/.*)?|share/man(/.*)?|bin/(?!python)[^/]*|lib/(itcl|tcl|tdbc|thread|tk|libtcl|libtk)[0-9].*"
    r"|lib/python[0-9.]+/(site-packages|test|idlelib|tkinter|turtledemo|lib-dynload/_tkinter[^/]*)(/.*)?"
)
_VERSION = re.compile(rb'^#define PY_VERSION\s+"([^"\n]{1,40})"', re.MULTILINE)
_PROGRAM = re.compile(r"bin/python(3\.[0-9]+)")
_RELEASE = re.compile(r"3\.[0-9]{1,2}\.[0-9]{1,3}")
_ELF = (b"\x7fELF\x02\x01", b"\x3e\x00")  # 64 bits, little-endian; at byte 18: x86-64
_SPECIAL = 0o7000  # set-user-id, set-group-id, sticky


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file, and the position of its content in the file that has the contents of all files."""

    mode: int
    start: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonFiles:
    """The files and links of a standalone Python, by path relative to the image's root, "opt/python/..."."""

    version: str  # "3.12.8"
    files: Mapping[str, StoredFile] = field(hash=False)
    links: Mapping[str, str] = field(hash=False)  # path -> target, as written in the link


def read_python(path: Path, archive: PythonArchive, python: str, contents: BinaryIO) -> PythonFiles:
    """The files of *archive*, at *path*; their contents are written to *contents*.

    :param python: the version that the archive must have, "3.12".
    :raises BadPythonArchive: the archive is damaged, has a forbidden entry, or is not this Python for this
        platform.
    :raises OSError: *contents* cannot be written.
    """
    reading = _Reading(archive, contents)
    try:
        with GZIP.open(path) as stream:
            entries = TarReader(pieces_of(bounded(stream, _MAX_READ, reading.too_large)))
            for entry in entries:
                reading.take(entry, entries)
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno:  # an error of the disk
            raise
        raise BadPythonArchive(archive.filename, f"cannot be read as a .tar.gz file: {error}") from error
    return reading.result(python)


class _Reading:
    """Checks every entry, and keeps those of the layer."""

    def __init__(self, archive: PythonArchive, contents: BinaryIO) -> None:
        self._checked = VendorArchive(archive.filename, _TOP, BadPythonArchive)
        self._contents = contents
        self._files: dict[str, StoredFile] = {}
        self._links: dict[str, tuple[str, str]] = {}  # path -> target below python/, target as written
        self._at = self._copied = 0  # bytes written to the contents; bytes of files that were hard links
        self._heads: dict[str, bytes] = {}  # the first bytes of the files that identify the build

    def too_large(self) -> BadArchive:
        return self._checked.bad(f"unpacks to more than {_MAX_READ >> 30} GiB")

    def take(self, entry: TarEntry, entries: TarReader) -> None:
        """Check the next entry, and keep it if it belongs to the layer."""
        path = self._checked.path(entry)
        if entry.mode & _SPECIAL and entry.kind != "link":
            raise self._checked.refused(entry, "has a set-user-id, set-group-id or sticky bit")
        if entry.xattrs:
            raise self._checked.refused(entry, "has extended attributes")
        if entry.kind == "folder":
            return
        left_out = _LEFT_OUT.fullmatch(path) is not None
        if entry.kind == "link":
            target = self._checked.link_target(entry)
            if ".." in entry.target.lstrip("./").split("/"):  # only at the start no other link can precede it
                raise self._checked.refused(entry, f"is a link to {entry.target!r}, outside of the archive")
            if not left_out:
                self._links[path] = (target, entry.target)
        elif entry.kind == "hard link":
            self._hard_link(path, entry, left_out=left_out)
        elif entry.kind != "file":
            raise self._checked.refused(entry, "is a device or a pipe")
        elif entry.size > _MAX_FILE:
            raise self._checked.refused(entry, f"has {entry.size} bytes; at most {_MAX_FILE} are allowed")
        elif not left_out:
            self._write(path, entry, entries)

    def result(self, python: str) -> PythonFiles:
        """The kept files, and the links to them; other links are left out.

        :raises BadPythonArchive: the archive is not this Python for this platform.
        """
        version = self._version(python)
        folders = {folder for path in self._files for folder in tar.parents(path)}
        places = self._files.keys() | self._links.keys() | folders
        return PythonFiles(
            version=version,
            files={f"{HOME}/{path}": file for path, file in self._files.items()},
            links={
                f"{HOME}/{path}": written
                for path, (target, written) in self._links.items()
                if target in places
            },
        )

    def _hard_link(self, path: str, entry: TarEntry, *, left_out: bool) -> None:
        """Keep a hard link as a file with the content of its target."""
        target = self._checked.hard_link_target(entry)
        if left_out:
            return
        if target not in self._files:
            raise self._checked.refused(
                entry, f"is a hard link to {entry.target!r}, which the layer does not have"
            )
        self._files[path] = self._files[target]
        self._copied += self._files[target].size
        if self._copied > _MAX_READ:
            raise self.too_large()

    def _write(self, path: str, entry: TarEntry, entries: TarReader) -> None:
        head = b""
        for piece in entries.content():
            head = head or bytes(piece[: 1 << 16])
            self._contents.write(piece)
        mode = 0o755 if entry.mode & 0o100 else 0o644
        self._files[path] = StoredFile(mode=mode, start=self._at, size=entry.size)
        self._at += entry.size
        if path.startswith("bin/") or path.endswith("/patchlevel.h"):
            self._heads[path] = head

    def _version(self, python: str) -> str:
        """The full version, from the C header patchlevel.h."""
        name = python_name(python)
        program = f"bin/{name}"
        if program not in self._files:
            others = sorted(other[1] for path in self._files if (other := _PROGRAM.fullmatch(path)))
            has = f"has Python {', '.join(others)}, not {python}" if others else f"has no {_TOP}/{program}"
            raise self._checked.bad(has)
        head = self._heads.get(program, b"")
        if not head.startswith(_ELF[0]) or head[18:20] != _ELF[1]:
            raise self._checked.bad(f"{_TOP}/{program} is not a program for x86-64 Linux")
        header = f"include/{name}/patchlevel.h"
        found = _VERSION.search(self._heads.get(header, b""))
        version = found[1].decode("ascii", "replace") if found else ""
        if f"lib/{name}/os.py" not in self._files or not version:
            raise self._checked.bad(f"has no {_TOP}/lib/{name}/os.py or no version in {_TOP}/{header}")
        if not _RELEASE.fullmatch(version) or not version.startswith(f"{python}."):
            raise self._checked.bad(f"has Python {printable(version)}, not a release of {python}")
        return version


Content = bytes | StoredFile
"""The bytes of a file with mode 0644, or a file of the archive."""


def sources(found: PythonFiles) -> Iterator[str]:
    """The paths of the modules of the standard library, sorted."""
    folder = f"{HOME}/lib/{python_name(found.version)}/"
    return iter(sorted(path for path in found.files if path.startswith(folder) and path.endswith(".py")))


def layer_tar(
    found: PythonFiles, contents: BinaryIO, *, base: str, bytecode: Mapping[str, bytes]
) -> Iterator[bytes]:
    """The tar of the layer of *found*, in pieces, sorted by path.

    :param contents: the file to which `read_python` wrote the contents.
    :param base: the version of the base's Python, "3.11.2".
    :param bytecode: the .pyc files, by path.
    """
    name, lower = python_name(found.version), python_name(base)
    program = f"/{HOME}/bin/{name}"
    files: dict[str, Content] = {**found.files, **bytecode}
    files[f"{_VENV}/pyvenv.cfg"] = _CONFIG.format(home=HOME, version=found.version, name=name).encode()
    files[f"{_VENV}/bin/{WHITEOUT}{lower}"] = b""
    links = {f"{_VENV}/bin/{link}": program for link in ("python", "python3", name)}
    links |= {**found.links, f"{_VENV}/lib/{name}": lower}
    return _entries(files, links, contents)


def content_of(file: StoredFile, contents: BinaryIO) -> bytes:
    contents.seek(file.start)
    return contents.read(file.size)


def _entries(files: Mapping[str, Content], links: Mapping[str, str], contents: BinaryIO) -> Iterator[bytes]:
    for path in _with_folders({*files, *links}):
        if path in links:
            yield tar.link(path, links[path], mtime=WHEEL_EPOCH)
        elif path in files:
            file = files[path]
            data = content_of(file, contents) if isinstance(file, StoredFile) else file
            mode = file.mode if isinstance(file, StoredFile) else 0o644
            yield tar.header(path, mode=mode, size=len(data), mtime=WHEEL_EPOCH)
            yield data
            yield tar.padding(len(data))
        else:
            yield tar.header(path, mode=0o755, mtime=WHEEL_EPOCH, directory=True)
    yield tar.END


def _with_folders(paths: Iterable[str]) -> list[str]:
    """*paths* and their folders, each folder before its content."""
    return sorted({*paths, *(folder for path in paths for folder in tar.parents(path))})
