"""Files of a layout -> the JSON documents in them, checked just far enough that no reader stumbles.

Whoever reads a layout reads what others wrote: each malformed shape is a VerificationFailed naming the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.nouns import Digest, parse_digest
from torchkiln.oci.image import digest_of

_LIMIT = 16 << 20  # bytes; manifests are kilobytes, and a layout may come from anywhere


def read_document(path: Path, digest: Digest | None = None) -> dict[str, Any]:
    """The JSON object in the file *path*; its digest is checked when given."""
    try:
        with path.open("rb") as source:
            data = source.read(_LIMIT + 1)
        found = json.loads(data) if len(data) <= _LIMIT else None
    except OSError as error:
        raise VerificationFailed(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise VerificationFailed(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise VerificationFailed(f"{path}: not a JSON object")
    if digest is not None and digest_of(data) != digest:
        raise VerificationFailed(f"{path}: the content is not what its digest says")
    return found


def descriptors(path: Path, key: str, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The list of descriptors under *key* of the *document* that was read from *path*."""
    found = document.get(key)
    if not isinstance(found, list):
        raise VerificationFailed(f"{path}: {key} is not a list")
    for number, entry in enumerate(found):
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("mediaType"), str)
            and isinstance(entry.get("size"), int)
            and _is_digest(entry.get("digest"))
            and isinstance(entry.get("annotations", {}), dict)
        ):
            raise VerificationFailed(f"{path}: {key}[{number}] is not a descriptor (mediaType, digest, size)")
    return tuple(found)


def diff_ids(path: Path, config: Mapping[str, Any]) -> tuple[Digest, ...]:
    """The diff_ids of the image *config* that was read from *path*."""
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or not all(map(_is_digest, found)):
        raise VerificationFailed(f"{path}: rootfs.diff_ids is not a list of digests")
    return tuple(map(Digest, found))


def _is_digest(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_digest(value))
    except ValueError:
        return False
