"""Defines the requirements of a project, as its files state them, and the image in which they apply."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchkiln.model.platform import LINUX_AMD64
from torchkiln.projects.choice import NO_CHOICE, Choice

MOST = 5_000  # requirements and options of all files
LONGEST = 4_000  # characters of a requirement without its hashes
TEXT = 1 << 20  # characters of all requirements and options without hashes
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """The source code of a package that is required, in a git repository."""

    url: str  # https, without credentials and fragment
    revision: str  # a commit, else a branch or a tag; "HEAD": the default branch
    subdirectory: str = ""  # the package's folder, relative to the root

    @property
    def commit(self) -> str:
        """The revision if it is a commit; "" if it is a branch or a tag, which may move."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""

    @property
    def text(self) -> str:
        """The URL that pip accepts: "git+https://host/path@revision"."""
        return f"git+{self.url}@{self.revision}" + (
            f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One requirement or constraint of a project."""

    text: str  # PEP 508, "datasets>=4"
    where: str  # "requirements.txt:3"
    hashes: tuple[str, ...] = ()  # hex sha256 of the files that may be used; (): any file
    by_name: bool = True  # False: a lock file pins it, and it may be a dependency of another package
    path: str = ""  # of a required wheel in the project's folder, "wheels/own-1.0-py3-none-any.whl"
    url: str = ""  # of a required wheel; `hashes` has its sha256
    repository: Repository | None = None  # a wheel built from it is required; `text` has no version
    of_pytorch: bool = False  # a lock file has it from PyTorch's own index; `hashes` are of the files there

    @property
    def by_file(self) -> bool:
        """Whether the requirement names a file or a repository, so that no wheel of an index satisfies it."""
        return bool(self.path or self.url or self.repository)

    @property
    def requirement(self) -> Requirement:
        """The parsed text."""
        return Requirement(self.text)

    @property
    def name(self) -> str:
        """The normalized name of the package."""
        return canonicalize_name(self.requirement.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """A pin that the image's version overrides, or a line that has no effect in the image."""

    name: str
    version: str  # the pinned one, or the line
    where: str  # "uv.lock:371"


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderWheel:
    """A wheel in the folder of a project."""

    path: str  # relative to the folder, "wheels/own-1.0-py3-none-any.whl"
    name: str  # normalized
    version: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectNeeds:
    """What a project requires of the environment in which it runs."""

    name: str  # normalized
    source: str  # the file that was used, "uv.lock"
    requirements: tuple[Asked, ...]
    constraints: tuple[Asked, ...] = ()
    ignored: tuple[Ignored, ...] = ()  # lines
    requires_python: str = ""  # ">=3.10"; "": any
    is_lock: bool = False  # the source pins every package, also dependencies
    apt: tuple[str, ...] = ()  # OS packages, "git-lfs=3.3.0-1"; sorted
    choice: Choice = NO_CHOICE  # the requirements include those of these extras and groups
    wheels: str = ""  # the setting `wheels`: a folder in the project's folder
    own: tuple[FolderWheel, ...] = ()  # the wheels in that folder, and those that requirements name by path
    build: tuple[str, ...] = ()  # the setting `build`: normalized names of packages whose sdists may be built


def hashes_of(asked: Iterable[Asked]) -> dict[str, frozenset[str]]:
    """The allowed hashes by package name, without the packages for which *asked* lists none."""
    found: dict[str, frozenset[str]] = {}
    for one in asked:
        if one.hashes:
            found[one.name] = found.get(one.name, frozenset()) | set(one.hashes)
    return found


def environment_of(python: str) -> dict[str, str]:
    """The values of markers for CPython *python*, "3.11.2" or "3.11", on Linux; `extra` is empty."""
    return LINUX_AMD64.markers(python)


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether the marker of *requirement* is true in *environment*."""
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))
