"""Attaches artifacts to an image and lists them: OCI 1.1 referrers, or the tag schema of older registries.

A registry that supports referrers returns `OCI-Subject` for a manifest with a subject. For other registries
the list is an index under the tag `sha256-<hex>`, which each client rewrites to add an entry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import RegistryError, UnknownFormat, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.oci.image import (
    EMPTY,
    MANIFEST_TYPE,
    Artifact,
    Referrer,
    canonical_json,
    descriptor,
    digest_of,
    manifest_of,
)
from torchkiln.oci.platform_index import INDEX_TYPE
from torchkiln.registry.delivery import Delivery, document
from torchkiln.registry.push import put
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.util.schema import DIGEST, TEXT, list_of, mapping, sentences

_STALE = "a referrer is damaged or belongs to another image: publish again, or ask the publisher"
_SIZE = {"type": "integer", "minimum": 0}
_DESCRIPTOR = mapping({"mediaType": TEXT, "digest": DIGEST, "size": _SIZE})
_SCHEMA = mapping({"layers": list_of(_DESCRIPTOR, minItems=1, maxItems=1), "subject": _DESCRIPTOR})
_JOBS = 4
_MOST = 500  # referrers of one image; a publication has about ten
_ATTEMPTS = 5  # to update the list while other clients write it


#: Tags of lists of referrers.
LIST = re.compile(r"sha256-[0-9a-f]{64}(\.[a-z]+)?")


def tag_for(digest: Digest) -> str:
    """The tag of the list, for a registry without the referrers API."""
    return digest.replace(":", "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferrerList:
    selected: tuple[Referrer, ...]
    others: int  # number of referrers of other kinds, and of invalid entries


def listing(reading: RepositoryReader, digest: Digest, kinds: Collection[str] | None = None) -> ReferrerList:
    """The referrers of the image *digest*, by the registry's API and by the tag.

    :param kinds: artifact types to select; others are counted, but not downloaded.
        A referrer without a type is selected. None selects all.
    :raises RegistryError: a request failed, or the list is invalid.
    :raises VerificationFailed: too many are selected.
    """
    by_tag = reading.manifest(tag_for(digest))
    entries = reading.referrers(digest) or []
    if by_tag:
        entries += reading.descriptors(by_tag.data, f"the list under the tag {by_tag.digest[:19]}")
    found: dict[Digest, Referrer] = {}
    others: set[str] = set()
    for entry in entries:
        referrer = _referrer(entry)
        if referrer and (kinds is None or not referrer.kind or referrer.kind in kinds):
            found.setdefault(referrer.digest, referrer)
        else:
            others.add(str(entry.get("digest"))[:80])
    if len(found) > _MOST:
        raise VerificationFailed(
            f"{reading.repository}: {digest[:19]}: the image has {len(found)} statements, more than the "
            f"limit of {_MOST}; none was read",
            hint="delete the referrers that do not belong to the image",
        )
    return ReferrerList(selected=tuple(found.values()), others=len(others - found.keys()))


def _referrer(entry: Mapping[str, Any]) -> Referrer | None:
    """An entry of the list; None if a field has a wrong type."""
    size, kind, annotations = entry.get("size"), entry.get("artifactType", ""), entry.get("annotations") or {}
    if type(size) is not int or size < 0 or not isinstance(kind, str) or not isinstance(annotations, dict):
        return None
    if not all(isinstance(value, str) for value in annotations.values()):
        return None
    try:
        digest = parse_digest(entry.get("digest", ""))
    except (TypeError, ValueError):
        return None
    return Referrer(digest=digest, size=size, kind=kind, annotations=annotations)


def attach(
    registry: Registry, repository: Repository, subject: Mapping[str, Any], artifacts: Sequence[Artifact]
) -> tuple[Digest, ...]:
    """Attach *artifacts* to the image with the descriptor *subject*; returns the digests of their manifests.

    Existing blobs are not sent again. The list under the tag, if it is needed, is written once.

    :raises RegistryError: a request failed.
    """
    if not artifacts:
        return ()
    delivery = Delivery(registry, repository)

    def deliver(data: bytes) -> None:
        delivery.deliver(document(data), (), lambda _: None)

    def push(artifact: Artifact) -> tuple[Digest, dict[str, Any] | None]:
        deliver(artifact.data)
        manifest = manifest_of(artifact, subject)
        name = digest_of(manifest)
        response = put(registry, repository, manifest, name)
        entry = {
            **descriptor(MANIFEST_TYPE, name, len(manifest)),
            "artifactType": artifact.kind,
            "annotations": dict(artifact.annotations),
        }
        return name, None if "OCI-Subject" in response.headers else entry

    deliver(EMPTY)
    with ThreadPoolExecutor(_JOBS, "attach") as pool:
        pushed = list(pool.map(push, artifacts))
    if unlisted := [entry for _, entry in pushed if entry]:
        _add_to_list(RepositoryReader(registry, repository), Digest(subject["digest"]), unlisted)
    return tuple(name for name, _ in pushed)


def _add_to_list(reading: RepositoryReader, subject: Digest, added: Sequence[Mapping[str, Any]]) -> None:
    """Add entries to the list under the tag, and check that no other client overwrote them."""
    tag = tag_for(subject)
    for _ in range(_ATTEMPTS):
        current = reading.manifest(tag)
        entries = reading.descriptors(current.data, f"the list under the tag {tag[:19]}") if current else []
        known = {entry.get("digest") for entry in entries}
        missing = [entry for entry in added if entry["digest"] not in known]
        if not missing:
            return
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*entries, *missing]}
        put(reading.registry, reading.repository, canonical_json(index), tag, media_type=INDEX_TYPE)
    raise RegistryError(
        f"{reading.repository}: write conflict: other clients keep overwriting the list {tag[:19]}",
        hint="publish from one client at a time",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    digest: Digest
    size: int
    media_type: str


def payload_of(
    reading: RepositoryReader, referrer: Referrer, subject: Digest, types: Collection[str]
) -> Payload:
    """The descriptor of the document that *referrer* attaches to the image *subject*.

    :param types: the accepted media types of the document.
    :raises UnknownFormat: the manifest has another form, or the document another media type.
    :raises VerificationFailed: it is missing, belongs to another image, or does not match its digest.
    :raises RegistryError: a request failed.
    """
    name = f"referrer {referrer.digest[:19]}"
    found = reading.manifest(referrer.digest)
    if found is None:
        raise VerificationFailed(f"{reading.repository}: {name} is listed, but not found", hint=_STALE)
    manifest = found.json
    if wrong := sentences(manifest, _SCHEMA, name):
        raise UnknownFormat("\n".join(wrong))
    if manifest["subject"]["digest"] != subject:
        other = manifest["subject"]["digest"]
        raise VerificationFailed(f"{name}: its subject is {other}, not {subject}", hint=_STALE)
    layer = manifest["layers"][0]
    if layer["mediaType"] not in types:
        raise UnknownFormat(f"{name}: unsupported media type {layer['mediaType'][:80]!r}")
    return Payload(digest=parse_digest(layer["digest"]), size=layer["size"], media_type=layer["mediaType"])
