"""Writes the files of the catalogue into a folder, which is new or of an earlier catalogue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.oci.image import digest_of
from torchkiln.util.files import pretty_json, replacing
from torchkiln.util.strict_json import json_of, read_file

# Lists the digest of every file of the catalogue, so that no other file in the folder is deleted, even if a
# stranger wrote the list.
_LIST = "files.json"
_KIND = "torchkiln catalogue"
_LIMIT = 1 << 22  # bytes
_LARGEST = 64 << 20  # bytes of a file of a catalogue
_HINT = "name a new folder, or one that an earlier `torchkiln ls --site DIR` wrote"


def demand_replaceable(folder: Path) -> None:
    """Check that *folder* can be written: it does not exist, is empty, or has only files of a catalogue.

    :raises ConfigError: *folder* cannot be written.
    """
    if folder.is_symlink():
        raise ConfigError(f"{folder}: a symbolic link", hint=_HINT)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: not a folder", hint=_HINT)
    present = [
        Path(place) / name
        for place, folders, names in os.walk(folder)
        for name in (*names, *(each for each in folders if (Path(place) / each).is_symlink()))
    ]
    if not present:
        return
    if folder / _LIST not in present:
        raise ConfigError(f"{folder}: not empty, and not a catalogue", hint=_HINT)
    listed = _listed(folder / _LIST)
    places = {path.relative_to(folder).as_posix(): path for path in present if path != folder / _LIST}
    own = {name for name, path in places.items() if (known := listed.get(name)) and known == _digest(path)}
    if others := sorted(places.keys() - own):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ConfigError(
            f"{folder}: has files that torchkiln did not write: {', '.join(others[:3])}{more}",
            hint="move them elsewhere: the folder is replaced as a whole",
        )


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write *files*, by path, to *folder*; readers see either the earlier folder or the complete new one.

    :raises ConfigError: as `demand_replaceable`.
    :raises OSError: the disk is full, or the parent cannot be written; *folder* is then unchanged.
    """
    demand_replaceable(folder)
    listed = {"kind": _KIND, "files": {path: digest_of(data) for path, data in sorted(files.items())}}
    with replacing(folder, folder=True, over=True) as made:
        for path, data in {**files, _LIST: pretty_json(listed)}.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_bytes(data)


def _listed(path: Path) -> dict[str, str]:
    """Digest by path of the files in the list *path*; empty if it is not the list of a catalogue."""
    try:
        found = json_of(read_file(path, _LIMIT, follow=False))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or found.get("kind") != _KIND or not isinstance(found.get("files"), dict):
        return {}
    files: dict[str, str] = found["files"]
    return files


def _digest(path: Path) -> str:
    """The digest of the file *path*; empty if it cannot be read, or is too large."""
    try:
        return digest_of(read_file(path, _LARGEST, follow=False))
    except OSError:
        return ""
