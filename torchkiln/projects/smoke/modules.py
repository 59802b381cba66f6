"""Finds the modules of a distribution to import, from the paths in its RECORD."""

from __future__ import annotations

import re
from collections.abc import Iterable
from keyword import iskeyword

_SOURCE = re.compile(r"(\w+)\.py")
_EXTENSION = re.compile(r"(\w+)(\.[^/]+)?\.so")
_PACKAGE = "__init__"


def modules_of(paths: Iterable[str], site: str) -> tuple[str, ...]:
    """The top-level packages and modules of the distribution with the files *paths*: dotted names, sorted.

    A namespace package is replaced by the packages in it. Three kinds are returned only if there is nothing
    else: extension modules outside of packages, names that begin with an underscore, and modules in folders
    without __init__.py. The distribution's public packages import them; some cannot be imported alone.

    :param paths: relative to /.
    :param site: site-packages, relative to /.
    """
    files = [tuple(path.removeprefix(f"{site}/").split("/")) for path in paths if path.startswith(f"{site}/")]
    found = [(folders, *named) for *folders, file in files if (named := _module(file))]
    packages = {tuple(folders) for folders, name, _ in found if name == _PACKAGE and folders}
    public, others = set[str](), set[str]()
    for folders, name, is_source in found:
        above = (tuple(folders[:count]) for count in range(1, len(folders) + 1))
        package = next((each for each in above if each in packages), None)
        parts = package or (*folders, name)
        if (name == _PACKAGE and not package) or not all(map(_importable, parts)):
            continue
        plain = not any(part.startswith("_") for part in parts)
        top = package is not None or (is_source and not folders)
        (public if plain and top else others).add(".".join(parts))
    return tuple(sorted(public or others))


def _module(file: str) -> tuple[str, bool] | None:
    """The name of the module *file*, and whether it is source code; None: it is not a module."""
    if match := _SOURCE.fullmatch(file):
        return match[1], True
    match = _EXTENSION.fullmatch(file)
    return (match[1], False) if match else None


def _importable(part: str) -> bool:
    return part.isidentifier() and not iskeyword(part)
