"""A locked base is made from its packages, wherever their bytes can be had."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from tests.deb_files import Package
from tests.servers.deb_server import DebServer
from tests.stored import put
from tests.unit.test_deadlines import STALLS, Stalling
from torchkiln.base import artefact
from torchkiln.base.archive import commit_files, deb_path, record_files
from torchkiln.base.deb_archive import Debs, DebSource
from torchkiln.base.effects import Effect, Effects, document, effects_of, to_bytes
from torchkiln.base.plain_tree import Node, Spool, UnpackRules, plain_tree
from torchkiln.base.recipe import recipe
from torchkiln.base.remake import commit_effects, describe, effects_path, learn, read_effects
from torchkiln.base.tree_tar import mmdebstrap_tar
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.index import download
from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, DebFile, LockedBase, OsPackage
from torchkiln.model.progress import Reporting
from torchkiln.oci.encode import ENCODER, encode_bytes
from torchkiln.oci.tar_reader import EntryKind, TarEntry
from torchkiln.store.store import Store
from torchkiln.util.http.retry import GivenUp

RECIPE = recipe("debian12")
SOURCES = "deb {0}debian bookworm main\ndeb {0}debian-security bookworm-security main\n"
DATES = {"bookworm": "20260711T101637Z", "bookworm-security": "20261126T210335Z"}
PACKAGES = (
    Package(name="one", files={"usr/": b"", "usr/one": b"1" * 3000}),
    Package(name="three", files={"etc/": b"", "etc/three": b"3"}),
    Package(name="two", files={"usr/": b"", "usr/two": b"2"}, compression=".zst"),
)
FIXED = "three"  # in the security archive
NOT_FOUND = "{} of 3 locked packages were not found"


@dataclass
class Scene:
    """A base of three packages, locked in a folder; the packages are on a server."""

    server: DebServer
    store: Store
    images: Path
    base: LockedBase
    files: BaseFiles
    said: list[str] = field(default_factory=list)

    def ensure(self, *, locked_only: bool = True, **more: str) -> LockedBase:
        """The base that `artefact.ensure` gives."""
        learn(self.images, self.base, self.store)
        address = {"TORCHKILN_SNAPSHOT": self.server.url("archive"), "PIP_CONFIG_FILE": "/dev/null"}
        found, moved = artefact.ensure(
            self.base,
            self.store,
            locked_only=locked_only,
            environ=address | more,
            report=Reporting(say=self.said.append),
        )
        assert bool(moved) == (found != self.base)
        return found

    def gone(self, name: str) -> tuple[str, bytes]:
        """Remove a package from the archive, as a mirror does when there is a newer one: path and data."""
        (deb,) = (deb for deb in self.files.debs if deb.name == name)
        return str(deb.path), self.server.pools.pop(pool(deb))

    def of_snapshots(self) -> list[str]:
        return [path for path in self.server.requested if path.startswith("/archive/")]


def pool(deb: DebFile) -> str:
    return f"{'debian-security' if deb.security else 'debian'}/{deb.path}"


def described(debs: tuple[DebFile, ...], folder: Path, sources: str) -> tuple[LockedBase, Effects]:
    """A base of *debs* with *sources* as sources.list, and a file that a script made."""
    rules = UnpackRules(epoch=RECIPE.epoch, dpkg_options=RECIPE.dpkg_options, merged={})
    with (folder / "spool").open("w+b", buffering=0) as file:
        plain = plain_tree(debs, lambda deb: folder / deb.name, rules, Spool(file))
        finished = {**plain, "dev": node("dev", "folder", "")}
        for path, text in (("etc/apt/sources.list", sources), ("etc/made", "by a script")):
            finished[path] = node(path, "file", text)
        _, encoded = encode_bytes(b"".join(mmdebstrap_tar(finished, RECIPE.epoch)))
        effects = effects_of(
            plain, finished, rules, form="mmdebstrap", blob=encoded.digest, compiled=lambda _: {}
        )
    packages = tuple(OsPackage(name=deb.name, version=deb.version) for deb in debs)
    base = LockedBase(os="debian12", python="3.11.2", **asdict(encoded), encoder=ENCODER, packages=packages)
    return base, effects


def node(path: str, kind: EntryKind, text: str) -> Node:
    mode = 0o755 if kind == "folder" else 0o644
    return Node(TarEntry(path, kind, mode, 0, 0, RECIPE.epoch, len(text), "", (0, 0), ()), text.encode())


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """No archive is asked for present packages: a base that cannot be made is an error."""

    def build(*_: object, **__: object) -> LockedBase:
        raise BuildFailed("no present packages in this test")

    monkeypatch.setattr(artefact, "build", build)
    debs = tuple(replace(package.file(), security=package.name == FIXED) for package in PACKAGES)
    with DebServer() as server:
        for package, deb in zip(PACKAGES, debs, strict=True):
            server.pools[pool(deb)] = package.deb()
            (tmp_path / package.name).write_bytes(package.deb())
        base, effects = described(debs, tmp_path, SOURCES.format(server.url()))
        files = BaseFiles(base=base.digest, debs=debs, dates=DATES)
        locking, images = Store(tmp_path / "locking"), tmp_path / "images"
        record_files(locking, files)
        locking.put_record("base-effects", base.digest.removeprefix("sha256:"), document(effects))
        artefact.write_lock(images, base)
        commit_files(images, base, locking)
        commit_effects(images, base, locking)
        yield Scene(server, Store(tmp_path / "cache"), images, base, files)


def test_the_locked_base_is_made_from_the_archive(scene: Scene) -> None:
    """The addresses are those in the base's own sources.list; then everything is in the cache."""
    assert scene.ensure() == scene.base
    data = scene.store.blob(scene.base.digest).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == scene.base.digest
    asked = [f"/{pool(deb)}" for deb in scene.files.debs]
    assert sorted(scene.server.requested) == sorted(asked)

    scene.store.blob(scene.base.digest).unlink()
    assert scene.ensure() == scene.base
    assert len(scene.server.requested) == len(asked)


@pytest.mark.parametrize("local", [False, True])
def test_a_mirror_replaces_the_named_archive(scene: Scene, tmp_path: Path, local: bool) -> None:
    """It can be a folder."""
    address = f"copy://{tmp_path}/mirror" if local else scene.server.url("mirror")
    for deb in scene.files.debs:
        data = scene.server.pools.pop(pool(deb))
        if local:
            (tmp_path / "mirror" / str(deb.path)).parent.mkdir(parents=True)
            (tmp_path / "mirror" / str(deb.path)).write_bytes(data)
        else:
            scene.server.pools[f"mirror/{deb.path}"] = data

    scene.ensure(TORCHKILN_DEBIAN_MIRROR=address, TORCHKILN_DEBIAN_SECURITY_MIRROR=address)
    assert len(scene.server.requested) == (0 if local else 3)


@pytest.mark.parametrize("name", ["one", FIXED])
@pytest.mark.parametrize("later", [False, True], ids=["same day", "next day"])
def test_only_what_the_archive_lacks_comes_from_a_snapshot(scene: Scene, name: str, later: bool) -> None:
    """It answers 429 and 503 for a while, and gets one request at a time."""
    archive, time = (
        ("debian-security", "20261126T210335Z") if name == FIXED else ("debian", "20260711T101637Z")
    )
    time = time.replace("26T", "27T").replace("11T", "12T") if later else time
    scene.server.snapshots[archive, time] = dict([scene.gone(name)])
    scene.server.statuses = [(429, {"Retry-After": "0"}), (503, {})]

    assert scene.ensure() == scene.base
    assert scene.server.most_at_once == 1
    assert {path.rsplit("/", 1)[1] for path in scene.of_snapshots()} == {f"{name}_1.0_amd64.deb"}


def test_the_snapshot_can_be_disabled(scene: Scene) -> None:
    scene.gone("one")

    with pytest.raises(BuildFailed, match=NOT_FOUND.format(1)):
        scene.ensure(TORCHKILN_SNAPSHOT="off")
    assert not scene.of_snapshots()


def test_the_setting_of_the_snapshot_is_checked(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="TORCHKILN_SNAPSHOT is not a valid URL of an archive: 'nonsense'"):
        scene.ensure(TORCHKILN_SNAPSHOT="nonsense")


def test_all_missing_packages_are_named_with_each_source(scene: Scene, tmp_path: Path) -> None:
    scene.gone("one")
    scene.gone(FIXED)

    with pytest.raises(BuildFailed) as caught:
        scene.ensure(TORCHKILN_VAULT=str(tmp_path))
    message, lines = caught.value.message, caught.value.message.splitlines()
    assert lines[0] == NOT_FOUND.format(2)
    assert sum("_1.0_amd64.deb (sha256 " in line and line.endswith(" was not found:") for line in lines) == 2
    for source in (f"{tmp_path}: not there", "archive: http", "snapshot: http"):
        assert sum(source in line for line in lines) >= 2
    assert "HTTP 404" in message
    for advice in ("--vault", "TORCHKILN_SNAPSHOT", "--upgrade-base"):
        assert advice in caught.value.hint
    assert caught.value.exit_code == 6
    assert list((scene.store.root / "tmp").iterdir()) == []


def test_a_source_that_is_unreachable_is_not_asked_for_each_package(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetched(_: Debs, deb: DebFile, source: DebSource, __: Path) -> Path:
        asked.append(source.name)
        raise BuildFailed("host name does not resolve") from GivenUp("host name does not resolve", 6)

    monkeypatch.setattr(Debs, "_fetched", fetched)
    monkeypatch.setattr("torchkiln.base.plain_tree.STREAMS", 1)
    with pytest.raises(BuildFailed, match=NOT_FOUND.format(3)):
        scene.ensure()
    assert asked == ["archive", "snapshot", "snapshot"]


def test_a_source_without_progress_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages come from the snapshot, and it is not asked for each."""
    monkeypatch.setattr(download, "STALLED", 0.2)
    monkeypatch.setattr(download, "GIVEN_UP", 0.2)
    monkeypatch.setattr("torchkiln.base.plain_tree.STREAMS", 1)
    for deb in scene.files.debs:
        time = "20261126T210335Z" if deb.security else "20260711T101637Z"
        found = scene.server.snapshots.setdefault(("debian-security" if deb.security else "debian", time), {})
        found |= dict([scene.gone(deb.name)])
    with Stalling(*STALLS["nothing"]) as mirror:
        address = f"http://{mirror.host}"
        made = scene.ensure(TORCHKILN_DEBIAN_MIRROR=address, TORCHKILN_DEBIAN_SECURITY_MIRROR=address)
    assert (made, mirror.count) == (scene.base, 1)


def test_without_locked_only_the_present_packages_are_used_from_then_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources of the locked packages are asked once, until the settings change or they are required."""
    newer = replace(scene.base, digest=Digest("sha256:" + "7" * 64))

    def build(*_: object, **__: object) -> LockedBase:
        put(bytes(newer.size), scene.store.blob(newer.digest), scene.store)
        return newer

    monkeypatch.setattr(artefact, "build", build)
    path, data = scene.gone("one")
    assert scene.ensure(locked_only=False) == newer
    assert NOT_FOUND.format(1) in "\n".join(scene.said)
    asked = len(scene.server.requested)

    assert scene.ensure(locked_only=False) == newer
    assert len(scene.server.requested) == asked
    scene.server.pools[f"debian/{path}"] = data
    assert scene.ensure() == scene.ensure(locked_only=False) == scene.base


def test_wrong_bytes_are_never_used(scene: Scene) -> None:
    """A mirror with another file of the same size: the snapshot has the right one."""
    path, data = scene.gone("one")
    scene.server.pools[f"debian/{path}"] = data[:-1] + bytes([data[-1] ^ 1])
    scene.server.snapshots["debian", DATES["bookworm"]] = {path: data}

    assert scene.ensure() == scene.base


def test_a_damaged_package_in_the_cache_is_downloaded_again(scene: Scene) -> None:
    scene.ensure()
    kept = scene.store.root / deb_path(scene.files.debs[0])
    kept.chmod(0o644)
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    scene.store.blob(scene.base.digest).unlink()

    assert scene.ensure() == scene.base


def test_a_strangers_effects_give_no_base(scene: Scene) -> None:
    """The result must have the digest of the lock."""
    effects = read_effects(scene.images, scene.base, scene.store)
    assert effects is not None
    other = replace(effects, changed=(*effects.changed, Effect(path="etc/evil", text="x")))
    effects_path(scene.images, scene.base).write_bytes(to_bytes(other))

    with pytest.raises(BuildFailed, match="do not give the locked blob"):
        scene.ensure()
    assert not scene.store.blob(scene.base.digest).exists()


def test_damaged_effects_are_named(scene: Scene) -> None:
    effects_path(scene.images, scene.base).write_bytes(b"x")

    with pytest.raises(ConfigError, match=r"effects\.json\.gz: ") as caught:
        learn(scene.images, scene.base, scene.store)
    assert "git checkout" in caught.value.hint


def test_effects_of_another_base_are_not_used(scene: Scene) -> None:
    other = replace(scene.base, digest=scene.base.diff_id)

    assert read_effects(scene.images, other, scene.store) is None
    commit_effects(scene.images, other, scene.store)
    assert not effects_path(scene.images, other).exists()


def test_effects_are_only_recorded_if_they_give_the_same_blob(scene: Scene) -> None:
    scene.ensure()

    found = describe(scene.base, scene.base, scene.files.debs, scene.store)
    assert found == read_effects(scene.images, scene.base, scene.store)
    (scene.store.root / deb_path(scene.files.debs[0])).unlink()
    assert describe(scene.base, scene.base, scene.files.debs, scene.store) is None
