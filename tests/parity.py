"""Compares two images file by file, the oracle for parity of the engines; parity.yaml: allowed differences.

Images are read from a layout, or from a Docker engine by `docker export`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from torchkiln.compare.layers import setting_changes, settings_of
from torchkiln.model.contents import Tree, TreeEntry
from torchkiln.oci.layout import open_layout
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import apply_layer
from torchkiln.util.places import ROOT

LIST = ROOT / "tests/parity.yaml"
#: Paths that an engine creates in every container, and replaces if the image has them.
ENGINE_PATHS = frozenset(
    [
        *(".dockerenv", "dev", "dev/console", "dev/pts", "dev/shm", "proc", "sys"),
        *("etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"),
    ]
)
DifferenceKind = Literal[
    "only-in-a",
    "only-in-b",
    "type",
    "mode",
    "owner",
    "link",
    "device",
    "xattrs",
    "content",
    "line",
    "order",
    "setting",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeImage:
    """The files and the settings of an image."""

    tree: Tree
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference. `a` and `b` are the values of each side, empty if there is none."""

    at: str  # a path, "opt/venv/bin/python", or a setting, "Env PATH"
    what: DifferenceKind
    a: str = ""
    b: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedDifference:
    """An entry of the list: `at` matches the path, `line` the line."""

    at: re.Pattern[str]
    what: str
    line: re.Pattern[str] | None
    reason: str

    def covers(self, found: Difference) -> bool:
        """Whether this entry allows *found*."""
        return (
            self.what == found.what
            and self.at.fullmatch(found.at) is not None
            and (self.line is None or self.line.fullmatch(found.a or found.b) is not None)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The differences of two images that are not allowed, and those that are; entries that allow none."""

    left: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    idle: tuple[AllowedDifference, ...]
    paths: int = 0  # number of paths of the second image


def compare(
    a: str, b: str, layout: Path, environ: Mapping[str, str], entries: tuple[AllowedDifference, ...] = ()
) -> Compared:
    """Compare *a* and *b*: each an image of *layout*, or `docker:NAME` in the engine of *environ*."""

    def wanted(path: str) -> bool:
        return any(entry.what == "line" and entry.at.fullmatch(path) for entry in entries)

    images = [
        _exported(name.removeprefix("docker:"), environ, wanted)
        if name.startswith("docker:")
        else _in_layout(layout, name, wanted)
        for name in (a, b)
    ]
    return sift(differences(*images), entries, paths=len(images[1].tree))


def allowed(file: Path = LIST) -> tuple[AllowedDifference, ...]:
    """The entries of the list *file*."""
    return tuple(
        AllowedDifference(
            at=re.compile(entry.get("path") or entry["setting"]),
            what=entry["what"],
            line=re.compile(entry["line"]) if "line" in entry else None,
            reason=entry["reason"],
        )
        for entry in yaml.safe_load(file.read_text())
    )


def sift(
    found: tuple[Difference, ...], entries: tuple[AllowedDifference, ...], *, paths: int = 0
) -> Compared:
    """*found*, divided by *entries*."""
    by = {one: next((entry for entry in entries if entry.covers(one)), None) for one in found}
    return Compared(
        left=tuple(one for one in found if by[one] is None),
        allowed=tuple(one for one in found if by[one] is not None),
        idle=tuple(entry for entry in entries if not any(entry is used for used in by.values())),
        paths=paths,
    )


def _in_layout(layout: Path, ref: str, wanted: Callable[[str], bool]) -> WholeImage:
    image, tree = open_layout(layout).image(ref), dict[str, TreeEntry]()
    for layer in image.layers:
        with open_layer(layer.path) as stream:
            apply_layer(tree, stream, wanted)
    config = image.config
    return _image(tree, config["config"], f"{config['os']}/{config['architecture']}")


def _exported(name: str, environ: Mapping[str, str], wanted: Callable[[str], bool]) -> WholeImage:
    """All files, as in a new container."""

    def docker(*words: str) -> str:
        argv = ["docker", *words]
        return subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=True).stdout

    (about,) = json.loads(docker("image", "inspect", name))
    container, tree = docker("create", "--entrypoint", "true", name).strip(), dict[str, TreeEntry]()
    argv = ["docker", "export", container]
    try:
        with subprocess.Popen(argv, env=dict(environ), stdout=subprocess.PIPE) as process:
            assert process.stdout
            apply_layer(tree, process.stdout, wanted)
        assert process.returncode == 0
    finally:
        docker("rm", "--force", "--volumes", container)
    return _image(tree, about["Config"], f"{about['Os']}/{about['Architecture']}")


def _image(tree: Mapping[str, TreeEntry], config: Mapping[str, Any], platform: str) -> WholeImage:
    files = {path: entry for path, entry in tree.items() if path not in ENGINE_PATHS}
    return WholeImage(tree=files, settings=settings_of(config, platform))


def differences(a: WholeImage, b: WholeImage) -> tuple[Difference, ...]:
    """All differences between *a* and *b*: paths in sorted order, then settings."""
    return (
        *_tree(a.tree, b.tree),
        *(
            Difference(at=one.name, what="setting", a=one.a, b=one.b)
            for one in setting_changes(a.settings, b.settings)
        ),
    )


def _tree(a: Tree, b: Tree) -> Iterator[Difference]:
    for path in sorted(a.keys() | b.keys()):
        left, right = a.get(path), b.get(path)
        if left is None or right is None:
            present = left or right
            assert present
            description = f"{present.kind} {present.mode:04o} {_owner(present)}"
            if right is None:
                yield Difference(at=path, what="only-in-a", a=description)
            else:
                yield Difference(at=path, what="only-in-b", b=description)
        elif left != right:
            yield from _file(path, left, right)


def _file(path: str, a: TreeEntry, b: TreeEntry) -> Iterator[Difference]:
    pairs: tuple[tuple[DifferenceKind, str, str], ...] = (
        ("type", a.kind, b.kind),
        ("mode", f"{a.mode:04o}", f"{b.mode:04o}"),
        ("owner", _owner(a), _owner(b)),
        ("xattrs", _xattrs(a), _xattrs(b)),
    )
    if a.kind == b.kind:
        pairs += (("link", a.link, b.link), ("device", str(a.device), str(b.device)))
    for what, left, right in pairs:
        if left != right:
            yield Difference(at=path, what=what, a=left, b=right)
    if a.kind == b.kind and a.sha256 != b.sha256:
        if a.text is None or b.text is None:
            yield Difference(at=path, what="content", a=_content(a), b=_content(b))
        else:
            yield from _lines(path, a.text.splitlines(), b.text.splitlines())


def _lines(path: str, a: list[str], b: list[str]) -> Iterator[Difference]:
    """Differences between two texts: lines in only one of them, and the order of the others."""
    only_a, only_b = Counter(a) - Counter(b), Counter(b) - Counter(a)
    for line in sorted(only_a.elements()):
        yield Difference(at=path, what="line", a=line)
    for line in sorted(only_b.elements()):
        yield Difference(at=path, what="line", b=line)
    common = zip(_without(a, only_a), _without(b, only_b), strict=True)
    if moved := next(((left, right) for left, right in common if left != right), None):
        yield Difference(at=path, what="order", a=moved[0], b=moved[1])
    elif not only_a and not only_b:
        yield Difference(at=path, what="content", a="different line endings", b="different line endings")


def _without(lines: list[str], removed: Counter[str]) -> list[str]:
    left, remaining = Counter(removed), []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            remaining.append(line)
    return remaining


def _owner(file: TreeEntry) -> str:
    return f"{file.owner[0]}:{file.owner[1]}"


def _content(file: TreeEntry) -> str:
    return f"{file.size} bytes, sha256:{file.sha256}"


def _xattrs(file: TreeEntry) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in file.xattrs)
