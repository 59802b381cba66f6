"""Where a base comes from: the cache, a vault, a rebuilt base or the archive; and the messages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.roots import entry, tar_of
from tests.stored import put, put_tar
from torchkiln.base import artefact
from torchkiln.base.contents import inspect, parse_status
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedBase, OsPackage, package_changes
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


def blob_of(tar: bytes, store: Store | None) -> dict[str, Any]:
    """The fields of a lock for the blob of *tar*; the blob is written to *store*."""
    encoded = put_tar(tar, store) if store else encode_bytes(tar)[1]
    return {**asdict(encoded), "encoder": ENCODER}


def packages(**versions: str) -> tuple[OsPackage, ...]:
    return tuple(OsPackage(name=name, version=version) for name, version in versions.items())


def a_base(store: Store | None, version: str = "3.0.18") -> LockedBase:
    """A base with one package of *version*; its blob is written to *store*."""
    named = packages(openssl=version, **{"python3.11-minimal": "3.11.2-6+deb12u6"})
    return LockedBase(os="debian12", python="3.11.2", **blob_of(a_tar(version), store), packages=named)


@dataclass
class Archive:
    """A fake Debian archive in its present state; it counts the builds."""

    openssl: str = "3.0.18"
    bases: int = 0

    def build(self, _: object, store: Store, **__: object) -> LockedBase:
        self.bases += 1
        return a_base(store, self.openssl)


@pytest.fixture(name="store")
def a_store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    archive = Archive()
    monkeypatch.setattr(artefact, "build", archive.build)
    return archive


def ensure(
    locked: LockedBase, store: Store, locked_only: bool = False, **environ: str
) -> tuple[LockedBase, tuple[str, ...]]:
    return artefact.ensure(locked, store, locked_only=locked_only, environ=environ)


def test_the_lock_reads_back() -> None:
    base = a_base(None)

    assert artefact.from_json(artefact.to_json(base), LockedBase) == base
    assert json.loads(artefact.to_json(base))["packages"]["openssl"] == "3.0.18"
    assert hash(base) == hash(replace(base))


def test_locked_only_ends_with_the_hint(store: Store, archive: Archive) -> None:
    locked, archive.openssl = a_base(None), "3.0.19"

    with pytest.raises(BuildFailed, match=r"openssl 3\.0\.18 → 3\.0\.19") as caught:
        ensure(locked, store, locked_only=True)

    assert caught.value.exit_code == 6
    assert "lock TAG --upgrade-base" in caught.value.hint


def test_a_replacement_is_used_only_with_its_blob_lock_and_mirror(store: Store, archive: Archive) -> None:
    locked, archive.openssl = a_base(None), "3.0.19"
    base, _ = ensure(locked, store)

    ensure(locked, store, TORCHKILN_DEBIAN_MIRROR="http://snap.test/x")
    ensure(a_base(None, "3.0.17"), store)
    store.blob(base.digest).unlink()
    ensure(locked, store)

    assert archive.bases == 4


def test_a_vault_comes_before_the_archive(tmp_path: Path, store: Store, archive: Archive) -> None:
    """A blob of the vault with other bytes is not used."""
    vault, archive.openssl = Store(tmp_path), "3.0.19"
    locked = a_base(vault)

    assert ensure(locked, store, TORCHKILN_VAULT=str(tmp_path)) == (locked, ())
    assert (store.has_blob(locked.digest, locked.size), archive.bases) == (True, 0)

    store.blob(locked.digest).unlink()
    put(bytes(locked.size), vault.blob(locked.digest), vault)
    base, _ = ensure(locked, store, TORCHKILN_VAULT=str(tmp_path))
    assert (base, archive.bases) == (a_base(None, "3.0.19"), 1)


def test_added_removed_and_changed_packages() -> None:
    before, after = packages(a="1", b="1", c="1"), packages(b="2", c="1", d="1")

    assert package_changes(before, after) == ("a 1 → (gone)", "b 1 → 2", "d (new) → 1")


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
