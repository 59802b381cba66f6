"""Two complete builds of the same lock give the same image."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.proof.conftest import build
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

pytestmark = pytest.mark.proof


def test_a_cold_cache_gives_the_same_image(image: dict[str, Any], room: None, tmp_path: Path) -> None:
    """Only the base is reused: every wheel is downloaded, converted and compiled again."""
    if not image["base_newer_than_lock"]:  # a newer one is built again
        digest, cold = image["layers"][0]["digest"], Store(tmp_path / "cold")
        cold.blob(digest).parent.mkdir(parents=True)
        shutil.copyfile(Store(cache_root()).blob(digest), cold.blob(digest))
    again = build(tmp_path / "elsewhere", cache=tmp_path / "cold")
    try:
        assert again["reused"] == [layer["what"] for layer in again["layers"] if "base" in layer["what"]] + [
            again["layers"][-1]["what"]
        ]
        assert again["layers"] == image["layers"]
        assert again["digest"] == image["digest"]
    finally:
        shutil.rmtree(tmp_path / "cold")
        shutil.rmtree(tmp_path / "elsewhere")
