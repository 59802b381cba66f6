"""Chooses the wheel for an image among the files of a release, and finds the newest release. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename
from packaging.version import Version

from torchkiln.errors import Unresolvable
from torchkiln.index.listing import ListedFile
from torchkiln.model.index import MAX_FIELD, FileAt
from torchkiln.model.platform import LINUX_AMD64, Platform
from torchkiln.util.wheel_names import parse_wheel_filename


def tags_of(python: str, glibc: tuple[int, int], platform: Platform = LINUX_AMD64) -> tuple[Tag, ...]:
    """The wheel tags that CPython *python* with *glibc* on *platform* accepts, best first, in pip's order."""
    major, minor = (int(part) for part in python.split(".")[:2])
    kinds: list[str] = []
    for level in range(glibc[1], 4, -1):
        kinds.append(f"manylinux_2_{level}")
        if level in platform.manylinux:
            kinds.append(platform.manylinux[level])
    platforms = [platform.wheel_tag(kind) for kind in (*kinds, "linux")]
    interpreter = f"cp{major}{minor}"
    return (
        *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    )


def choose(release: str, files: Iterable[FileAt], hashes: Collection[str], tags: Iterable[Tag]) -> FileAt:
    """The wheel among *files* with the best tag; *tags* are sorted, best first.

    Only files whose SHA-256 is in *hashes* are considered, and yanked ones only if there are no others.

    :param release: "numpy 1.26.4", for messages.
    :raises Unresolvable: no wheel is compatible.
    """
    rank = {tag: number for number, tag in enumerate(tags)}
    fitting: list[tuple[bool, int, int, str, FileAt]] = []
    wheels = [file for file in files if file.sha256 in hashes and file.filename.endswith(".whl")]
    for file in wheels:
        try:
            _, _, build, wheel_tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        ranks = [rank[tag] for tag in wheel_tags if tag in rank]
        if ranks:
            # Of equal tags the higher build number is better, as in pip.
            number = build[0] if build else 0
            fitting.append((file.yanked is not None, min(ranks), -number, file.filename, file))
    if not fitting:
        raise Unresolvable(
            f"{release}: no compatible wheel for this Python and platform among {len(wheels)} on the index",
            hint="choose another version: add a bound in matrix.yaml",
        )
    return min(fitting, key=lambda candidate: candidate[:4])[4]


def newest_of(
    files: Iterable[ListedFile], allowed: SpecifierSet, python: str, tags: Iterable[Tag] | None
) -> str:
    """The newest of the *allowed* final releases that has a wheel among *files* with one of *tags*; or "".

    Without *tags*: that has an sdist. Yanked files do not count.
    """
    accepted = frozenset(tags or ())
    found: list[Version] = []
    for file in files:
        required = file.requires_python or ""
        if file.yanked is not None or len(required) > MAX_FIELD:
            continue
        try:
            if tags is None:
                _, version = parse_sdist_filename(file.filename)
            else:
                _, version, _, wheel_tags = parse_wheel_filename(file.filename)
                if accepted.isdisjoint(wheel_tags):
                    continue
            fits = SpecifierSet(required).contains(f"{python}.0")
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidSpecifier):
            continue
        if fits and not version.is_prerelease and version in allowed:
            found.append(version)
    return str(max(found)) if found else ""
