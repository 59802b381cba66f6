"""Layouts that others wrote: read, or told; what is no plain file is not opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.document_strategies import FEW, VALUES, answer, json_bytes, mutated
from tests.hostile_documents import case, provoke
from tests.validated import build
from torchkiln.errors import VerificationFailed, printable
from torchkiln.oci.layout import Layout, open_layout
from torchkiln.oci.validate.validate import validate


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A sound one, whose documents the tests replace."""
    return build(tmp_path_factory.mktemp("layout"))


def put(layout: Layout, what: str, change: Callable[[Any], Any]) -> None:
    """*change* one of the three documents, with every digest above it right, in a fresh index.json."""
    from tests.oci_samples import digest

    index = {"schemaVersion": 2, "manifests": []} | json.loads(INDEX[layout.path])
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


INDEX: dict[Path, bytes] = {}


@given(data=st.data(), what=st.sampled_from(("index", "manifest", "config")))
@FEW
def test_a_layout_with_one_thing_changed_is_read_or_told(
    layout: Layout, data: st.DataObject, what: str
) -> None:
    """By the readers and by the oracle; what the oracle finds sound, the readers read."""
    INDEX.setdefault(layout.path, (layout.path / "index.json").read_bytes())

    def change(document: Any) -> Any:
        return data.draw(mutated(document) | VALUES)

    put(layout, what, change)
    faults = validate(layout.path, None, workers=1)
    real = [fault for fault in faults if "unreferenced blob" not in fault.what]

    def read() -> object:
        opened = open_layout(layout.path)
        opened.needed()
        return [opened.image(name) for name in opened.refs()]

    answer(read)
    if not real:
        assert all(fault.where == str(fault.where) for fault in faults)


COMMANDS = (
    ("verify", "layout"),
    ("verify", "layout:a"),
    ("run", "--output", "layout", "a", "--", "true"),
    ("diff", "a", "a", "--output", "layout"),
    ("diff", "--files", "a", "a", "--output", "layout"),
    ("sharing", "--output", "layout"),
    ("sbom", "a", "--output", "layout"),
    ("publish", "a", "--output", "layout", "--to", "127.0.0.1:9/team/app"),
)


@given(data=st.data(), what=st.sampled_from(("index", "manifest", "config")), argv=st.sampled_from(COMMANDS))
@FEW
def test_a_user_reads_a_sentence_whatever_is_changed_in_a_layout(
    layout: Layout, data: st.DataObject, what: str, argv: tuple[str, ...]
) -> None:
    """By the whole command: anything but a KilnError would come out of it here."""
    INDEX.setdefault(layout.path, (layout.path / "index.json").read_bytes())
    put(layout, what, lambda document: data.draw(mutated(document) | VALUES))
    said = provoke(case("x", lambda: None, argv, 0, ""), layout.path.parent)

    assert said.code in (0, 2, 3, 5, 7, 8, 9, 12, 127)
    assert "Traceback" not in said.err
    assert printable(said.err + said.out) == said.err + said.out
    assert len(said.err) < 20_000


def test_what_is_no_file_in_a_layout_is_not_opened(tmp_path: Path) -> None:
    """A layer that is a link out of the layout, a folder or a pipe: neither followed nor waited for."""

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
