"""A bundle is whole or not there: what is read is compared with its digest, in each of the three forms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from torchkiln.errors import VerificationFailed
from torchkiln.smoke.bundle.contents import BundleFile
from torchkiln.smoke.bundle.write import write_folder, write_parts, write_tar

FORMS: dict[str, Callable[[Sequence[BundleFile], Path], None]] = {
    "folder": write_folder,
    "tar": write_tar,
    "parts": lambda files, target: write_parts(files, target, 1 << 20),
}


def carried(folder: Path) -> list[BundleFile]:
    """A small file held in memory, and one on disk of more than two pieces."""
    large = folder / "large"
    large.write_bytes(b"layer" * (1 << 19))
    files = {"run.py": b"print()\n", "layout/blobs/sha256/large": large}
    return [
        BundleFile(path=path, source=source, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, source in files.items()
        for data in [source if isinstance(source, bytes) else source.read_bytes()]
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("harm", ["changed", "longer", "shorter"])
def test_a_file_that_changed_leaves_no_bundle(form: str, harm: str, tmp_path: Path) -> None:
    files, target = carried(tmp_path), tmp_path / "out" / "bundle"
    target.parent.mkdir()
    source = files[1].source
    assert isinstance(source, Path)
    data = source.read_bytes()
    source.write_bytes({"changed": b"L" + data[1:], "longer": data + b"r", "shorter": data[:-1]}[harm])

    with pytest.raises(VerificationFailed, match="large"):
        FORMS[form](files, target)
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_the_same_files_unchanged_are_a_bundle(form: str, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    FORMS[form](carried(tmp_path), target)
    assert target.exists()


@pytest.mark.parametrize("form", FORMS)
def test_bytes_that_are_not_their_digest_are_refused_too(form: str, tmp_path: Path) -> None:
    run, *others = carried(tmp_path)
    with pytest.raises(VerificationFailed, match="run"):
        FORMS[form]([replace(run, source=b"exit()\n\n"), *others], tmp_path / "bundle")
