"""Reads untrusted files as bytes, text or JSON, with limits.

JSON must be UTF-8 and must not have duplicate keys, numbers beyond 64 bits, or deep nesting. Errors are
`ValueError` with a message for users; the caller adds the file's name and chooses the exception.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections import Counter
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from torchkiln.errors import ConfigError
from torchkiln.util.files import folder_at

DEPTH = 40  # levels of lists and mappings; torchkiln's deepest file has seven
VALUES = 1 << 20  # values in one document; a value needs up to 250 bytes of memory, an SBOM has 40,000
# An unterminated string matches up to the end of the text, so that the search stays linear.
_STRING = re.compile(r'"[^"]*(?:"|\Z)')
_SURROGATE = re.compile("[\ud800-\udfff]")
_BETWEEN = re.compile(r"[^\[\]{}]+")
_DIGITS = 20  # of an integer with its sign
_INTEGERS = range(-(1 << 63), 1 << 64)  # 64 bits, the most that other JSON parsers support
_CONFLICT = re.compile(rb"^(<{7}|={7}|>{7}|\|{7})(?= |\r?$)", re.MULTILINE)
_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def read_file(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of the regular file *path*, at most *limit*; it does not block on a pipe.

    :raises OSError: it cannot be read, is longer than *limit*, or is not a regular file; without *follow*
        also if it is a symbolic link.
    """
    return read_with_mode(path, limit, follow=follow)[0]


def read_given(path: Path, limit: int, *, hint: str) -> bytes:
    """`read_file` for a file that the user named.

    :raises ConfigError: it cannot be read; its hint is *hint*.
    """
    try:
        return read_file(path, limit)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from error


def holds(path: Path, data: bytes) -> bool:
    """Whether *path* is a regular file with exactly *data*; links are not followed."""
    try:
        return read_file(path, len(data), follow=False) == data
    except OSError:
        return False


def read_with_mode(path: Path, limit: int, *, follow: bool = True) -> tuple[bytes, int]:
    """`read_file`, and the mode of the file that was read."""
    with open_plain(path, follow=follow) as file:
        mode, data = os.fstat(file.fileno()).st_mode, bytearray()
        while piece := file.read(min(1 << 20, limit + 1 - len(data))):  # one read would allocate *limit*
            data += piece
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
    return bytes(data), mode


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """The regular file *path*, opened for reading; it does not block on a pipe.

    :raises OSError: it cannot be opened, or is not a regular file; without *follow* also if it is a symbolic
        link, or below one (`folder_at`).
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with nullcontext() if follow else folder_at(path.parent) as folder:
        try:
            descriptor = os.open(folder / path.name if folder else path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP and folder:
                error.strerror = "is a symbolic link, not a file"
            elif error.errno == errno.ENXIO:  # a socket, or a pipe's other end
                error.strerror = "not a file that can be read"
            raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "is a special file")
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))
    return open(descriptor, "rb")


def text_of(data: bytes) -> str:
    """*data* as UTF-8 text.

    :raises ValueError: it is not UTF-8, or has a merge conflict marker; names the line.
    """
    if found := _CONFLICT.search(data):
        marker = found[1].decode()
        raise ValueError(f"line {_line(data, found.start())}: unresolved merge conflict ({marker})")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {_line(data, error.start)}: not UTF-8 text") from None


def json_of(data: bytes, *, depth: int = DEPTH, values: int = VALUES) -> Any:
    """The JSON value in *data*, of at most *depth* levels and *values* values in all.

    :raises ValueError: it is not JSON, exceeds a limit, or is ambiguous.
    """
    text = text_of(data)
    if text.startswith("\ufeff"):
        raise ValueError("starts with a byte order mark; save it without one")
    limit(without_strings(text), depth, values)
    try:
        value = json.loads(
            text, object_pairs_hook=_mapping, parse_int=_whole, parse_float=_real, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None
    if "\\u" in text:  # text without \u escapes has no surrogate, because UTF-8 has none
        _require_encodable(value)
    return value


def equal(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; unlike Python's ==, true is not 1. 1 and 1.0 are equal."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(equal, value, other))
    return bool(value == other)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; a boolean is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def limit(bare: str, depth: int = DEPTH, values: int = VALUES) -> None:
    """Check *bare*, a document without its strings, before it is parsed: that could exhaust stack or memory.

    :raises ValueError: it has more levels than *depth*, or more than *values* values.
    """
    if bare.count(",") + bare.count("[") + bare.count("{") > values:
        raise ValueError(f"more than {values} values")
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in _BETWEEN.sub("", bare)), default=0) > depth:
        raise ValueError(f"nested too deep: more than {depth} levels")


def without_strings(text: str) -> str:
    """*text* without its strings. Escapes are removed first: matching them by regex needs more memory.

    :raises ValueError: it has too many strings.
    """
    plain = text.replace("\\\\", "").replace('\\"', "")
    if plain.count('"') > 4 * VALUES:  # two for each key and each value
        raise ValueError(f"more than {VALUES} values")
    return _STRING.sub("", plain)


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        duplicate = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"duplicate key {duplicate[:80]!r}")
    return found


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:  # refused before int(), which takes quadratic time
        raise ValueError(f"a number of {len(digits)} digits: {digits[:12]}…")
    if (value := int(digits)) not in _INTEGERS:
        raise ValueError(f"a number of more than 64 bits: {digits}")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number out of range: {text[:40]}")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _require_encodable(value: Any) -> None:
    """Check that all strings can be written as UTF-8."""
    pending: list[Any] = [value]
    while pending:
        inner: list[Any] = []
        for item in pending:
            if isinstance(item, dict):
                inner += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str) and _SURROGATE.search(item):
                raise ValueError(f"unpaired surrogate in {item[:80]!r}")
        pending = inner
