"""Reads what the image of a project states about itself: the parent image, its packages, its settings.

The builder of the image wrote these statements; the gate compares them with the record of a build (ADR 58).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from torchkiln.compare.images import contents_of
from torchkiln.errors import VerificationFailed, printable
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.project import APP, PARENT_LABEL, PROJECT_JSON
from torchkiln.oci.labels import labels
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.projects.pyproject import FILE as PYPROJECT
from torchkiln.projects.settings import FILE as SETTINGS
from torchkiln.projects.settings import ProjectSettings, settings_from
from torchkiln.util import codec
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of

_FILES = frozenset({PROJECT_JSON, *(f"{APP}/{name}" for name in (SETTINGS, PYPROJECT))})


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountWheel:
    """A wheel of the project, as project.json lists it."""

    name: str
    version: str
    sha256: str  # hex
    origin: str = ""  # a file of the project, a URL or an sdist; empty: from an index


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountPackage:
    """An OS package of the project, as project.json lists it."""

    name: str
    version: str
    architecture: str
    sha256: str  # of its .deb file, hex


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectAccount:
    """What the image of a project states about itself: project.json, and the settings in its code."""

    name: str
    parent: str  # the tag of the parent image
    parent_image: Digest  # the digest of its manifest
    parent_lock: Digest
    requirements: tuple[str, ...]
    wheels: tuple[AccountWheel, ...]
    removed: tuple[str, ...]  # packages of the parent image that the project's wheels replace
    packages: tuple[AccountPackage, ...]
    at_start: tuple[str, ...]  # files that Python runs at each start: "x.pth of x"
    settings: ProjectSettings
    sha256: str  # of project.json, hex
    files: int  # number of files in the layer with the project's code, without project.json


def is_project(image: ImageOnDisk) -> bool:
    """Whether *image* has the label of a project's image."""
    return PARENT_LABEL in labels(image)


def account_of(image: ImageOnDisk) -> ProjectAccount:
    """What the project's *image* states about itself in its top layer.

    :raises VerificationFailed: the layer is damaged, or project.json or the label is invalid or missing.
    :raises ConfigError: the settings in its code are invalid.
    """
    hint = "build the project's image again"
    contents = contents_of(image.layers[-1], _FILES.__contains__)
    where = f"{image.ref}: /{PROJECT_JSON}"
    if (text := contents.texts.get(PROJECT_JSON)) is None:
        raise VerificationFailed(f"{where}: not in the top layer", hint=hint)
    try:
        document = json_of(text.encode())
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=hint) from None
    if faults := sentences(document, shipped("project-account"), where):
        raise VerificationFailed("\n".join(faults), hint=hint)
    _demand_label(image, document["parent"])

    def read(name: str) -> bytes | None:
        """The content of the file /app/*name*; None if it is missing or a symbolic link."""
        found = contents.texts.get(f"{APP}/{name}")
        return None if found is None else found.encode()

    return ProjectAccount(
        name=document["name"],
        parent=document["parent"]["tag"],
        parent_image=Digest(document["parent"]["manifest"]),
        parent_lock=Digest(document["parent"]["lock"]),
        requirements=tuple(document["requirements"]),
        wheels=codec.typed(
            tuple[AccountWheel, ...], [{**row, "origin": row.get("from", "")} for row in document["wheels"]]
        ),
        removed=tuple(document["removed"]),
        packages=codec.typed(tuple[AccountPackage, ...], document.get("apt", {"packages": ()})["packages"]),
        at_start=tuple(document["at_start"]),
        settings=settings_from(read),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        files=contents.files - 1,
    )


def _demand_label(image: ImageOnDisk, parent: Mapping[str, str]) -> None:
    """:raises VerificationFailed: the label names another parent image than project.json."""
    label = labels(image).get(PARENT_LABEL, "")
    tag, _, digest = label.partition("@")
    try:
        same = (tag, parse_digest(digest)) == (parent["tag"], parent["manifest"])
    except ValueError:
        same = False
    if not same:
        raise VerificationFailed(
            f"{image.ref}: the label {PARENT_LABEL} is {printable(label[:300])!r}, but /{PROJECT_JSON} has"
            f" {printable(parent['tag'][:130])}@{parent['manifest']}",
            hint="build the project's image again",
        )
