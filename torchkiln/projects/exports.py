"""Names the command that exports requirements from a file whose format is not read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from torchkiln.projects.files import read_inside
from torchkiln.projects.pyproject import FILE as PYPROJECT

_POETRY = (
    "run (with the plugin poetry-plugin-export): poetry export -f requirements.txt --output requirements.txt"
)
_PIPENV = "pipenv requirements --exclude-index > requirements.txt"
_UV = (
    "run: uv pip compile {} --no-deps --no-emit-package torch --no-emit-package torchvision"
    " --output-file requirements.txt"
)
_INSTALLED = "run, in the environment made from it: python -m pip list --format=freeze > requirements.txt"
_INCLUDE = "run: echo -r {} > requirements.txt"
# Pattern of names, what the text must have, and what to do; the best first.
_FORMATS = (
    ("requirements*/*.txt", "", _INCLUDE),
    ("*requirements*.txt", "", _INCLUDE),
    ("poetry.lock", "", _POETRY),
    (PYPROJECT, r"^\[tool\.poetry\b", _POETRY),
    ("pdm.lock", "", "run: pdm export --output requirements.txt"),
    ("Pipfile.lock", "", f"run: {_PIPENV}"),
    ("Pipfile", "", f"run: pipenv lock && {_PIPENV}"),
    *((name, "", _INSTALLED) for name in ("environment*.y*ml", "env.y*ml", "conda*.y*ml", "pixi.*")),
    ("setup.py", "", _UV),
    ("setup.cfg", r"^install_requires\b", _UV),
    (PYPROJECT, r'^dynamic\s*=\s*\[[^\]]{0,500}"dependencies"', _UV),
)
# Locks of a pyproject.toml, which is read in their place, and how they are exported.
_LOCKS = {
    "poetry.lock": "poetry export -f pylock.toml --output pylock.toml",
    "pdm.lock": "pdm export -f pylock --output pylock.toml",
}


def found_in(folder: Path) -> Iterator[tuple[str, str]]:
    """The files in *folder* with requirements that are not read, the best first; each with what to do."""
    for pattern, needed, advice in _FORMATS:
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder))
            if not needed or re.search(needed, _text(folder, path), re.MULTILINE):
                yield name, advice.format(shlex.quote(name))


def unused_locks(folder: Path, source: str) -> Iterator[str]:
    """A sentence for each lock in *folder* whose versions are not used, because *source* is read."""
    for name, command in _LOCKS.items():
        if source == PYPROJECT and (folder / name).is_file():
            yield f"the versions in {name} are not used, those of {source} are; to use them, run: {command}"


def _text(folder: Path, path: Path) -> str:
    try:
        return read_inside(folder, path).decode(errors="replace")
    except ValueError:
        return ""
