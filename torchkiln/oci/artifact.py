"""Something that goes with an image -> its OCI 1.1 manifest, which names the image as its subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchkiln.model.digest import Digest
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """One document that goes with an image."""

    kind: str  # artifact type, and the media type of its only layer
    data: bytes = field(repr=False)
    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Referrer:
    """What a registry lists of the things that go with an image, as it lists it: nothing is proved yet."""

    digest: Digest
    size: int
    kind: str  # artifact type; empty where the registry does not tell
    annotations: Mapping[str, str] = field(hash=False)


def manifest_of(artifact: Artifact, subject: Mapping[str, Any]) -> bytes:
    """The manifest of *artifact*; *subject* is the image's descriptor. Same things, same bytes."""
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": artifact.kind,
            "config": descriptor(EMPTY_TYPE, digest_of(EMPTY), len(EMPTY)),
            "layers": [descriptor(artifact.kind, digest_of(artifact.data), len(artifact.data))],
            "subject": dict(subject),
            "annotations": dict(artifact.annotations),
        }
    )
