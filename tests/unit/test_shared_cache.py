"""A cache folder that several users share: a file is copied only if its SHA-256 matches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stored import locked_file, put
from torchkiln.model.digest import Digest
from torchkiln.store.store import Store

CONTENT = b"a layer" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()
DIGEST = Digest(f"sha256:{SHA}")
WHEEL = locked_file("torch", "1.0", "torch-1.0-py3-none-any.whl", CONTENT)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A world-writable folder, as a laboratory may have at /srv/cache."""
    folder = tmp_path / "shared"
    (folder / "blobs" / "sha256").mkdir(parents=True)
    (folder / "wheels" / SHA).mkdir(parents=True)
    for made in (folder, *folder.rglob("*")):
        made.chmod(0o777)
    return folder


def store_of(tmp_path: Path, shared: Path) -> Store:
    return Store(tmp_path / "own", shared=shared)


def _other(path: Path) -> None:
    path.write_bytes(CONTENT[:-1] + b"!")


def _short(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])


def _long(path: Path) -> None:
    path.write_bytes(CONTENT + b"!")


def _link(path: Path) -> None:
    """A link, even to a file with the right bytes: its target could change later."""
    path.with_name("right").write_bytes(CONTENT)
    path.symlink_to("right")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _linked_above(path: Path) -> None:
    target = path.parents[1] / "moved"
    path.parent.rename(target)
    (target / path.name).write_bytes(CONTENT)
    path.parent.symlink_to(target)


HOSTILE: list[Callable[[Path], None]] = [_other, _short, _long, _link, _pipe, _folder, _linked_above]


@pytest.mark.parametrize("plant", HOSTILE, ids=lambda plant: plant.__name__.strip("_"))
def test_a_file_with_a_wrong_digest_is_not_used(
    tmp_path: Path, shared: Path, plant: Callable[[Path], None]
) -> None:
    store = store_of(tmp_path, shared)
    plant(shared / "blobs" / "sha256" / SHA)
    plant(shared / "wheels" / SHA / WHEEL.filename)
    assert not store.has_blob(DIGEST, len(CONTENT))
    assert not store.blob(DIGEST).exists()
    assert not store.has_wheel(WHEEL)
    assert not store.wheel(WHEEL).exists()
    assert list((tmp_path / "own" / "tmp").iterdir()) == []


def test_a_valid_file_is_copied_and_stays_valid(tmp_path: Path, shared: Path) -> None:
    """Changing the shared file after the check does not change the copy."""
    store, there = store_of(tmp_path, shared), shared / "blobs" / "sha256" / SHA
    there.write_bytes(CONTENT)
    assert store.has_blob(DIGEST, len(CONTENT))
    there.write_bytes(b"evil" * 1000)
    assert store.blob(DIGEST).read_bytes() == CONTENT
    assert store.blob(DIGEST).stat().st_nlink == 1


def test_files_of_a_user_are_used_by_another(tmp_path: Path, shared: Path) -> None:
    first, second = (Store(tmp_path / name, shared=shared) for name in ("first", "second"))
    made = first.temporary("made")
    made.write_bytes(CONTENT)
    first.adopt(made, first.wheel(WHEEL))
    assert second.has_wheel(WHEEL)
    assert second.wheel(WHEEL).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "kind", ["records", "bytecode", "interpreters", "rootfs", "keys", "pytest", "toolkits"]
)
def test_nothing_else_is_read_from_there(tmp_path: Path, shared: Path, kind: str) -> None:
    """For example, another user's records of which layer belongs to a wheel are not trusted."""
    store = store_of(tmp_path, shared)
    (shared / kind / "layers").mkdir(parents=True)
    (shared / kind / "layers" / "key.json").write_text("{}")
    assert store.record("layers", "key") is None
    assert list(store.records("layers")) == []
    store.put_record("layers", "own", {})
    assert not (shared / kind / "layers" / "own.json").exists()


def test_sharing_a_file_follows_no_link(tmp_path: Path, shared: Path) -> None:
    """Another user may have made a link in the shared folder; its target must not be written."""
    store, target = store_of(tmp_path, shared), tmp_path / "target"
    target.mkdir()
    (shared / "blobs" / "sha256").rmdir()
    (shared / "blobs" / "sha256").symlink_to(target)
    put(CONTENT, store.blob(DIGEST), store)
    assert list(target.iterdir()) == []
    assert store.blob(DIGEST).read_bytes() == CONTENT


def test_the_folder_is_named_by_the_environment(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "blobs" / "sha256" / SHA).write_bytes(CONTENT)
    assert not Store(tmp_path / "own").has_blob(DIGEST, len(CONTENT))
    monkeypatch.setenv("TORCHKILN_CACHE_SHARED", str(shared))
    assert Store(tmp_path / "own").has_blob(DIGEST, len(CONTENT))


def test_a_missing_shared_folder_is_ignored(tmp_path: Path) -> None:
    assert not store_of(tmp_path, tmp_path / "nowhere").has_blob(DIGEST, len(CONTENT))
