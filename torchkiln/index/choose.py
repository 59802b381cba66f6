"""The files of one release → the one wheel for an image. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchkiln.errors import Unresolvable
from torchkiln.model.index import FileAt
from torchkiln.model.platform import LINUX_AMD64


def tags_of(python: str, glibc: tuple[int, int]) -> tuple[Tag, ...]:
    """The wheel tags that CPython *python* with *glibc* takes, best first, as pip orders them."""
    major, minor = (int(part) for part in python.split(".")[:2])
    kinds: list[str] = []
    for level in range(glibc[1], 4, -1):
        kinds.append(f"manylinux_2_{level}")
        if level in LINUX_AMD64.manylinux:
            kinds.append(LINUX_AMD64.manylinux[level])
    platforms = [LINUX_AMD64.wheel_tag(kind) for kind in (*kinds, "linux")]
    interpreter = f"cp{major}{minor}"
    return (
        *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    )


def choose(release: str, files: Iterable[FileAt], hashes: Collection[str], tags: Iterable[Tag]) -> FileAt:
    """The wheel among *files* with the best of *tags*; only files whose SHA-256 is in *hashes* count,
    and a yanked one only where there is no other.

    :param release: "numpy 1.26.4", for messages.
    :raises Unresolvable: none of them fits.
    """
    rank = {tag: place for place, tag in enumerate(tags)}
    fitting: list[tuple[bool, int, int, str, FileAt]] = []
    wheels = [file for file in files if file.sha256 in hashes and file.filename.endswith(".whl")]
    for file in wheels:
        try:
            _, _, build, its_tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in its_tags if tag in rank]
        if places:
            # A higher build number goes first among equals, as in pip.
            number = build[0] if build else 0
            fitting.append((file.yanked is not None, min(places), -number, file.filename, file))
    if not fitting:
        raise Unresolvable(
            f"{release}: no wheel for this Python and system among {len(wheels)} on the index",
            hint="another version may have one: bound it in matrix.yaml",
        )
    return min(fitting, key=lambda found: found[:4])[4]
