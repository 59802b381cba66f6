"""Makes the bill of a project's image: packages of the parent image and of the project, and its code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packageurl import PackageURL

from torchkiln import __version__
from torchkiln.base.archive import files_of
from torchkiln.errors import printable
from torchkiln.locks.file import lock_digest
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Observer
from torchkiln.model.project import APP
from torchkiln.plan.plan import plan
from torchkiln.projects.gate.read import ProjectImage
from torchkiln.projects.plan import union
from torchkiln.sbom.bill import Bill, BillComponent, bill_of, in_order
from torchkiln.sbom.read_image import made_of, read_evidence
from torchkiln.store.store import Store


def bill_of_project(
    project: ProjectImage, images: Path, store: Store, *, name: str, observer: Observer | None = None
) -> Bill:
    """The bill of the image of *project*; layers whose metadata is in *store* are not read.

    :param images: the folder of locks.
    :param name: of the repository.
    :raises VerificationFailed: a layer is damaged, or the packages are not those that the parent image's lock
        and project.json list.
    :raises ConfigError: the committed record of the base's files is invalid.
    """
    locked, image = project.locked, project.image
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    evidence = read_evidence(image, store, made_of=made_of(planned, store), observer=observer)
    bill = bill_of(
        _with_packages(project),
        image.manifest,
        evidence,
        files=files_of(images, locked, store),
        name=name,
        tool=__version__,
        added={(deb.name, deb.version, deb.architecture): deb.sha256 for deb in project.account.packages},
    )
    origins = {wheel.name: wheel.origin for wheel in project.account.wheels if wheel.origin}
    components = [
        _of_origin(part, origins[part.name]) if part.kind == "wheel" and part.name in origins else part
        for part in bill.components
    ]
    return replace(bill, tag=project.account.name, components=in_order((*components, _itself(project))))


def _of_origin(part: BillComponent, origin: str) -> BillComponent:
    """*part*, a wheel, with its origin in the remark; a commit is also in its package URL."""
    purl = PackageURL.from_string(part.purl)
    if origin.startswith("git+"):
        purl = purl._replace(qualifiers={**dict(purl.qualifiers), "vcs_url": origin})
    return replace(part, purl=purl.to_string(), remark=f"not from an index: {printable(origin)}")


def _with_packages(project: ProjectImage) -> LockedCell:
    """The lock of the parent image with the wheels that project.json lists."""
    added = [
        LockedWheel(
            name=wheel.name, version=wheel.version, filename="", sha256=wheel.sha256, index=Source.DEFAULT
        )
        for wheel in project.account.wheels
    ]
    return union(project.locked, added, project.account.removed)


def _itself(project: ProjectImage) -> BillComponent:
    """The component for the project's code; its version is from the layer's diff_id: there is no other."""
    name, files = project.account.name, project.account.files
    version = project.image.layers[-1].diff_id.removeprefix("sha256:")[:12]
    return BillComponent(
        kind="project",
        name=name,
        version=version,
        purl=PackageURL("generic", None, name, version).to_string(),
        evidence=APP,
        remark=f"{files} file{'' if files == 1 else 's'}; the version is the start of the layer's diff_id",
    )
