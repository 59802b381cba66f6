"""Artifact → what goes with an image in a registry: OCI 1.1 referrers, or the tag of older registries.

One that knows referrers says so when it takes one (`OCI-Subject`). For another the list is an index under the
tag `sha256-<hex>`, which whoever adds to it writes anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.nouns import Digest, parse_digest
from torchkiln.oci.artifact import EMPTY, Artifact, Referrer, manifest_of
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of
from torchkiln.oci.layout import INDEX_TYPE
from torchkiln.registry.body import Held
from torchkiln.registry.delivery import Delivery
from torchkiln.registry.naming import put
from torchkiln.registry.reading import Reading, listed
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.schema import sentences

_STALE = "what goes with the image was damaged or belongs to another: publish again, or ask who published it"
_DESCRIPTOR: dict[str, Any] = {
    "type": "object",
    "required": ["mediaType", "digest"],
    "properties": {
        "mediaType": {"type": "string"},
        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    },
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["layers", "subject"],
    "properties": {
        "layers": {"type": "array", "minItems": 1, "maxItems": 1, "items": _DESCRIPTOR},
        "subject": _DESCRIPTOR,
    },
}
_AGAIN = 5  # times that the list is written anew, because somebody else wrote it meanwhile


#: Tags under which such lists lie.
LIST = re.compile(r"sha256-[0-9a-f]{64}(\.[a-z]+)?")


def tag_for(digest: Digest) -> str:
    """The tag under which the list lies where the registry keeps none."""
    return digest.replace(":", "-")


def referrers(reading: Reading, digest: Digest) -> list[Referrer]:
    """What goes with the image *digest*, by the registry's own list and by the tag.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    own = reading.referrers(digest)
    by_tag = reading.manifest(tag_for(digest))
    entries = [*listed(own.body if own else b""), *listed(by_tag.data if by_tag else b"")]
    found: dict[Digest, Referrer] = {}
    for entry in entries:
        try:
            name, size = parse_digest(entry["digest"]), int(entry["size"])
        except (ValueError, LookupError, TypeError):
            continue
        annotations = entry.get("annotations")
        found.setdefault(
            name,
            Referrer(
                digest=name,
                size=size,
                kind=str(entry.get("artifactType", "")),
                annotations=annotations if isinstance(annotations, dict) else {},
            ),
        )
    return list(found.values())


def attach(
    registry: Registry, repository: Repository, subject: Mapping[str, Any], artifact: Artifact
) -> Digest:
    """Let *artifact* go with the image that the descriptor *subject* names; returns its manifest's digest.

    What is there already is not sent again.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    delivery = Delivery(registry, repository)
    for data in (EMPTY, artifact.data):
        delivery.deliver(Held(digest=digest_of(data), data=data), (), lambda _: None)
    manifest = manifest_of(artifact, subject)
    name = digest_of(manifest)
    answer = put(registry, repository, manifest, name)
    if "OCI-Subject" not in answer.headers:
        entry = {
            **descriptor(MANIFEST_TYPE, name, len(manifest)),
            "artifactType": artifact.kind,
            "annotations": dict(artifact.annotations),
        }
        _list(Reading(registry, repository), Digest(subject["digest"]), entry)
    return name


def _list(reading: Reading, subject: Digest, entry: Mapping[str, Any]) -> None:
    """Put *entry* on the list under the tag; two who do so at once must both end up on it."""
    tag = tag_for(subject)
    for _ in range(_AGAIN):
        there = reading.manifest(tag)
        entries = listed(there.data) if there else []
        if any(one.get("digest") == entry["digest"] for one in entries):
            return
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*entries, entry]}
        put(reading.registry, reading.repository, canonical_json(index), tag, media_type=INDEX_TYPE)
    there = reading.manifest(tag)
    if there is None or not any(one.get("digest") == entry["digest"] for one in listed(there.data)):
        raise RegistryError(
            f"{reading.repository}: the list {tag[:19]} is written by others faster than by us",
            hint="publish one after the other, then once more",
        )


def content(reading: Reading, referrer: Referrer, subject: Digest, limit: int) -> tuple[bytes, str]:
    """The one document that *referrer* brings to the image *subject*, and its media type.

    :raises VerificationFailed: it is of another image, has another shape, is longer than *limit* bytes, or is
        not what its digest says.
    :raises RegistryError: the registry refuses, cannot be reached, or has lost it.
    """
    name = f"referrer {referrer.digest[:19]}"
    found = reading.manifest(referrer.digest)
    if found is None:
        raise VerificationFailed(f"{reading.repository}: {name} is listed and not there", hint=_STALE)
    told = found.told
    if wrong := sentences(told, _SCHEMA, name):
        raise VerificationFailed("\n".join(wrong), hint=_STALE)
    if told["subject"]["digest"] != subject:
        other = told["subject"]["digest"]
        raise VerificationFailed(f"{name}: goes with {other}, not with {subject}", hint=_STALE)
    layer = told["layers"][0]
    return reading.small(parse_digest(layer["digest"]), limit), layer["mediaType"]
