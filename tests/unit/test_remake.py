"""A locked base is made from its packages, wherever their bytes can be had."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from tests.deb_files import FOLDER, Entry, Package
from tests.servers.deb_server import DebServer
from torchkiln.base import artefact
from torchkiln.base.archive import record_files
from torchkiln.base.deb_archive import Debs, DebSource
from torchkiln.base.debs import deb_path
from torchkiln.base.effects import Effect, Effects, document, effects_of, to_bytes
from torchkiln.base.plain_tree import Node, Spool, plain_tree
from torchkiln.base.recipe import recipe
from torchkiln.base.remake import commit_effects, describe, effects_path, learn, read_effects
from torchkiln.base.tree_tar import mmdebstrap_tar
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, DebFile, LockedBase, OsPackage
from torchkiln.model.progress import Reporting
from torchkiln.oci.encode import ENCODER, encode_bytes
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.store.store import Store
from torchkiln.util.http.retry import GivenUp

RECIPE = recipe("debian12")
SOURCES = "deb {0}debian bookworm main\ndeb {0}debian-security bookworm-security main\n"
DATES = {"bookworm": "20260711T101637Z", "bookworm-security": "20261126T210335Z"}
PACKAGES = (
    Package(name="one", files={"usr/": FOLDER, "usr/one": Entry(data=b"1" * 3000)}),
    Package(name="two", files={"usr/": FOLDER, "usr/two": Entry(data=b"2")}, compression=".zst"),
    Package(name="three", files={"etc/": FOLDER, "etc/three": Entry(data=b"3")}),
)
FIXED = "three"  # in the security archive


@dataclass
class Scene:
    """A base of three packages, locked in a folder; the packages are on a server."""

    server: DebServer
    store: Store
    images: Path
    base: LockedBase
    files: BaseFiles
    said: list[str] = field(default_factory=list)

    def environ(self, **more: str) -> dict[str, str]:
        return {"TORCHKILN_SNAPSHOT": self.server.url("archive"), "PIP_CONFIG_FILE": "/dev/null", **more}

    def ensure(self, *, locked_only: bool = True, **more: str) -> tuple[LockedBase, tuple[str, ...]]:
        learn(self.images, self.base, self.store)
        report = Reporting(say=self.said.append)
        return artefact.ensure(
            self.base,
            self.store,
            os_name="debian12",
            locked_only=locked_only,
            environ=self.environ(**more),
            report=report,
        )

    def gone(self, name: str) -> bytes:
        """Remove a package from the archive, as a mirror does when there is a newer one."""
        (deb,) = (deb for deb in self.files.debs if deb.name == name)
        return self.server.pools.pop(pool(deb))


def pool(deb: DebFile) -> str:
    return f"{'debian-security' if deb.security else 'debian'}/{deb.path}"


def described(debs: tuple[DebFile, ...], folder: Path, sources: str) -> tuple[LockedBase, Effects]:
    """A base of *debs* with *sources* as sources.list, and a file that a script made."""
    with (folder / "spool").open("w+b", buffering=0) as file:
        rules = replace(EMPTY, epoch=RECIPE.epoch, dpkg_options=RECIPE.dpkg_options).rules
        plain = plain_tree(debs, lambda deb: folder / deb.name, rules, Spool(file))
        finished = dict(plain)
        finished["dev"] = Node(TarEntry("dev", "folder", 0o755, 0, 0, RECIPE.epoch, 0, "", (0, 0), ()))
        for path, text in (("etc/apt/sources.list", sources), ("etc/made", "by a script")):
            data = text.encode()
            entry = TarEntry(path, "file", 0o644, 0, 0, RECIPE.epoch, len(data), "", (0, 0), ())
            finished[path] = Node(entry, data)
        blob, encoded = encode_bytes(b"".join(mmdebstrap_tar(finished, RECIPE.epoch)))
        (folder / "blob").write_bytes(blob)
        effects = effects_of(
            plain, finished, rules, form="mmdebstrap", blob=encoded.digest, compiled=lambda _: {}
        )
    packages = tuple(OsPackage(name=deb.name, version=deb.version) for deb in debs)
    base = LockedBase(os="debian12", python="3.11.2", **asdict(encoded), encoder=ENCODER, packages=packages)
    return base, effects


EMPTY = Effects(
    form="mmdebstrap",
    blob=Digest(f"sha256:{'0' * 64}"),
    epoch=0,
    dpkg_options=(),
    merged=(),
    removed=(),
    changed=(),
)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """No archive is asked for present packages: a base that cannot be made is an error."""

    def build(*_: object, **__: object) -> LockedBase:
        raise BuildFailed("no present packages in this test")

    monkeypatch.setattr(artefact, "build", build)
    debs = tuple(replace(package.file(), security=package.name == FIXED) for package in PACKAGES)
    debs = tuple(sorted(debs, key=lambda deb: deb.name))
    (tmp_path / "made").mkdir()
    with DebServer() as server:
        for package in PACKAGES:
            (tmp_path / "made" / package.name).write_bytes(package.deb())
        base, effects = described(debs, tmp_path / "made", SOURCES.format(server.url()))
        for deb in debs:
            server.pools[pool(deb)] = (tmp_path / "made" / deb.name).read_bytes()
        files = BaseFiles(base=base.digest, debs=debs, dates=DATES)
        locking, images = Store(tmp_path / "locking"), tmp_path / "images"
        record_files(locking, files)
        locking.put_record("base-effects", base.digest.removeprefix("sha256:"), document(effects))
        artefact.write_lock(images, base)
        artefact_files(images, base, locking)
        yield Scene(server, Store(tmp_path / "cache"), images, base, files)


def artefact_files(images: Path, base: LockedBase, store: Store) -> None:
    from torchkiln.base.archive import commit_files

    commit_files(images, base, store)
    commit_effects(images, base, store)


def test_the_locked_base_is_made_from_the_archive(scene: Scene) -> None:
    """The addresses are those in the base's own sources.list; then everything is in the cache."""
    assert scene.ensure() == (scene.base, ())
    assert scene.store.has_blob(scene.base.digest, scene.base.size)
    assert sorted(scene.server.requested) == sorted(f"/{pool(deb)}" for deb in scene.files.debs)

    scene.store.blob(scene.base.digest).unlink()
    asked = len(scene.server.requested)
    assert scene.ensure() == (scene.base, ())
    assert len(scene.server.requested) == asked


def test_a_mirror_replaces_the_named_archive(scene: Scene) -> None:
    scene.server.pools |= {
        f"mirror/{deb.path}": scene.server.pools.pop(pool(deb)) for deb in scene.files.debs
    }
    address = scene.server.url("mirror")

    scene.ensure(TORCHKILN_DEBIAN_MIRROR=address, TORCHKILN_DEBIAN_SECURITY_MIRROR=address)


def test_a_local_mirror_is_read(scene: Scene, tmp_path: Path) -> None:
    for deb in scene.files.debs:
        place = tmp_path / "mirror" / (deb.path or "")
        place.parent.mkdir(parents=True)
        place.write_bytes(scene.server.pools.pop(pool(deb)))
    address = f"copy://{tmp_path}/mirror"

    scene.ensure(TORCHKILN_DEBIAN_MIRROR=address, TORCHKILN_DEBIAN_SECURITY_MIRROR=address)
    assert scene.server.requested == []


@pytest.mark.parametrize("name", ["one", FIXED])
@pytest.mark.parametrize("later", [False, True], ids=["same day", "next day"])
def test_only_what_the_archive_lacks_comes_from_a_snapshot(scene: Scene, name: str, later: bool) -> None:
    """It answers 429 and 503 for a while, and gets one request at a time."""
    data = scene.gone(name)
    archive, time = (
        ("debian-security", "20261126T210335Z") if name == FIXED else ("debian", "20260711T101637Z")
    )
    (deb,) = (deb for deb in scene.files.debs if deb.name == name)
    time = time.replace("26T", "27T").replace("11T", "12T") if later else time
    scene.server.snapshots[archive, time] = {str(deb.path): data}
    scene.server.statuses = [(429, {"Retry-After": "0"}), (503, {})]

    assert scene.ensure() == (scene.base, ())
    assert scene.server.most_at_once == 1
    asked = [path for path in scene.server.requested if path.startswith("/archive/")]
    assert {path.rsplit("/", 1)[1] for path in asked} == {f"{name}_1.0_amd64.deb"}


def test_the_snapshot_can_be_disabled(scene: Scene) -> None:
    scene.gone("one")

    with pytest.raises(BuildFailed, match="1 of 3 locked packages were not found"):
        scene.ensure(TORCHKILN_SNAPSHOT="off")
    assert not [path for path in scene.server.requested if path.startswith("/archive/")]


def test_all_missing_packages_are_named_with_each_source(scene: Scene, tmp_path: Path) -> None:
    scene.gone("one")
    scene.gone(FIXED)

    with pytest.raises(BuildFailed) as caught:
        scene.ensure(TORCHKILN_VAULT=str(tmp_path / "vault"))
    lines = caught.value.message.splitlines()
    assert lines[0] == "2 of 3 locked packages were not found"
    assert sum("_1.0_amd64.deb (sha256 " in line and line.endswith(" was not found:") for line in lines) == 2
    for source in ("vault: not there", "archive: http", "snapshot: http"):
        assert sum(source in line for line in lines) >= 2
    assert "HTTP 404" in caught.value.message
    assert "--vault" in caught.value.hint
    assert "TORCHKILN_SNAPSHOT" in caught.value.hint
    assert "--upgrade-base" in caught.value.hint
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
    with pytest.raises(BuildFailed, match="3 of 3 locked packages were not found"):
        scene.ensure()
    assert asked == ["archive", "snapshot", "snapshot"]


def test_without_locked_only_the_present_packages_are_used_from_then_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources of the locked packages are asked once, until the settings change or they are required."""
    newer = replace(scene.base, digest=Digest("sha256:" + "7" * 64))

    def build(*_: object, **__: object) -> LockedBase:
        blob = scene.store.blob(newer.digest)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(bytes(newer.size))
        return newer

    monkeypatch.setattr(artefact, "build", build)
    data = scene.gone("one")
    assert scene.ensure(locked_only=False)[0] == newer
    assert "1 of 3 locked packages were not found" in "\n".join(scene.said)
    asked = len(scene.server.requested)

    assert scene.ensure(locked_only=False)[0] == newer
    assert len(scene.server.requested) == asked
    (deb,) = (deb for deb in scene.files.debs if deb.name == "one")
    scene.server.pools[pool(deb)] = data
    assert scene.ensure() == (scene.base, ())
    assert scene.ensure(locked_only=False) == (scene.base, ())


def test_wrong_bytes_are_never_used(scene: Scene) -> None:
    """A mirror with another file of the same size: the snapshot has the right one."""
    data = scene.gone("one")
    (deb,) = (deb for deb in scene.files.debs if deb.name == "one")
    scene.server.pools[pool(deb)] = data[:-1] + bytes([data[-1] ^ 1])
    scene.server.snapshots["debian", DATES["bookworm"]] = {str(deb.path): data}

    assert scene.ensure() == (scene.base, ())


def test_a_damaged_package_in_the_cache_is_downloaded_again(scene: Scene) -> None:
    scene.ensure()
    (deb,) = (deb for deb in scene.files.debs if deb.name == "one")
    kept = scene.store.root / deb_path(deb)
    kept.chmod(0o644)
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    scene.store.blob(scene.base.digest).unlink()

    assert scene.ensure() == (scene.base, ())


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


def test_the_digest_is_that_of_the_bytes(scene: Scene) -> None:
    scene.ensure()

    data = scene.store.blob(scene.base.digest).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == scene.base.digest
