"""The suite's reader of device code: it raises no error for any bytes, and finds a GPU's code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.elf import sections
from smoke_tests.fatbins import Entry, containers, loaded
from tests.cut_wheels import LTO, ONE_CHIP, PTX, Code, library

CODES = st.builds(
    Code,
    st.sampled_from([50, 86, 90, 100, 121]),
    st.sampled_from([PTX, 2, LTO]),
    st.sampled_from([0x11, 0x2011, ONE_CHIP]),
    st.integers(0, 300),
    st.sampled_from([64, 72, 120]),
)


@given(st.lists(st.lists(CODES, max_size=4), max_size=4))
def test_containers_are_read_as_they_were_written(written: list[list[Code]]) -> None:
    data, placed = library(written)
    found = list(containers(data))

    assert len(found) == len(written)
    entries = [entry for container in found for entry in container.entries or ()]
    assert [(entry.start, entry.stop, entry.kind) for entry in entries] == [
        (place.start, place.stop, place.code.kind) for place in placed
    ]
    assert [entry.capability for entry in entries] == [divmod(place.code.arch, 10) for place in placed]
    assert [entry.one_chip for entry in entries] == [bool(place.code.flags & ONE_CHIP) for place in placed]


@given(st.data())
def test_damaged_files_are_read_without_an_error(data: st.DataObject) -> None:
    """The entries that are found are within the file and do not overlap."""
    found, placed = library(((Code(80), Code(90)), (Code(90, PTX),)))
    damaged, first = bytearray(found), placed[0].start - 80
    places = (
        st.integers(0, 63) | st.integers(first, first + 79) | st.integers(placed[-1].stop, len(found) - 1)
    )
    for _ in range(data.draw(st.integers(0, 8))):
        damaged[data.draw(places)] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(first, len(damaged)) | st.just(len(damaged)))])

    entries = [entry for container in containers(cut) for entry in container.entries or ()]
    assert all(0 <= entry.start <= entry.stop <= len(cut) for entry in entries)
    assert isinstance(sections(cut), list)


@given(st.binary(max_size=300))
def test_other_files_have_no_sections(data: bytes) -> None:
    assert sections(data) == []
    assert list(containers(data)) == []


def entry(name: str) -> Entry:
    """The entry for a name such as `sm_90a`, `compute_80` or `lto_90`."""
    kind, _, number = name.partition("_")
    kinds = {"sm": 2, "compute": PTX, "lto": LTO}
    return Entry(kinds[kind], divmod(int(number.rstrip("a")), 10), name.endswith("a"), 0, 1)


@pytest.mark.parametrize(
    ("gpu", "entries", "expected"),
    [
        ("9.0", "sm_80 sm_90 compute_90", "sm_90"),
        ("8.9", "sm_80 sm_86 sm_90 compute_80", "sm_86 compute_80"),
        ("8.0", "sm_86 compute_70 compute_80", "compute_80"),
        ("9.0", "sm_90 sm_90a", "sm_90 sm_90a"),
        ("10.3", "sm_100 sm_103a sm_100a", "sm_100 sm_103a"),
        ("10.0", "sm_100a compute_90", "sm_100a compute_90"),
        ("10.3", "sm_100a compute_90 compute_120", "compute_90"),
        ("10.0", "compute_80 compute_90a", "compute_80"),
        ("9.0", "compute_80 compute_90 compute_90a", "compute_90 compute_90a"),
        ("9.0", "sm_80 sm_86", ""),
        ("9.0", "lto_90", ""),
        ("12.1", "sm_120 sm_100", "sm_120"),
    ],
)
def test_what_a_gpu_loads(gpu: str, entries: str, expected: str) -> None:
    major, minor = map(int, gpu.split("."))
    found = loaded([entry(name) for name in entries.split()], (major, minor))

    assert " ".join(map(str, found)) == expected
