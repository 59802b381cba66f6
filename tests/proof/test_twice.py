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
    base = Store(cache_root()).blob(image["layers"][0]["digest"])
    again = build(tmp_path / "elsewhere", *_base_of(image, base), cache=tmp_path / "cold")
    try:
        assert again["reused"] == [layer["what"] for layer in again["layers"] if "base" in layer["what"]] + [
            again["layers"][-1]["what"]
        ]
        assert again["layers"] == image["layers"]
        assert again["digest"] == image["digest"]
    finally:
        shutil.rmtree(tmp_path / "cold")
        shutil.rmtree(tmp_path / "elsewhere")


def _base_of(image: dict[str, Any], base: Path) -> tuple[str, ...]:
    """The option `--base` with the locked base; no option for a newer base, because `--base` refuses it."""
    return () if image["base_newer_than_lock"] else ("--base", str(base))
