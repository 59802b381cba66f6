"""The list of the .deb files of a base, written beside its lock from the indexes of the OS archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import sboms
from torchkiln.base.archive import from_json, read_files, read_lists, record_files, to_json, write_files
from torchkiln.base.artefact import read_lock
from torchkiln.base.mmdebstrap import command, scratch
from torchkiln.base.recipe import recipe
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.lock import OsPackage
from torchkiln.store.store import Store
from torchkiln.util.deb822 import paragraphs
from torchkiln.util.places import ROOT

BASE = sboms.locked().base
FILES = sboms.files(sboms.locked())
PACKAGES = """\
Package: tini
Source: tini (0.19.0-1)
Version: 0.19.0-1+b3
Architecture: amd64
Description: a small init
 with more words
Size: 248
SHA256: {0:064x}

Package: tini
Version: 0.18
Architecture: amd64
Size: 1
SHA256: {1:064x}

Package: other
Version: 1
SHA256: {1:064x}
"""


def lists(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"mirror.test_{name}_Packages").write_text(text)
    (folder / "mirror.test_InRelease").write_text("no field at all")
    return folder


def test_an_index_has_the_file_of_the_exact_version(tmp_path: Path) -> None:
    packages = (OsPackage(name="tini", version="0.19.0-1+b3"), OsPackage(name="gone", version="1"))
    (found,) = read_lists(lists(tmp_path / "lists", main=PACKAGES.format(10, 11)), packages)

    assert (found.name, found.version, found.architecture) == ("tini", "0.19.0-1+b3", "amd64")
    assert (found.source, found.size, found.sha256) == ("tini (0.19.0-1)", 248, f"{10:064x}")


def test_an_invalid_index_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="security_Packages cannot be read: line 1: not a field"):
        read_lists(lists(tmp_path / "lists", main="", security="<html>\n"), BASE.packages)


def test_a_written_note_reads_back() -> None:
    assert from_json(to_json(FILES)) == FILES
    assert from_json(to_json(replace(FILES, debs=()))) == replace(FILES, debs=())


def test_a_note_belongs_to_one_base(tmp_path: Path) -> None:
    store, images = Store(tmp_path / "cache"), tmp_path / "images"
    other_base = replace(BASE, digest=sboms.IMAGE)
    assert read_files(images, BASE, store) is None

    write_files(images, BASE, FILES)
    assert read_files(images, BASE, store) == FILES
    assert read_files(images, other_base, store) is None

    record_files(store, replace(FILES, base=other_base.digest))
    assert read_files(images, other_base, store) == replace(FILES, base=other_base.digest)


def test_a_broken_note_is_named(tmp_path: Path) -> None:
    path = write_files(tmp_path, BASE, FILES)
    path.write_text(path.read_text().replace("amd64", "a m d"))

    with pytest.raises(ConfigError, match=r"debs\.json: debs\[0\]\.architecture"):
        read_files(tmp_path, BASE, Store(tmp_path / "cache"))


def test_the_base_is_unchanged_and_lists_and_packages_are_copied_out() -> None:
    """mmdebstrap gets two more hooks, which copy to folders outside the base; the last one deletes both."""
    plain = command(recipe("debian12"), {}, unprivileged=False)
    with scratch(recipe("debian12"), {"TORCHKILN_DEBIAN_KEYRING": __file__}) as made:
        keyring = recipe("debian12").keyring
        place = replace(made, lists=Path("/tmp/x y"), debs=Path("/tmp/d"), keyring=Path(keyring))
    noted = command(recipe("debian12"), {}, unprivileged=False, place=place)

    more = [argument for argument in noted if argument not in plain]
    assert more == [
        "--customize-hook=sync-out /var/lib/apt/lists '/tmp/x y'",
        "--customize-hook=sync-out /var/cache/apt/archives /tmp/d",
    ]
    assert [argument for argument in noted if argument not in more] == plain
    assert [argument for argument in noted if "-hook=" in argument][-3:-1] == more


def test_the_committed_note_is_of_the_committed_base(tmp_path: Path) -> None:
    """The committed list has one .deb file for every package of the committed base."""
    locked = read_lock(ROOT / "images", "debian12")
    assert locked is not None
    found = read_files(ROOT / "images", locked, Store(tmp_path))

    assert found is not None
    known = {(deb.name, deb.version) for deb in found.debs}
    assert known == {(package.name, package.version) for package in locked.packages}
    assert len({deb.sha256 for deb in found.debs}) == len(found.debs) == len(locked.packages)


def test_paragraphs() -> None:
    text = "A: 1\n# a comment\nb:  2 \n three\n .\n\n\n\nC:\n"

    assert list(paragraphs(["A: 1", "A: 2"], repeated=frozenset("a"))) == [{"a": "2"}]
    assert list(paragraphs(text.split("\n"))) == [{"a": "1", "b": "2\nthree\n."}, {"c": ""}]
    faults = {
        "x\n": "line 1: not a field",
        "A: 1\na: 2": "line 2: duplicate field",
        " x": "line 1: continuation line",
    }
    for wrong, base_files in faults.items():
        with pytest.raises(ValueError, match=base_files):
            list(paragraphs(wrong.split("\n")))


def test_long_fields_are_read_in_linear_time() -> None:
    """If each line were joined to the text before it, terabytes would be copied."""
    [fields] = paragraphs(["Package: x", "Description: y", *(300_000 * [" z" * 20])])

    assert len(fields["description"]) == len("y") + 300_000 * 40
