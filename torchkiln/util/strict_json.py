"""A file that somebody else may have written -> its bytes, its text, its JSON: bounded, and by the letter.

JSON is read narrowly: UTF-8, no key twice, no number that others would read otherwise, no depth that a
recursion of ours could fall into. What is refused here is a `ValueError` whose text is a sentence for people;
the caller adds the file's name and its own kind of error.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

DEPTH = 40  # levels of lists and mappings; the deepest of our files has seven
VALUES = 1 << 20  # values in one document; a value costs up to 250 bytes of memory, an SBOM has 40,000
# A string without an end reaches to the end of the text, so that each is looked at once.
_STRING = re.compile(r'"[^"]*(?:"|\Z)')
_BETWEEN = re.compile(r"[^\[\]{}]+")
_DIGITS = 20  # of an integer with its sign
_INTEGERS = range(-(1 << 63), 1 << 64)  # 64 bits, which other readers of the same file have too
_CONFLICT = re.compile(rb"^(<{7}|={7}|>{7}|\|{7})(?= |\r?$)", re.MULTILINE)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of the plain file *path*, of which it may have *limit*; a pipe does not hang.

    :raises OSError: it cannot be read, is longer, or no file; without *follow* a link is none either.
    """
    return read_with_mode(path, limit, follow=follow)[0]


def read_with_mode(path: Path, limit: int, *, follow: bool = True) -> tuple[bytes, int]:
    """`read_file`, and the mode of the very file that was read."""
    with open_plain(path, follow=follow) as file:
        mode, data = os.fstat(file.fileno()).st_mode, file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
    return data, mode


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """The plain file *path*; a pipe does not hang.

    :raises OSError: it cannot be opened, or is no file; without *follow* a link is none either.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "a link, not a file", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a pipe's other end
            raise OSError(errno.ENXIO, "not a file that can be read", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))
    return open(descriptor, "rb")


def text_of(data: bytes) -> str:
    """*data* as UTF-8 text.

    :raises ValueError: it is not, or a merge left its marks in it; tells the line.
    """
    if found := _CONFLICT.search(data):
        mark = found[1].decode()
        raise ValueError(f"line {_line(data, found.start())}: a merge conflict was left in it ({mark})")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {_line(data, error.start)}: not UTF-8 text") from None


def json_of(data: bytes, *, depth: int = DEPTH, values: int = VALUES) -> Any:
    """The JSON value in *data*, of at most *depth* levels and *values* values in all.

    :raises ValueError: it is none, or one that two readers could take for two things.
    """
    text = text_of(data)
    if text.startswith("\ufeff"):
        raise ValueError("starts with a byte order mark; save it without one")
    # Before it is parsed: a parser that runs out of stack or memory leaves half-done work behind.
    bare = _without_strings(text)
    if bare.count(",") + bare.count("[") + bare.count("{") > values:
        raise ValueError(f"more than {values} values")
    if _depth(bare) > depth:
        raise ValueError(f"nested too deep: more than {depth} levels")
    try:
        value = json.loads(
            text, object_pairs_hook=_mapping, parse_int=_whole, parse_float=_real, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None
    _look(value)
    return value


def levels(text: str) -> int:
    """How deep lists and mappings stand in each other, of a text that need not be JSON.

    :raises ValueError: it has too many strings to be looked at.
    """
    return _depth(_without_strings(text))


def _depth(bare: str) -> int:
    return max(accumulate(1 if one in "[{" else -1 for one in _BETWEEN.sub("", bare)), default=0)


def _without_strings(text: str) -> str:
    """*text* without its strings. Escapes go first: a pattern for them keeps a hundred bytes for each."""
    plain = text.replace("\\\\", "").replace('\\"', "")
    if plain.count('"') > 4 * VALUES:  # two for each key and each value
        raise ValueError(f"more than {VALUES} values")
    return _STRING.sub("", plain)


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = next(name for name, count in names.items() if count > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one mapping")
    return found


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:  # not converted: that takes time by the square of the length
        raise ValueError(f"a number of {len(digits)} digits: {digits[:12]}…")
    if (value := int(digits)) not in _INTEGERS:
        raise ValueError(f"a number of more than 64 bits: {digits}")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number out of every range: {text[:40]}")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _look(value: Any) -> None:
    """No half characters, which cannot be written again."""
    waiting: list[Any] = [value]
    while waiting:
        inner: list[Any] = []
        for one in waiting:
            if isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str) and not one.isascii() and not _is_writable(one):
                raise ValueError(f"half a character in {one[:80]!r}")
        waiting = inner


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
