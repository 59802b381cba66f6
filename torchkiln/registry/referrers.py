"""Artifact → what goes with an image in a registry: OCI 1.1 referrers, or the tag of older registries.

One that knows referrers says so when it takes one (`OCI-Subject`). For another the list is an index under the
tag `sha256-<hex>`, which whoever adds to it writes anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchkiln.errors import Foreign, RegistryError, VerificationFailed
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
_JOBS = 4
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
    registry: Registry, repository: Repository, subject: Mapping[str, Any], artifacts: Sequence[Artifact]
) -> tuple[Digest, ...]:
    """Let *artifacts* go with the image that the descriptor *subject* names; returns their digests.

    What is there already is not sent again. The list, where we keep it, is written once for all of them.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    if not artifacts:
        return ()
    delivery = Delivery(registry, repository)

    def deliver(data: bytes) -> None:
        delivery.deliver(Held(digest=digest_of(data), data=data), (), lambda _: None)

    def bring(artifact: Artifact) -> tuple[Digest, dict[str, Any] | None]:
        deliver(artifact.data)
        manifest = manifest_of(artifact, subject)
        name = digest_of(manifest)
        answer = put(registry, repository, manifest, name)
        entry = {
            **descriptor(MANIFEST_TYPE, name, len(manifest)),
            "artifactType": artifact.kind,
            "annotations": dict(artifact.annotations),
        }
        return name, None if "OCI-Subject" in answer.headers else entry

    deliver(EMPTY)
    with ThreadPoolExecutor(_JOBS, "attach") as pool:
        brought = list(pool.map(bring, artifacts))
    if unlisted := [entry for _, entry in brought if entry]:
        _list(Reading(registry, repository), Digest(subject["digest"]), unlisted)
    return tuple(name for name, _ in brought)


def _list(reading: Reading, subject: Digest, ours: Sequence[Mapping[str, Any]]) -> None:
    """Put *ours* on the list under the tag; two who do so at once must both end up on it."""
    tag = tag_for(subject)
    for _ in range(_AGAIN):
        there = reading.manifest(tag)
        entries = listed(there.data) if there else []
        known = {one.get("digest") for one in entries}
        lacking = [one for one in ours if one["digest"] not in known]
        if not lacking:
            return
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*entries, *lacking]}
        put(reading.registry, reading.repository, canonical_json(index), tag, media_type=INDEX_TYPE)
    raise RegistryError(
        f"{reading.repository}: the list {tag[:19]} is written by others faster than by us",
        hint="publish one after the other, then once more",
    )


def content(
    reading: Reading, referrer: Referrer, subject: Digest, forms: Collection[str], limit: int
) -> tuple[bytes, str]:
    """The one document that *referrer* brings to the image *subject*, and its media type, one of *forms*.

    :raises Foreign: it brings something else; that is not fetched.
    :raises VerificationFailed: it is of another image, longer than *limit* bytes, or has other bytes.
    :raises RegistryError: the registry refuses, cannot be reached, or has lost it.
    """
    name = f"referrer {referrer.digest[:19]}"
    found = reading.manifest(referrer.digest)
    if found is None:
        raise VerificationFailed(f"{reading.repository}: {name} is listed and not there", hint=_STALE)
    told = found.told
    if wrong := sentences(told, _SCHEMA, name):
        raise Foreign("\n".join(wrong))
    if told["subject"]["digest"] != subject:
        other = told["subject"]["digest"]
        raise VerificationFailed(f"{name}: goes with {other}, not with {subject}", hint=_STALE)
    layer = told["layers"][0]
    if layer["mediaType"] not in forms:
        raise Foreign(f"{name}: {layer['mediaType'][:80]!r} is no form that is known here")
    return reading.small(parse_digest(layer["digest"]), limit), layer["mediaType"]
