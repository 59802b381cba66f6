"""Finds the commits of a project's git repositories, and builds locked wheels again from their source code.

Archives of commits are kept in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchkiln.base.archive import sha256_of
from torchkiln.engine.environment import Environment
from torchkiln.engine.prefetch import fetched
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.index.settings import IndexSettings, index_settings, redact
from torchkiln.index.uv import private_folder
from torchkiln.model.cell import PythonArchive, Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Reporting
from torchkiln.model.project import BuiltFrom, GitCommit, Origin
from torchkiln.projects.asked import Asked, Repository
from torchkiln.projects.sources.git import Git, write_archive
from torchkiln.projects.sources.sdist import SandboxedBuilder
from torchkiln.projects.sources.sdists import SourceCode
from torchkiln.store.store import Store
from torchkiln.vault.places import vaults_of
from torchkiln.vault.sources import digest_of_file, take

_RECORDS = "git"
_RULES = 1  # raise it when `write_archive` makes other bytes of the same commit


@dataclass(frozen=True, kw_only=True, slots=True)
class Repositories:
    """Git repositories with packages of a project."""

    store: Store
    settings: IndexSettings
    environ: Mapping[str, str] = field(repr=False)
    say: Callable[[str], None]

    def commit_of(self, repository: Repository, known: GitCommit | None) -> GitCommit:
        """The commit that *repository* names.

        :param known: the commit in the present lock, which is kept if the branch or tag is the same.
        :raises BuildFailed: the repository cannot be read, or does not have the branch or tag.
        """
        url, revision, folder = repository.url, repository.revision, repository.subdirectory
        if repository.commit:
            return GitCommit(url=url, commit=repository.commit, subdirectory=folder)
        if known and (known.url, known.revision) == (url, revision):
            return replace(known, subdirectory=folder)
        full = revision == "HEAD" or revision.startswith("refs/")
        paths = (revision,) if full else (f"refs/heads/{revision}", f"refs/tags/{revision}")
        names = [
            name for path in paths for name in (f"{path}^{{}}", path)
        ]  # ^{} is the commit of an annotated tag
        with self._git() as git:
            found = git.references(url, *names)
        for name in names:
            if name in found:
                return GitCommit(url=url, commit=found[name], revision=revision, subdirectory=folder)
        raise BuildFailed(
            f"{redact(url)}: no branch or tag {revision!r}",
            hint="name a branch, a tag, or a commit with all of its 40 hex digits",
        )

    def archive(self, name: str, code: GitCommit) -> SourceCode:
        """The source code of the package *name* in *code*, in the cache.

        :raises BuildFailed: *code* cannot be fetched, or is not supported.
        :raises ToolMissing: git is not installed.
        """
        text = f"{_RULES}\n{name}\n{code.url}\n{code.commit}\n{code.subdirectory}"
        key = hashlib.sha256(text.encode()).hexdigest()
        with self.store.lock(f"git-{key}", f"fetches {name}"):
            known = self.store.record(_RECORDS, key) or {}
            if isinstance(known.get("sha256"), str) and isinstance(known.get("size"), int):
                found = _archive(name, code, known["sha256"], known["size"])
                if self.store.has_wheel(found.archive):
                    return found
            found = self._fetched(name, code)
            self.store.put_record(_RECORDS, key, {"sha256": found.archive.sha256, "size": found.archive.size})
        return found

    def _fetched(self, name: str, code: GitCommit) -> SourceCode:
        self.say(f"fetches commit {code.commit[:12]} of {redact(code.url)}")
        temporary = self.store.temporary("git")
        try:
            with self._git() as git, self.store.writable():
                write_archive(git, code.url, code.commit, (name, code.subdirectory), temporary)
            found = _archive(name, code, sha256_of(temporary), temporary.stat().st_size)
            self.store.adopt(temporary, self.store.wheel(found.archive))
        finally:
            temporary.unlink(missing_ok=True)
        return found

    @contextmanager
    def _git(self) -> Iterator[Git]:
        with private_folder(self.store) as folder:
            git = Git(folder=folder, settings=self.settings, environ=self.environ)
            git.start()
            yield git


def demand_allowed(asked: Collection[Asked], build: Collection[str]) -> None:
    """Check *asked*, which are requirements that name repositories.

    :raises ConfigError: the setting *build* does not name a package, or two requirements of one package name
        different repositories or revisions.
    """
    faults: list[str] = []
    hints: list[str] = []
    first: dict[str, Asked] = {}
    named = ", ".join(f'"{name}"' for name in sorted({*build, *(one.name for one in asked)}))
    for one in asked:
        other = first.setdefault(one.name, one)
        if other.repository != one.repository:
            faults.append(f"{one.where}: {one.name}: {other.where} names another repository or revision")
            hints.append(f"require one revision of {one.name}")
        elif other is one and one.name not in build:
            faults.append(
                f"{one.where}: {one.name}: the setting build does not allow building it from source code"
            )
            hints.append(
                f"to build it in a sandbox, which runs its code, set in torchkiln.toml: build = [{named}]"
            )
    if faults:
        raise ConfigError.of(faults, hint="; ".join(dict.fromkeys(hints)))


def _archive(name: str, code: GitCommit, sha256: str, size: int) -> SourceCode:
    archive = LockedWheel(
        name=name,
        version="",  # only its wheel states it
        filename=f"{name}-{code.commit[:12]}.tar",
        sha256=sha256,
        size=size,
        index=Source.PROJECT,
    )
    return SourceCode(archive=archive, folder=code.subdirectory or ".")


def rebuilt(
    wheel: LockedWheel,
    origin: Origin,
    cell: LockedCell,
    environment: Environment,
    locate: Callable[[PythonArchive], str],
) -> Path:
    """The path of *wheel* in the cache, built from the sdist and with the build requirements of *origin*.

    :param locate: the path or URL of the archive of the cell's standalone Python.
    :raises BuildFailed: the wheel cannot be built, or has other bytes than the locked wheel.
    """
    built = origin.built
    assert built is not None
    sdist = sdist_of(wheel, built)
    fetch_sdist(sdist, origin, environment)
    for file in built.requires:
        fetched(file, environment)
    code = SourceCode(archive=sdist, folder=(origin.git.subdirectory if origin.git else "") or ".")
    report = Reporting(say=environment.say, observer=environment.observer)
    builder = SandboxedBuilder(
        store=environment.store, environ=environment.environ, report=report, locate=locate
    )
    found = builder.again(code, cell, built.requires).wheel
    if found.sha256 != wheel.sha256:
        why = "" if built.reproducible else "; it was not reproducible when it was locked"
        raise BuildFailed(
            f"{built.sdist}: checksum mismatch: the wheel built now has sha256 {found.sha256}, the lock has"
            f" {wheel.sha256}{why}",
            hint="copy the wheel from the machine that locked it into the folder of the setting `wheels`, and"
            " lock again",
        )
    return environment.store.wheel(wheel)


def sdist_of(wheel: LockedWheel, built: BuiltFrom) -> LockedWheel:
    """The sdist from which *wheel* was built, as a file that `fetched` gets."""
    return LockedWheel(
        name=wheel.name,
        version=wheel.version,
        filename=built.sdist,
        sha256=built.sha256,
        size=built.size,
        index=Source.DEFAULT,
    )


def fetch_sdist(sdist: LockedWheel, origin: Origin, environment: Environment) -> Path:
    """The path of *sdist* in the cache, from the index, the repository of *origin*, or a vault.

    :raises BuildFailed: it cannot be had.
    """
    store = environment.store
    if origin.git and origin.built and not store.has_wheel(sdist):
        vaults = vaults_of(environment.environ)
        if not take(vaults, digest_of_file(sdist), sdist.size, store.wheel(sdist), store):
            _fetch_commit(origin.name, origin.git, origin.built, environment)
    return fetched(sdist, environment)


def _fetch_commit(name: str, commit: GitCommit, built: BuiltFrom, environment: Environment) -> None:
    """Put the archive of *commit*, from which the package *name* was built, into the cache.

    :raises BuildFailed: the commit cannot be fetched, or gives another archive.
    """
    repositories = Repositories(
        store=environment.store,
        settings=index_settings(environment.environ),
        environ=environment.environ,
        say=environment.say,
    )
    found = repositories.archive(name, commit).archive
    if (found.filename, found.sha256) != (built.sdist, built.sha256):
        raise BuildFailed(
            f"{built.sdist}: checksum mismatch: the commit gives sha256 {found.sha256}, the lock has"
            f" {built.sha256}",
            hint="lock the project again",
        )
