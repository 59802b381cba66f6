"""Decides, by a digest, whether a project's lock still belongs to the project's files and to the image."""

from __future__ import annotations

from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import ProjectLock
from torchkiln.projects.asked import Asked, ProjectNeeds
from torchkiln.projects.choice import choice_of
from torchkiln.projects.fixed import fixed_wheels

RULES = 1  # increase it when the same inputs result in other wheels


def inputs_digest(needs: ProjectNeeds, cell: LockedCell) -> Digest:
    """The digest of the requirements and settings of the project, the image's lock, and `RULES`."""

    def form(asked: Asked) -> list[object]:
        repository = asked.repository.text if asked.repository else ""
        return [asked.text, sorted(asked.hashes), *filter(None, (asked.path, asked.url, repository))]

    choice = needs.choice
    return digest_of_json(
        {
            "rules": RULES,
            "name": needs.name,
            "requirements": [form(asked) for asked in needs.requirements],
            "constraints": [form(asked) for asked in needs.constraints],
            "requires_python": needs.requires_python,
            "parent": lock_digest(cell),
            # These keys are left out if empty, so that locks that are older than the keys stay fresh.
            **({"extras": choice.extras} if choice.extras else {}),
            **({"groups": choice.groups} if choice.groups else {}),
            **({"apt": needs.apt} if needs.apt else {}),
            **({"wheels": needs.wheels} if needs.wheels else {}),
            **({"build": needs.build} if needs.build else {}),
        }
    )


def outdated(lock: ProjectLock, needs: ProjectNeeds, parent: LockedCell) -> str:
    """Why *lock* is outdated for *needs* and *parent*, as a phrase; empty: it is not outdated."""
    tag = tag_of(parent.resolution)
    if lock.parent != tag:
        return f"made for {lock.parent}, not for {tag}"
    if lock.parent_lock != lock_digest(parent):
        return f"made for another lock of {tag}"
    if (choice := choice_of(lock.extras, lock.groups)) != needs.choice:
        return f"made {choice.phrase}, not {needs.choice.phrase}"
    if needs.apt != (lock.apt.requested if lock.apt else ()):
        return "made for other OS packages than the setting apt has now"
    if lock.inputs != inputs_digest(needs, parent):
        return f"made from other requirements than {needs.source} has now"
    if changed := _changed(lock, needs):
        return f"made with different contents of {changed}: its sha256 has changed"
    before = {wheel.name: wheel.version for wheel in parent.wheels}
    names = {wheel.name for wheel in lock.wheels}
    if fixed := sorted(names & fixed_wheels(parent.wheels).keys()):
        return f"replaces packages that are fixed in {tag}: {', '.join(fixed)}"
    if {*lock.removed} != names & before.keys():
        return f"its list of removed packages does not match the packages of {tag}"
    return ""


def _changed(lock: ProjectLock, needs: ProjectNeeds) -> str:
    """The first locked file of the project's folder whose sha256 has changed; "" if there is none."""
    present = {wheel.path: wheel.sha256 for wheel in needs.own}
    locked = {wheel.name: wheel.sha256 for wheel in lock.wheels}
    paths = ((origin.path, locked[origin.name]) for origin in lock.origins)
    return next((path for path, sha256 in paths if present.get(path, sha256) != sha256), "")
