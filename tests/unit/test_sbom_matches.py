"""SBOMs are compared with an image: every difference is found, and invalid documents are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests import planned, sboms
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, OsPackage
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.sbom.evidence import Evidence
from torchkiln.sbom.matches import items_of, listed, matches, matches_lock

DOCUMENT = cyclonedx(sboms.bill())
Json = dict[str, Any]


def against(found: Evidence) -> tuple[str, ...]:
    return matches(DOCUMENT, sboms.IMAGE, items_of(found))


def metadata(name: str, version: str) -> dict[str, str]:
    return {f"{sboms.SITE}/{name}-{version}.dist-info/METADATA": sboms.metadata(name, version)}


def test_a_matching_document_has_no_difference() -> None:
    assert against(sboms.evidence()) == ()


def test_a_document_of_another_image() -> None:
    other_digest = Digest("sha256:" + "9" * 64)

    assert matches(DOCUMENT, other_digest, items_of(sboms.evidence())) == (
        f"the SBOM is of {sboms.IMAGE}, not of {other_digest}",
    )


def changed(**torch: str) -> Evidence:
    """The evidence with other values for torch."""
    found = sboms.evidence()
    some = (replace(dist, **torch) if dist.name == "torch" else dist for dist in found.distributions)
    return replace(found, distributions=tuple(some))


def without_torch() -> Evidence:
    found = sboms.evidence()
    return replace(found, distributions=tuple(dist for dist in found.distributions if dist.name != "torch"))


TORCH = sboms.evidence().wheels["torch"]


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        pytest.param(
            sboms.evidence(**metadata("stowaway", "6.6.6")),
            "Python package stowaway 6.6.6: in the image, but not in the SBOM",
            id="only in the image",
        ),
        pytest.param(
            without_torch(),
            "Python package torch 2.7.1: in the SBOM, but not in the image",
            id="only in the document",
        ),
        pytest.param(
            changed(version="2.7.2"),
            "Python package torch: the SBOM has 2.7.1, the image 2.7.2",
            id="another version",
        ),
        pytest.param(
            replace(sboms.evidence(), wheels={**sboms.evidence().wheels, "torch": (TORCH[0], "f" * 64)}),
            f"Python package torch 2.7.1: the SBOM has the hash {TORCH[1]}, the image {'f' * 64}",
            id="another hash",
        ),
        pytest.param(
            sboms.evidence(
                **{f"{sboms.SITE}/torch/_vendor/idna-3.1.dist-info/METADATA": sboms.metadata("idna", "3.1")}
            ),
            "Python package idna 3.1: in the image, but not in the SBOM",
            id="a second copy",
        ),
    ],
)
def test_each_difference_of_a_package_is_found(found: Evidence, difference: str) -> None:
    assert against(found) == (difference,)


def test_packages_of_the_os() -> None:
    """A package is missing or additional, or has a different version or architecture."""
    debs = {name: content for name, content in sboms.DEBS.items() if name != "gcc-12-base"}
    debs["zsh"] = ("5.9-4", "amd64", "zsh", "")
    debs["tini"] = ("0.20", *sboms.DEBS["tini"][1:])
    debs["tzdata"] = (sboms.DEBS["tzdata"][0], "amd64", "tzdata", "")

    assert against(sboms.evidence(**{sboms.STATUS: sboms.status(debs)})) == (
        "package gcc-12-base:amd64 12.2.0-14+deb12u1: in the SBOM, but not in the image",
        "package tini:amd64: the SBOM has 0.19.0-1+b3, the image 0.20",
        "package tzdata:all 2025b-0+deb12u2: in the SBOM, but not in the image",
        "package tzdata:amd64 2025b-0+deb12u2: in the image, but not in the SBOM",
        "package zsh:amd64 5.9-4: in the image, but not in the SBOM",
    )


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
    cell: LockedCell, content: tuple[str, ...]
) -> None:
    """A package that is vendored in a wheel, here idna, is not in the lock."""
    assert matches_lock(DOCUMENT, sboms.IMAGE, cell) == content


def test_hashes_of_the_os_are_compared_with_the_noted_ones() -> None:
    noted = sboms.files(CELL)
    forged = replace(noted, debs=(replace(noted.debs[0], sha256="e" * 64), *noted.debs[1:]))

    assert matches_lock(DOCUMENT, sboms.IMAGE, CELL, noted) == ()
    (content,) = matches_lock(DOCUMENT, sboms.IMAGE, CELL, forged)
    assert content.startswith("package gcc-12-base 12.2.0-14+deb12u1: the SBOM has the hash 0")
    assert matches_lock(DOCUMENT, sboms.IMAGE, CELL, replace(forged, base=sboms.IMAGE)) == ()


def of_torch(change: Callable[[Json], object]) -> Callable[[Json], object]:
    """Change the component of torch in a document."""
    return lambda content: change(next(part for part in content["components"] if part["name"] == "torch"))


SPOILED: dict[str, tuple[Callable[[Json], object], str]] = {
    "empty": (lambda content: content.clear(), "not a CycloneDX 1.6 document"),
    "of no image": (lambda content: content["metadata"].pop("component"), "required field `component`"),
    "of a library": (
        lambda content: content["metadata"]["component"].update(type="library"),
        "metadata.component is not an image",
    ),
    "name": (of_torch(lambda torch: torch.update(name=7)), r"Expected `str`, got `int` .*name`"),
    "long": (of_torch(lambda torch: torch.update(name="x" * 5000)), r"length <= 4000 .*name`"),
    "name in purl": (of_torch(lambda torch: torch.update(purl="pkg:pypi/other@2.7.1")), "URL mismatch"),
    "version in purl": (of_torch(lambda torch: torch.update(purl="pkg:pypi/torch@2.7.0")), "URL mismatch"),
    "no purl": (of_torch(lambda torch: torch.update(purl="torch")), "invalid package URL"),
    "hash": (
        of_torch(lambda torch: torch["hashes"][0].update(content="F" * 64)),
        r"matching regex .*hashes\[0\].content`",
    ),
    "two": (of_torch(lambda torch: torch.update(hashes=torch["hashes"] * 2)), "more than one"),
    "no list": (
        lambda content: content.update(components={}),
        r"Expected `array`, got `object` - at `\$.components`",
    ),
    "numbers": (
        lambda content: content.update(components=[1]),
        r"Expected `object`, got `int` - at `\$.components",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_ambiguous_document_is_refused(case: str) -> None:
    spoil, reason = SPOILED[case]
    content = json.loads(DOCUMENT)
    spoil(content)

    with pytest.raises(VerificationFailed, match=reason) as caught:
        listed(json.dumps(content).encode(), where="x.json")
    assert caught.value.message.startswith("x.json: ")
    assert caught.value.hint


def nested(depth: int) -> bytes:
    parts: list[Json] = []
    for _ in range(depth):
        parts = [{"name": "x", "version": "1", "purl": "pkg:pypi/x@1", "components": parts}]
    return json.dumps(json.loads(DOCUMENT) | {"components": parts}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(nested(30), id="components in components"),
        pytest.param(b'{"spdxVersion": "SPDX-2.3"}', id="SPDX"),
        pytest.param(DOCUMENT.replace(b'"specVersion": "1.6"', b'"specVersion": "1.5"'), id="older"),
        pytest.param(b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}', id="empty"),
    ],
)
def test_an_invalid_document_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationFailed):
        listed(data)


def test_components_in_components_are_read() -> None:
    """Five levels are read, so thirty levels are refused because of their number."""
    assert len(listed(nested(5)).items) == 5
