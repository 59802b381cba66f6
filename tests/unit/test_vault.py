"""A vault has every file that a lock names; builds take them from there, and believe only the digests."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.published import a_built_publisher
from tests.publisher import Publisher
from tests.reports import TAG
from tests.servers.hostile_index import HostileIndex, head, slowly
from tests.servers.registry_server import RegistryServer
from tests.unpublished import FakeIndex, IndexWithout, taken
from torchkiln.engine.environment import Environment
from torchkiln.engine.keep import LOCK_TYPE, Kept, check, drop, keep, vault_tag
from torchkiln.errors import BuildFailed, ConfigError, KilnError, RegistryError, VerificationFailed
from torchkiln.locks.lock import load_locked
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Silent
from torchkiln.oci.image import canonical_json, descriptor, digest_of
from torchkiln.registry import reading
from torchkiln.registry import session as registry_session
from torchkiln.registry.session import Registry
from torchkiln.vault import places
from torchkiln.vault.places import FolderVault, Vault, vault_at, vaults_of
from torchkiln.vault.sources import VaultFetcher

__all__ = ["a_built_publisher"]

SEED = 20261129


@dataclass
class Scene:
    """A lock whose files are in the publisher's cache, and an empty vault of one of the two kinds."""

    publisher: Publisher
    vault: Vault
    server: RegistryServer | None = None

    @property
    def locked(self) -> LockedCell:
        return load_locked(self.publisher.folder / "images", TAG)

    @property
    def tag(self) -> str:
        return vault_tag(self.locked)

    def keep(self, locked: LockedCell | None = None) -> Kept:
        environment = Environment(store=self.publisher.store, fetcher=IndexWithout(), observer=Silent())
        return keep(locked or self.locked, self.vault, environment, self.publisher.folder / "images")

    def check(self, folder: Path) -> tuple[int, tuple[str, ...]]:
        return check(self.vault, folder, lambda _: None)

    def replace(self, digest: str, data: bytes | None) -> None:
        """Replace a file in the vault; None: remove it."""
        if self.server:
            (repository,) = self.server.repositories.values()
            repository.blobs |= {digest: data or b""}
            if data is None:
                del repository.blobs[digest]
        else:
            path = Path(self.vault.name, "blobs/sha256", digest.removeprefix("sha256:"))
            path.unlink() if data is None else path.write_bytes(data)


@pytest.fixture(params=["folder", "registry"])
def scene(request: pytest.FixtureRequest, built: Publisher, tmp_path: Path) -> Iterator[Scene]:
    if request.param == "folder":
        yield Scene(built, vault_at(str(tmp_path / "vault"), {}))
        return
    with RegistryServer() as server:
        yield Scene(built, vault_at(f"oci://{server.host}/team/vault", {}), server)


@pytest.fixture
def folder(built: Publisher, tmp_path: Path) -> Scene:
    return Scene(built, FolderVault(tmp_path / "vault"))


def wheel_digest(wheel: LockedWheel) -> Digest:
    return Digest(f"sha256:{wheel.sha256}")


def test_every_file_is_kept_under_the_digest_in_the_lock(scene: Scene, tmp_path: Path) -> None:
    """A second run copies nothing."""
    locked, kept = scene.locked, scene.keep()

    assert (kept.tag, kept.files) == (scene.tag, len(locked.wheels) + 1)
    assert kept.added == kept.bytes > 0
    (manifest,) = scene.vault.tags().values()
    document = json.loads(manifest)
    assert (document["artifactType"], document["config"]["mediaType"]) == (LOCK_TYPE, LOCK_TYPE)
    titles = {
        layer["annotations"]["org.opencontainers.image.title"]: layer["digest"]
        for layer in document["layers"]
    }
    wheels = {wheel.filename: wheel_digest(wheel) for wheel in locked.wheels}
    assert titles == {**wheels, "debian12-base.tar.gz": locked.base.digest}
    assert scene.check(tmp_path) == (kept.files + 1, ())
    assert scene.keep() == replace(kept, added=0)
    assert list(scene.vault.tags()) == [kept.tag]


def test_a_build_takes_its_wheels_from_the_vault(scene: Scene, tmp_path: Path) -> None:
    """The index has none of them any more."""
    scene.keep()
    fetcher, wheels = VaultFetcher((scene.vault,), IndexWithout()), scene.locked.wheels
    for number, wheel in enumerate(wheels):
        assert fetcher.tail(wheel, 1) is None
        assert taken(fetcher, wheel, tmp_path / f"{number}.part") == wheel.sha256

    with pytest.raises(BuildFailed) as caught:
        taken(fetcher, replace(wheels[0], sha256="0" * 64), tmp_path / "x")
    reasons = [f"{wheels[0].filename}: not on the index", f"  {scene.vault.name}: not there"]
    assert caught.value.message.splitlines() == reasons


def test_one_flipped_byte_is_found_and_never_used(scene: Scene, tmp_path: Path) -> None:
    """The index is asked instead, and has it."""
    scene.keep()
    wheel = scene.locked.wheels[0]
    digest, path = wheel_digest(wheel), scene.publisher.store.wheel(wheel)
    scene.replace(digest, bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])

    assert scene.check(tmp_path)[1] == (f"{scene.tag}: {wheel.filename} ({digest}) is damaged",)
    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        scene.vault.read(digest, wheel.size, tmp_path / "wheel", lambda _: None)
    assert not (tmp_path / "wheel").exists()
    index = FakeIndex([path])
    taken(VaultFetcher((scene.vault,), index), wheel, tmp_path / "part")
    assert index.fetched == [wheel.filename]


@pytest.mark.parametrize("data", [b"{}", None], ids=["damaged", "missing"])
def test_a_damaged_manifest_does_not_hide_other_faults(
    folder: Scene, tmp_path: Path, data: bytes | None
) -> None:
    folder.keep()
    (manifest,) = folder.vault.tags().values()
    other = replace(folder.locked, epoch=folder.locked.epoch + 1)
    folder.keep(other)
    digest = wheel_digest(folder.locked.wheels[0])
    folder.replace(digest_of(manifest), data)
    folder.replace(digest, None)

    assert folder.check(tmp_path)[1] == (
        f"{folder.tag}: the manifest is missing or damaged",
        f"{vault_tag(other)}: {folder.locked.wheels[0].filename} ({digest}) is missing",
    )
    with pytest.raises(VerificationFailed, match=r"the manifest is missing or damaged$"):
        drop(folder.vault, frozenset())
    assert folder.vault.tags().keys() == {folder.tag, vault_tag(other)}
    folder.keep()
    assert folder.vault.tags()[folder.tag] == manifest


def test_a_missing_file_is_named(scene: Scene, tmp_path: Path) -> None:
    scene.keep()
    digest = scene.locked.base.digest
    scene.replace(digest, None)

    assert scene.check(tmp_path)[1] == (f"{scene.tag}: debian12-base.tar.gz ({digest}) is missing",)
    scene.keep()
    assert scene.check(tmp_path)[1] == ()


def test_a_file_that_cannot_be_had_leaves_no_artifact(scene: Scene) -> None:
    first, *others = scene.locked.wheels

    with pytest.raises(BuildFailed, match="not on the index"):
        scene.keep(replace(scene.locked, wheels=(replace(first, sha256="0" * 64), *others)))
    scene.keep()  # without it, a folder may be no layout yet
    assert list(scene.vault.tags()) == [scene.tag]


def test_only_dropped_locks_lose_their_files(scene: Scene, tmp_path: Path) -> None:
    """Files that another lock needs stay, and so do other artifacts."""
    old = replace(scene.locked, as_of="2026-01-01", wheels=scene.locked.wheels[:1], layers=())
    scene.keep(old)
    scene.keep()
    config = descriptor("application/vnd.oci.empty.v1+json", digest_of(b"{}"), 2)
    foreign = canonical_json({**json.loads(next(iter(scene.vault.tags().values()))), "config": config})
    scene.vault.tag("theirs", foreign, b"{}")

    assert drop(scene.vault, frozenset({scene.tag})) == (vault_tag(old),)
    assert sorted(scene.vault.tags()) == sorted([scene.tag, "theirs"])
    assert scene.check(tmp_path)[1] == ()


@pytest.mark.parametrize(
    "manifest",
    [
        *(b"{", b"[]", b"{}", b'{"config": 1, "layers": []}'),
        b'{"config": {"digest": "sha256:../x"}, "layers": []}',
    ],
)
def test_a_strangers_manifest_is_reported(folder: Scene, tmp_path: Path, manifest: bytes) -> None:
    folder.keep()
    folder.vault.tag("evil", manifest, b"{}")

    _, faults = folder.check(tmp_path)
    assert faults
    assert all("evil" in fault for fault in faults)
    assert drop(folder.vault, frozenset()) == (folder.tag,)


# --- a folder ---------------------------------------------------------------------------------------


def incomplete(vault: Path) -> list[str]:
    """The blobs of a vault whose bytes do not have their digest, without temporary files."""
    blobs = (vault / "blobs/sha256").glob("[!.]*")
    return [path.name for path in blobs if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]


def test_a_full_disk_leaves_no_incomplete_file(
    folder: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = iter([places._copy] * 2)

    def full(*arguments: Any) -> None:
        if copy := next(copies, None):
            copy(*arguments)
            return
        arguments[3].write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(places, "_copy", full)
    with pytest.raises(BuildFailed, match="No space left on device") as caught:
        folder.keep()
    assert "what is there stays valid" in caught.value.hint
    assert incomplete(tmp_path / "vault") == list((tmp_path / "vault/blobs/sha256").glob(".*")) == []
    monkeypatch.undo()
    assert folder.keep().added < folder.keep().bytes
    assert folder.check(tmp_path)[1] == ()


def test_a_link_in_the_folder_is_not_followed(folder: Scene, tmp_path: Path) -> None:
    (tmp_path / "vault/blobs/sha256").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "vault/blobs/sha256" / digest).symlink_to(tmp_path / "secret")

    assert not folder.vault.read(Digest(f"sha256:{digest}"), 6, tmp_path / "out", lambda _: None)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_killed_run_loses_nothing(folder: Scene, tmp_path: Path) -> None:
    """SIGKILL at 20 instants; the instants are logged, and the last run completes the vault."""
    draw = random.Random(SEED)
    for number in range(20):
        process, instant = (
            multiprocessing.get_context("fork").Process(target=folder.keep),
            draw.uniform(0, 0.02),
        )
        sys.stderr.write(f"seed {SEED}, run {number}: killed after {instant:.4f} s\n")
        process.start()
        time.sleep(instant)
        process.kill()
        process.join()
        assert incomplete(tmp_path / "vault") == []
        if (tmp_path / "vault/index.json").exists():
            assert folder.check(tmp_path)[1] == ()

    folder.keep()
    assert folder.check(tmp_path)[1] == ()


# --- a registry -------------------------------------------------------------------------------------


def test_a_lost_registry_is_skipped(folder: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next vault has the file."""
    monkeypatch.setattr(Registry, "sleep", lambda *_: None)
    with RegistryServer() as server:
        lost = vault_at(f"oci://{server.host}/team/vault", {})
    folder.keep()
    wheel = folder.locked.wheels[0]
    with pytest.raises(RegistryError):
        lost.has(wheel_digest(wheel), 1)

    fetcher = VaultFetcher((lost, folder.vault), IndexWithout())
    assert taken(fetcher, wheel, tmp_path / "part") == wheel.sha256


def test_a_registry_without_progress_is_given_up(
    folder: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has each file, but sends none: the next vault is asked, and for other files only that."""
    monkeypatch.setattr(registry_session, "_STALLED", 0.2)
    monkeypatch.setattr(reading, "SILENCE", 0.2)
    folder.keep()
    with HostileIndex(lambda _: slowly(head(), b"")) as server:
        lost = vault_at(server.url.replace("http:", "oci:"), {})
        fetcher = VaultFetcher((lost, folder.vault), IndexWithout())
        for number, wheel in enumerate(folder.locked.wheels[:2]):
            assert taken(fetcher, wheel, tmp_path / str(number)) == wheel.sha256
    assert len(server.requests) == 2  # whether it is there, and the file


# --- names and commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "http://host/x", "oci://", "oci://host", "oci://host/a:tag"])
def test_other_names_are_refused(where: str) -> None:
    with pytest.raises(ConfigError):
        vault_at(where, {})


def test_the_variable_names_vaults_in_order(tmp_path: Path) -> None:
    names = f"{tmp_path} oci://host:5000/team/vault"

    assert [vault.name for vault in vaults_of({"TORCHKILN_VAULT": names})] == names.split()
    assert vaults_of({}) == ()


def test_the_commands_keep_check_and_drop(built: Publisher, tmp_path: Path) -> None:
    vault, images = str(tmp_path / "vault"), ("--images", str(built.folder / "images"))
    kept = built.run("vault", "keep", vault, "--all", *images, "--json")
    assert kept.exit_code == 0, kept.output

    assert "files, no fault" in built.run("vault", "check", vault).stdout
    assert built.run("vault", "drop", vault, *images).stdout == ""
    assert built.run("vault", "drop", vault, *images, "--all").stdout == f"{json.loads(kept.stdout)['tag']}\n"
    assert not list((tmp_path / "vault/blobs/sha256").iterdir())

    nothing = built.run("vault", "keep", vault, *images)
    assert isinstance(nothing.exception, KilnError)
    assert "nothing selected" in nothing.exception.message
