"""The evidence of an image in a layout: each layer is read once, and verified; and the command `sbom`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tarfile import LNKTYPE, SYMTYPE, TarInfo

import pytest
from click.testing import CliRunner

from tests import sboms
from tests.roots import entry, layer, minimal_layout
from torchkiln.base.archive import write_files
from torchkiln.cli.sbom import sbom
from torchkiln.errors import Stale, VerificationFailed
from torchkiln.locks.lock import save
from torchkiln.matrix.tags import tag_of
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.unpack import LayerBlob
from torchkiln.sbom.matches import listed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def upper(folder: Path, image: ImageOnDisk, *more: tuple[TarInfo, bytes]) -> ImageOnDisk:
    """*image* with another layer on top, which has the entries *more*."""
    folder.mkdir()
    top = layer(folder, *more)
    layers = [LayerBlob(path=image_layer.path, diff_id=image_layer.diff_id) for image_layer in image.layers]
    return open_layout(minimal_layout(folder / "dist", [*layers, top], {}, "upper")).image("upper")


def test_layers_have_the_metadata_of_their_files(tmp_path: Path, cache: Path) -> None:
    assert sboms.read(sboms.image(tmp_path / "a"), cache) == sboms.evidence()


def test_a_layer_is_read_once(tmp_path: Path, cache: Path) -> None:
    """For the second SBOM, the layer's blob may be missing."""
    image = sboms.image(tmp_path / "a")
    first = sboms.read(image, cache)
    for image_layer in image.layers:
        image_layer.path.unlink()

    assert sboms.read(image, cache) == first


def test_for_another_image_only_its_own_layers_are_read(tmp_path: Path, cache: Path) -> None:
    image = sboms.image(tmp_path / "a")
    sboms.read(image, cache)
    path = f"{sboms.SITE}/more-1.dist-info/METADATA"
    other = upper(tmp_path / "b", image, entry(path, sboms.metadata("more", "1").encode()))
    for image_layer in other.layers[:-1]:
        image_layer.path.write_bytes(b"not looked at")

    assert "more" in {distribution.name for distribution in sboms.read(other, cache).distributions}


def test_a_record_of_another_format_is_not_used(tmp_path: Path, cache: Path) -> None:
    image = sboms.image(tmp_path / "a")
    sboms.read(image, cache)
    for path in (cache / "records/evidence").iterdir():
        path.chmod(0o644)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"form": 0, "texts": {}}))

    assert sboms.read(image, cache) == sboms.evidence()


def test_a_file_deleted_by_an_upper_layer_is_ignored(tmp_path: Path, cache: Path) -> None:
    folder, name = f"{sboms.SITE}/tqdm-4.67.1.dist-info".rsplit("/", 1)
    other = upper(tmp_path / "b", sboms.image(tmp_path / "a"), entry(f"{folder}/.wh.{name}"))

    for found in (sboms.read(other, cache), sboms.read(other, cache)):  # from its layers, then from the cache
        assert "tqdm" not in {distribution.name for distribution in found.distributions}


@pytest.mark.parametrize("kind", [LNKTYPE, SYMTYPE], ids=["hard", "symbolic"])
def test_links_are_handled(tmp_path: Path, cache: Path, kind: bytes) -> None:
    """METADATA may not be a link. A link to a copyright file is followed."""
    there, here = "usr/share/doc/gcc-12-base/copyright", "usr/share/doc/tini/copyright"
    target = there if kind == LNKTYPE else "../gcc-12-base/copyright"
    image_layer = upper(tmp_path / "b", sboms.image(tmp_path / "a"), entry(here, kind=kind, to=target))
    other = upper(
        tmp_path / "c", image_layer, entry(f"{sboms.SITE}/x-1.dist-info/METADATA", kind=kind, to="etc/x")
    )

    tini = next(package for package in sboms.read(image_layer, cache).packages if package.name == "tini")
    assert tini.copyright == there
    with pytest.raises(VerificationFailed, match=r"x-1\.dist-info/METADATA: must not be a link"):
        sboms.read(other, cache)


@pytest.mark.parametrize("damage", ["flipped", "cut", "swapped"])
def test_a_damaged_layer(tmp_path: Path, cache: Path, damage: str) -> None:
    """The layer is refused, and nothing that was read from it is stored."""
    image = sboms.image(tmp_path / "a")
    path = image.layers[1].path
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        shutil.copy(image.layers[2].path, path)

    with pytest.raises(VerificationFailed, match=r"^\w{64}: (the data is damaged: |diff_id mismatch: )"):
        sboms.read(image, cache)
    noted = {image_layer.stem for image_layer in (cache / "records/evidence").glob("*")}
    assert image.layers[1].diff_id.removeprefix("sha256:") not in noted


def test_texts_of_a_layer_are_limited(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small layer can contain texts that decompress to gigabytes."""
    monkeypatch.setattr("torchkiln.oci.read_tar._TEXTS_LIMIT", 1000)

    with pytest.raises(VerificationFailed, match="the text files have more than"):
        sboms.read(sboms.image(tmp_path / "a"), cache)


def check(image: ImageOnDisk, document: Path) -> str:
    layout = image.manifest_path.parents[2]
    arguments = [image.ref, "--output", str(layout), "--check", str(document)]
    done = CliRunner().invoke(sbom, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_command_compares_a_document_with_an_image(tmp_path: Path) -> None:
    from torchkiln.sbom.cyclonedx import cyclonedx

    image = sboms.image(tmp_path / "a")
    bill = sboms.bill()
    mine = tmp_path / "image.cdx.json"
    mine.write_bytes(cyclonedx(bill).replace(bill.image[7:].encode(), image.manifest[7:].encode()))
    assert check(image, mine) == f"{image.manifest}\n"
    mine.write_bytes(cyclonedx(bill))
    with pytest.raises(VerificationFailed, match="does not match it:\n  the SBOM is of "):
        check(image, mine)


def test_the_command_writes_only_the_document(tmp_path: Path) -> None:
    """stdout has only the document, which `--check` accepts. Notes are on stderr."""
    images, cell = tmp_path / "images", sboms.locked()
    save(images, cell)
    write_files(images, cell.base, sboms.files(cell))
    image = sboms.image(tmp_path / "a", ref=tag_of(cell.resolution))
    where = ["--output", str(tmp_path / "a/dist"), "--images", str(images)]
    done = CliRunner().invoke(sbom, [image.ref, *where], catch_exceptions=False)
    (tmp_path / "it.json").write_text(done.stdout)

    assert done.exit_code == 0
    assert json.loads(done.stdout)
    assert listed(done.stdout_bytes).image == image.manifest
    assert "2 OS packages have no machine-readable licence" in done.stderr
    assert check(image, tmp_path / "it.json") == f"{image.manifest}\n"


def test_an_image_without_a_lock_has_no_sbom(tmp_path: Path) -> None:
    image = sboms.image(tmp_path / "a", ref="9.9.9-cuda12.1-cudnn9-runtime")
    arguments = [image.ref, "--output", str(tmp_path / "a/dist"), "--images", str(tmp_path)]

    with pytest.raises(Stale, match="not locked yet"):
        CliRunner().invoke(sbom, arguments, catch_exceptions=False)
