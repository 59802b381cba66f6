"""Verifies the parent of a project's image, if the repository also has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from torchkiln.errors import KilnError, printable
from torchkiln.model.digest import parse_digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import APP, LABEL, PARENT_LABEL
from torchkiln.oci.labels import container_config, labels
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.projects.gate.config import ConfigRules, config_faults
from torchkiln.projects.gate.read import ProjectImage, prefix_faults, read_evidence
from torchkiln.projects.smoke.account import account_of
from torchkiln.publishing.attached import Point
from torchkiln.publishing.verify import Verification
from torchkiln.registry import pulling
from torchkiln.registry.reading import RepositoryReader
from torchkiln.store.store import Store

_WHAT = "below"


def verify_below(
    reading: RepositoryReader,
    image: ImageOnDisk,
    folder: Path,
    verify: Callable[[ImageOnDisk], Verification],
    store: Store | None = None,
) -> Iterator[Point]:
    """Verify the parent of *image*, a project's image, and that its layers are the lowest of *image*.

    :param folder: for the documents of the parent image.
    :param verify: verifies an image of the repository.
    :param store: a cache for lists of files. With it, the layers of *image*, which must be downloaded and
        verified, are compared as by the gate. None: the layers are not compared.
    :raises RegistryError: a request failed.
    """
    label = labels(image).get(PARENT_LABEL, "")
    try:
        digest = parse_digest(label.partition("@")[2])
    except ValueError:
        yield Point(_WHAT, False, f"the label names no image: {printable(label[:300])!r}")
        return
    found = reading.manifest(digest)
    if found is None:
        yield Point(_WHAT, True, f"{label} is not in this repository: its reports were not read")
        return
    below = pulling.documents(reading, found, folder, "below")
    env = container_config(image).get("Env") or []
    rules = ConfigRules(
        name=labels(image).get(LABEL, ""),
        parent=f"{label.partition('@')[0]}@{below.manifest}",
        has_source=f"PYTHONPATH=/{APP}:/{APP}/src" in env,  # the gate compared it with the layers
    )
    faults = [*prefix_faults(image, below), *config_faults(image.config, below.config, rules)]
    result = verify(below)
    faults += [f"{point.what}: {point.text}" for point in result.points if not point.good]
    text = f"{label} is verified; its layers are the lowest {len(below.layers)} of this image"
    if store is not None and result.origin is not None and not faults:
        faults += _layer_faults(image, below, result.origin.locked, store)
        text += ", and the code does not change it; the publisher's gate compared the packages with a build"
    yield Point(_WHAT, not faults, "\n".join(faults) or text)


def _layer_faults(image: ImageOnDisk, below: ImageOnDisk, locked: LockedCell, store: Store) -> list[str]:
    """What the gate would refuse in *image*, without a record of its build; *below* is its parent image."""
    on_disk = replace(below, layers=image.layers[: len(below.layers)])
    try:
        project = ProjectImage(image=image, account=account_of(image), below=on_disk, locked=locked)
        evidence = read_evidence(project, store)
    except KilnError as error:
        return [error.message]
    return [*evidence.layer_faults, *evidence.config_faults]
