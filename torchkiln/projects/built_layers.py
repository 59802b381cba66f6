"""Records the layers below a project's code that a build made; the gate compares an image with the record.

The key is the SHA-256 of the image's project.json, which has the digest of the parent image and the SHA-256
of each wheel and .deb file. So a record also confirms what project.json states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.layer import BuiltImage
from torchkiln.model.plan import ImagePlan
from torchkiln.model.project import PROJECT_JSON
from torchkiln.store.store import Store

_RECORDS = "projects"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltLayers:
    """The layers below the code in the image of a project that this machine built."""

    diff_ids: Sequence[Digest]  # lowest first, with those of the parent image
    overwritten: Sequence[str]  # sentences, as in `Effect`


def remember_layers(store: Store, plan: ImagePlan, image: BuiltImage, overwritten: Sequence[str]) -> None:
    """Record the layers of *image*, which was built from *plan*, the plan of a project."""
    text = next(file.data for file in plan.overlay.files if file.path == PROJECT_JSON)
    below = tuple(layer.blob.diff_id for layer in image.layers[:-1])
    found = BuiltLayers(diff_ids=below, overwritten=tuple(overwritten))
    store.put_record(_RECORDS, hashlib.sha256(text).hexdigest(), asdict(found))


def built_layers(store: Store, project_json: str) -> BuiltLayers | None:
    """The record of a build whose image has this *project_json*; None: this machine made none.

    :param project_json: its SHA-256, hex.
    """
    if (record := store.record(_RECORDS, project_json)) is None:
        return None
    try:
        diff_ids = tuple(map(parse_digest, record["diff_ids"]))
        return BuiltLayers(diff_ids=diff_ids, overwritten=tuple(map(str, record["overwritten"])))
    except (KeyError, TypeError, ValueError):
        return None
