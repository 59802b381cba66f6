"""Two whole images → every difference between them: paths with all that belongs to them, and settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchkiln.model.contents import Tree, TreeEntry, WholeImage

What = Literal[
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
WHATS: tuple[str, ...] = get_args(What)

#: Configuration that is a set of NAME=VALUE or of names: told one by one. Env comes as a list.
_SETS = ("Labels", "ExposedPorts", "Volumes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is not the same. `a` and `b` are what stands on each side, empty where nothing does."""

    at: str  # "opt/venv/bin/python"; of a setting "Env PATH"
    what: What
    a: str = ""
    b: str = ""


def differences(a: WholeImage, b: WholeImage) -> tuple[Difference, ...]:
    """Everything in which *a* and *b* differ: paths in their order, then settings."""
    return (*_tree(a.tree, b.tree), *settings_that_differ(a.settings, b.settings))


def settings_that_differ(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Difference]:
    """The settings that are not the same, by name."""
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            yield Difference(at=name, what="setting", a=a.get(name, ""), b=b.get(name, ""))


def settings_of(config: Mapping[str, Any], platform: str) -> dict[str, str]:
    """An image's configuration, of OCI's form or the Docker engine's, which share their names.

    What is empty is not there: engines write out what nobody set.
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
            there = left or right
            assert there
            told = f"{there.kind} {there.mode:04o} {_owner(there)}"
            if right is None:
                yield Difference(at=path, what="only-in-a", a=told)
            else:
                yield Difference(at=path, what="only-in-b", b=told)
        elif left != right:
            yield from _thing(path, left, right)


def _thing(path: str, a: TreeEntry, b: TreeEntry) -> Iterator[Difference]:
    pairs: tuple[tuple[What, str, str], ...] = (
        ("type", a.kind, b.kind),
        ("mode", f"{a.mode:04o}", f"{b.mode:04o}"),
        ("owner", _owner(a), _owner(b)),
        ("xattrs", _xattrs(a), _xattrs(b)),
    )
    if a.kind == b.kind:  # else the type says it
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
    """What differs in two texts that do: lines that are in one alone, and the order of the others."""
    more_a, more_b = Counter(a) - Counter(b), Counter(b) - Counter(a)
    for line in sorted(more_a.elements()):
        yield Difference(at=path, what="line", a=line)
    for line in sorted(more_b.elements()):
        yield Difference(at=path, what="line", b=line)
    common_a, common_b = _without(a, more_a), _without(b, more_b)
    unlike = [(left, right) for left, right in zip(common_a, common_b, strict=True) if left != right]
    if unlike:
        yield Difference(at=path, what="order", a=unlike[0][0], b=unlike[0][1])
    elif not more_a and not more_b:
        yield Difference(at=path, what="content", a="other line ends", b="other line ends")


def _without(lines: list[str], dropped: Counter[str]) -> list[str]:
    left, kept = Counter(dropped), []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            kept.append(line)
    return kept


def _owner(thing: TreeEntry) -> str:
    return f"{thing.owner[0]}:{thing.owner[1]}"


def _content(thing: TreeEntry) -> str:
    return f"{thing.size} bytes, sha256:{thing.sha256}"


def _xattrs(thing: TreeEntry) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in thing.xattrs)
