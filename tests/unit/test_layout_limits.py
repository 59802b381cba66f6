"""Untrusted layouts are read, or refused with a message; commands need less than 400 MiB."""

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
from hypothesis import given
from hypothesis import strategies as st

from tests.arranged_documents import config, manifest
from tests.document_strategies import FEW, VALUES, json_bytes, mutated
from tests.hostile_documents import case, provoke
from tests.needs import nightly
from tests.oci_samples import build
from tests.peak import LIMIT, run
from torchkiln.errors import VerificationFailed, printable
from torchkiln.oci.layout import Layout
from torchkiln.oci.validate import documents
from torchkiln.oci.validate.validate import validate

COMMANDS = {
    "verify": ("verify", "layout"),
    "run": ("run", "--output", "layout", "a", "--", "true"),
    "diff": ("diff", "a", "a", "--output", "layout"),
    "sbom": ("sbom", "a", "--output", "layout"),
    "export squashfs": ("export", "squashfs", "x", "a", "--output", "layout"),
    "export erofs": ("export", "erofs", "x", "--all", "--output", "layout"),
    "export gc": ("export", "gc", ".", "--output", "layout"),
    "push": ("push", "a", "--output", "layout", "--to", "127.0.0.1:9/team/app"),
    "gate": ("gate", "a", "--output", "layout"),
    "smoke": ("smoke", "run", "a", "--output", "layout"),
}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def raw(name: str, data: bytes) -> Callable[[], object]:
    """Write *data* as the file *name* of a layout."""

    def arrange() -> None:
        build(Path.cwd())
        Path("layout", name).write_bytes(data)

    return arrange


def many(count: int) -> Callable[[], object]:
    """A layout with *count* images, whose manifests and configs have the maximum size."""

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
            entry_json = {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": labels},
                "rootfs": {"type": "layers", "diff_ids": []},
            }
            image = {"schemaVersion": 2, "config": {"mediaType": _CONFIG, **put(entry_json)}, "layers": []}
            name = {"org.opencontainers.image.ref.name": f"a{number}" if number else "a"}
            entries.append({"mediaType": _MANIFEST, **put(image), "annotations": name})
        Path("layout/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))

    return arrange


LAYOUTS: dict[str, Callable[[], object]] = {
    "an index of two million objects": raw("index.json", b"[" + b"{}," * 1_300_000 + b"{}]"),
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
    """A function that returns the folder of the layout with a given name; commands only read it."""

    @cache
    def arrange(name: str) -> Path:
        folder = tmp_path_factory.mktemp("layouts")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            LAYOUTS[name]()
        return folder / "layout"

    return arrange


# `make test`: `verify` reads all layouts except the longest. `make proof`: it reads the longest, too.
# NIGHTLY=yes: every command reads every layout.
CASES = [
    pytest.param(
        name,
        command,
        marks=[pytest.mark.proof, nightly]
        if command != "verify"
        else [pytest.mark.proof]
        if name.startswith("sixteen")
        else [],
    )
    for name in LAYOUTS
    for command in COMMANDS
]


@pytest.mark.parametrize(("name", "command"), CASES)
def test_memory_for_a_layout(
    name: str, command: str, arranged: Callable[[str], Path], tmp_path: Path
) -> None:
    """Each layout is read, or refused without a traceback."""
    shutil.copytree(arranged(name), tmp_path / "layout", copy_function=os.link)
    done = run(*COMMANDS[command], folder=tmp_path)

    assert done.peak < LIMIT
    assert "Traceback" not in done.err
    assert len(done.err) < 20_000
    if not name.startswith(("a config", "sixteen", "a manifest")):
        lines = [line for line in done.err.splitlines() if not line.startswith("torchkiln: verified ")]
        assert (done.code, lines[0][:7]) == (12, "error: ")


def test_one_manifest_under_ten_thousand_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle, which reads every referenced document, reads it only once, too."""
    layout = build(tmp_path)
    entry_json = json.loads((layout.path / "index.json").read_bytes())
    [entry] = entry_json["manifests"]
    name = "org.opencontainers.image.ref.name"
    entry_json["manifests"] = [{**entry, "annotations": {name: f"a{n}"}} for n in range(5000)]
    (layout.path / "index.json").write_text(json.dumps(entry_json))
    read = documents.read_file
    opened: list[Path] = []

    def counted(path: Path, limit: int, *, follow: bool = True) -> bytes:
        opened.append(path)
        return read(path, limit, follow=follow)

    monkeypatch.setattr(documents, "read_file", counted)
    assert validate(layout.path, None, workers=1) == ()
    assert len(opened) == 4


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A valid layout, whose documents the tests replace, and beside it a copy of it."""
    built = build(tmp_path_factory.mktemp("layout"))
    shutil.copytree(built.path, built.path.with_name("unchanged"))
    return built


def put(layout: Layout, what: str, change: Callable[[Any], Any]) -> None:
    """Restore *layout*, apply *change* to the index, manifest or config, and update all digests above it."""
    from tests.oci_samples import digest

    shutil.rmtree(layout.path)
    shutil.copytree(layout.path.with_name("unchanged"), layout.path)
    index = {"schemaVersion": 2, "manifests": []} | json.loads((layout.path / "index.json").read_bytes())
    manifest_path = layout.blob(index["manifests"][0]["digest"])
    manifest = json.loads(manifest_path.read_bytes())
    if what == "config":
        data = json_bytes(change(json.loads(layout.blob(manifest["config"]["digest"]).read_bytes())))
        layout.blob(digest(data)).write_bytes(data)
        manifest["config"] |= {"digest": digest(data), "size": len(data)}
    if what != "index":
        data = json_bytes(change(manifest) if what == "manifest" else manifest)
        layout.blob(digest(data)).write_bytes(data)
        index["manifests"][0] |= {"digest": digest(data), "size": len(data)}
    (layout.path / "index.json").write_bytes(json_bytes(change(index) if what == "index" else index))


COMMANDS_LAYOUTS = (
    ("verify", "layout"),
    ("verify", "layout:a"),
    ("run", "--output", "layout", "a", "--", "true"),
    ("diff", "a", "a", "--output", "layout"),
    ("sbom", "a", "--output", "layout"),
    ("publish", "a", "--output", "layout", "--to", "127.0.0.1:9/team/app"),
)


@given(
    data=st.data(),
    what=st.sampled_from(("index", "manifest", "config")),
    argv=st.sampled_from(COMMANDS_LAYOUTS),
)
@FEW
def test_any_change_of_a_layout_ends_with_a_message(
    layout: Layout, data: st.DataObject, what: str, argv: tuple[str, ...]
) -> None:
    """The complete command runs; any exception other than KilnError fails the test."""
    put(layout, what, lambda document: data.draw(mutated(document) | VALUES))
    ran = provoke(case("x", lambda: None, argv, 0, ""), layout.path.parent)

    assert ran.code in (0, 2, 3, 5, 7, 8, 9, 12, 127)
    assert "Traceback" not in ran.err
    assert printable(ran.err + ran.out) == ran.err + ran.out
    assert len(ran.err) < 20_000


def test_special_files_in_a_layout_are_not_opened(tmp_path: Path) -> None:
    """In place of a layer there is a link to a file outside of the layout, a folder or a pipe."""

    made = build(tmp_path)
    layer = made.image("a").layers[0].path
    for put_there in (lambda: layer.symlink_to("/etc/passwd"), layer.mkdir, lambda: os.mkfifo(layer)):
        if layer.is_dir() and not layer.is_symlink():
            layer.rmdir()
        else:
            layer.unlink()
        put_there()
        with pytest.raises(VerificationFailed, match="not a regular file"):
            made.image("a")
        assert any("is not a regular file" in fault.what for fault in validate(made.path))
