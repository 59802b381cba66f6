"""Write the documents of `tests/hostile_documents.py`.

Most functions return a function without parameters, which writes the document into the current folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.oci_samples import build
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
LOCK = Path("images") / TAG / "lock.json"
BASE = Path("images/base-debian12/base.json")


def matrix(text: str | bytes) -> Callable[[], object]:
    """Write matrix.yaml with *text*."""
    data = text.encode() if isinstance(text, str) else text
    return lambda: Path("matrix.yaml").write_bytes(data)


def matrix_line(was: str, now: str) -> Callable[[], object]:
    """Write the repository's matrix.yaml with *now* in place of *was*."""
    text = (ROOT / "matrix.yaml").read_text()
    assert was in text
    return matrix(text.replace(was, now, 1))


def locked() -> None:
    """Copy the repository's lock of a cell, and its base, to ./images."""
    for name in (TAG, "base-debian12"):
        shutil.copytree(ROOT / "images" / name, Path("images") / name)


def lock(change: Callable[[str], str | bytes], path: Path = LOCK) -> Callable[[], object]:
    """Change the text of the lock."""

    def arrange() -> None:
        locked()
        data = change(path.read_text())
        assert data != path.read_text()
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    return arrange


def lock_tree(change: Callable[[Any], object], path: Path = LOCK) -> Callable[[], object]:
    """Change the JSON of the lock."""

    def edit(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return lock(edit, path)


def layout(change: Callable[[Path], object]) -> Callable[[], object]:
    """Write a valid layout of one image, "a", and call *change* with its folder."""

    def arrange() -> None:
        build(Path.cwd())
        change(Path("layout"))

    return arrange


def index(change: Callable[[Any], object]) -> Callable[[], object]:
    """Change the layout's index.json."""

    def edit(folder: Path) -> None:
        document = json.loads((folder / "index.json").read_bytes())
        change(document)
        (folder / "index.json").write_text(json.dumps(document))

    return layout(edit)


def first_blob(change: Callable[[Path], object]) -> Callable[[], object]:
    """Change the blob of the manifest, but not the digest in index.json, so that they differ."""

    def edit(folder: Path) -> None:
        name = json.loads((folder / "index.json").read_bytes())["manifests"][0]["digest"]
        change(folder / "blobs" / "sha256" / name.removeprefix("sha256:"))

    return layout(edit)


def config(change: Callable[[Any], object]) -> Callable[[], object]:
    """Change the image's config, and update every digest above it."""

    def edit(folder: Path) -> None:
        index_json = json.loads((folder / "index.json").read_bytes())
        place = _blob(folder, index_json["manifests"][0])
        manifest = json.loads(place.read_bytes())
        document = json.loads(_blob(folder, manifest["config"]).read_bytes())
        change(document)
        manifest["config"] |= _put(folder, document)
        index_json["manifests"][0] |= _put(folder, manifest)
        (folder / "index.json").write_text(json.dumps(index_json))

    return layout(edit)


def manifest(change: Callable[[Any], object]) -> Callable[[], object]:
    """Change the image's manifest, and update its digest."""

    def edit(folder: Path) -> None:
        index_json = json.loads((folder / "index.json").read_bytes())
        document = json.loads(_blob(folder, index_json["manifests"][0]).read_bytes())
        change(document)
        index_json["manifests"][0] |= _put(folder, document)
        (folder / "index.json").write_text(json.dumps(index_json))

    return layout(edit)


def _blob(folder: Path, entry: Any) -> Path:
    return folder / "blobs" / "sha256" / str(entry["digest"]).removeprefix("sha256:")


def _put(folder: Path, document: Any) -> dict[str, Any]:
    data = json.dumps(document).encode()
    entry = {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
    _blob(folder, entry).write_bytes(data)
    return entry


def linked_blobs(folder: Path) -> None:
    """Move the folder of blobs out of the layout, and put a symbolic link in its place."""
    (folder / "blobs").rename(folder.parent / "elsewhere")
    (folder / "blobs").symlink_to("../elsewhere")


def linked(path: Path, target: str) -> None:
    """Replace the file *path* by a symbolic link to *target*."""
    path.unlink()
    path.symlink_to(target)


def piped(path: Path) -> None:
    """Replace *path* by a named pipe."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def report(change: Callable[[Any], object]) -> Callable[[], object]:
    """Write one of the reports in docs/proofs/, changed by *change*."""
    document = json.loads((ROOT / "docs/proofs/2.7.1-cuda12.1-debian12-tier0.json").read_bytes())

    def arrange() -> None:
        changed = change(document) or document
        Path("report.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))

    return arrange


def held(data: bytes | None) -> Callable[[], object]:
    """Write an image, and *data* as have.txt, the list of a host's layers. With None, it is a named pipe."""

    def arrange() -> None:
        build(Path.cwd())
        piped(Path("have.txt")) if data is None else Path("have.txt").write_bytes(data)

    return arrange


def project(name: str, text: str) -> Callable[[], object]:
    """Write a project whose only file is *name*, beside the locks of images."""
    return lambda: (locked(), Path("project").mkdir(), Path("project", name).write_text(text))
