"""Reads requirements.txt by pip's rules; a line that a lock cannot represent is an error.

Files are untrusted: size, number and depth are limited, and included files must be in the project's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchkiln.index.settings import redact_text
from torchkiln.projects.files import read_inside
from torchkiln.projects.requirement import BUILD, CORRECT, Requirements
from torchkiln.util.strict_json import text_of

_FILES = 50
_DEPTH = 10  # levels of files that include each other
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*$")  # takes linear time, even for a long line of spaces
_COMMENT_LINE = re.compile(r"\s*#")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)[=\s]?\s*(.*)", re.DOTALL)
_SHORT = re.compile(r"(-[rceif])(\S.*)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_FOLDER = 'name a folder of wheels in torchkiln.toml: wheels = "wheels"'
_INDEX = "set the index in the configuration of pip or uv: PIP_INDEX_URL or UV_DEFAULT_INDEX"
# option -> what is wrong with it, and what to do
_REFUSED = {
    **dict.fromkeys(("-e", "--editable"), ("editable packages cannot be locked", BUILD)),
    **dict.fromkeys(
        ("-i", "--index-url", "--extra-index-url", "--no-index", "--trusted-host"),
        ("a project cannot choose the index", _INDEX),
    ),
    **dict.fromkeys(("-f", "--find-links"), ("this option is not supported", _FOLDER)),
    "--pre": ("this option is not supported", "name a pre-release in its requirement: NAME==2.0rc1"),
    "--no-binary": ("only wheels can be locked", CORRECT),
}
_IGNORED = frozenset({"--prefer-binary", "--only-binary", "--require-hashes", "--use-feature"})
_NESTED = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}


def read_requirements(folder: Path, name: str = "requirements.txt") -> Requirements:
    """The requirements in the file *name* in *folder*, and in the files that it names.

    :raises ConfigError: a file cannot be read, or has lines that are wrong or not supported; lists all.
    """
    found = Requirements()
    _Reader(folder.resolve(), found).read(folder / name, (), constraint=False)
    found.require_sound()
    return found


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of *text* with their numbers, continuation lines joined, without comments; as pip does it."""
    first, parts = 0, list[str]()
    for number, line in enumerate((*text.splitlines(), None), 1):
        if line is not None and line.endswith("\\") and not _COMMENT_LINE.match(line):
            first = first if parts else number
            parts.append(line.strip("\\"))
            continue
        first = first if parts else number
        # The space keeps a comment apart from the line before it.
        parts.append("" if line is None else f" {line}" if _COMMENT_LINE.match(line) else line)
        if joined := _COMMENT.sub("", "".join(parts)).strip():
            yield first, joined
        parts = []


@dataclass(slots=True)
class _Reader:
    root: Path
    found: Requirements
    files: int = 0

    def read(self, path: Path, above: tuple[Path, ...], *, constraint: bool, where: str = "") -> None:
        """Read the file *path*.

        :param above: the files through which it is included, the outermost first.
        :param where: the line that includes it, "requirements.txt:3"; "": none.
        """
        where = where or path.name
        self.files += 1
        if self.files > _FILES or len(above) >= _DEPTH:
            self.found.refuse(
                f"{where}: more than {_FILES} files, or more than {_DEPTH} levels of included files"
            )
            return
        try:
            text = text_of(read_inside(self.root, path)).removeprefix("\ufeff")
        except ValueError as error:
            self.found.refuse(f"{where}: {error}")
            return
        for number, line in logical_lines(text):
            place = f"{self._shown(path)}:{number}"
            if line.startswith("-"):
                self._option(line, place, (*above, path.resolve()), constraint=constraint)
            else:
                self.found.add(line, place, constraint=constraint)

    def _option(self, line: str, where: str, above: tuple[Path, ...], *, constraint: bool) -> None:
        match = _SHORT.fullmatch(line) or _OPTION.fullmatch(line)
        option, value = (match[1], match[2].strip()) if match else (line, "")
        shown = f"{where}: {redact_text(line[:200])}"
        if option in _NESTED and value:
            self._nested(value, shown, above, constraint=constraint or _NESTED[option])
        elif option not in _IGNORED:
            why, advice = _REFUSED.get(option, ("this option is not supported", CORRECT))
            self.found.refuse(f"{shown}: {why}", advice)

    def _nested(self, value: str, where: str, above: tuple[Path, ...], *, constraint: bool) -> None:
        path = above[-1].parent / value
        try:
            target = path.resolve()
        except (OSError, ValueError, RuntimeError):
            self.found.refuse(f"{where}: invalid path")
            return
        if _URL.match(value):
            self.found.refuse(f"{where}: not a file in the project's folder")
        elif target in above:
            self.found.refuse(f"{where}: the file recursively includes itself")
        else:
            self.read(path, above, constraint=constraint, where=where)

    def _shown(self, path: Path) -> str:
        """*path* for messages, relative to the project's folder."""
        try:
            return str(path.resolve().relative_to(self.root))
        except (OSError, ValueError, RuntimeError):
            return path.name
