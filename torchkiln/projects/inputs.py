"""Computes the digest of the inputs of a project's lock, by which an outdated lock is detected."""

from __future__ import annotations

from torchkiln.locks.file import lock_digest
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.lock import LockedCell
from torchkiln.projects.asked import Asked, ProjectNeeds

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
