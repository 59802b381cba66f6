"""Reads the wheels in a project's folder: those of the setting `wheels`, and those required by path.

The files are not trusted, and may change: the lock has the sha256 of the bytes that were read, and a build
compares it with that of the bytes that it uses.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.errors import BadWheel, ConfigError, printable
from torchkiln.index.choose import choose
from torchkiln.model.cell import Source
from torchkiln.model.index import FileAt, LocalWheel, read_metadata
from torchkiln.model.lock import LockedWheel
from torchkiln.projects.asked import Asked, FolderWheel, ProjectNeeds
from torchkiln.projects.files import target_inside
from torchkiln.store.store import Store
from torchkiln.util.strict_json import open_plain
from torchkiln.util.wheel_names import parse_wheel_filename
from torchkiln.wheel.metadata import metadata_in

MOST = 500  # wheels
_HINT = "correct, add or remove the file; the setting wheels reads only *.whl files"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,249}")
_RECORDS = "own-wheels"
_SETTLED = 2.0  # seconds; a file that changes twice within this time may keep its timestamps
_CHUNK = 1 << 20


def with_own_wheels(needs: ProjectNeeds, folder: Path, wheels: str, store: Store) -> ProjectNeeds:
    """*needs* with the wheels in the project's *folder*; *wheels* is the setting.

    A missing folder counts as an empty one; `local_wheels` refuses it.

    :raises ConfigError: the folder is not in the project's folder, or files in it cannot be read or have no
        valid name; lists all faults.
    """
    asked = (*needs.requirements, *needs.constraints)
    places = {one.path: f"{one.where}: {one.path}" for one in asked if one.path}
    faults: list[str] = []
    if wheels and (folder / wheels).is_dir():
        places = {path: path for path in _listed(folder, wheels)} | places
    found = []
    for path in sorted(places):
        try:
            found.append(_wheel(folder, path, store))
        except (ValueError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            faults.append(f"{places[path]}: {why}")
    if faults:
        raise ConfigError.of(faults, hint=_HINT)
    return replace(needs, wheels=wheels, own=tuple(found))


def local_wheels(
    needs: ProjectNeeds, folder: Path, fixed: Collection[str], python: str, tags: Sequence[Tag]
) -> tuple[tuple[LocalWheel, ...], tuple[str, ...]]:
    """The wheels of *needs* in the project's *folder* that fit an image, the best of each version.

    The second value has sentences about the wheels that do not fit.

    :param fixed: names of packages that cannot be replaced.
    :param python: the version of the image's Python, "3.11.2".
    :param tags: the tags of wheels that the image accepts, best first.
    :raises ConfigError: the folder of the setting is missing; or a wheel that fits is invalid, or one that is
        required by path does not fit; lists all faults.
    """
    if needs.wheels and not (folder / needs.wheels).is_dir():
        raise ConfigError(
            f"wheels: no such directory: {folder / needs.wheels}",
            hint="create the directory and add the wheels, or remove the setting `wheels`",
        )
    required = {one.path: one for one in needs.requirements if one.path}
    found: list[LocalWheel] = []
    left_out: list[str] = []
    faults: list[str] = []
    for wheel in needs.own:
        asked = required.get(wheel.path)
        if wheel.name in fixed:
            left_out.append(f"{wheel.path}: a project cannot replace {wheel.name} of the image")
            continue
        if parse_wheel_filename(wheel.filename)[3].isdisjoint(tags):
            why = f"{wheel.path}: not a supported wheel for Python {python} on the image's Linux"
            if asked:
                faults.append(f"{asked.where}: {why}")
            left_out.append(why)
            continue
        try:
            found.append(_local(wheel, folder, asked))
        except (BadWheel, ValueError) as error:
            faults.append(f"{wheel.path}: {error.reason if isinstance(error, BadWheel) else error}")
            continue
        if why := _python_fault(found[-1], python):
            del found[-1]
            left_out.append(f"{wheel.path}: {why}")
            faults += [f"{asked.where}: {left_out[-1]}"] if asked else []
    if faults:
        raise ConfigError.of(faults, hint=_HINT)
    return _best(found, tags), tuple(left_out)


def _best(wheels: Iterable[LocalWheel], tags: Sequence[Tag]) -> tuple[LocalWheel, ...]:
    """For each version in *wheels*, the one with the best of *tags*, or the one that is required by path."""
    versions: dict[tuple[str, str], list[LocalWheel]] = {}
    for wheel in wheels:
        versions.setdefault((wheel.name, wheel.version), []).append(wheel)
    found = []
    for (name, version), listed in versions.items():
        some = [wheel for wheel in listed if wheel.only] or listed
        files = [FileAt(filename=one.filename, url="", size=one.size, sha256=one.sha256) for one in some]
        best = choose(f"{name} {version}", files, {one.sha256 for one in some}, tags)
        found.append(next(one for one in some if one.filename == best.filename))
    return tuple(found)


def _listed(folder: Path, wheels: str) -> Iterator[str]:
    """The paths of the wheels in the folder of the setting *wheels*."""
    try:
        place = target_inside(folder, folder / wheels)
        if place == folder.resolve():
            raise ValueError("this is the project's folder itself")
        names = [name for name in sorted(os.listdir(place)) if name.endswith(".whl")]
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"wheels: {wheels}: {why}", hint="name a folder in the project's folder") from None
    if len(names) > MOST:
        raise ConfigError(
            f"wheels: {wheels}: more than {MOST} wheels", hint="remove wheels that the project does not need"
        )
    for name in names:
        yield f"{wheels}/{name}"


def _wheel(folder: Path, path: str, store: Store) -> FolderWheel:
    """The wheel at *path* in *folder*.

    :raises ValueError: the file name is not that of a wheel, or the file is empty or not in *folder*.
    :raises OSError: the file cannot be read.
    """
    filename = path.rpartition("/")[2]
    try:
        if not _NAME.fullmatch(filename):
            raise InvalidWheelFilename
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise ValueError("not a valid wheel filename") from None
    sha256, size = digest_of(target_inside(folder, folder / path), store)
    if not size:
        raise ValueError("the file is empty")
    return FolderWheel(path=path, name=name, version=str(version), sha256=sha256, size=size)


def digest_of(path: Path, store: Store) -> tuple[str, int]:
    """SHA-256 and size of the file *path*; from the cache if the file has not changed.

    :raises OSError: the file cannot be read, or is not a regular file.
    """
    key = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    with open_plain(path, follow=False) as file:
        status = os.fstat(file.fileno())
        state = {
            "size": status.st_size,
            "inode": status.st_ino,
            "times": [status.st_mtime_ns, status.st_ctime_ns],
        }
        known = store.record(_RECORDS, key) or {}
        if known.get("state") == state and isinstance(known.get("sha256"), str):
            return known["sha256"], status.st_size
        digest, size = hashlib.sha256(), 0
        while piece := file.read(_CHUNK):
            digest.update(piece)
            size += len(piece)
    if time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED:
        store.put_record(_RECORDS, key, {"state": state, "sha256": digest.hexdigest()})
    return digest.hexdigest(), size


def _local(wheel: FolderWheel, folder: Path, asked: Asked | None) -> LocalWheel:
    """:raises BadWheel: the wheel is invalid. :raises ValueError: METADATA does not match the file name."""
    data = metadata_in(target_inside(folder, folder / wheel.path), wheel.filename)
    return local_wheel(wheel, data, only=asked is not None)


def local_wheel(wheel: FolderWheel, data: bytes, *, only: bool) -> LocalWheel:
    """*wheel* with its METADATA *data*, for a resolver.

    Some projects state in the file name alone what a wheel was built for: 2.8.3+cu12torch2.7. Such a wheel
    gets the version in METADATA, also in its file name, because pip refuses wheels in which both differ. It
    must be required by path or URL, because several such files in a folder can have the same version.

    :param only: the wheel is required by path or URL.
    :raises ValueError: METADATA is invalid, or has another name or version than the file name.
    """
    metadata = read_metadata(data)
    named = Version(wheel.version)
    try:
        version = Version(metadata.version)
    except InvalidVersion:
        version = None
    labelled = version != named and version == Version(named.public)
    if canonicalize_name(metadata.name) != wheel.name or not (version == named or (labelled and only)):
        raise ValueError(
            f"the file name does not match METADATA ({metadata.name[:100]} {metadata.version[:100]}): rename"
            " the file" + (", or require it by its path" if labelled else "")
        )
    return LocalWheel(
        name=wheel.name,
        version=named.public if labelled else wheel.version,
        filename=_without_label(wheel.filename) if labelled else wheel.filename,
        sha256=wheel.sha256,
        size=wheel.size,
        requires_python=metadata.requires_python,
        metadata=lambda: data,
        only=only,
    )


def _without_label(filename: str) -> str:
    """The *filename* of a wheel without the local version, "ops-1.0-py3-none-any.whl"."""
    project, version, rest = filename.split("-", 2)
    return f"{project}-{version.partition('+')[0]}-{rest}"


def _python_fault(wheel: LocalWheel, python: str) -> str:
    """Why *wheel* does not support the version *python*; "" if it does."""
    try:
        fits = SpecifierSet(wheel.requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return ""
    return "" if fits else printable(f"requires Python {wheel.requires_python}, but the image has {python}")


def from_index(locked: Iterable[LockedWheel], own: Iterable[LocalWheel]) -> tuple[str, ...]:
    """A sentence for each wheel in *locked* that is from an index, although *own* has its package, too."""
    versions = {wheel.name: wheel.version for wheel in own}
    return tuple(
        f"{wheel.name} {wheel.version} is from the package index; the project's folder has"
        f" {wheel.name} {versions[wheel.name]}"
        for wheel in locked
        if wheel.name in versions and wheel.index is not Source.PROJECT
    )
