"""Finds wheels whose extension modules are all for other versions of Python than the file name says. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchkiln.projects.symbols.fit import Fault

_TAGGED = re.compile(r"\.cpython-(?P<version>\d+)[a-z]*-[^/]+\.so")
_UNTAGGED = re.compile(r"(^|/)\w+(\.abi3)?\.so")
_FOR_ONE_PYTHON = re.compile(r"-cp\d+-[^-]+-[^-]+\.whl")


def for_other_python(package: str, filename: str, paths: Sequence[str], python: str) -> Fault | None:
    """The fault of the wheel *filename* with the libraries *paths*, if Python cannot import any module of it.

    :param python: the version of the image's Python, "3.11".
    """
    tagged = {path: found["version"] for path in paths if (found := _TAGGED.search(path))}
    importable = python.replace(".", "") in tagged.values() or any(map(_UNTAGGED.search, paths))
    if importable or not tagged or not _FOR_ONE_PYTHON.search(filename):
        return None
    path, version = min(tagged.items())
    return Fault(
        package=package,
        path=path,
        library="Python",
        sentence=f"is a module for CPython {version[0]}.{version[1:]}, which Python {python} does not import",
    )
