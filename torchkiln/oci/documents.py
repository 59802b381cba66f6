"""Files of a layout -> the JSON documents in them, checked just far enough that no reader stumbles.

Whoever reads a layout reads what others wrote: each malformed shape is a VerificationFailed naming the file.
What the readers rely on stands in data/layout.schema.json.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.image import digest_of
from torchkiln.oci.spelling import misspelt
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of, read_file

LIMIT = 4 << 20  # bytes; manifests are kilobytes, and registries take none above this
VALUES = 200_000  # values in one of them; a thousand layers with a history have ten thousand
_HINT = "`verify` tells all that is wrong with the layout; build the image again"


def read_document(path: Path, digest: Digest | None = None) -> dict[str, Any]:
    """The JSON object in the file *path*; its digest is checked when given.

    :raises VerificationFailed: no plain file, too long, other content than *digest* says, or no JSON object.
    """
    try:
        data = read_file(path, LIMIT, follow=False)
    except OSError as error:
        raise VerificationFailed(f"{path}: {error.strerror}", hint=_HINT) from error
    if digest is not None and digest_of(data) != digest:
        raise VerificationFailed(f"{path}: the content is not what its digest says", hint=_HINT)
    try:
        found = json_of(data, values=VALUES)
    except ValueError as error:
        raise VerificationFailed(f"{path}: {error}", hint=_HINT) from error
    if not isinstance(found, dict):
        raise VerificationFailed(f"{path}: not a JSON object", hint=_HINT)
    if wrong := misspelt(found):
        raise VerificationFailed("\n".join(f"{path}: {one}" for one in wrong), hint=_HINT)
    return found


def descriptors(path: Path, key: str, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The list of descriptors under *key* of the *document* that was read from *path*.

    :raises VerificationFailed: it is none; every fault with its place.
    """
    found: list[Mapping[str, Any]] = document.get(key)  # type: ignore[assignment]  # _demand tells
    _demand("layers" if key == "layers" else "descriptors", found, path, at=(key,))
    return tuple(found)


def diff_ids(path: Path, config: Mapping[str, Any]) -> tuple[Digest, ...]:
    """The diff_ids of the image *config* that was read from *path*, all that we read of it being sound.

    :raises VerificationFailed: it is no image's config; every fault with its place.
    """
    _demand("config", config, path)
    return tuple(map(Digest, config["rootfs"]["diff_ids"]))


def plain_folder(path: Path) -> None:
    """Demand that *path* is a folder or not there.

    :raises VerificationFailed: a link, which may lead out of the layout, or a file.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISDIR(mode):
        raise VerificationFailed(f"{path}: not a plain folder", hint=_HINT)


def plain_file(path: Path) -> Path:
    """*path*, if it is a file or not there: what it lacks is told by whoever opens it.

    :raises VerificationFailed: a link, which may lead out of the layout, a pipe or a device, which may hang.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    if not stat.S_ISREG(mode):
        raise VerificationFailed(f"{path}: not a plain file", hint=_HINT)
    return path


def _demand(part: str, value: object, path: Path, *, at: tuple[str, ...] = ()) -> None:
    schema = {"$defs": shipped("layout")["$defs"], "$ref": f"#/$defs/{part}"}
    if wrong := sentences(value, schema, str(path), at=at):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
