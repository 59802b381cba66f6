"""Makes the OCI 1.1 manifest of an artifact, such as a signature or an SBOM, that refers to an image."""

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
    """A document that is attached to an image."""

    kind: str  # artifact type, also the media type of its only layer
    data: bytes = field(repr=False)
    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Referrer:
    """An artifact of an image as a registry lists it; nothing is verified yet."""

    digest: Digest
    size: int
    kind: str  # artifact type; empty if the registry does not list it
    annotations: Mapping[str, str] = field(hash=False)


def manifest_of(artifact: Artifact, subject: Mapping[str, Any]) -> bytes:
    """The manifest of *artifact*; *subject* is the image's descriptor. Deterministic."""
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
