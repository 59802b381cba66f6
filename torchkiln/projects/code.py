"""Reads the code of a project: the files of its folder that are copied into its image.

In a git checkout these are the tracked files, and the untracked files that git does not ignore. The folder is
not trusted: no program that its git configuration names is started, and a link to a target outside of the
folder is an error.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ConfigError, printable
from torchkiln.model.plan import WHITEOUT, OverlayFile, OverlayLink
from torchkiln.util.files import folder_at
from torchkiln.util.git import checkout_files, in_checkout
from torchkiln.util.sizes import size
from torchkiln.util.strict_json import read_with_mode

MOST_BYTES = 64 << 20  # data sets and checkpoints are mounted, not copied with each change of the code
MOST_FILES = 20_000
_DEEPEST = 100  # levels of folders
_LISTED = 10  # most lines of a message
_SHOWN = 3  # largest files in a message
_NEVER = frozenset({".git", "__pycache__"})  # left out, even if git tracks them
# Also left out of a folder without git: what a .gitignore usually lists.
_NOT_CODE = _NEVER | {
    *(".hg", ".svn", ".venv", "venv", "dist", "build", "node_modules", "wandb", "mlruns"),
    *(".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".cache"),
}
_SECRET = re.compile(
    r"\.env(\.(?!example$|sample$|template$|dist$).*)?|\.netrc|\.pypirc|\.git-credentials|kaggle\.json"
    r"|id_(rsa|dsa|ecdsa|ed25519)"
)
_KEY_FILE = re.compile(r".*\.(pem|key|p8|ppk)", re.IGNORECASE)
_PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|PuTTY-User-Key-File-")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectCode:
    """The files and links of a project, by path relative to its folder."""

    files: tuple[OverlayFile, ...]
    links: tuple[OverlayLink, ...] = ()
    notes: tuple[str, ...] = ()  # sentences for the user

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(file.data) for file in self.files)


def read_code(folder: Path, without: Collection[str] = ()) -> ProjectCode:
    """The code in *folder*; modes are 0755 if the owner may execute, else 0644.

    :param without: files and folders that are left out, relative to *folder*.
    :raises ConfigError: there are too many files or bytes, or some cannot be in an image or look like
        secrets; all of these are listed.
    :raises ToolMissing: it is a git checkout, and git is not installed.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name the folder of the project")
    by_git, paths = in_checkout(folder), code_paths(folder, without)
    plain: set[str] = set()
    found = {path: status for path in sorted(paths) if (status := _status(folder, path, plain))}
    if not found:
        why = "; git ignores all of them" if by_git else ""
        raise ConfigError(
            f"{folder}: there are no files to copy{why}",
            hint="name the folder with the code: torchkiln project build DIR",
        )
    _demand_small(folder, found, by_git=by_git)
    return _read(folder, found, paths, by_git=by_git)


def code_paths(folder: Path, without: Collection[str] = ()) -> dict[str, bool]:
    """The paths of the code in *folder*, and whether git tracks each; some may not exist any more.

    :param without: files and folders that are not code.
    :raises ConfigError: git refuses the repository.
    :raises ToolMissing: *folder* is a git checkout, and git is not installed.
    """
    listed = dict(_checkout(folder, "") if in_checkout(folder) else _walk(folder))
    layouts = tuple(path[: -len("oci-layout")] for path in listed if path.endswith("/oci-layout"))
    apart = (*layouts, *(f"{path}/" for path in without))
    return {path: is_in for path, is_in in listed.items() if not (path.startswith(apart) or path in without)}


def _checkout(folder: Path, below: str) -> Iterator[tuple[str, bool]]:
    """The files of a checkout and of the repositories nested in it, and whether git tracks each."""
    _demand_shallow(folder, below)
    for name, tracked in checkout_files(folder / below).items():
        path = posixpath.join(below, name.rstrip("/"))
        if not _NEVER.isdisjoint(path.split("/")):
            continue
        place = folder / path
        if place.is_dir() and not place.is_symlink():
            if (place / ".git").exists():
                yield from _checkout(folder, path)
        else:
            yield path, tracked


def _walk(folder: Path) -> Iterator[tuple[str, bool]]:
    """The files of a folder without git that are likely to be code; none of them is tracked."""
    for above, folders, names in os.walk(folder, followlinks=False):
        _demand_shallow(folder, os.path.relpath(above, folder))
        links = [name for name in folders if Path(above, name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in _NOT_CODE
            and name not in links
            and not name.endswith(".egg-info")
            and not Path(above, name, "CACHEDIR.TAG").exists()
            and not Path(above, name, "pyvenv.cfg").exists()
        ]
        for name in (*names, *links):
            yield Path(above, name).relative_to(folder).as_posix(), False


def _demand_shallow(folder: Path, below: str) -> None:
    """:raises ConfigError: the folder *below* in *folder* is nested too deep."""
    if below.count("/") > _DEEPEST:
        raise ConfigError(f"{folder}: nested deeper than {_DEEPEST} levels", hint=f"look at {below[:80]}…")


def _status(folder: Path, path: str, plain: set[str]) -> os.stat_result | None:
    """The status of the file itself, not of a link's target; None: the file does not exist.

    :param plain: folders that are known not to be links; this function adds to them.
    :raises ConfigError: a link replaced a folder above the file, and git still tracks files in that folder.
    """
    parent = posixpath.dirname(path)
    while parent and parent not in plain:
        if (folder / parent).is_symlink():
            raise ConfigError(
                f"{folder / path}: its folder {parent} is a symbolic link",
                hint="git still tracks files in it: commit their removal, or restore the folder",
            )
        plain.add(parent)
        parent = posixpath.dirname(parent)
    try:
        return (folder / path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _demand_small(folder: Path, found: Mapping[str, os.stat_result], *, by_git: bool) -> None:
    """:raises ConfigError: there are too many files, or bytes."""
    total = sum(status.st_size for status in found.values())
    if total <= MOST_BYTES and len(found) <= MOST_FILES:
        return
    largest = sorted(found, key=lambda path: (-found[path].st_size, path))[:_SHOWN]
    named = ", ".join(f"{path} ({size(found[path].st_size)})" for path in largest)
    raise ConfigError(
        f"{folder}: the code has {size(total)} in {len(found)} files; at most {size(MOST_BYTES)} in"
        f" {MOST_FILES} files are copied into an image; the largest: {named}",
        hint=f"mount data sets and checkpoints (run --bind), and {_how_to_exclude(by_git)}",
    )


def _how_to_exclude(by_git: bool) -> str:
    where = "list them in .gitignore, or in .git/info/exclude"
    return where if by_git else f"move them out of the folder, or run git init and {where}"


def _read(
    folder: Path, found: Mapping[str, os.stat_result], tracked: Mapping[str, bool], *, by_git: bool
) -> ProjectCode:
    files: list[OverlayFile] = []
    links: list[OverlayLink] = []
    faults: list[str] = []
    secrets: list[str] = []
    notes: list[str] = []
    for path, status in found.items():
        if fault := _name_fault(path):
            faults.append(f"{printable(path)}: {fault}")
        elif stat.S_ISLNK(status.st_mode):
            with folder_at((folder / path).parent) as above:
                target = os.readlink(above / posixpath.basename(path))
            if fault := _link_fault(folder, path, target):
                faults.append(f"{path}: {fault}")
            links.append(OverlayLink(path=path, target=target))
        elif not stat.S_ISREG(status.st_mode):
            faults.append(f"{path}: not a regular file or a symbolic link")
        else:
            try:
                data, mode = read_with_mode(folder / path, MOST_BYTES, follow=False)
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
                continue
            if _is_secret(path, data):
                if tracked[path]:
                    notes.append(f"{path} looks like a secret; it is in the image because git tracks it")
                else:
                    secrets.append(f"{path}: looks like a secret")
            files.append(OverlayFile(path=path, mode=0o755 if mode & stat.S_IXUSR else 0o644, data=data))
    if faults or secrets:
        lines = [f"{folder}/{line}" for line in (*faults, *secrets)]
        more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
        hint = "keep secrets out of images: pass them to the container, and " + _how_to_exclude(by_git)
        raise ConfigError.of(
            (*lines[:_LISTED], *more),
            hint=hint if secrets else "replace it by a regular file in the folder, or remove it",
        )
    return ProjectCode(files=tuple(files), links=tuple(links), notes=tuple(notes))


def _name_fault(path: str) -> str:
    """Why a file of an image cannot have this name; empty if it can."""
    if any(part.startswith(WHITEOUT) for part in path.split("/")):
        return f"a name that begins with {WHITEOUT} is a whiteout: it deletes files of an image"
    return "" if path.isprintable() else "the name has control characters, or is not UTF-8"


def _link_fault(folder: Path, path: str, target: str) -> str:
    """Why the link cannot be in an image; empty if it can."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    leaves = target.startswith("/") or inside == ".." or inside.startswith("../")
    if leaves or not target.isprintable() or not (folder / path).resolve().is_relative_to(folder.resolve()):
        return f"a symbolic link to {printable(target)}, which is outside of the folder"
    return ""


def _is_secret(path: str, data: bytes) -> bool:
    name = posixpath.basename(path)
    if _SECRET.fullmatch(name) or path.endswith((".aws/credentials", ".docker/config.json")):
        return True
    return _KEY_FILE.fullmatch(name) is not None and _PRIVATE.search(data) is not None
