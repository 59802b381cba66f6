"""A vault in real registries (docker-registry, crane's); skopeo copies one from a folder to a registry."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine.crane import both_registries, each_registry
from tests.engine.registry import RunningRegistry
from tests.needs import tool
from tests.publisher import Publisher, new_publisher
from tests.reports import TAG
from tests.smoke_suites import suite_to_read
from torchkiln.build.environment import Environment
from torchkiln.build.keep import check, drop, keep, vault_tag
from torchkiln.lock.lock import load_locked
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Silent
from torchkiln.vault.places import Vault, vault_at

__all__ = ["each_registry"]


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    found = new_publisher(tmp_path_factory.mktemp("vault") / "publisher", suite_to_read)
    found.build()
    return found


def faults(vault: Vault, folder: Path) -> tuple[str, ...]:
    return check(vault, folder, lambda _: None)[1]


def keep_in(publisher: Publisher, vault: Vault) -> int:
    """Keep the publisher's lock; returns the number of bytes that were copied."""
    images = publisher.folder / "images"
    environment = Environment(store=publisher.store, fetcher=None, observer=Silent())  # type: ignore[arg-type]
    return keep(load_locked(images, TAG), vault, environment, images).added


@both_registries
def test_a_registry_keeps_the_files_of_a_lock(
    registry: RunningRegistry, publisher: Publisher, tmp_path: Path
) -> None:
    locked = load_locked(publisher.folder / "images", TAG)
    vault = vault_at(f"oci://{registry.host}/{tmp_path.name.lower()}/vault", {})

    assert keep_in(publisher, vault) > 0
    assert keep_in(publisher, vault) == 0
    assert list(vault.tags()) == [vault_tag(locked)]
    assert faults(vault, tmp_path) == ()
    wheel = locked.wheels[0]
    assert vault.read(Digest(f"sha256:{wheel.sha256}"), wheel.size, tmp_path / "wheel", lambda _: None)
    assert (tmp_path / "wheel").read_bytes() == publisher.store.wheel(wheel).read_bytes()


@both_registries
def test_skopeo_copies_a_vault(registry: RunningRegistry, publisher: Publisher, tmp_path: Path) -> None:
    """Nothing is left to copy for `keep`."""
    tool("skopeo")
    folder, name = tmp_path / "vault", f"{registry.host}/{tmp_path.name.lower()}/copy"
    assert keep_in(publisher, vault_at(str(folder), {})) > 0
    (tag,) = vault_at(str(folder), {}).tags()
    words = ["skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false"]
    subprocess.run([*words, f"oci:{folder}:{tag}", f"docker://{name}:{tag}"], check=True, capture_output=True)

    copied = vault_at(f"oci://{name}", {})
    assert keep_in(publisher, copied) == 0
    assert faults(copied, tmp_path) == ()


@both_registries
def test_a_dropped_lock_is_gone_from_the_registry(
    registry: RunningRegistry, publisher: Publisher, tmp_path: Path
) -> None:
    vault = vault_at(f"oci://{registry.host}/{tmp_path.name.lower()}/drop", {})
    keep_in(publisher, vault)
    (tag,) = vault.tags()

    assert drop(vault, frozenset({tag})) == ()
    assert drop(vault, frozenset()) == (tag,)
    assert vault.tags() == {}
