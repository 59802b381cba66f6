"""Reads the untrusted files of a project's folder, and nothing outside it."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path

from torchkiln.util.strict_json import read_file, text_of

LIMIT = 8 << 20  # bytes of one file; a uv.lock of 200 packages has 1,000,000
# Byte order mark -> encoding; the longer ones first.
_MARKS = {
    "\ufeff".encode(name): name for name in ("utf-8", "utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
}
_CODING = re.compile(rb"#.*?coding[:=]\s*([-\w.]{1,40})")
# Not idna, punycode, unicode_escape and the like: they are slow or hide what the file says.
_ENCODINGS = re.compile(
    r"ascii|utf-(8|16|32).*|iso8859-\d+|cp\d+|koi8-.|mac-\w+|gb\w+|big5\w*|euc_\w+|shift_jis\w*"
)
_QUOTED = re.compile(r"([\"'])(.*?)\1")


def read_inside(root: Path, path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of the file *path*, which may be a link to another file in *root*.

    :raises ValueError: the file cannot be read, is longer than *limit*, or is not in *root*.
    """
    try:
        return read_file(target_inside(root, path), limit, follow=False)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None


def target_inside(root: Path, path: Path) -> Path:
    """*path* with all symbolic links resolved.

    :raises ValueError: the target does not exist, or is not in *root*.
    """
    try:
        target = path.resolve(strict=True)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    except RuntimeError:  # Python 3.10 to 3.12: a loop of links
        raise ValueError("too many levels of symbolic links") from None
    if not target.is_relative_to(os.path.abspath(root)):  # `root` has no links, or was replaced by one
        raise ValueError("not a file in the project's folder")
    return target


def text_for_pip(data: bytes) -> str:
    """The text of a requirements file, in the encoding that pip finds: by its byte order mark, or PEP 263.

    :raises ValueError: it is not text in that encoding, or has a merge conflict marker.
    """
    mark = next(filter(data.startswith, _MARKS), b"")
    named = next(filter(None, map(_CODING.match, data.split(b"\n", 2)[:2])), None)
    encoding = _MARKS[mark] if mark else named[1].decode() if named else "utf-8"
    try:
        if not _ENCODINGS.fullmatch(codecs.lookup(encoding).name):
            raise LookupError
        if encoding != "utf-8":
            return text_of(data.removeprefix(mark).decode(encoding).encode())
    except LookupError:
        raise ValueError(f"the encoding {encoding} is not supported: save the file as UTF-8") from None
    except UnicodeError:
        raise ValueError(f"not {encoding} text: save the file as UTF-8") from None
    return text_of(data.removeprefix(mark))


class Lines:
    """Finds the lines of the file *name* with the contents *text*, for messages."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._numbers: dict[str, int] = {}  # a line, or a text in quotes -> the number of its first line
        for number, line in enumerate(text.splitlines(), 1):
            for words in (line.strip(), *(found[2] for found in _QUOTED.finditer(line))):
                self._numbers.setdefault(words, number)

    def strings(self) -> Iterator[tuple[str, str]]:
        """Each line and each string in quotes, once, with its `name:number`."""
        return ((words, f"{self._name}:{number}") for words, number in self._numbers.items())

    def quoted(self, words: str) -> str:
        """`name:number` of the first line with the string *words*, or *name*."""
        number = self._numbers.get(words)
        return f"{self._name}:{number}" if number else self._name

    def package(self, package: str) -> str:
        """`name:number` of the entry of *package* in a lock file in TOML, or *name*."""
        return self.quoted(f'name = "{package}"')
