"""Makes a tar of a git commit, with the same bytes on each machine.

The files are read from git's objects, because `git archive` and a checkout depend on attributes and settings.
Submodules and files of Git LFS are not fetched: a repository with submodules, and a package with files of Git
LFS, are refused.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchkiln.errors import BuildFailed, printable
from torchkiln.index.settings import redact
from torchkiln.projects.sources.git import Git

FILES = 100_000
SIZE = 1 << 30  # bytes of all files
_PATH = 4000  # bytes of a path
_TARGET = 4096  # bytes of the target of a link
_TIME = 315532800  # 1980-01-01, the earliest date in a zip file
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_SIZE = 1024
_BUILDS = ("pyproject.toml", "setup.py")
_ENTRY = re.compile(
    rb"(?P<mode>[0-7]{6}) (?P<kind>[a-z]+) (?P<id>[0-9a-f]{40}) +(?P<size>[0-9]+|-)\t(?P<path>.+)", re.DOTALL
)
_LINK, _SUBMODULE = "120000", "160000"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file, a symbolic link or a submodule of a commit."""

    path: str  # relative to the root; bytes that are not UTF-8 are surrogates
    id: str  # of its blob; the commit of a submodule
    mode: str  # "100644"
    size: int  # bytes; 0 of a submodule

    @property
    def is_link(self) -> bool:
        """Whether its blob is the target of a symbolic link."""
        return self.mode == _LINK

    @property
    def is_submodule(self) -> bool:
        """Whether it is a commit of another repository."""
        return self.mode == _SUBMODULE

    def fault(self, why: str) -> ValueError:
        """An error that names this file."""
        return ValueError(f"{printable(self.path[:200])}: {why}")


def write_archive(git: Git, url: str, commit: str, folders: tuple[str, str], path: Path) -> None:
    """Fetch *commit* of the repository at *url*, and write it to *path* as a tar with one folder.

    :param folders: the name of that folder, and the path of the package in it ("" for the folder itself).
    :raises BuildFailed: the commit cannot be fetched, has no package there, exceeds a limit, has a submodule,
        a file of Git LFS in the package, or files that could not be checked out.
    """
    top, package = folders[0], f"{folders[1]}/" if folders[1] else ""
    git.fetch(url, commit)
    try:
        listing = git.run("ls-tree", "-r", "-z", "-l", "--full-tree", commit, url=url)
        found = sorted(entries(listing, FILES), key=lambda entry: entry.path)
        _demand_package(found, package)
        ids = "".join(f"{entry.id}\n" for entry in found).encode()
        # SIZE limits the content; each blob has a line before it.
        with (
            git.output("cat-file", "--batch", url=url, stdin=ids, most=2 * SIZE) as blobs,
            tarfile.open(path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
        ):
            for entry in found:
                if blobs.readline(200).split() != [entry.id.encode(), b"blob", str(entry.size).encode()]:
                    raise entry.fault("git cannot read it")
                start = blobs.tell()
                if entry.path.startswith(package) and entry.size <= _POINTER_SIZE:
                    if blobs.read(entry.size).startswith(_POINTER):
                        raise entry.fault("a file of Git LFS, which is not supported")
                    blobs.seek(start)
                _add(tar, top, entry, blobs)
                blobs.seek(start + entry.size + 1)  # a line feed follows each blob
    except ValueError as error:
        raise BuildFailed(
            f"{redact(url)}: commit {commit[:12]}: {error}",
            hint="build a wheel elsewhere, and put it into the folder of the setting `wheels`",
        ) from None


def entries(listing: bytes, most: int) -> tuple[TreeEntry, ...]:
    """The entries in *listing*, the output of `git ls-tree -r -z -l`, which is not trusted.

    :raises ValueError: there are more than *most*, or a path is invalid, in `.git`, or listed twice.
    """
    rows = listing.split(b"\0")[:-1]
    if len(rows) > most:
        raise ValueError(f"more than {most} files")
    found = []
    for row in rows:
        match = _ENTRY.fullmatch(row)
        if match is None:
            raise ValueError(f"git listed {printable(row[:100].decode(errors='replace'))!r}")
        path = match["path"].decode("utf-8", "surrogateescape")
        if len(match["path"]) > _PATH or any(_is_wrong(part) for part in path.split("/")):
            raise ValueError(f"invalid path {printable(path[:200])!r}")
        size = int(match["size"]) if match["size"] != b"-" else 0
        found.append(TreeEntry(path=path, id=match["id"].decode(), mode=match["mode"].decode(), size=size))
    _demand_distinct(entry.path for entry in found)
    return tuple(found)


def leads_out(path: str, target: str) -> bool:
    """Whether the symbolic link at *path* with the text *target* leads out of the tree."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return target.startswith("/") or "\0" in target or found == ".." or found.startswith("../")


def _is_wrong(part: str) -> bool:
    return part in ("", ".", "..") or part.lower() == ".git"


def _demand_distinct(paths: Iterable[str]) -> None:
    """:raises ValueError: one of *paths* occurs twice, or is both a file and a folder."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in files:
            raise ValueError(f"{printable(path[:200])}: listed twice")
        files.add(path)
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    if both := sorted(files & folders):
        raise ValueError(f"{printable(both[0][:200])}: both a file and a folder")


def _demand_package(listed: Iterable[TreeEntry], package: str) -> None:
    """:raises ValueError: *listed* is too large, has a submodule, or no package in the folder *package*."""
    if sum(entry.size for entry in listed) > SIZE:
        raise ValueError(f"more than {SIZE >> 20} MiB")
    if not {f"{package}{name}" for name in _BUILDS} & {entry.path for entry in listed}:
        raise ValueError(
            "does not appear to be a Python project:"
            f" neither {package}pyproject.toml nor {package}setup.py found"
        )
    for entry in listed:
        if entry.is_submodule:
            raise entry.fault("a submodule, which is not supported")


def _add(tar: tarfile.TarFile, top: str, entry: TreeEntry, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(f"{top}/{entry.path}")
    info.mtime = _TIME
    if entry.is_link:
        if entry.size > _TARGET:
            raise entry.fault("the target of the link is too long")
        info.linkname = content.read(entry.size).decode("utf-8", "surrogateescape")
        if leads_out(entry.path, info.linkname):
            raise entry.fault("a symbolic link that leads out of the repository")
        info.type, info.mode = tarfile.SYMTYPE, 0o777
        tar.addfile(info)
        return
    info.size, info.mode = entry.size, 0o755 if entry.mode == "100755" else 0o644
    tar.addfile(info, content)
