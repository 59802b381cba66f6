"""Defines the lock of a project: the wheels and OS packages that it adds to an image, or replaces in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.apt import LockedApt
from torchkiln.model.lock import LockedWheel

LABEL = "torchkiln.project"  # of a project's image: its name
PARENT_LABEL = "torchkiln.parent"  # its parent image, TAG@DIGEST
APP = "app"  # where its code is, relative to /
PROJECT_JSON = "etc/torchkiln/project.json"
TEST = "test"  # the check of its image that runs only if the project has a test
REPOSITORY = r"^https?://[A-Za-z0-9_.:\[\]-]+/[!$->A-~]*$"  # the URL of a repository, without credentials

_SET = {"uniqueItems": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltFrom:
    """The sdist from which a wheel was built, in a sandbox of the image's base."""

    sdist: fields.FileName  # on the default index, or an archive of a commit
    sha256: fields.Sha256  # of the sdist
    size: fields.Bytes
    requires: Annotated[tuple[LockedWheel, ...], Meta(max_length=1000)] = ()  # for the build; sorted by name
    reproducible: bool = False  # a second build gave the same bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class GitCommit:
    """A commit of a git repository with the source code of a package."""

    url: Annotated[
        str,
        Meta(pattern=REPOSITORY, max_length=1000, description="the URL of a repository, without credentials"),
    ]
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$", description="a commit of 40 hex digits")]
    revision: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*$",
            max_length=200,
            description="the branch or tag that had this commit",
        ),
    ] = ""  # "": the project names the commit
    subdirectory: Annotated[
        str,
        Meta(
            pattern=fields.INSIDE,
            max_length=1000,
            description="a folder of the repository",
        ),
    ] = ""

    @property
    def text(self) -> str:
        """In pip's format: `git+URL@COMMIT`."""
        return f"git+{self.url}@{self.commit}" + (
            f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The origin of a wheel that is on no index: a file, a URL, an sdist or a commit."""

    name: fields.Name
    path: Annotated[
        str,
        Meta(
            pattern=fields.INSIDE,
            max_length=1000,
            description="a file in the project's folder",
        ),
    ] = ""
    url: Annotated[str, Meta(pattern=r"^https?://[!-~]+$", max_length=2000, description="its URL")] = ""
    git: GitCommit | None = None  # `built` has the sha256 of its archive
    built: BuiltFrom | None = None

    @property
    def text(self) -> str:
        """The origin for messages: the file, the URL, the commit or the sdist."""
        named = self.path or self.url or (self.git.text if self.git else "")
        return named or (self.built.sdist if self.built else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectLock:
    """The packages of a project on the image of one cell, by hash."""

    name: fields.Name  # "my-project", the image's name in a layout
    parent: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
    ]  # the tag of the cell's image
    parent_lock: fields.Sha256Digest  # `lock_digest` of the cell's lock
    as_of: fields.Date  # files uploaded on that day (UTC) or later were ignored
    inputs: fields.Sha256Digest  # of the requirements and the parent's lock, to detect a stale lock
    requirements: Annotated[
        tuple[fields.Line, ...], Meta(max_length=5000)
    ]  # PEP 508, in the order of the files
    extras: Annotated[
        tuple[fields.Name, ...], Meta(max_length=5000, extra_json_schema=_SET)
    ] = ()  # whose requirements are in `requirements`
    groups: Annotated[
        tuple[fields.Name, ...], Meta(max_length=5000, extra_json_schema=_SET)
    ] = ()  # dependency groups, in the same way
    wheels: Annotated[tuple[LockedWheel, ...], Meta(max_length=5000)]  # that it adds or replaces; sorted
    removed: Annotated[
        tuple[fields.Name, ...], Meta(max_length=5000, extra_json_schema=_SET)
    ] = ()  # packages of the parent that a wheel of the same name replaces
    # libraries that its packages may lack, and packages that may lack any library; sorted
    may_lack: Annotated[tuple[fields.FileName, ...], Meta(max_length=100, extra_json_schema=_SET)] = ()
    apt: LockedApt | None = None  # the OS packages that it adds
    origins: Annotated[tuple[Origin, ...], Meta(max_length=5000)] = ()  # of wheels that no index has; sorted
    untrusted: bool = False
