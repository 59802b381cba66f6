"""Layouts that want our memory: whole commands in processes of their own, below 400 MiB."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hostile_documents import config, manifest
from tests.peak import LIMIT, run
from tests.validated import build
from torchkiln.oci.validate import documents
from torchkiln.oci.validate.validate import validate

COMMANDS = {
    "verify": ("verify", "layout"),
    "run": ("run", "--output", "layout", "a", "--", "true"),
    "diff": ("diff", "a", "a", "--output", "layout"),
    "sharing": ("sharing", "--output", "layout"),
    "sbom": ("sbom", "a", "--output", "layout"),
}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def raw(name: str, data: bytes) -> Callable[[], object]:
    """The file *name* of a layout with *data*."""

    def arrange() -> None:
        build(Path.cwd())
        Path("layout", name).write_bytes(data)

    return arrange


def many(count: int) -> Callable[[], object]:
    """So many images, each with a manifest and a config of its own as long as they may be."""

    def put(document: Any) -> dict[str, Any]:
        data = json.dumps(document).encode()
        name = hashlib.sha256(data).hexdigest()
        Path("layout/blobs/sha256", name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    def arrange() -> None:
        build(Path.cwd())
        entries = []
        for number in range(count):
            labels = {f"{number}-{n:x}": "x" * 20 for n in range(90_000)}
            told = {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": labels},
                "rootfs": {"type": "layers", "diff_ids": []},
            }
            image = {
                "schemaVersion": 2,
                "config": {"mediaType": _CONFIG, **put(told)},
                "layers": [],
            }
            name = {"org.opencontainers.image.ref.name": f"a{number}" if number else "a"}
            entries.append({"mediaType": _MANIFEST, **put(image), "annotations": name})
        Path("layout/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))

    return arrange


LAYOUTS: dict[str, Callable[[], object]] = {
    "an index of two million objects": raw("index.json", b"[" + b"{}," * 1_300_000 + b"{}]"),
    "an index of objects of one key": raw("index.json", b"[" + b'{"a":1},' * 500_000 + b"0]"),
    "an index of escapes": raw("index.json", b'["' + b"\\n" * 2_000_000 + b'"]'),
    "a version file of a gigabyte": lambda: (raw("oci-layout", b"")(), _sparse(Path("layout/oci-layout"))),
    "a config of labels": config(lambda d: d["config"].update(Labels={f"{n:x}": "" for n in range(150_000)})),
    "a manifest of annotations": manifest(
        lambda d: d.update(annotations={f"{n:x}": "" for n in range(150_000)})
    ),
    "sixteen images with long configs": many(16),
}


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


@pytest.fixture(scope="module")
def arranged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the layout of that name, which all commands read."""

    @cache
    def arrange(name: str) -> Path:
        folder = tmp_path_factory.mktemp("layouts")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            LAYOUTS[name]()
        return folder / "layout"

    return arrange


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_for_a_layout(
    name: str, command: str, arranged: Callable[[str], Path], tmp_path: Path
) -> None:
    """Read or refused, and no traceback."""
    shutil.copytree(arranged(name), tmp_path / "layout", copy_function=os.link)
    done = run(*COMMANDS[command], folder=tmp_path)

    assert done.peak < LIMIT
    assert "Traceback" not in done.err
    assert len(done.err) < 20_000
    if not name.startswith(("a config", "sixteen", "a manifest")):
        assert (done.code, done.err[:7]) == (12, "error: ")


def test_one_manifest_under_ten_thousand_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the oracle too, which reads each document that it comes to."""
    layout = build(tmp_path)
    told = json.loads((layout.path / "index.json").read_bytes())
    [entry] = told["manifests"]
    name = "org.opencontainers.image.ref.name"
    told["manifests"] = [{**entry, "annotations": {name: f"a{n}"}} for n in range(5000)]
    (layout.path / "index.json").write_text(json.dumps(told))
    read = documents.read_file
    opened: list[Path] = []

    def counted(path: Path, limit: int, *, follow: bool = True) -> bytes:
        opened.append(path)
        return read(path, limit, follow=follow)

    monkeypatch.setattr(documents, "read_file", counted)
    assert validate(layout.path, None, workers=1) == ()
    assert len(opened) == 4
