"""Gives images of several platforms one name: an OCI index, in which an engine finds its own platform.

The image for the default platform is called TAG, that for linux/arm64 TAG-arm64. If a layout has both, TAG
refers to an index of both; torchkiln itself reads TAG as the image for the default platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchkiln.model.digest import Digest
from torchkiln.model.platform import LINUX_AMD64, PLATFORMS, Platform
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
Entry = Mapping[str, Any]


def index_document(entries: Sequence[Entry]) -> dict[str, Any]:
    """An image index with the descriptors *entries*."""
    return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": list(entries)}


def name_in(entry: Entry) -> str | None:
    """The name in an entry of index.json."""
    name = entry.get("annotations", {}).get(REF_NAME)
    return name if isinstance(name, str) else None


def platform_of(config: Mapping[str, Any]) -> Platform:
    """The platform in the *config* of an image; the default one if torchkiln does not build for it."""
    return PLATFORMS.get(f"{config.get('os')}/{config.get('architecture')}", LINUX_AMD64)


def entry_of(manifest: Digest, size: int, platform: Platform, **annotations: str) -> dict[str, Any]:
    """The descriptor of an image in index.json, with its platform."""
    found = {**descriptor(MANIFEST_TYPE, manifest, size), "platform": platform.oci}
    return {**found, "annotations": annotations} if annotations else found


def joined(entries: Sequence[Entry]) -> tuple[list[Entry], list[bytes]]:
    """The *entries* of index.json, those of images with a sibling replaced by an index; and these indexes."""
    siblings = _siblings(entries)
    found: list[Entry] = []
    documents: list[bytes] = []
    for entry in entries:
        name = name_in(entry)
        if name not in siblings or entry.get("platform") != LINUX_AMD64.oci:
            found.append(entry)
            continue
        members = [dict(each, annotations=None) for each in (entry, *siblings[name])]
        data = canonical_json(index_document([{k: v for k, v in each.items() if v} for each in members]))
        documents.append(data)
        of_index = descriptor(INDEX_TYPE, digest_of(data), len(data))
        found.append({**of_index, "annotations": {REF_NAME: name}})
    return found, documents


def split(entries: Sequence[Entry], members: Callable[[Entry], Sequence[Entry]]) -> Iterator[Entry]:
    """The inverse of `joined`: each index of siblings replaced by its image for the default platform.

    :param members: returns the entries of an index.
    """
    siblings = _siblings(entries)
    for entry in entries:
        is_joined = name_in(entry) in siblings and entry["mediaType"] == INDEX_TYPE
        of_index = members(entry) if is_joined else ()
        found = next((each for each in of_index if each.get("platform") == LINUX_AMD64.oci), None)
        yield {**found, "annotations": entry.get("annotations", {})} if found else entry


def _siblings(entries: Sequence[Entry]) -> dict[str | None, list[Entry]]:
    """The images for other platforms, by the name of the image for the default platform."""
    found: dict[str | None, list[Entry]] = {}
    for entry in entries:
        name, platform = name_in(entry) or "", entry.get("platform")
        for other in PLATFORMS.values():
            if other.suffix and other.suffix in name and platform == other.oci:
                found.setdefault(name.replace(other.suffix, "", 1), []).append(entry)
    return found
