"""A vault also has the files that a project adds: wheels that no index has, sdists, OS packages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.layers import sha256
from tests.projects import Bench, bench
from tests.unpublished import FakeIndex, IndexWithout
from torchkiln.cli import torchkiln
from torchkiln.engine.environment import Environment
from torchkiln.engine.keep import Kept, drop, keep
from torchkiln.errors import BuildFailed, NotListed, RegistryError
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Silent
from torchkiln.model.project import BuiltFrom, GitCommit, Origin, ProjectLock
from torchkiln.projects.asked import ProjectNeeds
from torchkiln.projects.build import ProjectSource
from torchkiln.projects.code import read_code
from torchkiln.projects.file import save_project
from torchkiln.projects.keep import keep_project, project_tag
from torchkiln.projects.sources.repositories import fetch_sdist, sdist_of
from torchkiln.vault.places import FolderVault, vault_at
from torchkiln.vault.sources import VaultFetcher, digest_of_file

COMMIT = GitCommit(url="https://example.org/mine", commit="0" * 40)


@dataclass
class Scene:
    """A project whose cache has all its files, and the vault that has them."""

    bench: Bench
    lock: ProjectLock
    vault: FolderVault

    def keep(self, lock: ProjectLock | None = None) -> Kept:
        code, folder = read_code(self.bench.project), self.bench.project
        needs = ProjectNeeds(name="p", source="requirements.txt", requirements=())
        source = ProjectSource(
            cell=self.bench.cell, lock=lock or self.lock, needs=needs, code=code, folder=folder
        )
        return keep_project(source, self.vault, self.environment(), lambda _: "")

    def environment(self) -> Environment:
        return Environment(store=self.bench.store, fetcher=self.bench.index, observer=Silent())

    def elsewhere(self, folder: Path) -> Bench:
        """The same project on a machine without its files: it only has the base."""
        base, index = self.bench.cell.base, VaultFetcher((self.vault,), FakeIndex([]))
        found = replace(self.bench, folder=folder, index=index)
        shutil.copytree(self.bench.project, found.project)
        copy = found.store.temporary("base")
        shutil.copy(self.bench.store.blob(base.digest), copy)
        found.store.adopt(copy, found.store.blob(base.digest))
        return found


def put(made: Bench, path: Path) -> LockedWheel:
    """Put the file into the cache, as if an index had had it."""
    size, index = path.stat().st_size, Source.DEFAULT
    file = LockedWheel(name="x", version="1", filename=path.name, sha256=sha256(path), size=size, index=index)
    copy = made.store.temporary("file")
    shutil.copy(path, copy)
    made.store.adopt(copy, made.store.wheel(file))
    return file


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = bench(tmp_path / "here")
    indexed = made.wheel("indexed", "1", "indexed.py")
    named, built = made.wheel("named", "1", "named.py"), made.wheel("built", "1", "built.py")
    sdist = tmp_path / "built-1.tar.gz"
    sdist.write_bytes(b"an sdist")
    backend = put(made, made.wheel("backend", "1", "backend.py"))
    source = put(made, sdist)
    for wheel in (named, built):
        put(made, wheel)
        del made.index.files[wheel.name]
    lock = made.lock(indexed, named, built)
    wheels = tuple(
        wheel if wheel.name == "indexed" else replace(wheel, index=Source.PROJECT) for wheel in lock.wheels
    )
    origin = BuiltFrom(sdist=sdist.name, sha256=source.sha256, size=source.size, requires=(backend,))
    origins = (
        Origin(name="built", git=COMMIT, built=origin),
        Origin(name="named", url="http://127.0.0.1:9/named-1-py3-none-any.whl"),
    )
    vault = FolderVault(tmp_path / "vault")
    vault.prepare()
    monkeypatch.setenv("TORCHKILN_VAULT", str(vault.folder))
    return Scene(made, replace(lock, wheels=wheels, origins=origins), vault)


def test_a_project_is_built_from_the_vault_alone(scene: Scene, tmp_path: Path) -> None:
    first = scene.bench.build(scene.lock)
    keep(scene.bench.cell, scene.vault, scene.environment(), tmp_path / "images")
    kept = scene.keep()
    assert (kept.tag, kept.files) == (project_tag(scene.lock), 5)
    assert scene.keep().added == 0

    there = scene.elsewhere(tmp_path / "there")
    second = there.build(scene.lock)
    assert second.built.image.manifest == first.built.image.manifest


def test_the_sdist_of_a_commit_is_taken_from_the_vault(scene: Scene, tmp_path: Path) -> None:
    """The repository is not asked: example.org cannot be reached here."""
    scene.keep()
    there = scene.elsewhere(tmp_path / "there")
    wheel, origin = scene.lock.wheels[0], scene.lock.origins[0]
    assert origin.built
    environment = Environment(store=there.store, fetcher=there.index, observer=Silent())
    path = fetch_sdist(sdist_of(wheel, origin.built), origin, environment)
    assert path.read_bytes() == b"an sdist"


def test_a_damaged_sdist_in_the_vault_is_not_used(scene: Scene, tmp_path: Path) -> None:
    """The repository is asked then, which cannot be reached."""
    scene.keep()
    wheel, origin = scene.lock.wheels[0], scene.lock.origins[0]
    assert origin.built
    kept = scene.vault.folder / "blobs/sha256" / origin.built.sha256
    kept.chmod(0o644)
    kept.write_bytes(bytes(origin.built.size))

    there = scene.elsewhere(tmp_path / "there")
    environment = Environment(store=there.store, fetcher=there.index, observer=Silent())
    with pytest.raises(BuildFailed, match=r"example\.org"):
        fetch_sdist(sdist_of(wheel, origin.built), origin, environment)


def test_two_sdists_have_a_build_requirement_in_common(scene: Scene) -> None:
    first, other = scene.lock.origins
    lock = replace(scene.lock, origins=(first, replace(other, url="", built=first.built)))
    assert scene.keep(lock).files == 5


def test_the_lock_below_a_kept_project_stays(scene: Scene, tmp_path: Path) -> None:
    cell = keep(scene.bench.cell, scene.vault, scene.environment(), tmp_path / "images").tag
    project = scene.keep().tag

    assert drop(scene.vault, frozenset()) == ()
    assert drop(scene.vault, frozenset(), project=scene.lock.name) == (project,)
    assert drop(scene.vault, frozenset()) == (cell,)


@pytest.mark.parametrize("every", [False, True])
def test_only_earlier_locks_of_the_project_are_dropped(scene: Scene, tmp_path: Path, every: bool) -> None:
    cell = keep(scene.bench.cell, scene.vault, scene.environment(), tmp_path / "images").tag
    earlier = replace(scene.lock, may_lack=("libx.so",))
    other = replace(scene.lock, name="my-project-too")
    tags = [scene.keep(lock).tag for lock in (scene.lock, earlier, other)]
    save_project(scene.bench.project, scene.lock)
    words = ["vault", "drop", str(scene.vault.folder), "--project", str(scene.bench.project)]

    result = CliRunner().invoke(torchkiln, [*words, *(["--all"] if every else [])], catch_exceptions=False)
    assert sorted(result.stdout.split()) == sorted(tags[:2] if every else tags[1:2])
    assert sorted(scene.vault.tags()) == sorted([cell, *(tags[2:] if every else [tags[0], tags[2]])])
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(torchkiln, [*words[:-1], str(tmp_path / "empty")])
    assert (refused.exit_code, type(refused.exception).__name__) == (1, "Stale")


def test_a_dry_run_removes_nothing(scene: Scene) -> None:
    tag = scene.keep().tag
    words = ["vault", "drop", str(scene.vault.folder), "--project", str(scene.bench.project), "--all"]
    save_project(scene.bench.project, scene.lock)
    for options, left in ((["--dry-run"], [tag]), ([], [])):
        result = CliRunner().invoke(torchkiln, [*words, *options], catch_exceptions=False)
        assert result.stdout.split() == [tag]
        assert list(scene.vault.tags()) == left


def test_a_base_is_copied_from_another_vault(scene: Scene, tmp_path: Path) -> None:
    """Its packages are not recorded, and the cache does not have it."""
    cell, base = scene.bench.cell, scene.bench.cell.base
    keep(cell, scene.vault, scene.environment(), tmp_path / "images")
    scene.bench.store.blob(base.digest).unlink()
    other = FolderVault(tmp_path / "other")

    assert keep(cell, scene.vault, scene.environment(), tmp_path / "images").added == 0
    keep(cell, other, scene.environment(), tmp_path / "images")
    assert other.has(base.digest, base.size)
    scene.bench.store.blob(base.digest).unlink()
    shutil.rmtree(other.folder)
    with pytest.raises(BuildFailed, match="not in the cache, and cannot be made"):
        keep(cell, other, replace(scene.environment(), environ={}), tmp_path / "images")


def test_a_link_in_place_of_a_file_counts_as_missing(scene: Scene, tmp_path: Path) -> None:
    scene.keep()
    wheel = scene.lock.wheels[0]
    kept = scene.vault.folder / "blobs/sha256" / wheel.sha256
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert not scene.vault.has(digest_of_file(wheel), wheel.size)
    assert scene.keep().added == wheel.size


def test_a_lost_registry_is_asked_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the index names it, and why it did not give the wheel."""
    asked = []

    def there(*_: object) -> bool:
        asked.append(1)
        raise RegistryError("registry.example: connection refused")

    monkeypatch.setattr("torchkiln.vault.places.Delivery.is_there", there)
    monkeypatch.setattr("torchkiln.vault.places.open_registry", lambda *_: None)
    fetcher = VaultFetcher((vault_at("oci://registry.example/vault", {}),), IndexWithout("built"))
    for _ in range(3):
        with pytest.raises(NotListed) as caught:
            fetcher.tail(scene.lock.wheels[0], 1)
    assert caught.value.message.splitlines()[1:] == [
        "  oci://registry.example/vault: registry.example: connection refused"
    ]
    assert asked == [1]
