"""Makes a tar of a git commit with its submodules, with the same bytes on each machine.

The files are read from git's objects, because `git archive` and a checkout depend on attributes and settings.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO

from torchkiln.errors import BuildFailed, printable
from torchkiln.index.settings import redact, redact_text
from torchkiln.projects.sources.git import Git, stop
from torchkiln.projects.sources.git_tree import TreeEntry, entries, leads_out, submodule_urls, url_fault

FILES = 100_000
SIZE = 1 << 30  # bytes of all files
SUBMODULES = 100
_DEPTH = 10  # submodules of submodules
_MODULES = ".gitmodules"
_TARGET = 4096  # bytes of the target of a link
_TIME = 315532800  # 1980-01-01, the earliest date in a zip file
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_SIZE = 1024
_BUILDS = ("pyproject.toml", "setup.py")

#: Opens a blob, whose content must be read completely before the next one.
_Blob = Callable[[TreeEntry], IO[bytes]]


@dataclass(slots=True)
class _Tree:
    """Lists the files of a commit and of its submodules, and fetches the submodules."""

    git: Git
    files: int = 0
    size: int = 0
    submodules: int = 0

    def entries(self, url: str, commit: str, prefix: str = "", depth: int = 0) -> Iterator[TreeEntry]:
        """The files of *commit* in the repository at *url*, with *prefix* before their paths."""
        self.git.fetch(url, commit)
        listed = entries(self.git.run("ls-tree", "-r", "-z", "-l", "--full-tree", commit, url=url), FILES)
        self.files += len(listed)
        self.size += sum(entry.size for entry in listed)
        if self.files > FILES or self.size > SIZE:
            raise ValueError(f"more than {FILES} files or {SIZE >> 20} MiB")
        urls: dict[str, str] = {}
        if any(entry.is_submodule for entry in listed):
            urls = self._urls(listed, url)
        for entry in listed:
            path = f"{prefix}{entry.path}"
            if not entry.is_submodule:
                yield replace(entry, path=path)
                continue
            other = urls.get(entry.path)
            if other is None:
                raise ValueError(f"no url found for submodule path '{printable(path[:200])}' in {_MODULES}")
            if other and (why := url_fault(other)):
                raise ValueError(f"submodule {printable(path[:200])}: {redact_text(other[:200])}: {why}")
            self.submodules += 1
            if self.submodules > SUBMODULES or depth >= _DEPTH:
                raise ValueError(f"more than {SUBMODULES} submodules, or {_DEPTH} levels of them")
            if other:
                yield from self.entries(other, entry.id, f"{path}/", depth + 1)

    def _urls(self, listed: tuple[TreeEntry, ...], url: str) -> dict[str, str]:
        """The URLs of the submodules, by path."""
        for entry in listed:
            if entry.path == _MODULES and not entry.is_link:
                settings = self.git.run("config", "--blob", entry.id, "-z", "--list", url=url)
                return dict(submodule_urls(settings, url))
        return {}


def write_archive(git: Git, url: str, commit: str, folders: tuple[str, str], path: Path) -> int:
    """Fetch *commit* of the repository at *url*, and write it to *path* as a tar with one folder.

    Returns the number of files that are only pointers of Git LFS.

    :param folders: the name of that folder, and the path of the package in it ("" for the folder itself).
    :raises BuildFailed: the commit cannot be fetched, has no package there, exceeds a limit, or has files
        that could not be checked out.
    """
    top, inside = folders
    prefix = f"{inside}/" if inside else ""
    try:
        found = list(_Tree(git).entries(url, commit))
        if not {f"{prefix}{name}" for name in _BUILDS} & {entry.path for entry in found}:
            raise ValueError(
                "does not appear to be a Python project:"
                f" neither {prefix}pyproject.toml nor {prefix}setup.py found"
            )
        with _blobs(git) as blob, tarfile.open(path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            pointers = 0
            for entry in sorted(found, key=lambda entry: entry.path):
                pointers += _add(tar, top, entry, blob)
            return pointers
    except ValueError as error:
        raise BuildFailed(
            f"{redact(url)}: commit {commit[:12]}: {error}",
            hint="build a wheel elsewhere, and put it into the folder of the setting `wheels`",
        ) from None


def _add(tar: tarfile.TarFile, top: str, entry: TreeEntry, blob: _Blob) -> bool:
    """Add *entry* to *tar*; returns whether it is a pointer of Git LFS."""
    info = tarfile.TarInfo(f"{top}/{entry.path}")
    info.mtime = _TIME
    content = blob(entry)
    if entry.is_link:
        if entry.size > _TARGET:
            raise ValueError(f"{printable(entry.path[:200])}: the target of the link is too long")
        target = _read(content, entry).decode("utf-8", "surrogateescape")
        if leads_out(entry.path, target):
            raise ValueError(
                f"{printable(entry.path[:200])}: a symbolic link that leads out of the repository"
            )
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        tar.addfile(info)
        return False
    info.size, info.mode = entry.size, 0o755 if entry.mode == "100755" else 0o644
    if entry.size > _POINTER_SIZE:
        try:
            tar.addfile(info, content)
        except OSError as error:
            if error.errno:
                raise  # the disk is full
            raise _unreadable(entry) from None
        return False
    data = _read(content, entry)
    tar.addfile(info, BytesIO(data))
    return data.startswith(_POINTER)


def _read(content: IO[bytes], entry: TreeEntry) -> bytes:
    data = content.read(entry.size)
    if len(data) != entry.size:
        raise _unreadable(entry)
    return data


@contextmanager
def _blobs(git: Git) -> Iterator[_Blob]:
    """Opens blobs, one after the other."""
    process = git.popen(
        *("cat-file", "--batch"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    assert process.stdout
    into, out = process.stdin, process.stdout
    before: list[TreeEntry] = []

    def blob(entry: TreeEntry) -> IO[bytes]:
        if before:
            out.read(1)  # the line feed after the previous blob
        before[:] = [entry]
        with suppress(BrokenPipeError):
            into.write(f"{entry.id}\n".encode())
            into.flush()
        if out.readline(200).split() != [entry.id.encode(), b"blob", str(entry.size).encode()]:
            raise _unreadable(entry)
        return out

    try:
        yield blob
    finally:
        stop(process)
        with suppress(BrokenPipeError):
            into.close()
        out.close()


def _unreadable(entry: TreeEntry) -> ValueError:
    return ValueError(f"{printable(entry.path[:200])}: git cannot read it")
