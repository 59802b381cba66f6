"""Where a base comes from: the cache, a vault, a rebuilt base or the archive; and the messages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roots import entry, tar_of
from torchkiln.base import artefact
from torchkiln.base.contents import inspect, parse_status
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.lock import LockedBase, OsPackage
from torchkiln.oci.encode import ENCODER, encode_bytes
from torchkiln.store.store import Store

STATUS = """Package: {name}
Status: install ok installed
Version: {version}
Description: words: with colons
 Status: not this one

Package: python3.11-minimal
Status: install ok installed
Version: 3.11.2-6+deb12u6

Package: removed
Status: deinstall ok config-files
Version: 1
"""


def a_tar(version: str, *more: object) -> bytes:
    status = STATUS.format(name="openssl", version=version).encode()
    return tar_of([entry("./var/lib/dpkg/status", status), *more])  # type: ignore[list-item]


def a_base(store: Store | None, version: str = "3.0.18") -> LockedBase:
    """A base with one package of *version*; its blob is written to *store*."""
    blob, encoded = encode_bytes(a_tar(version))
    if store is not None:
        place = store.blob(encoded.digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(blob)
    return LockedBase(
        os="debian12",
        python="3.11.2",
        digest=encoded.digest,
        diff_id=encoded.diff_id,
        size=encoded.size,
        unpacked=encoded.unpacked,
        encoder=ENCODER,
        packages=(
            OsPackage(name="openssl", version=version),
            OsPackage(name="python3.11-minimal", version="3.11.2-6+deb12u6"),
        ),
    )


class Archive:
    """A fake Debian archive: builds one base and counts the builds."""

    def __init__(self, version: str) -> None:
        self.version, self.builds = version, 0

    def build(self, _: object, store: Store, **__: object) -> LockedBase:
        self.builds += 1
        return a_base(store, self.version)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    archive = Archive("3.0.18")
    monkeypatch.setattr(artefact, "build", archive.build)
    return archive


def test_the_lock_reads_back() -> None:
    base = a_base(None)

    assert artefact.from_json(artefact.to_json(base)) == base
    assert json.loads(artefact.to_json(base))["packages"]["openssl"] == "3.0.18"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda lock: lock | {"schema": 99}, id="schema"),
        pytest.param(lambda lock: lock | {"digest": "sha256:abc"}, id="digest"),
        pytest.param(lambda lock: lock | {"packages": ["a"]}, id="packages"),
        pytest.param(lambda lock: {k: v for k, v in lock.items() if k != "size"}, id="missing"),
        pytest.param(lambda lock: [lock], id="list"),
    ],
)
def test_an_invalid_lock_is_named(tmp_path: Path, spoil: Callable[[dict[str, object]], object]) -> None:
    path = artefact.write_lock(tmp_path, a_base(None))
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))

    with pytest.raises(ConfigError, match=r"base-debian12/base\.json: "):
        artefact.read_lock(tmp_path, "debian12")
    assert artefact.read_lock(tmp_path, "ubuntu22.04") is None


def test_the_cache_comes_first(store: Store, archive: Archive) -> None:
    locked = a_base(store)

    assert artefact.ensure(locked, store, os_name="debian12") == (locked, ())
    assert archive.builds == 0


def test_the_archive_may_still_have_the_locked_base(store: Store, archive: Archive) -> None:
    locked = a_base(None)

    assert artefact.ensure(locked, store, os_name="debian12", locked_only=True) == (locked, ())
    assert archive.builds == 1


def test_a_newer_base_is_reported_and_used_from_then_on(store: Store, archive: Archive) -> None:
    locked, archive.version = a_base(None), "3.0.19"

    base, moved = artefact.ensure(locked, store, os_name="debian12", environ={})
    again = artefact.ensure(locked, store, os_name="debian12", environ={})

    assert moved == ("openssl 3.0.18 → 3.0.19",)
    assert base.digest == a_base(None, "3.0.19").digest
    assert again == (base, moved)
    assert archive.builds == 1


def test_locked_only_ends_with_the_hint(store: Store, archive: Archive) -> None:
    locked, archive.version = a_base(None), "3.0.19"

    with pytest.raises(BuildFailed, match=r"openssl 3\.0\.18 → 3\.0\.19") as caught:
        artefact.ensure(locked, store, os_name="debian12", locked_only=True, environ={})

    assert caught.value.exit_code == 6
    assert "lock TAG --upgrade-base" in caught.value.hint


def test_a_replacement_is_used_only_with_its_blob_lock_and_mirror(store: Store, archive: Archive) -> None:
    locked, archive.version = a_base(None), "3.0.19"
    base, _ = artefact.ensure(locked, store, os_name="debian12", environ={})

    artefact.ensure(
        locked, store, os_name="debian12", environ={"TORCHKILN_DEBIAN_MIRROR": "http://snap.test/x"}
    )
    artefact.ensure(a_base(None, "3.0.17"), store, os_name="debian12", environ={})
    store.blob(base.digest).unlink()
    artefact.ensure(locked, store, os_name="debian12", environ={})

    assert archive.builds == 4


def test_a_vault_comes_before_the_archive(tmp_path: Path, store: Store, archive: Archive) -> None:
    """A blob of the vault with other bytes is not used."""
    locked, environ = a_base(Store(tmp_path)), {"TORCHKILN_VAULT": str(tmp_path)}
    archive.version = "3.0.19"

    assert artefact.ensure(locked, store, os_name="debian12", environ=environ) == (locked, ())
    assert (store.has_blob(locked.digest, locked.size), archive.builds) == (True, 0)

    store.blob(locked.digest).unlink()
    blob = Store(tmp_path).blob(locked.digest)
    blob.write_bytes(bytes(locked.size))
    base, _ = artefact.ensure(locked, store, os_name="debian12", environ=environ)
    assert (base, archive.builds) == (a_base(None, "3.0.19"), 1)


def test_added_removed_and_changed_packages() -> None:
    before = (
        OsPackage(name="a", version="1"),
        OsPackage(name="b", version="1"),
        OsPackage(name="c", version="1"),
    )
    after = (
        OsPackage(name="b", version="2"),
        OsPackage(name="c", version="1"),
        OsPackage(name="d", version="1"),
    )

    assert artefact.package_changes(before, after) == ("a 1 → (gone)", "b 1 → 2", "d (new) → 1")


def test_the_packages_are_read_from_dpkg(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(encode_bytes(a_tar("3.0.18"))[0])
    contents = inspect(tmp_path / "blob")

    assert contents.python == "3.11.2"
    assert contents.packages == a_base(None).packages
    assert parse_status("") == ()


@pytest.mark.parametrize(
    "name", ["etc/machine-id", "etc/resolv.conf", "etc/ssh/ssh_host_ed25519_key", "a/.wh.b", "../x"]
)
def test_a_base_with_a_forbidden_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "blob").write_bytes(encode_bytes(a_tar("1", entry(f"./{name}")))[0])

    with pytest.raises(BuildFailed, match=name.replace(".", r"\.")):
        inspect(tmp_path / "blob")


def test_locks_are_frozen_values() -> None:
    assert hash(a_base(None)) == hash(dataclasses.replace(a_base(None)))
