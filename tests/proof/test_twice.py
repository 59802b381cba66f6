"""A lock and a vault are enough: without a network and with an empty cache, they give the same image."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_namespaces
from tests.proof.conftest import build
from tests.proof.headline import TAG
from torchkiln.base import artefact
from torchkiln.base.archive import commit_files
from torchkiln.base.remake import commit_effects
from torchkiln.locks.lock import save
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, needs_namespaces]


def test_a_vault_alone_gives_the_same_image(
    image: dict[str, Any], locked: LockedCell, room: None, tmp_path: Path
) -> None:
    """Every wheel is converted and compiled again, and the base is made from its packages."""
    images, vault, store = tmp_path / "images", tmp_path / "vault", Store(cache_root())
    save(images, locked)
    artefact.write_lock(images, locked.base)
    commit_files(images, locked.base, store)
    commit_effects(images, locked.base, store)
    keep = [sys.executable, str(ROOT / "build.py"), "vault", "keep", str(vault), TAG, "--images", str(images)]
    subprocess.run(keep, cwd=ROOT, check=True, capture_output=True)

    words = ("--images", str(images), "--vault", str(vault), "--locked")
    again = build(tmp_path / "dist", *words, cache=tmp_path / "cold", under=("unshare", "--net"))
    try:
        assert again["layers"] == image["layers"]
        assert again["digest"] == image["digest"]
    finally:
        for folder in (vault, tmp_path / "cold", tmp_path / "dist"):
            shutil.rmtree(folder)
