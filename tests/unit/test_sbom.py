"""The SBOMs (SPDX and CycloneDX) of a small image, checked by validators and by an independent reader."""

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
from packaging.licenses import canonicalize_license_expression
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests import sboms
from torchkiln.errors import VerificationFailed
from torchkiln.model.lock import OsPackage
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.sbom.spdx import spdx
from torchkiln.util.places import ROOT

BILL = sboms.bill()
SPDX: dict[str, Any] = json.loads(spdx(BILL))
CYCLONEDX: dict[str, Any] = json.loads(cyclonedx(BILL))


def flat(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The components of a CycloneDX document, including components within components."""
    for item in document.get("components", []):
        yield item
        yield from flat(item)


def of_spdx(name: str) -> dict[str, Any]:
    (found,) = [package for package in SPDX["packages"] if package["name"] == name]
    return found


def of_cyclonedx(name: str) -> dict[str, Any]:
    (found,) = [item for item in flat(CYCLONEDX) if item["name"] == name]
    return found


def without_hashes() -> Bill:
    cell = sboms.locked()
    return bill_of(cell, sboms.IMAGE, sboms.evidence(), files=None, name="pytorch-cuda", tool="0.1.0")


@pytest.mark.parametrize("bill", [BILL, without_hashes()], ids=["all", "no hashes of the OS"])
def test_spdx_is_valid_by_its_own_validator(bill: Bill) -> None:
    document = JsonLikeDictParser().parse(json.loads(spdx(bill)))

    assert validate_full_spdx_document(document, "SPDX-2.3") == []


@pytest.mark.parametrize("bill", [BILL, without_hashes()], ids=["all", "no hashes of the OS"])
def test_cyclonedx_is_valid_by_its_schema(bill: Bill) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(cyclonedx(bill).decode()) is None


def test_the_validators_reject_invalid_documents() -> None:
    """Without this test, the two tests above could pass for any document."""
    broken = json.loads(spdx(BILL))
    broken["packages"][3]["licenseDeclared"] = "No-Such-Licence"
    document = JsonLikeDictParser().parse(broken)
    invalid = json.loads(cyclonedx(BILL)) | {"serialNumber": "it"}

    assert validate_full_spdx_document(document, "SPDX-2.3") != []
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(invalid)) is not None


def test_the_same_image_gives_the_same_bytes_in_any_process() -> None:
    """Time, hash seed and time zone do not change the document."""
    program = (
        "from tests.sboms import bill; from torchkiln.sbom.spdx import spdx;"
        "from torchkiln.sbom.cyclonedx import cyclonedx;"
        "import sys; sys.stdout.buffer.write(spdx(bill()) + cyclonedx(bill()))"
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

    assert document == {spdx(BILL) + cyclonedx(BILL)}


def test_another_content_has_another_name() -> None:
    """Different documents have different names. Times come from the lock, and not from a clock."""
    invalid = json.loads(spdx(without_hashes()))

    assert invalid["documentNamespace"] != SPDX["documentNamespace"]
    assert SPDX["documentNamespace"].removeprefix("urn:uuid:") not in CYCLONEDX["serialNumber"]
    assert SPDX["creationInfo"]["created"] == "2026-11-21T00:00:00Z"
    assert CYCLONEDX["metadata"]["timestamp"].startswith("2026-11-21T00:00:00")


def test_every_locked_wheel_is_in_it_with_its_hash() -> None:
    """The document is parsed as plain JSON and compared with the lock."""
    wheels = {(wheel.name, wheel.version, wheel.sha256) for wheel in sboms.locked().wheels}
    in_spdx = {
        (package["name"], package["versionInfo"], package["checksums"][0]["checksumValue"])
        for package in SPDX["packages"]
        if package["SPDXID"].startswith("SPDXRef-wheel-")
    }
    in_cyclonedx = {
        (item["name"], item["version"], item["hashes"][0]["content"])
        for item in flat(CYCLONEDX)
        if item["bom-ref"].startswith("wheel-")
    }

    assert in_spdx == in_cyclonedx == wheels
    purl = of_spdx("torch")["externalRefs"][0]["referenceLocator"]
    assert purl == "pkg:pypi/torch@2.7.1?file_name=torch-2.7.1-py3-none-any.whl"
    assert of_cyclonedx("torch")["purl"] == purl


def test_every_package_of_the_os_is_in_it_with_its_hash() -> None:
    debs = {
        (name, document[0], f"{number:064x}") for number, (name, document) in enumerate(sboms.DEBS.items(), 1)
    }
    in_spdx = {
        (package["name"], package["versionInfo"], package["checksums"][0]["checksumValue"])
        for package in SPDX["packages"]
        if package["SPDXID"].startswith("SPDXRef-os-")
    }

    assert in_spdx == debs
    assert {item["name"] for item in flat(CYCLONEDX)} >= sboms.DEBS.keys()
    purl = "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"
    assert of_cyclonedx("libstdc++6")["purl"] == purl
    assert of_spdx("tini")["sourceInfo"] == "built from: tini 0.19.0-1"


@pytest.mark.parametrize(
    ("name", "version", "carrier"),
    [
        ("CUDA", "12.6", "nvidia-cuda-runtime-cu12"),
        ("cuDNN", "9.5.1.17", "nvidia-cudnn-cu12"),
        ("NCCL", "2.26.2", "nvidia-nccl-cu12"),
    ],
)
def test_libraries_within_wheels_are_named(name: str, version: str, carrier: str) -> None:
    """A CONTAINS relation leads to the library from its wheel."""
    (relation,) = [
        relationship
        for relationship in SPDX["relationships"]
        if relationship["relatedSpdxElement"].endswith(f"-{name}")
    ]

    assert of_spdx(name)["versionInfo"] == version
    assert relation["relationshipType"] == "CONTAINS"
    assert relation["spdxElementId"] == f"SPDXRef-wheel-{carrier}"
    assert [component["name"] for component in of_cyclonedx(carrier)["components"]] == [name]


def test_a_library_without_its_own_wheel_is_in_torch() -> None:
    """Wheels of PyTorch's own index contain such libraries."""
    cell = sboms.locked()
    wheels = tuple(wheel for wheel in cell.wheels if not wheel.name.startswith("nvidia-nccl"))
    cell = replace(cell, wheels=wheels)
    found = sboms.bill(sboms.evidence_of(sboms.texts(cell), sboms.LINKS), cell)

    (nccl,) = [component for component in found.components if component.name == "NCCL"]
    assert (nccl.carrier, nccl.version, nccl.licences) == ("torch", "2.26.2", ())


def test_a_copy_in_a_wheel_is_named_with_its_path() -> None:
    assert "idna" in {component["name"] for component in of_cyclonedx("pip")["components"]}
    assert of_spdx("idna")["comment"].startswith(f"a copy in /{sboms.SITE}/pip/_vendor;")


def test_licences_are_expressions_or_names_with_their_text() -> None:
    extracted = {
        hasextractedlicensinginfo["licenseId"]: hasextractedlicensinginfo
        for hasextractedlicensinginfo in SPDX["hasExtractedLicensingInfos"]
    }
    declared = {package["name"]: package["licenseDeclared"] for package in SPDX["packages"]}

    for expression in set(declared.values()) - {"NOASSERTION"}:
        assert canonicalize_license_expression(expression) == expression
    assert declared["numpy"] == "BSD-3-Clause AND (0BSD OR LicenseRef-Own)"
    assert declared["pillow"] == "MIT-CMU"
    assert declared["triton"] == "NOASSERTION"
    assert declared["gcc-12-base"] == declared["libstdc++6"] == "NOASSERTION"
    assert declared["tini"].startswith("MIT AND (GPL-2.0-or-later OR LicenseRef-Artistic-")
    assert extracted["LicenseRef-Own"]["licenseId"]
    artistic = next(item for item in extracted.values() if item["name"] == "Artistic")
    assert artistic["extractedText"] == "The text of it.\n\nIts end."
    assert not [item for item in extracted.values() if item["name"] == "Unused"]
    assert extracted[declared["tqdm"]]["extractedText"] == "Copyright (c) 2013\nMIT, in many\nwords"
    assert extracted[declared["pip"]]["name"] == "License :: OSI Approved :: MIT License"


def test_cyclonedx_names_licences_that_are_not_expressions() -> None:
    assert of_cyclonedx("nvidia-nccl-cu12")["licenses"][0]["license"]["id"] == "BSD-3-Clause"
    (document,) = of_cyclonedx("jupyterlab")["licenses"]
    assert document["license"]["name"] == "BSD"
    mit, either = (item["license"] for item in of_cyclonedx("tini")["licenses"])
    assert (mit["id"], either["name"]) == ("MIT", "GPL-2+ or Artistic")
    assert either["text"]["content"] == "The text of it.\n\nIts end."
    assert "licenses" not in of_cyclonedx("triton")


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

    assert "The .deb files of the base were not recorded" in json.loads(spdx(without_hashes()))["comment"]
    assert "no hashes: tini." in " ".join(some.notes)
    assert invalid.notes == without_hashes().notes
    assert not [component for component in invalid.components if component.kind == "os" and component.sha256]


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
                wheels=(
                    replace(sboms.locked().wheels[0], sha256="f" * 64),
                    *sboms.locked().wheels[1:],
                ),
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
