"""A devel cell that both engines build in seconds: the scene's wheels and base, and devel's real tools.

The tools are built here and now on the whole base, once. They fit the slim one too: they take nothing away.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.docker.scene import TAG, Scene
from tests.gridcase import FACTS, MATRIX
from torchkiln.base import artefact, tools
from torchkiln.lock.lock import inputs_digest, load_locked, save
from torchkiln.matrix.os_tools import packages_of
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedBase, LockedTools
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

DEVEL = "2.11.0-cuda13.0-cudnn9-devel"
CELL = ("--torch", "2.11", "--cuda", "13.0", "--flavor", "devel")
TELL_TALE = "tell-tale"


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Tools built just now; `store` has their blob and the base's."""

    base: LockedBase
    tools: LockedTools
    store: Store

    def again(self, folder: Path) -> LockedTools:
        """The same once more, elsewhere."""
        return tools.build(
            "devel", packages_of("devel"), self.base, kept_base(self.base, folder), environ=os.environ
        )


def kept_base(base: LockedBase, folder: Path) -> Store:
    """A store in *folder* that has *base*."""
    kept, store = Store(cache_root()), Store(folder)
    artefact.ensure(base, kept, os_name=base.os, environ=os.environ)
    place = store.blob(base.digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_dev == kept.root.stat().st_dev:
        os.link(kept.blob(base.digest), place)
    else:
        shutil.copyfile(kept.blob(base.digest), place)
    return store


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """With a scratch folder and an environment that would show if they leaked."""
    base = artefact.read_lock(ROOT / "images", "debian12")
    assert base is not None
    store = kept_base(base, tmp_path_factory.mktemp("cache"))
    environ = {**os.environ, "LANG": f"xy_{TELL_TALE}.UTF-8", "no_proxy": TELL_TALE, "SOMETHING": TELL_TALE}
    made = tools.build("devel", packages_of("devel"), base, store, environ=environ)
    return Fresh(base=base, tools=made, store=store)


@pytest.fixture(scope="session")
def devel(scene: Scene, fresh: Fresh) -> Scene:
    """The scene with a devel cell's lock beside the runtime one's."""
    runtime = load_locked(scene.images, TAG)
    cell = Cell(torch="2.11.0", cuda="13.0", flavor="devel", os="debian12", python="3.11")
    resolution = resolve(cell, MATRIX, FACTS)
    images = scene.images.parent / "devel" / "images"
    save(
        images,
        replace(
            runtime,
            resolution=resolution,
            inputs=inputs_digest(resolution, ()),
            tools=replace(fresh.tools, base=runtime.base.digest),
        ),
    )
    place = Store(scene.cache).blob(fresh.tools.digest)
    shutil.copyfile(fresh.store.blob(fresh.tools.digest), place)
    return replace(scene, images=images)
