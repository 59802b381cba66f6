"""A bundle without the layers that the host has: it runs like a complete bundle, or names missing layers."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bundles import made, started
from tests.docker.scene import TAG, Scene
from tests.needs import nightly
from torchkiln.locks.lock import load_locked, save

pytestmark = pytest.mark.network  # pip's wheel, the bundle's packages, and where the cache has none, the base

CHECKS = ("--only", "lock", "--only", "import")
COMMAND = ("run", "--", "sh", "-c", "echo $VIRTUAL_ENV")


@pytest.fixture(scope="module")
def whole(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete bundle, alone in its folder."""
    assert scene.kiln("--quiet").returncode == 0
    place = tmp_path_factory.mktemp("first host") / "whole"
    made(scene, place, *CHECKS)
    return place


@pytest.fixture(scope="module")
def have(whole: Path) -> Path:
    """The list of the complete bundle's layers, as `run.py --have` prints it on the host."""
    ran = started(whole, "--have")
    assert (ran.returncode, ran.stderr) == (0, "")
    place = whole.parent / "have.txt"
    place.write_text(ran.stdout)
    return place


@pytest.fixture(scope="module")
def bare(scene: Scene, have: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the same image without layers, alone in its folder."""
    place = tmp_path_factory.mktemp("second host") / "bare"
    output = made(scene, place, *CHECKS, "--have", str(have))
    count = len(have.read_text().splitlines()) - 1
    assert f"; without {count} of {count} layers, " in output
    assert f"python3 {place.name}/run.py --from EARLIER_BUNDLE\n" in output
    return place


@pytest.fixture
def copy(bare: Path, tmp_path: Path) -> Path:
    """A copy of the bundle without layers, for one test."""
    return copied(bare, tmp_path / "host/copy")


def copied(bundle: Path, place: Path) -> Path:
    """A copy of *bundle* with hard links; files that a run has added are missing."""
    ignored = shutil.ignore_patterns("rootfs", "records", "launch", "report.json")
    return Path(shutil.copytree(bundle, place, copy_function=os.link, ignore=ignored))


def layers_in(bundle: Path) -> dict[str, int]:
    """The sizes of the layers in the bundle's manifest, by hash; the bundle may lack some of these layers."""
    blobs = bundle / "layout/blobs/sha256"
    index = json.loads((bundle / "layout/index.json").read_bytes())
    manifest = (blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_bytes()
    return {
        layer["digest"].removeprefix("sha256:"): layer["size"] for layer in json.loads(manifest)["layers"]
    }


def names(bundle: Path) -> set[str]:
    return {path.name for path in (bundle / "layout/blobs/sha256").iterdir()}


def test_a_host_lists_its_layers(whole: Path, have: Path) -> None:
    lines = have.read_text().splitlines()
    assert lines[0].startswith("# layers on this host")
    assert lines[1:] == [f"sha256:{name} {TAG}" for name in layers_in(whole)]


def test_a_bundle_without_layers_has_all_else(whole: Path, bare: Path) -> None:
    """Apart from the layers, only bundle.json differs: it lists the missing layers."""
    layers = layers_in(whole)
    assert layers_in(bare) == layers
    assert names(bare) == names(whole) - layers.keys()
    descriptions = [json.loads((bundle / "bundle.json").read_bytes()) for bundle in (whole, bare)]
    assert descriptions[0].pop("held") == {}
    assert descriptions[1].pop("held") == {
        f"sha256:{name}": {"size": size, "tag": TAG} for name, size in layers.items()
    }
    assert descriptions[0] == descriptions[1]


def test_it_takes_the_layers_of_the_bundle_beside_it(whole: Path, copy: Path) -> None:
    """The bundle copies missing layers from a bundle in the same folder; then it runs without that bundle."""
    beside = copied(whole, copy.with_name("earlier"))
    ran = started(copy, *COMMAND)
    assert (ran.returncode, ran.stdout) == (0, "/opt/venv\n"), ran.stderr
    assert f"smoke: copying {len(layers_in(whole))} layers, " in ran.stderr
    assert names(copy) == names(whole)

    shutil.rmtree(beside)
    ran = started(copy, *COMMAND)
    assert (ran.returncode, ran.stdout, "takes" in ran.stderr) == (0, "/opt/venv\n", False)


@nightly
def test_only_the_layers_of_the_list_are_left_out(
    scene: Scene, whole: Path, have: Path, tmp_path: Path
) -> None:
    """The list also has an unknown digest. The new bundle is a tar file, and finds the layer with --from."""
    first, *_ = layers_in(whole)
    (tmp_path / "some.txt").write_text(f"sha256:{first}\nsha256:{'0' * 64} another-image\n")
    made(scene, tmp_path / "some.tar", *CHECKS, "--have", str(tmp_path / "some.txt"))
    with tarfile.open(tmp_path / "some.tar") as tar:
        tar.extractall(tmp_path / "host/some", filter="tar")
    assert names(tmp_path / "host/some") == names(whole) - {first}

    ran = started(tmp_path / "host/some", "--from", str(whole), *COMMAND)
    assert (ran.returncode, ran.stdout) == (0, "/opt/venv\n"), ran.stderr
    assert names(tmp_path / "host/some") == names(whole)


@nightly
def test_another_image_takes_the_layers_that_it_shares(
    scene: Scene, whole: Path, have: Path, tmp_path: Path
) -> None:
    """The other image has one wheel less. Its bundle contains only layers that the first image lacks."""
    locked = load_locked(scene.images, TAG)
    save(tmp_path / "images", replace(locked, wheels=locked.wheels[:1] + locked.wheels[2:]))
    other, place = replace(scene, images=tmp_path / "images"), tmp_path / "host/other"
    assert other.kiln("--quiet").returncode == 0
    output = made(other, place, *CHECKS, "--have", str(have))
    shared = layers_in(place).keys() & layers_in(whole).keys()
    own = layers_in(place).keys() - shared
    assert shared
    assert own
    assert f"; without {len(shared)} of {len(shared) + len(own)} layers, " in output
    assert own <= names(place)
    assert not shared & names(place)

    ran = started(place, "--from", str(whole), *COMMAND)
    assert (ran.returncode, ran.stdout) == (0, "/opt/venv\n"), ran.stderr
    assert shared <= names(place)


@nightly
def test_its_report_is_that_of_the_whole_bundle(whole: Path, copy: Path) -> None:
    reports = []
    for bundle, own in ((whole, ()), (copy, ("--from", str(whole)))):
        ran = started(bundle, *own)
        assert (ran.returncode, ran.stdout) == (10, "fail\n"), ran.stderr  # the image has a fake torch
        report = json.loads((bundle / "report.json").read_bytes())
        for of_one_run in ("when", "verified", "host"):
            report.pop(of_one_run, None)
        for check in report["checks"]:
            del check["seconds"]
        reports.append(report)
    assert reports[0] == reports[1]


def test_a_missing_layer_is_named(copy: Path) -> None:
    before = names(copy)
    ran = started(copy)
    assert (ran.returncode, ran.stdout) == (12, ""), ran.stderr
    for name in layers_in(copy):
        assert f"  layer sha256:{name}, which the image {TAG} has:\n    not found\n" in ran.stderr
    assert "searched: no other bundle in " in ran.stderr
    assert "python3 run.py --from FOLDER" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert names(copy) == before
    assert not (copy / "report.json").exists()


def test_a_damaged_layer_of_an_earlier_bundle_is_refused(whole: Path, copy: Path, tmp_path: Path) -> None:
    """With a second --from, the same layer of an undamaged bundle is used."""
    harmed = copied(whole, tmp_path / "harmed")
    name = max(layers_in(whole), key=lambda name: layers_in(whole)[name])
    victim = harmed / "layout/blobs/sha256" / name
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.unlink()  # the file is a hard link: the other bundles must stay undamaged
    victim.write_bytes(data)

    ran = started(copy, "--from", str(harmed))
    assert (ran.returncode, ran.stdout) == (12, ""), ran.stderr
    assert f"  layer sha256:{name}, which the image {TAG} has:\n    {victim}: checksum mismatch" in ran.stderr
    assert names(copy) == names(whole) - {name}
    listed = started(harmed, "--have", "--from", str(harmed))
    assert (listed.returncode, name in listed.stdout) == (0, False)
    assert f"{victim}: left out: checksum mismatch" in listed.stderr

    ran = started(copy, "--from", str(harmed), "--from", str(whole), *COMMAND)
    assert (ran.returncode, ran.stdout) == (0, "/opt/venv\n"), ran.stderr


def test_a_malformed_list_makes_no_bundle(scene: Scene, have: Path, tmp_path: Path) -> None:
    (tmp_path / "have.txt").write_text(have.read_text() + "latest\n")
    options = ("smoke", TAG, "--images", str(scene.images), "--bundle", str(tmp_path / "b"))
    ran = scene.command(*options, "--have", str(tmp_path / "have.txt"))
    assert ran.returncode == 2
    assert f"have.txt: line {len(have.read_text().splitlines()) + 1}: not a sha256 digest: 'latest'" in (
        ran.stderr
    )
    assert not (tmp_path / "b").exists()


def test_wrong_options_are_refused_before_anything_runs(copy: Path, tmp_path: Path) -> None:
    ran = started(copy, "--from", str(tmp_path), "--only", "lock")
    assert (ran.returncode, f"--from {tmp_path}: not the folder of a bundle" in ran.stderr) == (2, True)
    ran = started(copy, "--only", "lock", "--from", "x")
    assert (ran.returncode, "come before the other options" in ran.stderr) == (2, True)
