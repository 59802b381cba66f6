"""Projects as a kind of images, for the sessions of the core that publish and verify images.

An image of a project in a registry is verified from manifests, configs and statements; layers are read only
with --full. The signed decision of the gate states that the project's layers do not change the parent image
(ADR 58). The project's own report is evaluated again; the parent image is verified if the repository has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from torchkiln.errors import KilnError, VerificationFailed, printable
from torchkiln.gate.check_status import check_status
from torchkiln.gate.clearance import CLEARANCE, decision_of, prevailing
from torchkiln.gate.gate import request_faults
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import parse_digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import APP, LABEL, PARENT_LABEL, TEST
from torchkiln.oci.labels import container_config, labels
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.projects.bill import bill_of_project
from torchkiln.projects.gate.config import ConfigRules, config_faults
from torchkiln.projects.gate.read import (
    ProjectImage,
    judge_by_reports,
    prefix_faults,
    project_image,
    read_evidence,
)
from torchkiln.projects.smoke.account import account_of, is_project
from torchkiln.projects.smoke.checks import project_suite
from torchkiln.publishing.attached import AttachedStatements, Point, of_sbom, reports_in
from torchkiln.publishing.names import names_of_project
from torchkiln.publishing.session import Candidate, PublishSession, PublishTarget
from torchkiln.publishing.verify import Verification, VerifyCriteria
from torchkiln.registry.reading import RepositoryReader, fetch_documents
from torchkiln.sbom.matches import listed
from torchkiln.smoke.attestation import PREDICATE
from torchkiln.store.store import Store
from torchkiln.util.schema import sentences, shipped


def verify_project(
    statements: AttachedStatements,
    image: ImageOnDisk,
    criteria: VerifyCriteria,
    *,
    signed: bool,
    tag: str | None,
) -> Iterator[Point]:
    """Verify *image*, the image of a project, by its *statements*; *tag* is the name to verify, or None."""
    policy = replace(criteria.policy, signed=signed, accept_unsigned=not signed, report_age=0, suites=())
    try:
        decided, override = _decided(statements)
    except KilnError as error:
        yield Point("gate", False, error.message)
        return
    below = decided["below"]
    cited = f"{below['tag']}@{below['digest']}"
    if labels(image).get(PARENT_LABEL) != cited:
        yield Point(
            "gate", False, f"the decision is about a project on {cited}, but the label names another image"
        )
    elif override:
        yield Point("gate", False, f"published with --override: {override}")
    else:
        gpus = ", ".join(below["gpus"]) or "no GPU"
        count = len(below["reports"])
        cites = "its report is" if count == 1 else f"its {count} reports are"
        passed = f"which passed {len(below['passed'])} checks on {gpus}"
        if "in_image" in decided:
            passed += f", and {len(decided['in_image']['passed'])} of them also in this image"
        yield Point("gate", True, f"on {cited}, {passed}; {cites} cited by digest, and not read")
    yield _of_reports(statements, cited, decided["test"], policy, criteria.at)

    def differences(data: bytes) -> list[str]:
        found = listed(data).image
        return [] if found == image.manifest else [f"the SBOM is of {found}, not of this image"]

    good = "CycloneDX is of this image; --full compares it with its layers"
    yield of_sbom(statements, differences, good)
    if tag is not None:
        yield _of_name(statements, tag, labels(image).get(LABEL, ""))


def _decided(statements: AttachedStatements) -> tuple[dict[str, Any], str | None]:
    """The part of the gate's decision that is about the project, and the reason of an override.

    :raises VerificationFailed: there is no trusted decision about the image of a project.
    """
    found = {statement: decision_of(statement, where="clearance") for statement in statements.all(CLEARANCE)}
    last = prevailing(list(found.values()))
    if last is None:
        raise VerificationFailed("no trusted decision of the gate found")
    statement = next(each for each, decision in reversed(found.items()) if decision is last)
    content = statement.content.get("project")
    if wrong := sentences(content, shipped("project-decision"), "clearance: project"):
        raise VerificationFailed("\n".join(wrong))
    return content, last.override


def _of_reports(
    statements: AttachedStatements, cited: str, test: Sequence[str], policy: Policy, at: datetime
) -> Point:
    """Evaluate the reports of the project's checks again, but not their age; none may be from the future."""
    suite = project_suite()
    reports, wrong = reports_in(statements.by_kind.get(PREDICATE, ()))
    for signed in reports:
        name = signed.name
        run = signed.report.project
        same = run is not None and f"{run.parent}@{run.parent_image}" == cited
        if run is None or not same or (test and list(run.test) != list(test)):
            wrong.append(f"{name}: not a report on the checks of this project on {cited}")
        wrong += [f"{name}: {text}" for text in request_faults(signed, policy, suite, None, at)]
    checks = [check for check in suite.checks if check.id != TEST or test]
    for check in checks:
        lacks = check_status(check, [(report, {}) for report in reports], suite, required=True).lacks
        wrong += [f"{check.id}: {text}" for text in lacks]
    if wrong:
        return Point("smoke", False, "\n".join(wrong))
    return Point("smoke", True, f"{', '.join(check.id for check in checks)} passed in the project's image")


def _of_name(statements: AttachedStatements, tag: str, name: str) -> Point:
    try:
        names = statements.names()
    except KilnError as error:
        return Point("name", False, error.message)
    if tag in names:
        return Point("name", True, f"{name} was published as {tag}")
    listed_names = ", ".join(sorted(names)) or "no name"
    return Point("name", False, f"{name} was published as {listed_names}, not as {tag}: the tag was moved")


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
        yield Point("below", False, f"the label names no image: {printable(label[:300])!r}")
        return
    found = reading.manifest(digest)
    if found is None:
        yield Point("below", True, f"{label} is not in this repository: its reports were not read")
        return
    below = fetch_documents(reading, found, folder, "below")
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
    yield Point("below", not faults, "\n".join(faults) or text)


def _layer_faults(image: ImageOnDisk, below: ImageOnDisk, locked: LockedCell, store: Store) -> list[str]:
    """What the gate would refuse in *image*, without a record of its build; *below* is its parent image."""
    on_disk = replace(below, layers=image.layers[: len(below.layers)])
    try:
        project = ProjectImage(image=image, account=account_of(image), below=on_disk, locked=locked)
        evidence = read_evidence(project, store)
    except KilnError as error:
        return [error.message]
    return [*evidence.layer_faults, *evidence.config_faults]


class ProjectKind:
    """The images of projects; it is both a `PublishedKind` and a `VerifiedKind`."""

    is_mine = staticmethod(is_project)
    points = staticmethod(verify_project)
    parent_points = staticmethod(verify_below)

    def candidate(self, image: ImageOnDisk, session: PublishSession, target: PublishTarget) -> Candidate:
        """The gate's decision cites the reports of the parent image by digest."""
        project = project_image(image, session.layout, session.images, session.store)
        name, below = project.account.name, project.account.parent
        return Candidate(
            names=names_of_project(
                image, name, below, session.matrix, day=target.day, requested=target.names
            ),
            result=judge_by_reports(session.inputs, project, session.images),
            bill=lambda: bill_of_project(project, session.images, session.store, name=target.repository.name),
        )


KINDS = (ProjectKind(),)
