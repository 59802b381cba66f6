"""A vault has every file that a lock names; builds take them from there, and believe only the digests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.publisher import Publisher, new_publisher
from tests.reports import TAG
from tests.servers.registry_server import RegistryServer
from tests.smoke_suites import suite_to_read
from tests.unpublished import FakeIndex
from torchkiln.build.environment import Environment
from torchkiln.build.keep import LOCK_TYPE, Kept, check, drop, keep, vault_tag
from torchkiln.errors import BuildFailed, ConfigError, KilnError, RegistryError, VerificationFailed
from torchkiln.lock.lock import load_locked
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Silent
from torchkiln.oci.image import canonical_json, digest_of
from torchkiln.registry.session import Registry
from torchkiln.util.places import ROOT
from torchkiln.vault import places
from torchkiln.vault.places import FolderVault, RegistryVault, Vault, vault_at, vaults_of
from torchkiln.vault.sources import VaultFetcher

SEED = 20261129


class NoIndex:
    """An index that no longer has anything."""

    def size(self, wheel: LockedWheel) -> int:
        raise BuildFailed(f"{wheel.filename}: not on the index")

    def tail(self, wheel: LockedWheel, _: int) -> bytes | None:
        raise BuildFailed(f"{wheel.filename}: not on the index")

    def fetch(self, wheel: LockedWheel, *_: object, **__: object) -> None:
        raise BuildFailed(f"{wheel.filename}: not on the index")


@dataclass
class Scene:
    """A lock whose files are in the publisher's cache, and an empty vault of one of the two kinds."""

    publisher: Publisher
    locked: LockedCell
    vault: Vault
    server: RegistryServer | None

    def keep(self, locked: LockedCell | None = None) -> Kept:
        return keep(
            locked or self.locked,
            self.vault,
            Environment(store=self.publisher.store, fetcher=NoIndex(), observer=Silent()),
            self.publisher.folder / "images",
        )

    def check(self, folder: Path) -> tuple[int, tuple[str, ...]]:
        return check(self.vault, folder, lambda _: None)

    def blobs(self) -> dict[str, int]:
        """The digests of all blobs in the vault, with their sizes."""
        if isinstance(self.vault, FolderVault):
            found = (self.vault.folder / "blobs/sha256").glob("[!.]*")
            return {f"sha256:{path.name}": path.stat().st_size for path in found}
        assert self.server
        (repository,) = self.server.repositories.values()
        return {digest: len(data) for digest, data in repository.blobs.items()}

    def damage(self, digest: str) -> None:
        """Flip one byte of a file in the vault."""
        if isinstance(self.vault, FolderVault):
            path = self.vault.folder / "blobs/sha256" / digest.removeprefix("sha256:")
            path.write_bytes(flipped(path.read_bytes()))
            return
        assert self.server
        (repository,) = self.server.repositories.values()
        repository.blobs[digest] = flipped(repository.blobs[digest])

    def remove(self, digest: str) -> None:
        if isinstance(self.vault, FolderVault):
            (self.vault.folder / "blobs/sha256" / digest.removeprefix("sha256:")).unlink()
        else:
            assert self.server
            (repository,) = self.server.repositories.values()
            del repository.blobs[digest]


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    found = new_publisher(tmp_path_factory.mktemp("vault") / "publisher", suite_to_read)
    found.build()
    locked = load_locked(found.folder / "images", TAG)
    for wheel in locked.wheels:  # the fake index gave them to the build, which keeps no wheels
        assert found.store.has_wheel(wheel)
    return found


@pytest.fixture(params=["folder", "registry"])
def scene(request: pytest.FixtureRequest, publisher: Publisher, tmp_path: Path) -> Iterator[Scene]:
    locked = load_locked(publisher.folder / "images", TAG)
    with RegistryServer() as server:
        where = str(tmp_path / "vault") if request.param == "folder" else f"oci://{server.host}/team/vault"
        yield Scene(publisher, locked, vault_at(where, {}), server)


def wheel_digest(wheel: LockedWheel) -> str:
    return f"sha256:{wheel.sha256}"


def test_every_file_is_kept_under_the_digest_in_the_lock(scene: Scene, tmp_path: Path) -> None:
    kept = scene.keep()

    assert kept.tag == vault_tag(scene.locked)
    assert kept.files == len(scene.locked.wheels) + 1
    assert kept.added == kept.bytes > 0
    blobs = scene.blobs()
    assert {wheel_digest(wheel) for wheel in scene.locked.wheels} | {scene.locked.base.digest} <= blobs.keys()
    (manifest,) = scene.vault.tags().values()
    document = json.loads(manifest)
    assert (document["artifactType"], document["config"]["mediaType"]) == (LOCK_TYPE, LOCK_TYPE)
    titles = [layer["annotations"]["org.opencontainers.image.title"] for layer in document["layers"]]
    assert {wheel.filename for wheel in scene.locked.wheels} <= {*titles}
    assert scene.check(tmp_path) == (kept.files + 1, ())


def test_a_second_run_copies_nothing(scene: Scene) -> None:
    first = scene.keep()

    assert scene.keep() == replace(first, added=0)
    assert list(scene.vault.tags()) == [first.tag]


def test_a_build_takes_its_wheels_from_the_vault(scene: Scene, tmp_path: Path) -> None:
    """The index has none of them any more."""
    scene.keep()
    fetcher = VaultFetcher((scene.vault,), NoIndex())
    for number, wheel in enumerate(scene.locked.wheels):
        assert fetcher.tail(wheel, 1) is None
        path = tmp_path / f"{number}.part"
        fetcher.fetch(wheel, path, on_progress=lambda _: None, cancelled=lambda: False)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256

    other = replace(scene.locked.wheels[0], sha256="0" * 64)
    with pytest.raises(BuildFailed) as caught:
        fetcher.fetch(other, tmp_path / "x", on_progress=lambda _: None, cancelled=lambda: False)
    places = (f"{other.filename}: not on the index", f"  {scene.vault.name}: not there")
    assert caught.value.message.splitlines() == [*places]


def test_one_flipped_byte_is_found_and_never_used(scene: Scene, tmp_path: Path) -> None:
    scene.keep()
    wheel = scene.locked.wheels[0]
    scene.damage(wheel_digest(wheel))

    _, faults = scene.check(tmp_path)
    assert faults == (f"{vault_tag(scene.locked)}: {wheel.filename} ({wheel_digest(wheel)}) is damaged",)
    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        scene.vault.read(Digest(wheel_digest(wheel)), wheel.size, tmp_path / "wheel", lambda _: None)
    assert not (tmp_path / "wheel").exists()
    # The index is asked instead, and has it.
    path = scene.publisher.store.wheel(wheel)
    index = FakeIndex([path])
    fetcher = VaultFetcher((scene.vault,), index)
    fetcher.fetch(wheel, tmp_path / "part", on_progress=lambda _: None, cancelled=lambda: False)
    assert index.fetched == [wheel.filename]


def test_a_missing_file_is_named(scene: Scene, tmp_path: Path) -> None:
    scene.keep()
    scene.remove(scene.locked.base.digest)

    assert scene.check(tmp_path)[1] == (
        f"{vault_tag(scene.locked)}: debian12-base.tar.gz ({scene.locked.base.digest}) is missing",
    )
    scene.keep()
    assert scene.check(tmp_path)[1] == ()


def test_a_file_that_cannot_be_had_leaves_no_artifact(scene: Scene) -> None:
    wheel = replace(scene.locked.wheels[0], sha256="0" * 64)
    other = replace(scene.locked, wheels=(wheel, *scene.locked.wheels[1:]))

    with pytest.raises(BuildFailed, match="not on the index"):
        scene.keep(other)
    if scene.blobs():
        scene.keep()  # without it, a folder is no layout yet
        assert list(scene.vault.tags()) == [vault_tag(scene.locked)]


def test_only_dropped_locks_lose_their_files(scene: Scene, tmp_path: Path) -> None:
    """Files that another lock needs stay, and so do other artifacts."""
    old = replace(scene.locked, as_of="2026-01-01", wheels=scene.locked.wheels[:1], layers=())
    scene.keep(old)
    scene.keep()
    foreign = canonical_json({**json.loads(next(iter(scene.vault.tags().values()))), "config": config(b"{}")})
    scene.vault.tag("theirs", foreign, b"{}")

    assert drop(scene.vault, frozenset({vault_tag(scene.locked)})) == (vault_tag(old),)
    assert sorted(scene.vault.tags()) == sorted([vault_tag(scene.locked), "theirs"])
    assert scene.check(tmp_path)[1] == ()


def config(data: bytes) -> dict[str, object]:
    return {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(data), "size": len(data)}


@pytest.mark.parametrize(
    "manifest",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"config": 1, "layers": []}',
        b'{"config": {"digest": "sha256:../x"}, "layers": []}',
    ],
)
def test_a_strangers_manifest_is_reported(publisher: Publisher, tmp_path: Path, manifest: bytes) -> None:
    locked, vault = load_locked(publisher.folder / "images", TAG), FolderVault(tmp_path / "vault")
    scene = Scene(publisher, locked, vault, None)
    scene.keep()
    vault.tag("evil", manifest, b"{}")

    _, faults = scene.check(tmp_path)
    assert faults
    assert all("evil" in fault for fault in faults)
    assert drop(vault, frozenset()) == (vault_tag(locked),)


# --- a folder ---------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_incomplete_file(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = FolderVault(tmp_path / "vault")
    scene = Scene(publisher, load_locked(publisher.folder / "images", TAG), vault, None)
    written = 0
    real = places._copy

    def full(read: Callable[[int], bytes], digest: Digest, size: int, path: Path, *more: object) -> None:
        nonlocal written
        written += 1
        if written > 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(read, digest, size, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "_copy", full)
    with pytest.raises(BuildFailed, match="No space left on device") as caught:
        scene.keep()
    assert "what is there stays valid" in caught.value.hint
    for path in (tmp_path / "vault/blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    monkeypatch.undo()
    assert scene.keep().added < scene.keep().bytes
    assert scene.check(tmp_path)[1] == ()


def test_a_link_in_the_folder_is_not_followed(publisher: Publisher, tmp_path: Path) -> None:
    vault = FolderVault(tmp_path / "vault")
    blobs = tmp_path / "vault/blobs/sha256"
    blobs.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    (blobs / digest).symlink_to(tmp_path / "secret")

    assert not vault.read(Digest(f"sha256:{digest}"), 6, tmp_path / "out", lambda _: None)


_KEEP = """
import sys
from pathlib import Path
from torchkiln.build.environment import Environment
from torchkiln.build.keep import keep
from torchkiln.lock.lock import load_locked
from torchkiln.model.progress import Silent
from torchkiln.store.store import Store
from torchkiln.vault.places import FolderVault
images, cache, vault = map(Path, sys.argv[1:4])
locked = load_locked(images, sys.argv[4])
print("ready", flush=True)
sys.stdin.read(1)
keep(locked, FolderVault(vault), Environment(store=Store(cache), fetcher=None, observer=Silent()), images)
"""


@pytest.mark.proof  # a minute, because Python starts 20 times
def test_a_killed_run_loses_nothing(publisher: Publisher, tmp_path: Path) -> None:
    """SIGKILL at 20 instants; the instants are logged, and the last run completes the vault."""
    vault = FolderVault(tmp_path / "vault")
    scene = Scene(publisher, load_locked(publisher.folder / "images", TAG), vault, None)
    draw, log = random.Random(SEED), sys.stderr
    images = publisher.folder / "images"
    for number in range(20):
        argv = [sys.executable, "-c", _KEEP, str(images), str(publisher.store.root), str(vault.folder), TAG]
        with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            process.stdout.readline()
            instant = draw.uniform(0, 0.02)
            log.write(f"seed {SEED}, run {number}: killed after {instant:.4f} s\n")
            process.stdin.write(b"x")
            process.stdin.flush()
            time.sleep(instant)
            process.send_signal(signal.SIGKILL)
        for path in (vault.folder / "blobs/sha256").glob("[!.]*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        if (vault.folder / "index.json").exists():
            assert scene.check(tmp_path)[1] == ()

    scene.keep()
    assert scene.check(tmp_path)[1] == ()


# --- a registry -------------------------------------------------------------------------------------


def test_a_lost_registry_is_skipped(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next vault has the file."""
    monkeypatch.setattr(Registry, "sleep", lambda *_: None)
    locked = load_locked(publisher.folder / "images", TAG)
    with RegistryServer() as server:
        lost = RegistryVault(vault_repository(server), {})
    folder = FolderVault(tmp_path / "vault")
    Scene(publisher, locked, folder, server).keep()
    with pytest.raises(RegistryError):
        lost.has(Digest(wheel_digest(locked.wheels[0])), 1)

    fetcher = VaultFetcher((lost, folder), NoIndex())
    path = tmp_path / "part"
    fetcher.fetch(locked.wheels[0], path, on_progress=lambda _: None, cancelled=lambda: False)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == locked.wheels[0].sha256


def vault_repository(server: RegistryServer):  # type: ignore[no-untyped-def]
    from torchkiln.registry.reference import parse_repository

    return parse_repository(f"{server.host}/team/vault")


# --- names and commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "http://host/x", "oci://", "oci://host", "oci://host/a:tag"])
def test_other_names_are_refused(where: str) -> None:
    with pytest.raises(ConfigError):
        vault_at(where, {})


def test_the_variable_names_vaults_in_order(tmp_path: Path) -> None:
    names = f"{tmp_path} oci://host:5000/team/vault"

    assert [vault.name for vault in vaults_of({"TORCHKILN_VAULT": names})] == names.split()
    assert vaults_of({}) == ()


def test_the_commands_keep_check_and_drop(publisher: Publisher, tmp_path: Path) -> None:
    images, vault = str(publisher.folder / "images"), str(tmp_path / "vault")
    kept = publisher.run("vault", "keep", vault, "--all", "--images", images, "--json")
    assert kept.exit_code == 0, kept.output
    tag = json.loads(kept.stdout)["tag"]

    checked = publisher.run("vault", "check", vault)
    assert "files, no fault" in checked.stdout
    assert publisher.run("vault", "drop", vault, "--images", images).stdout == ""
    assert publisher.run("vault", "drop", vault, "--images", images, "--all").stdout == f"{tag}\n"
    assert not list((tmp_path / "vault/blobs/sha256").iterdir())

    nothing = publisher.run("vault", "keep", vault, "--images", images)
    assert isinstance(nothing.exception, KilnError)
    assert "nothing selected" in nothing.exception.message
