"""A vault in real registries (docker-registry, crane's): skopeo copies it, and oras pulls a lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

from oras.client import OrasClient

from tests.engine.crane import both_registries, each_registry
from tests.engine.registry import RunningRegistry
from tests.layers import sha256
from tests.needs import tool
from tests.published import a_built_publisher
from tests.publisher import Publisher
from tests.unit.test_vault import Scene, wheel_digest
from torchkiln.engine.keep import drop
from torchkiln.vault.places import vault_at

__all__ = ["a_built_publisher", "each_registry"]


def in_registry(publisher: Publisher, registry: RunningRegistry, folder: Path) -> Scene:
    """A scene with a new repository of *registry* as its vault."""
    return Scene(publisher, vault_at(f"oci://{registry.host}/{folder.name.lower()}/vault", {}))


@both_registries
def test_a_registry_keeps_the_files_of_a_lock_until_it_is_dropped(
    registry: RunningRegistry, built: Publisher, tmp_path: Path
) -> None:
    scene = in_registry(built, registry, tmp_path)

    assert scene.keep().added > 0
    assert scene.keep().added == 0
    assert list(scene.vault.tags()) == [scene.tag]
    assert scene.check(tmp_path)[1] == ()
    wheel = scene.locked.wheels[0]
    assert scene.vault.read(wheel_digest(wheel), wheel.size, tmp_path / "wheel", lambda _: None)
    assert (tmp_path / "wheel").read_bytes() == built.store.wheel(wheel).read_bytes()

    assert drop(scene.vault, frozenset({scene.tag})) == ()
    assert drop(scene.vault, frozenset()) == (scene.tag,)
    assert scene.vault.tags() == {}


@both_registries
def test_skopeo_copies_a_vault(registry: RunningRegistry, built: Publisher, tmp_path: Path) -> None:
    """Nothing is left to copy for `keep`."""
    tool("skopeo")
    local, copied = Scene(built, vault_at(f"{tmp_path}/vault", {})), in_registry(built, registry, tmp_path)
    assert local.keep().added > 0
    name = copied.vault.name.removeprefix("oci://")
    places = (f"oci:{local.vault.name}:{local.tag}", f"docker://{name}:{local.tag}")
    words = ["skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false"]
    subprocess.run([*words, *places], check=True, capture_output=True)

    assert copied.keep().added == 0
    assert copied.check(tmp_path)[1] == ()


@both_registries
def test_oras_pulls_the_files_of_a_lock(registry: RunningRegistry, built: Publisher, tmp_path: Path) -> None:
    scene = in_registry(built, registry, tmp_path)
    scene.keep()

    name = f"{scene.vault.name.removeprefix('oci://')}:{scene.tag}"
    pulled = OrasClient(insecure=True).pull(name, outdir=str(tmp_path / "pulled"))
    hashes = {Path(path).name: sha256(Path(path)) for path in pulled}
    assert {wheel.filename: wheel.sha256 for wheel in scene.locked.wheels}.items() <= hashes.items()
