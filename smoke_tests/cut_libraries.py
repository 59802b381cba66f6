"""Compare the libraries of an image that has device code for some GPUs only with those of the wheels."""

from __future__ import annotations

import csv
import hashlib
import io
import mmap
import re
import zipfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smoke_tests.fatbins import Entry, containers, loaded

LARGE = 1_000_000  # bytes; smaller libraries are not cut
# Names of NVIDIA's libraries; wheels of other projects also contain them.
_NVIDIA = re.compile(r"lib(?:cu|nv|nccl|npp)")
_CHUNK = 1 << 20
_NAMED = 5  # maximum number of differences of one kind that are named for each library


class Span(NamedTuple):
    """The code of an entry: if kept, the same bytes as in the wheel, otherwise zeros."""

    start: int
    stop: int
    kept: bool
    name: str


class Library:
    """The containers of one library of the image. The wheel's library has the same containers, because all
    bytes except the code that no GPU loads are compared with the wheel, including the headers."""

    def __init__(self, data: bytes, gpus: Sequence[tuple[int, int]]) -> None:
        self.spans: list[Span] = []
        self.kept: Counter[str] = Counter()  # bytes by architecture
        self.zeroed = self.containers = self.unserved = 0
        self.unread: list[int] = []  # containers that do not follow the format
        for container in containers(data):
            self.containers += 1
            if container.entries is None:
                self.unread.append(container.start)
            else:
                self._add(container.start, container.entries, gpus)
        if self.unread:  # such a library is not cut at all
            self.spans, self.zeroed = [span._replace(kept=True) for span in self.spans], 0

    def _add(self, at: int, entries: Sequence[Entry], gpus: Sequence[tuple[int, int]]) -> None:
        kept = {entry for gpu in gpus for entry in loaded(entries, gpu)}
        if not kept:
            kept = set(entries)  # a container without code for any of these GPUs is not cut
            self.unserved += 1
        for entry in entries:
            name = f"{entry} in the container at {at:#x}"
            self.spans.append(Span(entry.start, entry.stop, entry in kept, name))
            if entry in kept:
                self.kept[str(entry)] += entry.stop - entry.start
            else:
                self.zeroed += entry.stop - entry.start


def differences(library: Library, image: bytes, wheel: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """How *image* (the bytes of *library*) differs from *wheel* without the code for other GPUs: the kind of
    each difference (not_zeroed, lost, changed), and its place."""
    spans, at = library.spans, 0
    starts = [span.start for span in spans]
    for chunk in wheel:
        stop = at + len(chunk)
        here = spans[max(0, bisect_right(starts, at) - 1) : bisect_right(starts, stop)]
        parts = [
            (span, max(span.start, at) - at, min(span.stop, stop) - at)
            for span in here
            if span.start < stop and span.stop > at
        ]
        expected, found = bytearray(chunk), bytearray(image[at:stop])
        for span, first, last in parts:
            if not span.kept:
                expected[first:last] = bytes(last - first)
        if expected != found:
            yield from _located(parts, expected, found, at)
        at = stop


def _located(
    parts: Sequence[tuple[Span, int, int]], expected: bytearray, found: bytearray, at: int
) -> Iterator[tuple[str, str]]:
    """The differences of one chunk; *parts* are the spans in it."""
    for span, first, last in parts:
        if expected[first:last] == found[first:last]:
            continue
        if not span.kept:
            yield "not_zeroed", span.name
        elif any(found[first:last]):
            yield "changed", span.name
        else:
            yield "lost", span.name
        expected[first:last] = found[first:last]
    if expected != found:
        first = next(at for at, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
        yield "changed", f"byte {at + first:#x}, outside of device code"


def compare(
    wheel: Path, site: Path, gpus: Sequence[tuple[int, int]], *, own_use: bool = False
) -> dict[str, Any]:
    """The libraries of *wheel* as they are installed in *site*, and all other files by their RECORDs.

    :param own_use: NVIDIA's libraries are cut, too; otherwise they count as other files.
    """
    seen: dict[str, Any] = {
        kind: [] for kind in ("absent", "not_zeroed", "lost", "changed", "unread", "other")
    }
    seen |= {"libraries": 0, "containers": 0, "zeroed": 0, "kept": Counter(), "unserved": {}}
    with zipfile.ZipFile(wheel) as opened:
        large = [
            info
            for info in opened.infolist()
            if _is_cut(info.filename.rpartition("/")[2], own_use) and info.file_size > LARGE
        ]
        for info in large:
            path = site / info.filename
            if not path.is_file() or path.stat().st_size != info.file_size:
                seen["absent"].append(info.filename)
                continue
            with opened.open(info) as member, path.open("rb") as file:
                _compare(info.filename, member, file, gpus, seen)
        seen["other"] = _other_rows(opened, site, {info.filename for info in large})
    return seen


def _is_cut(name: str, own_use: bool) -> bool:
    return ".so" in name and (own_use or not _NVIDIA.match(name))


def _compare(
    name: str, member: Any, file: Any, gpus: Sequence[tuple[int, int]], seen: dict[str, Any]
) -> None:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        library = Library(image, gpus)
        found: dict[str, list[str]] = {}
        for kind, where in differences(library, image, iter(lambda: member.read(_CHUNK), b"")):
            found.setdefault(kind, []).append(f"{name}: {where}")
    for kind, texts in found.items():
        texts = list(dict.fromkeys(texts))  # an entry can be in several chunks
        more = [f"{name}: and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
        seen[kind] += [*texts[:_NAMED], *more]
    seen["libraries"] += 1
    seen["containers"] += library.containers
    seen["zeroed"] += library.zeroed
    seen["kept"] += library.kept
    seen["unread"] += [f"{name}: {start:#x}" for start in library.unread]
    if library.unserved:
        seen["unserved"][name] = library.unserved


def _other_rows(wheel: zipfile.ZipFile, site: Path, large: set[str]) -> list[str]:
    """Files, except *large*, that the installed RECORD lists otherwise than the wheel's RECORD. The check
    `lock` compares the files with the installed RECORD."""
    record = next(name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
    rows = _rows(wheel.read(record).decode())
    installed = _rows((site / record).read_text("utf-8")) if (site / record).is_file() else {}
    return [
        name
        for name, values in rows.items()
        if values[0] and name not in large and installed.get(name) != values
    ]


def _rows(record: str) -> dict[str, tuple[str, str]]:
    return {row[0]: (row[1], row[2]) for row in csv.reader(io.StringIO(record)) if len(row) == 3}


def sha256(path: Path) -> str:
    """The hash of a file, hex."""
    result = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            result.update(chunk)
    return result.hexdigest()
