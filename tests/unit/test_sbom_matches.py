"""SBOMs are compared with an image: every difference is found, and invalid documents are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import planned, sboms
from tests.document_strategies import FEW, answer, json_bytes, mutated, spoiled
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, OsPackage
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.sbom.evidence import Evidence
from torchkiln.sbom.listed import listed
from torchkiln.sbom.matches import items_of, items_of_bill, matches, matches_lock
from torchkiln.sbom.spdx import spdx

BILL = sboms.bill()
DOCUMENTS = {"spdx": spdx(BILL), "cyclonedx": cyclonedx(BILL)}
Json = dict[str, Any]


@pytest.fixture(params=sorted(DOCUMENTS))
def document(request: pytest.FixtureRequest) -> bytes:
    return DOCUMENTS[request.param]


def against(document: bytes, found: Evidence) -> tuple[str, ...]:
    return matches(document, sboms.IMAGE, items_of(found))


def metadata(name: str, version: str) -> dict[str, str]:
    return {f"{sboms.SITE}/{name}-{version}.dist-info/METADATA": sboms.metadata(name, version)}


def test_a_matching_document_has_no_difference(document: bytes) -> None:
    assert against(document, sboms.evidence()) == ()
    assert matches(document, sboms.IMAGE, items_of_bill(BILL)) == ()


def test_a_document_of_another_image(document: bytes) -> None:
    other_digest = Digest("sha256:" + "9" * 64)

    assert matches(document, other_digest, items_of(sboms.evidence())) == (
        f"the SBOM is of {sboms.IMAGE}, not of {other_digest}",
    )


def test_a_wheel_missing_in_the_document(document: bytes) -> None:
    found = sboms.evidence(**metadata("stowaway", "6.6.6"))

    assert against(document, found) == ("Python package stowaway 6.6.6: in the image, but not in the SBOM",)


def test_a_wheel_missing_in_the_image(document: bytes) -> None:
    found = sboms.evidence()
    found = replace(
        found,
        distributions=tuple(
            distribution for distribution in found.distributions if distribution.name != "torch"
        ),
    )

    assert against(document, found) == ("Python package torch 2.7.1: in the SBOM, but not in the image",)


def test_another_version_of_a_wheel(document: bytes) -> None:
    found = sboms.evidence()
    changed = tuple(
        replace(distribution, version="2.7.2") if distribution.name == "torch" else distribution
        for distribution in found.distributions
    )

    assert against(document, replace(found, distributions=changed)) == (
        "Python package torch: the SBOM has 2.7.1, the image 2.7.2",
    )


def test_another_hash_of_a_wheel(document: bytes) -> None:
    found = sboms.evidence()
    version, sha256 = found.wheels["torch"]
    forged = replace(found, wheels={**found.wheels, "torch": (version, "f" * 64)})

    assert against(document, forged) == (
        f"Python package torch 2.7.1: the SBOM has the hash {sha256}, the image {'f' * 64}",
    )


def test_a_second_copy_of_a_package(document: bytes) -> None:
    path = f"{sboms.SITE}/torch/_vendor/idna-3.1.dist-info/METADATA"
    found = sboms.evidence(**{path: sboms.metadata("idna", "3.1")})

    assert against(document, found) == ("Python package idna 3.1: in the image, but not in the SBOM",)


def test_packages_of_the_os(document: bytes) -> None:
    """A package is missing or additional, or has a different version or architecture."""
    debs = {name: content for name, content in sboms.DEBS.items() if name != "gcc-12-base"}
    debs["zsh"] = ("5.9-4", "amd64", "zsh", "")
    debs["tini"] = ("0.20", *sboms.DEBS["tini"][1:])
    debs["tzdata"] = (sboms.DEBS["tzdata"][0], "amd64", "tzdata", "")

    assert against(document, sboms.evidence(**{sboms.STATUS: sboms.status(debs)})) == (
        "package gcc-12-base:amd64 12.2.0-14+deb12u1: in the SBOM, but not in the image",
        "package tini:amd64: the SBOM has 0.19.0-1+b3, the image 0.20",
        "package tzdata:all 2025b-0+deb12u2: in the SBOM, but not in the image",
        "package tzdata:amd64 2025b-0+deb12u2: in the image, but not in the SBOM",
        "package zsh:amd64 5.9-4: in the image, but not in the SBOM",
    )


def test_another_hash_of_a_package_is_found_with_the_lock(document: bytes) -> None:
    forged = replace(
        BILL,
        components=tuple(
            replace(component, sha256="e" * 64) if component.name == "tini" else component
            for component in BILL.components
        ),
    )

    (content,) = matches(document, sboms.IMAGE, items_of_bill(forged))
    assert content.startswith("package tini:amd64 0.19.0-1+b3: the SBOM has the hash 0")


def locked(**changed: Any) -> LockedCell:
    return replace(sboms.locked(), **changed)


CELL = sboms.locked()
BASE = CELL.base


@pytest.mark.parametrize(
    ("cell", "content"),
    [
        pytest.param(CELL, (), id="the lock"),
        pytest.param(
            locked(wheels=CELL.wheels[1:]),
            ("Python package jupyterlab 4.5.0: in the SBOM, but not in the image",),
            id="a wheel that was not locked",
        ),
        pytest.param(
            locked(wheels=(replace(CELL.wheels[0], sha256="f" * 64), *CELL.wheels[1:])),
            (
                f"Python package jupyterlab 4.5.0: the SBOM has the hash {CELL.wheels[0].sha256},"
                f" the image {'f' * 64}",
            ),
            id="another hash",
        ),
        pytest.param(
            locked(wheels=(*CELL.wheels, planned.wheel("zipp", "3", megabytes=1))),
            ("Python package zipp 3: in the image, but not in the SBOM",),
            id="a wheel that is not listed",
        ),
        pytest.param(
            locked(base=replace(BASE, packages=(OsPackage(name="tini", version="1"), *BASE.packages[:2]))),
            (
                "package tini: the SBOM has 0.19.0-1+b3, the image 1",
                "package tzdata 2025b-0+deb12u2: in the SBOM, but not in the image",
            ),
            id="the OS",
        ),
    ],
)
def test_a_document_is_compared_with_a_lock_without_layers(
    document: bytes, cell: LockedCell, content: tuple[str, ...]
) -> None:
    """A package that is vendored in a wheel, here idna, is not in the lock."""
    assert matches_lock(document, sboms.IMAGE, cell) == content


def test_hashes_of_the_os_are_compared_with_the_noted_ones(document: bytes) -> None:
    noted = sboms.files(CELL)
    forged = replace(noted, debs=(replace(noted.debs[0], sha256="e" * 64), *noted.debs[1:]))

    assert matches_lock(document, sboms.IMAGE, CELL, noted) == ()
    (content,) = matches_lock(document, sboms.IMAGE, CELL, forged)
    assert content.startswith("package gcc-12-base 12.2.0-14+deb12u1: the SBOM has the hash 0")
    assert matches_lock(document, sboms.IMAGE, CELL, replace(forged, base=sboms.IMAGE)) == ()


def torch_of(content: Json) -> Json:
    parts = content.get("packages") or content["components"]
    return next(part for part in parts if part["name"] == "torch")  # type: ignore[no-any-return]


def purl_of(content: Json, purl: str) -> None:
    if "externalRefs" in content:
        content["externalRefs"][0]["referenceLocator"] = purl
    else:
        content["purl"] = purl


def without_image(content: Json) -> None:
    if "packages" in content:
        content["packages"] = content["packages"][1:]
    else:
        del content["metadata"]["component"]


def hashes_of(content: Json) -> list[Json]:
    return content["checksums"] if "checksums" in content else content["hashes"]  # type: ignore[no-any-return]


def bad_hash(content: Json) -> None:
    key = "checksumValue" if "checksums" in torch_of(content) else "content"
    hashes_of(torch_of(content))[0][key] = "F" * 64


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda content: content.clear(), "neither SPDX 2.3 nor CycloneDX 1.6", id="empty"),
        pytest.param(without_image, "not an image|one image, not 0", id="of no image"),
        pytest.param(lambda content: torch_of(content).update(name=7), "name: must be a text", id="name"),
        pytest.param(
            lambda content: torch_of(content).update(name="x" * 5000), "name: must be a text", id="long"
        ),
        pytest.param(
            lambda content: purl_of(torch_of(content), "pkg:pypi/other@2.7.1"),
            "URL mismatch",
            id="name in purl",
        ),
        pytest.param(
            lambda content: purl_of(torch_of(content), "pkg:pypi/torch@2.7.0"),
            "URL mismatch",
            id="version in purl",
        ),
        pytest.param(
            lambda content: purl_of(torch_of(content), "torch"), "invalid package URL", id="no purl"
        ),
        pytest.param(bad_hash, "invalid sha256", id="hash"),
        pytest.param(
            lambda content: hashes_of(torch_of(content)).append(hashes_of(torch_of(content))[0]),
            "more than one",
            id="two",
        ),
        pytest.param(
            lambda content: content.update({key: {} for key in ("packages", "components") if key in content}),
            "not a list",
            id="no list",
        ),
        pytest.param(
            lambda content: content.update(
                {key: [1] for key in ("packages", "components") if key in content}
            ),
            "list of JSON objects",
            id="numbers",
        ),
    ],
)
def test_an_ambiguous_document_is_refused(
    document: bytes, spoil: Callable[[Json], None], reason: str
) -> None:
    content = json.loads(document)
    spoil(content)

    with pytest.raises(VerificationFailed, match=reason) as caught:
        listed(json.dumps(content).encode(), where="x.json")
    assert caught.value.message.startswith("x.json: ")
    assert caught.value.hint


def test_a_document_that_describes_something_else_is_refused() -> None:
    content = json.loads(DOCUMENTS["spdx"])
    for relationship in content["relationships"]:
        if relationship["relationshipType"] == "DESCRIBES":
            relationship["relatedSpdxElement"] = "SPDXRef-wheel-torch"

    with pytest.raises(VerificationFailed, match="DESCRIBES relationship does not name its image"):
        listed(json.dumps(content).encode())


def nested(depth: int) -> bytes:
    parts: list[Json] = []
    for _ in range(depth):
        parts = [{"name": "x", "version": "1", "purl": "pkg:pypi/x@1", "components": parts}]
    return json.dumps(json.loads(DOCUMENTS["cyclonedx"]) | {"components": parts}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"{" * 100_000, id="deep"),
        pytest.param(b'{"spdxVersion": "SPDX-2.3", "spdxVersion": "SPDX-2.3"}', id="twice"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(nested(30), id="components in components"),
        pytest.param(b'{"spdxVersion": "SPDX-2.2"}', id="older SPDX"),
        pytest.param(b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}', id="empty"),
    ],
)
def test_an_invalid_document_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationFailed):
        listed(data)


def test_components_in_components_are_read() -> None:
    """Five levels are read, so thirty levels are refused because of their number."""
    assert len(listed(nested(5)).items) == 5


@FEW
@given(st.sampled_from(sorted(DOCUMENTS)).flatmap(lambda form: mutated(json.loads(DOCUMENTS[form]))))
def test_any_other_value_anywhere_is_read_or_refused(content: Any) -> None:
    answer(lambda: listed(json_bytes(content)))


@FEW
@given(st.sampled_from(sorted(DOCUMENTS)).flatmap(lambda form: spoiled(DOCUMENTS[form])))
def test_any_other_bytes_are_read_or_refused(data: bytes) -> None:
    answer(lambda: listed(data))
