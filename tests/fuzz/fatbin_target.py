"""Fuzz the reader of fatbins: it must refuse a library, or zero the same bytes as another reader."""

from __future__ import annotations

import hashlib
import io
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.fatbins import LZ4, STORED, ZSTD, Elf, Made, container, entry, library
from tests.fuzz.source import Decisions
from torchkiln.device_code.fatbin import UnknownDeviceCode
from torchkiln.device_code.fatbin import containers as containers_of
from torchkiln.wheel.cut import dead_ranges

_NAMES = ("sm_80", "sm_90", "sm_90a", "sm_86", "sm_100f", "sm_103f", "sm_120", "compute_80", "compute_90")
_MORE = ("compute_120", "compute_90a", "compute_100f", "lto_90", "sm_75")
_GPUS = ("9.0", "8.0", "8.6", "8.9", "10.3", "12.0", "7.5")
_FIELDS = ("kind", "version", "header", "payload", "packed", "options", "name_length", "flags", "key")
_NUMBERS = (0, 1, 2, 8, 64, 72, 0x11, 0x2011, 0x8011, 1 << 15, (1 << 16) - 1)
_SECTION = ("name", "type", "flags", "offset", "size")

Found = tuple[str, int, int]  # name of an entry, start and end of its payload


def check(data: bytes, _scratch: Path) -> str:
    """ "accepted" or "refused"; raises AssertionError if the readers disagree."""
    decisions = Decisions(data)
    gpus = tuple(decisions.choice(_GPUS) for _ in range(1 + decisions.number(1)))
    return judge(program(decisions), gpus)


def program(decisions: Decisions) -> bytes:
    """A mostly valid library."""
    sections = {".text": bytes(8), ".nv_fatbin": _section(decisions)}
    if decisions.number(3) == 1:
        sections["__nv_relfatbin"] = _section(decisions)
    elf = Elf()
    if decisions.number(9) == 1:
        elf.sections[".nv_fatbin"] = {decisions.choice(_SECTION): decisions.number(400)}
    data = library(sections, elf)
    if decisions.number(9) == 1:
        at = decisions.number(len(data) - 1)
        data = data[:at] + decisions.take(1) + data[at + 1 :]
    return data


def _section(decisions: Decisions) -> bytes:
    parts = [bytes(8 * decisions.number(3))]
    while decisions and len(parts) < 9:
        entries = [_entry(decisions) for _ in range(decisions.number(4))]
        parts.append(container(*entries, more=8 if decisions.number(30) == 1 else 0))
        parts.append(bytes(decisions.choice((0, 8, 0, 8, 16, 0, 0, 4))))
    return b"".join(parts)


def _entry(decisions: Decisions) -> Made:
    false = {}
    if decisions.number(15) == 1:
        false[decisions.choice(_FIELDS)] = decisions.choice(_NUMBERS)
    form = decisions.choice((STORED, STORED, LZ4, ZSTD))
    extra = bytes(8 * decisions.choice((0, 0, 1, 2, 6)))
    body = decisions.take(decisions.number(12))
    return entry(decisions.choice(_NAMES + _MORE), b"." + body, form=form, extra=extra, **false)


def judge(data: bytes | mmap.mmap, gpus: Sequence[str]) -> str:
    """Compare the byte ranges that torchkiln would zero with those of an independent implementation."""
    try:
        spans = [(span.start, span.stop) for span in dead_ranges(data, gpus)]
        listed = entries_of(data)
    except UnknownDeviceCode:
        return "refused"
    found = list(containers(data))
    assert spans == [span for entries in found for span in dead(entries, gpus)]
    assert listed == [entry for entries in found for entry in entries]
    return "accepted"


def entries_of(data: bytes | mmap.mmap) -> list[Found]:
    """The entries of all containers, by torchkiln."""
    with memoryview(data) as view, view.cast("B") as library:
        entries = (entry for one in containers_of(library) for entry in one.entries)
        return [(entry.name, entry.payload.start, entry.payload.stop) for entry in entries]


def containers(data: bytes | mmap.mmap) -> Iterable[list[Found]]:
    """The entries of each container of a valid library, by pyelftools."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    sections = [
        (section["sh_offset"], section["sh_size"])
        for section in ELFFile(stream).iter_sections()
        if section.name in (".nv_fatbin", "__nv_relfatbin")
    ]
    for start, size in sorted(sections):
        at = start
        while (at := data.find(b"\x50\xed\x55\xba", at, start + size)) >= 0:
            end = at + 16 + int.from_bytes(data[at + 8 : at + 16], "little")
            yield list(_walk(data, at + 16, end))
            at = end


def _walk(data: bytes | mmap.mmap, at: int, end: int) -> Iterable[Found]:
    while at < end:
        kind, architecture = data[at], int.from_bytes(data[at + 28 : at + 32], "little")
        start = at + int.from_bytes(data[at + 4 : at + 8], "little")
        stop = start + int.from_bytes(data[at + 8 : at + 16], "little")
        letter = {0: "", 1: "a", 2: "f"}[data[at + 42] >> 4]
        yield {1: "compute", 2: "sm", 8: "lto"}[kind] + f"_{architecture}{letter}", start, stop
        at = stop


def dead(entries: list[Found], gpus: Iterable[str]) -> list[tuple[int, int]]:
    """The byte ranges of payloads that no GPU of *gpus* loads."""
    needed = {name for gpu in gpus for name in _needed({name for name, _, _ in entries}, gpu)}
    if not needed or any(name.startswith("lto") for name, _, _ in entries):
        return []
    return [(start, stop) for name, start, stop in entries if name not in needed and start < stop]


def _needed(names: set[str], gpu: str) -> set[str]:
    number = int(gpu.replace(".", ""))
    code = {name for name in names if name.startswith("sm_") and _runs(name, number)}
    ptx = {name for name in names if name.startswith("compute_") and _runs(name, number)}
    return _newest(code) | (set() if f"sm_{number}" in code else _newest(ptx))


def _runs(name: str, gpu: int) -> bool:
    digits, letter = name.partition("_")[2].rstrip("af"), name[-1] if name[-1] in "af" else ""
    built = int(digits)
    if letter == "a":
        return built == gpu
    same_major = built // 10 == gpu // 10
    return built <= gpu and (same_major or (name.startswith("compute_") and not letter))


def _newest(names: set[str]) -> set[str]:
    """For each suffix ("", "a", "f"), the newest architecture in *names*."""

    def number(name: str) -> int:
        return int(name.partition("_")[2].rstrip("af"))

    ascending = sorted(names, key=number)
    return set({name.partition("_")[2].lstrip("0123456789"): name for name in ascending}.values())


def corpus(_scratch: Path) -> list[bytes]:
    """Some programs, most of them valid."""
    return [hashlib.sha512(bytes([n])).digest() * 2 for n in range(60)] + [bytes(60)]
