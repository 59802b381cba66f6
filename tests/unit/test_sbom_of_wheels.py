"""A layer's metadata is read from cached wheels, without decompressing the layer, and is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cells import build, planned_cell
from tests.unpublished import FakeIndex
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.plan import ImagePlan
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.sbom.evidence import Evidence
from torchkiln.sbom.read_image import MadeOf, made_of, read_evidence
from torchkiln.store.store import Store

SPECS = (
    WheelSpec(name="torch", files=(File(path="torch/__init__.py", data=b"x = 1\n" * 50_000),)),
    WheelSpec(
        name="setuptools",
        files=(
            File(path="setuptools/__init__.py", data=b""),
            File(
                path="setuptools/_vendor/wheel-0.45.dist-info/METADATA",
                data=b"Name: wheel\nVersion: 0.45\nLicense-Expression: MIT\n\nWords.\n",
            ),
        ),
    ),
    WheelSpec(
        name="data",
        files=(
            File(path="data/__init__.py", data=b""),
            File(path="data-1.0.data/data/share/doc/x/copyright", data=b"License: GPL-2\n"),
            File(
                path="data-1.0.data/purelib/inner-2.dist-info/METADATA", data=b"Name: inner\nVersion: 2\n\n"
            ),
        ),
    ),
)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheels = [write_wheel(spec, folder / "wheels") for spec in SPECS]
        self.plan: ImagePlan = planned_cell(wheels)
        build(self.plan, folder / "cache", folder / "dist", FakeIndex(wheels))
        self.image: ImageOnDisk = open_layout(folder / "dist").image(self.plan.tag)

    @property
    def made(self) -> dict[Digest, MadeOf]:
        return made_of(self.plan, Store(self.folder / "cache"))

    def read(self, cache: str, made: dict[Digest, MadeOf]) -> Evidence:
        return read_evidence(self.image, Store(self.folder / cache), made_of=made)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_wheels_and_their_layers_have_the_same_metadata(scene: Scene) -> None:
    by_bytes = scene.read("a", {})

    assert len(scene.made) == sum(spec.kind == "wheels" for spec in scene.plan.layers)
    assert scene.read("b", scene.made) == by_bytes
    assert {distribution.name for distribution in by_bytes.distributions} == {
        "torch",
        "setuptools",
        "wheel",
        "data",
        "inner",
    }


def test_layers_of_cached_wheels_are_not_read(scene: Scene) -> None:
    for layer in scene.image.layers:
        if layer.diff_id in scene.made:
            layer.path.unlink()

    assert "torch" in {distribution.name for distribution in scene.read("b", scene.made).distributions}
    with pytest.raises(VerificationFailed):
        scene.read("a", {})


def test_a_missing_or_damaged_wheel_is_not_used(scene: Scene) -> None:
    """The layer is then read instead, and its digest is checked."""
    before, made = scene.read("a", {}), scene.made
    for item in made.values():
        for path in item.wheels:
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-30])
    assert scene.read("b", made) == before

    for item in made.values():
        for path in item.wheels:
            path.unlink()
    assert scene.made == {}
    assert scene.read("c", made) == before
