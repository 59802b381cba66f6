"""Artifact → what goes with an image in a registry: OCI 1.1 referrers, or the tag of older registries.

One that knows referrers says so when it takes one (`OCI-Subject`). For another the list is an index under the
tag `sha256-<hex>`, which whoever adds to it writes anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import RegistryError, UnknownFormat, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.oci.artifact import EMPTY, Artifact, Referrer, manifest_of
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of
from torchkiln.oci.layout import INDEX_TYPE
from torchkiln.registry.body import Held
from torchkiln.registry.delivery import Delivery
from torchkiln.registry.naming import put
from torchkiln.registry.reading import Reading
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.util.schema import sentences

_STALE = "what goes with the image was damaged or belongs to another: publish again, or ask who published it"
_DESCRIPTOR: dict[str, Any] = {
    "type": "object",
    "required": ["mediaType", "digest", "size"],
    "properties": {
        "mediaType": {"type": "string"},
        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        "size": {"type": "integer", "minimum": 0},
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
_MOST = 500  # of one image that are read; a publication has about ten
_AGAIN = 5  # times that the list is written anew, because somebody else wrote it meanwhile


#: Tags under which such lists lie.
LIST = re.compile(r"sha256-[0-9a-f]{64}(\.[a-z]+)?")


def tag_for(digest: Digest) -> str:
    """The tag under which the list lies where the registry keeps none."""
    return digest.replace(":", "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a registry lists of that which goes with an image."""

    wanted: tuple[Referrer, ...]
    others: int  # of other kinds, and entries that are not valid


def listing(reading: Reading, digest: Digest, kinds: Collection[str] | None = None) -> Listing:
    """What goes with the image *digest*, by the registry's own list and by the tag.

    :param kinds: artifact types; others are only counted, so that any number of them costs nothing. One
        whose type the registry does not tell is wanted. None: all are wanted.
    :raises RegistryError: the registry refuses, or cannot be reached; its list is not valid.
    :raises VerificationFailed: more are wanted than anybody publishes.
    """
    by_tag = reading.manifest(tag_for(digest))
    entries = reading.referrers(digest) or []
    entries += reading.listed(by_tag.data, f"the list under the tag {by_tag.digest[:19]}") if by_tag else []
    found: dict[Digest, Referrer] = {}
    others: set[str] = set()
    for entry in entries:
        one = _referrer(entry)
        if one and (kinds is None or not one.kind or one.kind in kinds):
            found.setdefault(one.digest, one)
        else:
            others.add(str(entry.get("digest"))[:80])
    if len(found) > _MOST:
        raise VerificationFailed(
            f"{reading.repository}: {digest[:19]}: {len(found)} statements are listed with this image, and "
            f"at most {_MOST} are read, so none was",
            hint="somebody has filled the repository: delete what does not belong there",
        )
    return Listing(wanted=tuple(found.values()), others=len(others - found.keys()))


def referrers(reading: Reading, digest: Digest, kinds: Collection[str] | None = None) -> list[Referrer]:
    """What is wanted of a `listing`. Raises as that does."""
    return list(listing(reading, digest, kinds).wanted)


def _referrer(entry: Mapping[str, Any]) -> Referrer | None:
    """An entry of the list; None where a field is of a wrong type."""
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
        entries = reading.listed(there.data, f"the list under the tag {tag[:19]}") if there else []
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Brought:
    """The one document that a referrer brings, by its descriptor."""

    digest: Digest
    size: int
    form: str  # media type


def brought(reading: Reading, referrer: Referrer, subject: Digest, forms: Collection[str]) -> Brought:
    """What *referrer* brings to the image *subject*, in one of *forms*.

    :raises Foreign: it brings something else.
    :raises VerificationFailed: it goes with another image, or its manifest has other bytes.
    :raises RegistryError: the registry refuses, cannot be reached, or has lost it.
    """
    name = f"referrer {referrer.digest[:19]}"
    found = reading.manifest(referrer.digest)
    if found is None:
        raise VerificationFailed(f"{reading.repository}: {name} is listed and not there", hint=_STALE)
    told = found.told
    if wrong := sentences(told, _SCHEMA, name):
        raise UnknownFormat("\n".join(wrong))
    if told["subject"]["digest"] != subject:
        other = told["subject"]["digest"]
        raise VerificationFailed(f"{name}: goes with {other}, not with {subject}", hint=_STALE)
    layer = told["layers"][0]
    if layer["mediaType"] not in forms:
        raise UnknownFormat(f"{name}: {layer['mediaType'][:80]!r} is no form that is known here")
    return Brought(digest=parse_digest(layer["digest"]), size=layer["size"], form=layer["mediaType"])


def content(
    reading: Reading, referrer: Referrer, subject: Digest, forms: Collection[str], limit: int
) -> tuple[bytes, str]:
    """The one document that *referrer* brings to the image *subject*, and its media type, one of *forms*.

    :raises VerificationFailed: as `brought` does; it is longer than *limit* bytes, or has other bytes.
    """
    there = brought(reading, referrer, subject, forms)
    return reading.small(there.digest, limit), there.form
