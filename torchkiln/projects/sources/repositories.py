"""Finds the commits of a project's git repositories, and keeps archives of them in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.index.settings import IndexSettings, redact
from torchkiln.index.uv import private_folder
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.project import GitCommit
from torchkiln.projects.asked import Asked, Repository
from torchkiln.projects.sources.git import Git
from torchkiln.projects.sources.git_archive import write_archive
from torchkiln.projects.sources.sdists import SourceCode
from torchkiln.store.store import Store

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
            digest = hashlib.sha256()
            with temporary.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
            found = _archive(name, code, digest.hexdigest(), temporary.stat().st_size)
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
