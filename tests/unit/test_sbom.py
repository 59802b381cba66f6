"""The SBOM of a small image, checked by the schema of CycloneDX and by an independent reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests import sboms
from torchkiln.errors import VerificationFailed
from torchkiln.model.lock import OsPackage
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.util.places import ROOT

BILL = sboms.bill()
CYCLONEDX: dict[str, Any] = json.loads(cyclonedx(BILL))


def flat(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The components of a CycloneDX document, including components within components."""
    for item in document.get("components", []):
        yield item
        yield from flat(item)


def component(name: str) -> dict[str, Any]:
    (found,) = [item for item in flat(CYCLONEDX) if item["name"] == name]
    return found


def of_kind(kind: str) -> set[tuple[str, str, str]]:
    """Name, version and sha256 of the components whose ids start with *kind*."""
    return {
        (item["name"], item["version"], item["hashes"][0]["content"])
        for item in flat(CYCLONEDX)
        if item["bom-ref"].startswith(kind)
    }


def property_of(name: str, key: str) -> str:
    """The value of the property torchkiln:*key* of the component *name*; empty if there is none."""
    rows = component(name)["properties"]
    return "".join(row["value"] for row in rows if row["name"] == f"torchkiln:{key}")


def without_hashes() -> Bill:
    cell = sboms.locked()
    return bill_of(cell, sboms.IMAGE, sboms.evidence(), files=None, name="pytorch-cuda", tool="0.1.0")


@pytest.mark.parametrize("bill", [BILL, without_hashes()], ids=["all", "no hashes of the OS"])
def test_it_is_valid_by_its_schema(bill: Bill) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(cyclonedx(bill).decode()) is None


def test_the_validator_rejects_invalid_documents() -> None:
    """Without this test, the test above could pass for any document."""
    invalid = json.loads(cyclonedx(BILL)) | {"serialNumber": "it"}

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(invalid)) is not None


def test_the_same_image_gives_the_same_bytes_in_any_process() -> None:
    """Time, hash seed and time zone do not change the document."""
    program = (
        "from tests.sboms import bill; from torchkiln.sbom.cyclonedx import cyclonedx;"
        "import sys; sys.stdout.buffer.write(cyclonedx(bill()))"
    )
    document = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }

    assert document == {cyclonedx(BILL)}


def test_another_content_has_another_name() -> None:
    """Different documents have different names. Times come from the lock, and not from a clock."""
    other = json.loads(cyclonedx(without_hashes()))

    assert other["serialNumber"] != CYCLONEDX["serialNumber"]
    assert CYCLONEDX["metadata"]["timestamp"].startswith("2026-11-21T00:00:00")


def test_every_locked_wheel_is_in_it_with_its_hash() -> None:
    """The document is parsed as plain JSON and compared with the lock."""
    wheels = {(wheel.name, wheel.version, wheel.sha256) for wheel in sboms.locked().wheels}

    assert of_kind("wheel-") == wheels
    assert component("torch")["purl"] == "pkg:pypi/torch@2.7.1?file_name=torch-2.7.1-py3-none-any.whl"


def test_every_package_of_the_os_is_in_it_with_its_hash() -> None:
    debs = {
        (name, document[0], f"{number:064x}") for number, (name, document) in enumerate(sboms.DEBS.items(), 1)
    }

    assert of_kind("os-") == debs
    purl = "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"
    assert component("libstdc++6")["purl"] == purl
    assert property_of("tini", "source") == "tini 0.19.0-1"


@pytest.mark.parametrize(
    ("name", "version", "carrier"),
    [
        ("CUDA", "12.6", "nvidia-cuda-runtime-cu12"),
        ("cuDNN", "9.5.1.17", "nvidia-cudnn-cu12"),
        ("NCCL", "2.26.2", "nvidia-nccl-cu12"),
    ],
)
def test_libraries_within_wheels_are_named(name: str, version: str, carrier: str) -> None:
    """The library is a component of its wheel."""
    assert component(name)["version"] == version
    assert [part["name"] for part in component(carrier)["components"]] == [name]


def test_a_library_without_its_own_wheel_is_in_torch() -> None:
    """Wheels of PyTorch's own index contain such libraries."""
    cell = sboms.locked()
    wheels = tuple(wheel for wheel in cell.wheels if not wheel.name.startswith("nvidia-nccl"))
    cell = replace(cell, wheels=wheels)
    found = sboms.bill(sboms.evidence_of(sboms.texts(cell), sboms.LINKS), cell)

    (nccl,) = [part for part in found.components if part.name == "NCCL"]
    assert (nccl.carrier, nccl.version, nccl.licences) == ("torch", "2.26.2", ())


def test_a_copy_in_a_wheel_is_named_with_its_path() -> None:
    assert "idna" in {part["name"] for part in component("pip")["components"]}
    assert property_of("idna", "remark") == f"a copy in /{sboms.SITE}/pip/_vendor"


def licences_of(name: str) -> list[dict[str, Any]]:
    return [row["license"] for row in component(name)["licenses"]]


def test_licences_are_ids_or_names_with_their_text() -> None:
    assert licences_of("nvidia-nccl-cu12")[0]["id"] == "BSD-3-Clause"
    assert licences_of("pillow")[0]["id"] == "MIT-CMU"
    assert licences_of("numpy")[0]["name"] == "BSD-3-Clause AND (0BSD OR LicenseRef-Own)"
    assert [licence["name"] for licence in licences_of("jupyterlab")] == ["BSD"]
    mit, either = licences_of("tini")
    assert (mit["id"], either["name"]) == ("MIT", "GPL-2+ or Artistic")
    assert either["text"]["content"] == "The text of it.\n\nIts end."
    assert b"No file has it" not in cyclonedx(BILL)
    (tqdm,) = licences_of("tqdm")
    assert tqdm["text"]["content"] == "Copyright (c) 2013\nMIT, in many\nwords"
    assert licences_of("pip")[0]["name"] == "License :: OSI Approved :: MIT License"
    for unknown in ("triton", "gcc-12-base", "libstdc++6"):
        assert "licenses" not in component(unknown)


def test_licences_in_the_list_of_spdx_are_one_expression() -> None:
    texts = sboms.texts(sboms.locked())
    texts["usr/share/doc/tzdata/copyright"] = (
        f"{sboms.FORMAT}\nFiles: *\nLicense: Expat\n\nFiles: x\nLicense: GPL-2+ or ISC\n"
    )
    document = json.loads(cyclonedx(sboms.bill(sboms.evidence_of(texts, sboms.LINKS))))

    (found,) = [item["licenses"] for item in document["components"] if item["name"] == "tzdata"]
    assert [row["expression"] for row in found] == ["MIT AND (GPL-2.0-or-later OR ISC)"]


def test_unknown_values_are_marked() -> None:
    cell = sboms.locked()
    some = bill_of(cell, sboms.IMAGE, sboms.evidence(), files=sboms.files(cell, ["tini"]), name="x", tool="0")
    invalid = bill_of(
        cell,
        sboms.IMAGE,
        sboms.evidence(),
        files=replace(sboms.files(cell), base=sboms.IMAGE),
        name="x",
        tool="0",
    )

    notes = {row["value"] for row in json.loads(cyclonedx(without_hashes()))["properties"]}
    assert notes == set(without_hashes().notes)
    assert "The .deb files of the base were not recorded, so its packages have no hashes." in notes
    assert "no hashes: tini." in " ".join(some.notes)
    assert invalid.notes == without_hashes().notes
    assert not [part for part in invalid.components if part.kind == "os" and part.sha256]


def other_lock(**base: tuple[OsPackage, ...]) -> Any:
    cell = sboms.locked()
    return replace(cell, base=replace(cell.base, **base))


@pytest.mark.parametrize(
    ("cell", "document"),
    [
        pytest.param(
            replace(sboms.locked(), wheels=sboms.locked().wheels[1:]),
            "wheel jupyterlab: locked none, in the image 4.5.0",
            id="an additional wheel",
        ),
        pytest.param(
            replace(
                sboms.locked(),
                wheels=(replace(sboms.locked().wheels[0], sha256="f" * 64), *sboms.locked().wheels[1:]),
            ),
            f"hash of jupyterlab: locked {'f' * 64}",
            id="another hash",
        ),
        pytest.param(
            other_lock(packages=sboms.locked().base.packages[1:]),
            "package gcc-12-base: locked none",
            id="an additional package",
        ),
        pytest.param(
            other_lock(packages=(*sboms.locked().base.packages, OsPackage(name="zsh", version="5"))),
            "package zsh: locked 5, in the image none",
            id="a missing package",
        ),
    ],
)
def test_an_image_that_does_not_match_its_lock_has_no_sbom(cell: Any, document: str) -> None:
    with pytest.raises(VerificationFailed, match="does not match its lock") as caught:
        sboms.bill(cell=cell)
    assert document in caught.value.message
