"""The SBOM of a project's image: the packages that it keeps, replaces and adds, and its code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests.project_gate import Scene, scene
from tests.projects import NAME, Bench
from torchkiln.sbom.listed import listed


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


def test_spdx_lists_what_the_image_has(there: Scene) -> None:
    text = sbom(there)
    document = json.loads(text)
    found = {package["name"]: package for package in document["packages"]}

    assert validate_full_spdx_document(JsonLikeDictParser().parse(document), "SPDX-2.3") == []
    assert document["name"].endswith(f":{NAME}")
    assert found["fsspec"]["versionInfo"] == "3"
    assert [package["versionInfo"] for package in document["packages"] if package["name"] == "fsspec"] == [
        "3"
    ]
    assert found["einops"]["versionInfo"] == "1"
    assert found["torch"]["checksums"][0]["checksumValue"] == wheel_hashes(there)["torch"]
    assert found["fsspec"]["checksums"][0]["checksumValue"] != wheel_hashes(there)["fsspec"]
    project = found[NAME]
    assert project["primaryPackagePurpose"] == "APPLICATION"
    assert project["versionInfo"] == there.image.layers[-1].diff_id[7:19]
    assert project["comment"].startswith("1 file;")
    assert listed(text.encode()).image == there.image.manifest


def test_cyclonedx_lists_the_same(there: Scene) -> None:
    text = sbom(there, "--format", "cyclonedx")

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    spdx = {(item.name, item.version, item.sha256) for item in listed(sbom(there).encode()).items}
    assert {(item.name, item.version, item.sha256) for item in listed(text.encode()).items} == spdx
    assert [part["type"] for part in json.loads(text)["components"] if part["name"] == NAME] == [
        "application"
    ]


def test_an_sbom_is_compared_with_the_image(there: Scene, tmp_path: Path) -> None:
    file = tmp_path / "image.spdx.json"
    file.write_text(sbom(there))
    assert sbom(there, "--check", str(file)) == f"{there.image.manifest}\n"
    document = json.loads(file.read_text())
    document["packages"] = [package for package in document["packages"] if package["name"] != "einops"]
    file.write_text(json.dumps(document))

    done = there.publisher.run("sbom", NAME, *there.publisher.here[:4], "--check", str(file))

    assert done.exit_code == 1 or getattr(done.exception, "exit_code", 0) == 12
    assert "einops 1: in the image, but not in the SBOM" in str(done.exception)
