"""Reads the JSON documents of a layout and checks the parts that its readers use.

A layout may come from anyone: every malformed document raises VerificationFailed with the file's name. The
checked parts are described in data/layout.schema.json.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.image import digest_of
from torchkiln.oci.spelling import wrong_case_keys
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of, read_file

LIMIT = 4 << 20  # bytes of a document; registries accept no larger manifest
VALUES = 200_000  # JSON values in a document; a thousand layers with a history have ten thousand
_HINT = "run `verify` to see every fault of the layout; then build the image again"


def read_document(path: Path, digest: Digest | None = None) -> dict[str, Any]:
    """The JSON object in the file *path*; *digest* is checked if it is given.

    :raises VerificationFailed: not a regular file, too large, a wrong digest, or not a JSON object.
    """
    try:
        data = read_file(path, LIMIT, follow=False)
    except OSError as error:
        raise VerificationFailed(f"{path}: {error.strerror}", hint=_HINT) from error
    if digest is not None and digest_of(data) != digest:
        raise VerificationFailed(f"{path}: digest mismatch", hint=_HINT)
    try:
        found = json_of(data, values=VALUES)
    except ValueError as error:
        raise VerificationFailed(f"{path}: {error}", hint=_HINT) from error
    if not isinstance(found, dict):
        raise VerificationFailed(f"{path}: not a JSON object", hint=_HINT)
    if faults := wrong_case_keys(found):
        raise VerificationFailed("\n".join(f"{path}: {fault}" for fault in faults), hint=_HINT)
    return found


def descriptors(path: Path, key: str, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The list of descriptors under *key* of the *document* that was read from *path*.

    :raises VerificationFailed: the list is malformed; every fault with its place.
    """
    found: list[Mapping[str, Any]] = document.get(key)  # type: ignore[assignment]  # _demand checks
    _demand("layers" if key == "layers" else "descriptors", found, path, at=(key,))
    return tuple(found)


def diff_ids(path: Path, config: Mapping[str, Any]) -> tuple[Digest, ...]:
    """The diff_ids of the image *config* that was read from *path*; all parts that are used are checked.

    :raises VerificationFailed: *config* is not an image config; every fault with its place.
    """
    _demand("config", config, path)
    return tuple(map(Digest, config["rootfs"]["diff_ids"]))


def check_directory(path: Path) -> None:
    """Check that *path* is a directory or does not exist.

    :raises VerificationFailed: *path* is a file, or a link, which could point out of the layout.
    """
    _check_type(path, stat.S_ISDIR, "directory")


def check_file(path: Path) -> Path:
    """*path*, if it is a regular file or does not exist (opening it reports that).

    :raises VerificationFailed: *path* is a link, which could point out of the layout, or a pipe or a device,
        from which a read may not return.
    """
    _check_type(path, stat.S_ISREG, "regular file")
    return path


def _check_type(path: Path, is_type: Callable[[int], bool], name: str) -> None:
    with suppress(OSError):
        if not is_type(path.lstat().st_mode):
            raise VerificationFailed(f"{path}: not a {name}", hint=_HINT)


def _demand(part: str, value: object, path: Path, *, at: tuple[str, ...] = ()) -> None:
    schema = {"$defs": shipped("layout")["$defs"], "$ref": f"#/$defs/{part}"}
    if faults := sentences(value, schema, str(path), at=at):
        raise VerificationFailed("\n".join(faults), hint=_HINT)
