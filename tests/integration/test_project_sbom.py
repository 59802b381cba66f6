"""The SBOM of a project's image: the packages that it keeps, replaces and adds, and its code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.project_gate import Scene, scene
from tests.projects import NAME, Bench
from torchkiln.sbom.matches import listed


def wheels(small: Bench) -> Iterator[Path]:
    yield small.wheel("einops", "1", "einops/__init__.py")


@pytest.fixture(scope="module", name="there")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("sbom"), wheels)


def sbom(there: Scene, *options: str) -> str:
    """The output of `sbom`."""
    folders = there.publisher.here[:4]
    done = there.publisher.run("sbom", NAME, *folders, *options)
    assert done.exit_code == 0, done.exception
    return done.stdout


def wheel_hashes(there: Scene) -> dict[str, str]:
    """The sha256 of each wheel in the lock of the cell."""
    return {wheel.name: wheel.sha256 for wheel in there.small.cell.wheels}


def test_it_lists_what_the_image_has(there: Scene) -> None:
    text = sbom(there)
    document = json.loads(text)
    found = {part["name"]: part for part in document["components"]}

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert document["metadata"]["component"]["version"] == NAME
    assert [part["version"] for part in document["components"] if part["name"] == "fsspec"] == ["3"]
    assert found["einops"]["version"] == "1"
    assert found["torch"]["hashes"][0]["content"] == wheel_hashes(there)["torch"]
    assert found["fsspec"]["hashes"][0]["content"] != wheel_hashes(there)["fsspec"]
    project = found[NAME]
    assert project["type"] == "application"
    assert project["version"] == there.image.layers[-1].diff_id[7:19]
    properties = {row["name"]: row["value"] for row in project["properties"]}
    assert properties["torchkiln:remark"].startswith("1 file")
    assert listed(text.encode()).image == there.image.manifest


def test_an_sbom_is_compared_with_the_image(there: Scene, tmp_path: Path) -> None:
    file = tmp_path / "image.cdx.json"
    file.write_text(sbom(there))
    assert sbom(there, "--check", str(file)) == f"{there.image.manifest}\n"
    document = json.loads(file.read_text())
    document["components"] = [part for part in document["components"] if part["name"] != "einops"]
    file.write_text(json.dumps(document))

    done = there.publisher.run("sbom", NAME, *there.publisher.here[:4], "--check", str(file))

    assert done.exit_code == 1 or getattr(done.exception, "exit_code", 0) == 12
    assert "einops 1: in the image, but not in the SBOM" in str(done.exception)
