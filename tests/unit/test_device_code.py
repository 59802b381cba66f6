"""Device code: the supported containers, and the bytes that a library does not need for the chosen GPUs."""

from __future__ import annotations

import array
import mmap
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fatbins import LZ4, STORED, ZSTD, Elf, Made, container, entry, library
from tests.fuzz import fatbin_target
from torchkiln.device_code import fatbin
from torchkiln.device_code.fatbin import Span, UnknownDeviceCode
from torchkiln.wheel.cut import dead_ranges

START = 64  # the offset of the first section
ALL = "sm_70 sm_75 sm_80 sm_86 sm_90 compute_90"


def one(*entries: Made) -> bytes:
    return library({".nv_fatbin": container(*entries)})


def named(names: str) -> list[Made]:
    return [entry(name, f"code {number} for {name}".encode()) for number, name in enumerate(names.split())]


def zeroed(data: bytes, gpus: Iterable[str]) -> bytes:
    changed = bytearray(data)
    for span in dead_ranges(data, tuple(gpus)):
        changed[span.start : span.stop] = bytes(span.stop - span.start)
    return bytes(changed)


def kept(entries: list[Made], *gpus: str) -> str:
    """The names of *entries* that keep their bytes; of each other entry, only the header is not zeroed."""
    after = zeroed(one(*entries), gpus)
    at, names = START + 16, []
    for made in entries:
        found = after[at : at + len(made.data)]
        assert found[: made.header] == made.data[: made.header]
        assert found == made.data or not any(found[made.header :])
        names += [made.name] if found == made.data else []
        at += len(made.data)
    assert after[at:] == one(*entries)[at:]
    return " ".join(names)


@pytest.mark.parametrize(
    ("gpus", "names", "expected"),
    [
        pytest.param("9.0", ALL, "sm_90", id="exact"),
        pytest.param("8.6", ALL, "sm_86", id="not the lower minor version"),
        pytest.param("8.9", ALL, "sm_86", id="the highest that is not above"),
        pytest.param("8.0", ALL, "sm_80", id="not the higher minor version"),
        pytest.param("8.0 9.0", ALL, "sm_80 sm_90", id="two GPUs"),
        pytest.param("8.0 8.6 8.9", ALL, "sm_80 sm_86", id="the same code for two"),
        pytest.param("12.0", ALL, "compute_90", id="PTX for a newer GPU"),
        pytest.param("7.5 12.0", ALL, "sm_75 compute_90", id="machine code for one, PTX for another"),
        pytest.param("6.1", ALL, ALL, id="no code for this GPU, so all stays"),
        pytest.param("6.1 7.0", ALL, "sm_70", id="code for one of two GPUs"),
        pytest.param("9.0", "sm_70 sm_80", "sm_70 sm_80", id="no code for a newer GPU"),
        pytest.param("", ALL, ALL, id="no GPU"),
        pytest.param("9.0", "compute_70 compute_80 compute_90 sm_80", "compute_90", id="the newest PTX"),
        pytest.param("8.6", "compute_70 compute_80 compute_90", "compute_80", id="no PTX for a newer GPU"),
        pytest.param("8.6", "sm_80 compute_75 compute_80", "sm_80 compute_80", id="PTX beside inexact code"),
        pytest.param("8.6", "sm_80 sm_86 compute_80", "sm_86", id="no PTX beside exact code"),
        pytest.param("9.0", "sm_80 sm_90 sm_90a", "sm_90 sm_90a", id="sm_90 and sm_90a"),
        pytest.param("9.0", "sm_80 sm_90a compute_80", "sm_90a compute_80", id="sm_90a alone, and PTX"),
        pytest.param("10.3", "sm_100a sm_80 compute_80", "compute_80", id="sm_100a is for 10.0 only"),
        pytest.param("10.3", "sm_100 sm_100f sm_103f sm_103a", "sm_100 sm_103f sm_103a", id="each variant"),
        pytest.param("10.3", "sm_100f sm_90", "sm_100f", id="family code on a newer GPU"),
        pytest.param("10.0", "sm_103f sm_100", "sm_100", id="no family code on an older GPU"),
        pytest.param("12.0", "compute_100f compute_90", "compute_90", id="PTX of another family"),
        pytest.param(
            "12.0", "compute_90a compute_120a compute_90", "compute_120a compute_90", id="PTX, exact"
        ),
        pytest.param("12.1", "sm_120 sm_100 sm_90", "sm_120", id="two digits of the major version"),
        pytest.param("9.0", "sm_90 sm_90 sm_80", "sm_90 sm_90", id="the same architecture twice"),
        pytest.param("9.0", "sm_80 sm_90 lto_90", "sm_80 sm_90 lto_90", id="LTO code"),
    ],
)
def test_what_is_kept(gpus: str, names: str, expected: str) -> None:
    """The entries that the driver may load on the chosen GPUs keep their bytes."""
    assert kept(named(names), *gpus.split()) == expected


def test_each_container_is_decided_for_itself() -> None:
    """Ranges are in the order of the file. Padding between containers and empty containers are allowed."""
    old, both = container(entry("sm_80", b"old")), container(entry("sm_80", b"1" * 20), entry("sm_90"))
    section = bytes(24) + old + bytes(16) + both + container() + bytes(8) + both + bytes(40)
    data = library({".text": b"x" * 8, ".nv_fatbin": section, "__nv_relfatbin": both, ".data": both})

    def payloads(start: int) -> Span:
        return Span(start + 16 + 64, start + 16 + 64 + 24)

    first = START + 8 + 24 + len(old) + 16
    second = first + len(both) + 16 + 8
    third = START + 8 + len(section)
    assert dead_ranges(data, ["9.0"]) == (payloads(first), payloads(second), payloads(third))


def test_compressed_and_optional_fields() -> None:
    """Payloads have three forms, a header may have options, and newer machine code has more attributes."""
    entries = [
        entry("sm_80", b"lz4", form=LZ4),
        entry("sm_86", b"zstd", form=ZSTD),
        entry("sm_90", b"stored", extra=b"\x48".ljust(16, b"\0")),
        entry("sm_100f", b"newer", form=ZSTD | 0x1000000, extra=bytes(48)),
        entry("compute_90", b"debug", form=STORED | 2, extra=bytes(24)),
        entry("sm_120", b""),
    ]
    assert kept(entries, "8.6") == "sm_86"
    assert kept(entries, "10.0", "9.0") == "sm_90 sm_100f compute_90"


def test_libraries_without_device_code() -> None:
    assert dead_ranges(library({".text": b"code"}), ["9.0"]) == ()
    assert dead_ranges(library({".nv_fatbin": b"", ".text": b"code"}), ["9.0"]) == ()
    assert dead_ranges(library({".nv_fatbin": bytes(100_000)}), ["9.0"]) == ()


GOOD = entry("sm_80")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        pytest.param(b"garbage" * 9, "neither a container nor padding: 0x62726167", id="garbage"),
        pytest.param(container(GOOD) + b"\x01" + bytes(63), "neither a container", id="after a container"),
        pytest.param(container(GOOD) + bytes(4) + container(GOOD), "not aligned", id="alignment"),
        pytest.param(container(GOOD)[:12], "a container extends", id="cut in the header"),
        pytest.param(container(GOOD, more=8), "a container extends", id="too long"),
        pytest.param(container(GOOD, more=-8), "an entry extends", id="too short"),
        pytest.param(container(GOOD, more=-40), "an entry extends", id="cut in an entry's header"),
        pytest.param(container(GOOD, magic=0x1EE55A01), "neither a container", id="magic"),
        pytest.param(container(GOOD, version=2), "a container of version 2", id="version"),
        pytest.param(
            container(entry("compute_80", b"", form=LZ4, unpacked=9)),
            "0 bytes, 0 compressed",
            id="nothing compressed",
        ),
        pytest.param(container(GOOD, header=24), "a header of 24 bytes", id="header"),
        *(
            pytest.param(container(entry(name, **fields)), message, id=message)  # type: ignore[arg-type]
            for name, fields, message in (
                ("sm_80", {"kind": 4}, "an entry of kind 4"),
                ("sm_80", {"version": 0x102}, "version 0x102"),
                ("sm_80", {"header": 56}, "a header of 56"),
                ("sm_80", {"header": 68}, "a header of 68"),
                ("sm_80", {"header": 0}, "a header of 0"),
                ("sm_80", {"payload": 12}, "a payload of 12"),
                ("sm_80", {"payload": 1 << 63}, "an entry extends"),
                ("sm_80", {"architecture": 0}, "the architecture 0"),
                ("sm_80", {"architecture": 1000}, "the architecture 1000"),
                ("sm_80", {"flags": 0x31}, "the flags 0x31"),
                ("sm_80", {"flags": 0x10}, "the flags 0x10"),
                ("sm_80", {"flags": 0x300011}, "the flags 0x300011"),
                ("sm_80", {"flags": 0xA011}, "the flags 0xa011"),
                ("sm_80", {"flags": 0x10011}, "the flags 0x10011"),
                ("compute_80", {"flags": 0x1000011}, "the flags 0x1000011"),
                ("sm_80", {"name_length": 3}, "a name or a key"),
                ("sm_80", {"key": 3}, "a name or a key"),
                ("sm_80", {"options": 8}, "options at 8"),
                ("sm_80", {"options": 64}, "options at 64"),
                ("sm_80", {"packed": 5}, "8 bytes, 5 compressed, 0 uncompressed"),
                ("sm_80", {"flags": ZSTD}, "8 bytes, 0 compressed"),
                ("sm_80", {"flags": ZSTD, "packed": 9, "unpacked": 9}, "8 bytes, 9 compressed"),
                ("sm_80", {"flags": ZSTD, "packed": 0x80, "unpacked": 9}, "8 bytes, 128 compressed"),
                ("sm_80", {"flags": LZ4, "packed": 8}, "8 bytes, 8 compressed, 0 uncompressed"),
                ("sm_80", {"flags": ZSTD, "packed": 8, "unpacked": 9}, "not match the kind"),
                ("compute_80", {"kind": 2}, "the payload of an entry does not match the kind"),
            )
        ),
    ],
)
def test_unsupported_containers(section: bytes, message: str) -> None:
    """The message names the fault and its byte; the library is not changed."""
    data = library({".nv_fatbin": container(entry("sm_80"), entry("sm_90")) + section})
    with pytest.raises(UnknownDeviceCode, match=message) as raised:
        dead_ranges(data, ["9.0"])
    assert START + 16 + 2 * 72 <= raised.value.at < len(data)
    assert f"at byte {raised.value.at:#x}: " in str(raised.value)


def fat(**changes: int) -> Elf:
    return Elf(sections={".nv_fatbin": changes})


@pytest.mark.parametrize(
    ("elf", "message"),
    [
        pytest.param(Elf(ident=b"\x7fELG\x02\x01\x01"), "not a 64-bit little-endian ELF file", id="magic"),
        pytest.param(Elf(ident=b"\x7fELF\x01\x01\x01"), "not a 64-bit", id="32 bits"),
        pytest.param(Elf(ident=b"\x7fELF\x02\x02\x01"), "not a 64-bit little-endian", id="big-endian"),
        pytest.param(Elf(kind=2), "not a shared library", id="a program"),
        pytest.param(Elf(machine=183), "not a shared library for x86-64", id="another processor"),
        pytest.param(Elf(section_header=40), "the section table", id="size of a section's header"),
        pytest.param(Elf(count=0), "the section table", id="no sections"),
        pytest.param(Elf(count=999), "the section table", id="more sections than bytes"),
        pytest.param(Elf(table=1 << 62), "the section table", id="table beyond the file"),
        pytest.param(Elf(table=8), "the section table", id="table in the header"),
        pytest.param(Elf(names=9), "the section name string table", id="no names"),
        pytest.param(Elf(names=1), "the section name string table", id="names of another type"),
        pytest.param(fat(name=1 << 20), "the name of a section is outside", id="name outside"),
        pytest.param(fat(size=1 << 62), "extends beyond the end of the file", id="section beyond the file"),
        pytest.param(fat(offset=1 << 63), "extends beyond the end of the file", id="section elsewhere"),
        pytest.param(fat(flags=0x802), "compressed, or not PROGBITS", id="a compressed section"),
        pytest.param(fat(type=4), "compressed, or not PROGBITS", id="another type"),
        pytest.param(fat(type=8), "compressed, or not PROGBITS", id="a section without bytes"),
        pytest.param(fat(type=0), "compressed, or not PROGBITS", id="an unused section"),
        pytest.param(fat(offset=56), "overlaps another part", id="over the header"),
        pytest.param(fat(offset=72), "overlaps another part", id="over the next section"),
        pytest.param(fat(offset=296), "overlaps another part", id="over the section table"),
        pytest.param(Elf(segments=(72, 1)), "overlaps another part", id="over the program headers"),
    ],
)
def test_files_that_are_not_understood(elf: Elf, message: str) -> None:
    """One of them is a file in which device code overlaps with another part."""
    sections = {".nv_fatbin": container(entry("sm_80"), entry("sm_90")), ".data": b"data" * 8}
    assert dead_ranges(library(sections), ["9.0"]) != ()
    with pytest.raises(UnknownDeviceCode, match=message):
        dead_ranges(library(sections, elf), ["9.0"])


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01", b"!<arch>\n" + bytes(64)])
def test_files_that_are_no_libraries(data: bytes) -> None:
    with pytest.raises(UnknownDeviceCode, match="at byte 0x0: not a 64-bit"):
        dead_ranges(data, ["9.0"])


def test_many_sections_with_containers() -> None:
    """Comparing all pairs of sections would take too long, so more than eight sections are refused."""
    rows = Elf(sections={f".{number}": {"name": 1} for number in range(9)})
    sections = {".nv_fatbin": b"", **{f".{number}": container(GOOD) for number in range(9)}}
    with pytest.raises(UnknownDeviceCode, match="more than 8 sections"):
        dead_ranges(library(sections, rows), ["9.0"])


def test_containers_at_the_end_of_the_file() -> None:
    """The file may end at any byte; nothing after its end is read."""
    whole = container(entry("sm_80"), entry("sm_90"))
    start = len(library({".nv_fatbin": b""}))
    for size in range(1, len(whole)):
        data = library({".nv_fatbin": b""}, fat(offset=start, size=size)) + whole[:size]
        with pytest.raises(UnknownDeviceCode, match="extends beyond"):
            dead_ranges(data, ["9.0"])
    rest = container(GOOD, Made(name="", data=GOOD.data[:40], header=0))
    with pytest.raises(UnknownDeviceCode, match="an entry extends beyond"):
        dead_ranges(library({".nv_fatbin": b""}, fat(offset=start, size=len(rest))) + rest, ["9.0"])
    data = library({".nv_fatbin": b""}, fat(offset=start, size=len(whole))) + whole
    assert dead_ranges(data, ["9.0"]) == (Span(start + 80, start + 88),)


def test_the_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are for one container, and for all containers of a library together."""
    monkeypatch.setattr(fatbin, "_MOST", 6)
    for section in (container(*[GOOD] * 9), container(GOOD) * 4, container() * 7):
        with pytest.raises(UnknownDeviceCode, match="more than 6") as raised:
            dead_ranges(library({".nv_fatbin": section}), ["8.0"])
        assert START < raised.value.at <= START + 16 + 6 * 72
    assert dead_ranges(library({".nv_fatbin": container(GOOD) * 3}), ["8.0"]) == ()


def test_no_span_is_empty() -> None:
    assert dead_ranges(one(entry("compute_70", b""), entry("sm_90")), ["9.0"]) == ()


def test_a_file_that_is_mapped_can_be_closed(tmp_path: Path) -> None:
    """No exception may keep a reference to the mmap; buffers other than mmap are read, too."""
    for number, data in enumerate((one(*named(ALL)), library({".nv_fatbin": b"garbage" * 9}))):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if number:
                with pytest.raises(UnknownDeviceCode):
                    dead_ranges(mapped, ["9.0"])
            else:
                assert dead_ranges(mapped, ["9.0"]) == dead_ranges(bytearray(data), ["9.0"])
    numbers = array.array("I", one(*named(ALL)))
    assert dead_ranges(numbers, ["9.0"]) == dead_ranges(numbers.tobytes(), ["9.0"])


def test_the_error_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(UnknownDeviceCode("a name", 16)))
    assert (again.what, again.at, str(again)) == ("a name", 16, "at byte 0x10: a name")


@given(data=st.binary(max_size=400))
def test_any_library(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """For any bytes, the result is an error, or the containers that another reader finds."""
    fatbin_target.check(data, Path())


@given(data=st.binary(max_size=300))
def test_any_section(data: bytes) -> None:
    """A section for device code may contain any bytes."""
    fatbin_target.judge(library({".nv_fatbin": data}), ("9.0",))


@given(at=st.integers(0, 5000), new=st.binary(min_size=1, max_size=8))
def test_any_changed_bytes(at: int, new: bytes) -> None:
    data = library({".text": b"x" * 40, ".nv_fatbin": container(*named(ALL)) * 2, ".data": b"y" * 40})
    at %= len(data)
    fatbin_target.judge((data[:at] + new + data[at + len(new) :])[: len(data)], ("8.0", "9.0"))
