"""Compares two images file by file, with metadata and settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchkiln.model.contents import Tree, TreeEntry, WholeImage

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
DIFFERENCE_KINDS: tuple[str, ...] = get_args(DifferenceKind)

#: Parts of an image's config that are mappings: each entry is compared as a setting of its own, like Env.
_SETS = ("Labels", "ExposedPorts", "Volumes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference. `a` and `b` are the values of each side, empty if there is none."""

    at: str  # a path, "opt/venv/bin/python", or a setting, "Env PATH"
    what: DifferenceKind
    a: str = ""
    b: str = ""


def differences(a: WholeImage, b: WholeImage) -> tuple[Difference, ...]:
    """All differences between *a* and *b*: paths in sorted order, then settings."""
    return (*_tree(a.tree, b.tree), *settings_that_differ(a.settings, b.settings))


def settings_that_differ(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Difference]:
    """Differences between two sets of settings, by name."""
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            yield Difference(at=name, what="setting", a=a.get(name, ""), b=b.get(name, ""))


def settings_of(config: Mapping[str, Any], platform: str) -> dict[str, str]:
    """The settings in an image's config, in the format of OCI or of Docker, which have the same names.

    Empty values are left out, because engines write values that are not set.
    """
    found = {"Platform": platform}
    for name, value in config.items():
        if not value:
            continue
        if name == "Env":
            found |= {f"Env {key}": text for key, _, text in (pair.partition("=") for pair in value)}
        elif name in _SETS:
            found |= {f"{name} {key}": _text(text) or "yes" for key, text in value.items()}
        else:
            found[name] = _text(value)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True) if value else ""


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
