"""An SBOM held against an image: each difference is found, in either format; odd documents are refused."""

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
Told = dict[str, Any]


@pytest.fixture(params=sorted(DOCUMENTS))
def document(request: pytest.FixtureRequest) -> bytes:
    return DOCUMENTS[request.param]


def against(document: bytes, found: Evidence) -> tuple[str, ...]:
    return matches(document, sboms.IMAGE, items_of(found))


def metadata(name: str, version: str) -> dict[str, str]:
    return {f"{sboms.SITE}/{name}-{version}.dist-info/METADATA": sboms.metadata(name, version)}


def test_a_true_document_has_no_difference(document: bytes) -> None:
    assert against(document, sboms.evidence()) == ()
    assert matches(document, sboms.IMAGE, items_of_bill(BILL)) == ()


def test_a_document_of_another_image(document: bytes) -> None:
    other = Digest("sha256:" + "9" * 64)

    assert matches(document, other, items_of(sboms.evidence())) == (
        f"the SBOM is of {sboms.IMAGE}, not of {other}",
    )


def test_a_wheel_that_nobody_told_of(document: bytes) -> None:
    found = sboms.evidence(**metadata("stowaway", "6.6.6"))

    assert against(document, found) == ("Python package stowaway 6.6.6: in the image, but not in the SBOM",)


def test_a_wheel_that_is_not_there(document: bytes) -> None:
    found = sboms.evidence()
    found = replace(found, distributions=tuple(one for one in found.distributions if one.name != "torch"))

    assert against(document, found) == ("Python package torch 2.7.1: in the SBOM, but not in the image",)


def test_another_version_of_a_wheel(document: bytes) -> None:
    found = sboms.evidence()
    changed = tuple(
        replace(one, version="2.7.2") if one.name == "torch" else one for one in found.distributions
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
    """One more, one less, one of another version, one of another architecture."""
    debs = {name: told for name, told in sboms.DEBS.items() if name != "gcc-12-base"}
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


def test_another_hash_of_a_package_is_seen_with_the_lock_at_hand(document: bytes) -> None:
    forged = replace(
        BILL,
        components=tuple(
            replace(one, sha256="e" * 64) if one.name == "tini" else one for one in BILL.components
        ),
    )

    (told,) = matches(document, sboms.IMAGE, items_of_bill(forged))
    assert told.startswith("package tini:amd64 0.19.0-1+b3: the SBOM has the hash 0")


def locked(**changed: Any) -> LockedCell:
    return replace(sboms.locked(), **changed)


CELL = sboms.locked()
BASE = CELL.base


@pytest.mark.parametrize(
    ("cell", "told"),
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
            id="a wheel that is not told",
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
def test_a_document_is_held_against_a_lock_without_any_layer(
    document: bytes, cell: LockedCell, told: tuple[str, ...]
) -> None:
    """What lies inside of wheels (idna) is no lock's affair."""
    assert matches_lock(document, sboms.IMAGE, cell) == told


def test_hashes_of_the_os_are_held_against_what_was_noted(document: bytes) -> None:
    noted = sboms.files(CELL)
    forged = replace(noted, debs=(replace(noted.debs[0], sha256="e" * 64), *noted.debs[1:]))

    assert matches_lock(document, sboms.IMAGE, CELL, noted) == ()
    (told,) = matches_lock(document, sboms.IMAGE, CELL, forged)
    assert told.startswith("package gcc-12-base 12.2.0-14+deb12u1: the SBOM has the hash 0")
    assert matches_lock(document, sboms.IMAGE, CELL, replace(forged, base=sboms.IMAGE)) == ()


def torch_of(told: Told) -> Told:
    parts = told.get("packages") or told["components"]
    return next(one for one in parts if one["name"] == "torch")  # type: ignore[no-any-return]


def purl_of(told: Told, purl: str) -> None:
    if "externalRefs" in told:
        told["externalRefs"][0]["referenceLocator"] = purl
    else:
        told["purl"] = purl


def without_image(told: Told) -> None:
    if "packages" in told:
        told["packages"] = told["packages"][1:]
    else:
        del told["metadata"]["component"]


def hashes_of(told: Told) -> list[Told]:
    return told["checksums"] if "checksums" in told else told["hashes"]  # type: ignore[no-any-return]


def bad_hash(told: Told) -> None:
    key = "checksumValue" if "checksums" in torch_of(told) else "content"
    hashes_of(torch_of(told))[0][key] = "F" * 64


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda told: told.clear(), "neither SPDX 2.3 nor CycloneDX 1.6", id="empty"),
        pytest.param(without_image, "not an image|one image, not 0", id="of no image"),
        pytest.param(lambda told: torch_of(told).update(name=7), "name: must be a text", id="name"),
        pytest.param(lambda told: torch_of(told).update(name="x" * 5000), "name: must be a text", id="long"),
        pytest.param(
            lambda told: purl_of(torch_of(told), "pkg:pypi/other@2.7.1"),
            "URL mismatch",
            id="name in purl",
        ),
        pytest.param(
            lambda told: purl_of(torch_of(told), "pkg:pypi/torch@2.7.0"),
            "URL mismatch",
            id="version in purl",
        ),
        pytest.param(lambda told: purl_of(torch_of(told), "torch"), "invalid package URL", id="no purl"),
        pytest.param(bad_hash, "invalid sha256", id="hash"),
        pytest.param(
            lambda told: hashes_of(torch_of(told)).append(hashes_of(torch_of(told))[0]),
            "more than one",
            id="two",
        ),
        pytest.param(
            lambda told: told.update({key: {} for key in ("packages", "components") if key in told}),
            "not a list",
            id="no list",
        ),
        pytest.param(
            lambda told: told.update({key: [1] for key in ("packages", "components") if key in told}),
            "list of mappings",
            id="numbers",
        ),
    ],
)
def test_a_document_that_can_be_read_in_two_ways_is_refused(
    document: bytes, spoil: Callable[[Told], None], reason: str
) -> None:
    told = json.loads(document)
    spoil(told)

    with pytest.raises(VerificationFailed, match=reason) as caught:
        listed(json.dumps(told).encode(), where="x.json")
    assert caught.value.message.startswith("x.json: ")
    assert caught.value.hint


def test_a_document_that_describes_something_else_is_refused() -> None:
    told = json.loads(DOCUMENTS["spdx"])
    for one in told["relationships"]:
        if one["relationshipType"] == "DESCRIBES":
            one["relatedSpdxElement"] = "SPDXRef-wheel-torch"

    with pytest.raises(VerificationFailed, match="DESCRIBES relationship does not name its image"):
        listed(json.dumps(told).encode())


def nested(depth: int) -> bytes:
    parts: list[Told] = []
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
        pytest.param(b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}', id="says nothing"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationFailed):
        listed(data)


def test_components_in_components_are_read() -> None:
    """Else thirty of them would be refused for another reason."""
    assert len(listed(nested(5)).items) == 5


@FEW
@given(st.sampled_from(sorted(DOCUMENTS)).flatmap(lambda form: mutated(json.loads(DOCUMENTS[form]))))
def test_any_other_value_anywhere_is_read_or_refused(told: Any) -> None:
    """Never another kind of failure."""
    answer(lambda: listed(json_bytes(told)))


@FEW
@given(st.sampled_from(sorted(DOCUMENTS)).flatmap(lambda form: spoiled(DOCUMENTS[form])))
def test_any_other_bytes_are_read_or_refused(data: bytes) -> None:
    answer(lambda: listed(data))
