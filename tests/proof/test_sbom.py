"""The SBOM of the real image, compared with the lock as JSON, with dpkg-query and with unpacked files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.proof.headline import SITE, TAG
from torchkiln.base.archive import files_of
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof


def sbom(image: dict[str, Any], *more: str) -> str:
    command = [sys.executable, str(ROOT / "build.py"), "sbom", TAG, "--output", image["layout"], *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cyclonedx(image: dict[str, Any]) -> dict[str, Any]:
    return json.loads(sbom(image))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def lock() -> dict[str, Any]:
    return json.loads((ROOT / "images" / TAG / "lock.json").read_text())  # type: ignore[no-any-return]


def components(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in document.get("components", []):
        yield item
        yield from components(item)


def declared(component: dict[str, Any]) -> list[str]:
    """The licences of *component*: one expression, or the id or name of each."""
    rows = component.get("licenses", ())
    return [row.get("expression") or row["license"].get("id") or row["license"]["name"] for row in rows]


def test_it_passes_its_validator(cyclonedx: dict[str, Any]) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(cyclonedx)) is None


def test_every_wheel_of_the_lock(cyclonedx: dict[str, Any], lock: dict[str, Any]) -> None:
    wheels = {
        (f"pkg:pypi/{wheel['name']}@{wheel['version']}?file_name={wheel['filename']}", wheel["sha256"])
        for wheel in lock["wheels"]
    }
    found = {
        (component["purl"].replace("%2B", "+"), component["hashes"][0]["content"])
        for component in components(cyclonedx)
        if "file_name=" in component.get("purl", "")
    }

    assert len(wheels) > 100
    assert found == wheels


def test_every_package_that_dpkg_lists(cyclonedx: dict[str, Any], unpacked: Path, locked: LockedCell) -> None:
    """The SBOM has every package of dpkg-query, with the hash of its .deb file."""
    form = "${Package}\t${Version}\t${Architecture}\t${source:Package} ${source:Version}\n"
    command = ["dpkg-query", f"--admindir={unpacked}/var/lib/dpkg", "-W", "-f", form]
    document = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    debs = {
        (component["name"], component["version"]): component
        for component in components(cyclonedx)
        if component["bom-ref"].startswith("os-")
    }
    files = files_of(ROOT / "images", locked, Store(cache_root()))
    assert files is not None
    hashes = {(file.name, file.version): file.sha256 for file in files.debs}

    assert len(document) == len(debs) > 200
    for name, version, architecture, source in (line.split("\t") for line in document):
        one = debs[name, version]
        properties = {row["name"]: row["value"] for row in one["properties"]}
        assert properties["torchkiln:source"] == source
        assert f"?arch={architecture}&distro=debian-12" in one["purl"]
        assert one["hashes"][0]["content"] == hashes[name, version]
        assert declared(one) or "copyright" in properties["torchkiln:remark"]


def test_licences_are_those_of_the_files(cyclonedx: dict[str, Any], unpacked: Path) -> None:
    """The SBOM has the licence expression of METADATA, and the licences that a copyright file names."""
    wheels = {
        component["name"]: declared(component)
        for component in components(cyclonedx)
        if component["bom-ref"].startswith("wheel-")
    }
    checked = 0
    for path in (unpacked / SITE).glob("*.dist-info/METADATA"):
        head = path.read_text().partition("\n\n")[0]
        name = re.sub(r"[-_.]+", "-", re.findall(r"^Name: (.*)", head, re.M)[0]).lower()
        if expression := re.findall(r"^License-Expression: (.*)", head, re.M):
            assert [licence.lower() for licence in wheels[name]] == [expression[0].lower()]
            checked += 1
        elif re.search("^License", head, re.M):
            assert wheels[name]
    assert checked > 40
    debs = {
        component["name"]: declared(component)
        for component in components(cyclonedx)
        if component["bom-ref"].startswith("os-")
    }
    assert len([deb for deb in debs.values() if deb]) > 140
    for name, licences in debs.items():
        text = (unpacked / f"usr/share/doc/{name}/copyright").read_text(errors="replace")
        if text.startswith("Format"):
            found = " ".join(licences)
            # Beside a licence that SPDX does not list, CycloneDX has all names as the file writes them.
            for version in re.findall(r"^License: *GPL-(\d)\+ *$", text, re.M):
                assert f"GPL-{version}.0-or-later" in found or f"GPL-{version}+" in found, name


def test_cuda_cudnn_and_nccl_are_named(cyclonedx: dict[str, Any], lock: dict[str, Any]) -> None:
    build = lock["resolution"]["build"]
    found = {
        component["name"]: component["version"]
        for component in components(cyclonedx)
        if component["bom-ref"][:8] == "library-"
    }

    assert found == {"CUDA": build["cuda"], "cuDNN": build["cudnn"], "NCCL": build["nccl"]}


def test_the_document_matches_the_image(image: dict[str, Any], tmp_path: Path) -> None:
    document = tmp_path / "image.cdx.json"
    document.write_text(sbom(image))
    assert sbom(image, "--check", str(document)).startswith("sha256:")
