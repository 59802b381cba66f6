"""Where the doctor looks, as one folder: a sound image's parts, which tests break."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.inside import image
from workplace import checks
from workplace.image import load


class Place:
    """Where the doctor looks, below one folder: a sound image's parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "venv/python3.11/site-packages"
        self.facts = folder / "image.json"
        self.run = folder / "run"
        self.system = folder / "system"
        (self.site / "nvidia/cudnn/lib").mkdir(parents=True)
        (self.site / "nvidia/cudnn/lib/libcudnn.so.9").write_text("")
        for name, version in (("torch", "2.7.1"), ("nvidia_nccl_cu12", "2.26.2")):
            self.install(name, version)
        wheels = [{"name": name, "version": version} for name, version in image().wheels]
        self.facts.write_text(json.dumps(asdict(image()) | {"wheels": wheels}))
        self.run.mkdir()
        (self.system / "sys/class/net").mkdir(parents=True)
        for card in ("lo", "eth0"):
            (self.system / "sys/class/net" / card).write_text("")

    def install(self, name: str, version: str) -> None:
        """As pip notes it."""
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def program(self, name: str, script: str) -> None:
        """The only program of that PATH."""
        (self.folder / "bin").mkdir(exist_ok=True)
        place = self.folder / "bin" / name
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)

    def path(*parts: str | Path) -> Path:
        """What is the machine's own, from the folder `system`."""
        whole = Path(*parts)
        return found.system / whole.relative_to("/") if whole.parts[1] in ("dev", "sys") else whole

    monkeypatch.setattr(checks, "SITES", found.site.parents[1])
    monkeypatch.setattr(checks, "FACTS", found.facts)
    monkeypatch.setattr(checks, "Path", path)
    monkeypatch.setattr(checks, "runtime_folder", lambda: found.run)
    monkeypatch.setattr(load, "__defaults__", (found.facts,))
    return found
