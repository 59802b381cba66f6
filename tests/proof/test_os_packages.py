"""OS packages of a project from the real archive, on the locked base of debian12."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.needs import needs_mmdebstrap, nightly
from tests.stored import committed_base
from torchkiln.base import artefact
from torchkiln.base.remake import APT_EFFECTS, commit_effects, learn
from torchkiln.errors import BuildFailed
from torchkiln.model.apt import OsLayers
from torchkiln.projects.apt.os_packages import ensure_apt, lock_apt
from torchkiln.store.store import Store, cache_root

pytestmark = [pytest.mark.proof, pytest.mark.network, needs_mmdebstrap]

# Packages with libraries, alternatives, a system user, a service, and a script that writes in random order.
NAMES = ("dbus", "ed", "git-lfs", "libglib2.0-0", "libxcb1")


def copied(layers: OsLayers, source: Store, root: Path) -> Store:
    store = Store(root)
    blob = store.temporary("base")
    shutil.copy(source.blob(layers.base.digest), blob)
    store.adopt(blob, store.blob(layers.base.digest))
    return store


def test_the_real_archives_packages_give_the_same_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lock packages, and build the layer with other caches: by mmdebstrap, and without it from effects."""
    mine = Store(cache_root())
    base, _ = artefact.ensure(committed_base(), mine)
    layers = OsLayers(base=base)
    first, second, third = (copied(layers, mine, tmp_path / name) for name in ("1", "2", "3"))

    apt, notes = lock_apt(NAMES, layers, frozenset(), first, environ=os.environ)

    assert notes == ()
    names = [deb.name for deb in apt.debs]
    assert {*NAMES, "libxau6", "libxdmcp6"} <= {*names}
    assert not {*names} & {package.name for package in base.packages}
    with tarfile.open(first.blob(apt.digest)) as tar:
        members = {member.name for member in tar if not member.isdir()}
    assert {"usr/bin/git-lfs", "usr/lib/x86_64-linux-gnu/libxcb.so.1", "etc/ld.so.cache"} <= members
    assert not {"var/lib/dbus/machine-id", "etc/machine-id", "etc/apt/sources.list"} & members
    assert ensure_apt(apt, layers, frozenset(), second, environ=os.environ) == apt
    commit_effects(tmp_path, apt, first)
    learn(tmp_path, apt, third)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert ensure_apt(apt, layers, frozenset(), third, environ=os.environ) == apt
    assert (tmp_path / APT_EFFECTS).stat().st_size < 150_000


@nightly
def test_a_real_package_with_a_private_key_is_refused(tmp_path: Path) -> None:
    mine = Store(cache_root())
    base, _ = artefact.ensure(committed_base(), mine)
    layers = OsLayers(base=base)
    with pytest.raises(BuildFailed, match=r"etc/ssl/private/\S+ is a private key"):
        lock_apt(("ssl-cert",), layers, frozenset(), copied(layers, mine, tmp_path), environ=os.environ)
