"""Decides what the name of a file means to Python: a module, a start-up module, metadata. Pure."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

_SUFFIX = r"(\.pyc?|(\.[^/]*)?\.so)"
_FILE = re.compile(rf"([^./]+){_SUFFIX}")
_PACKAGE = re.compile(rf"([^./]+)/__init__{_SUFFIX}")
_START = frozenset({"sitecustomize", "usercustomize"})
# importlib.metadata ignores case.
_METADATA = re.compile(r"([^/]+?)(-[^/]*)?\.(dist-info|egg-info|egg)(/.*)?", re.IGNORECASE)
# Groups of entry points that torch and triton load when they are imported.
_LOADED = frozenset({"torch.backends", "triton.backends"})


def module_of(path: str, kind: str = "file") -> str:
    """The top-level module to which *path*, relative to a folder on sys.path, belongs; empty if none.

    A folder without __init__ counts: it is a namespace package. A link counts: it may lead to a package.
    """
    top, _, below = path.partition("/")
    if below or kind == "folder":
        return top if "." not in top else ""
    found = _FILE.fullmatch(path)
    return found[1] if found else path if kind == "link" and "." not in path else ""


def regular_module_of(path: str, kind: str = "file") -> str:
    """As `module_of`, but empty for a namespace package: any regular module hides it."""
    found = _FILE.fullmatch(path) or _PACKAGE.fullmatch(path)
    return found[1] if found else path if kind == "link" and "/" not in path else ""


def starts(path: str, kind: str = "file") -> bool:
    """Whether Python imports *path* at each start, if its folder is on sys.path."""
    return module_of(path, kind) in _START


def distribution_of(path: str) -> str:
    """The normalized name of the package if *path* is its metadata folder or in it; otherwise empty."""
    found = _METADATA.fullmatch(path)
    return canonicalize_name(found[1]) if found else ""


def loaded_groups(entry_points: str) -> tuple[str, ...]:
    """The groups in an entry_points.txt that torch or triton load when they are imported.

    Lines are read as importlib.metadata reads them: "[[a]]" is the group a, too.
    """
    lines = map(str.strip, entry_points.splitlines())
    groups = (line.strip("[]").strip() for line in lines if line[:1] == "[" and line[-1:] == "]")
    return tuple(sorted(_LOADED.intersection(groups)))
