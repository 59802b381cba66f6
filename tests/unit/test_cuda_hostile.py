"""Malicious CUDA archives: the error names archive and reason, and no file of the archive is stored."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.cuda_archives import archive_of
from torchkiln.cuda import tree as cuda_tree
from torchkiln.cuda.layer import keep, write_layer
from torchkiln.errors import BadArchive

TOP = "cuda_nvcc-linux-x86_64-12.1.105-archive"
Entry = tuple[str, bytes, dict[str, object]]


def packed(*entries: Entry, top: str = TOP, preset: int = 0) -> bytes:
    """A tar.xz of *entries*, each with its name below *top*, its content and fields of its header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content, fields in entries:
            info = tarfile.TarInfo(f"{top}/{name}" if not name.startswith(("/", "=")) else name.lstrip("="))
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return lzma.compress(out.getvalue(), preset=preset)


def filtered(data: bytes, folder: Path) -> bytes:
    """The output of `keep` for the archive *data*."""
    archive = archive_of(data)
    path = folder / archive.filename
    path.write_bytes(data)
    out = io.BytesIO()
    keep(archive, path, out)
    return out.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return name, b"", {"type": kind, "linkname": target}


NVCC: Entry = ("bin/nvcc", b"nvcc", {"mode": 0o755})
REFUSED = {
    "another folder": ([(f"={TOP}-2/bin/nvcc", b"x", {})], "is outside of"),
    "no folder": ([("=nvcc", b"x", {})], "is outside of"),
    "escape sequence": ([("bin/nv\x1b[2Jcc", b"x", {})], "non-printable characters"),
    "not UTF-8": ([("bin/nv\udcffcc", b"x", {})], "non-printable characters"),
    "whiteout": ([("bin/.wh.nvcc", b"", {})], "would delete"),
    "opaque": ([("bin/.wh..wh..opq", b"", {})], "would delete"),
    "whiteout folder": ([(".wh.bin/nvcc", b"x", {})], "would delete"),
    "device": ([("bin/null", b"", {"type": tarfile.CHRTYPE})], "not a file, directory or link"),
    "disk": ([("bin/sda", b"", {"type": tarfile.BLKTYPE})], "not a file, directory or link"),
    "pipe": ([("bin/pipe", b"", {"type": tarfile.FIFOTYPE})], "not a file, directory or link"),
    "twice": ([NVCC, NVCC], "is a duplicate"),
    "file, then folder": ([("bin", b"x", {}), NVCC], "not a directory"),
    "folder, then file": ([NVCC, ("bin", b"x", {})], "is a duplicate"),
    "link, then through it": ([link("bin", "nvvm"), NVCC], "not a directory"),
    "link out": ([link("bin/x", "../../../etc/passwd")], "outside of the archive"),
    "absolute link": ([link("bin/x", "/etc/passwd")], "outside of the archive"),
    "a link to outside, in a part that is left out": ([link("doc/x", "../../x")], "outside of the archive"),
    "hard link out": ([link("bin/x", "etc/passwd", tarfile.LNKTYPE)], "not an earlier file"),
    "hard link forward": ([link("bin/x", f"{TOP}/bin/nvcc", tarfile.LNKTYPE), NVCC], "not an earlier file"),
    "hard link to a folder": ([NVCC, link("bin/x", f"{TOP}/bin", tarfile.LNKTYPE)], "not an earlier file"),
    "hard link to a removed file": (
        [("doc/x", b"x", {}), link("bin/x", f"{TOP}/doc/x", tarfile.LNKTYPE)],
        "not installed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_forbidden_entries_are_refused_by_name(case: str, tmp_path: Path) -> None:
    entries, reason = REFUSED[case]

    with pytest.raises(BadArchive, match=reason) as caught:
        filtered(packed(NVCC, *entries) if NVCC not in entries else packed(*entries), tmp_path)
    assert caught.value.archive == f"{TOP}.tar.xz"
    assert caught.value.exit_code == 6
    assert "\x1b" not in caught.value.message


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _tar_cut(data: bytes) -> bytes:
    return lzma.compress(lzma.decompress(data)[:700])


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "unexpected end of input"),
    "no xz": (lambda _: b"<html>404</html>", "cannot be read"),
    "cut": (_cut, "unexpected end of input"),
    "xz of something else than a tar": (lambda _: lzma.compress(b"hello" * 900), "cannot be read"),
    "tar cut within a file": (_tar_cut, "unexpected end of input|unexpected end"),
    "bytes after the end": (lambda data: data + b"x", "trailing data after the end"),
    "a second stream": (lambda data: data + data, "trailing data after the end"),
    "a changed bit": (lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "cannot be read"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(case: str, tmp_path: Path) -> None:
    damage, reason = DAMAGED[case]

    with pytest.raises(BadArchive, match=reason):
        filtered(damage(packed(("bin/nvcc", bytes(4000), {}))), tmp_path)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes in the headers of all files are added before a file is unpacked."""
    monkeypatch.setattr("torchkiln.cuda.layer._MAX_CONTENT", 1 << 20)

    with pytest.raises(BadArchive, match="unpacks to more than"):
        filtered(packed(("doc/zeros", bytes(2 << 20), {})), tmp_path)


def test_an_xz_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    """Its header declares a dictionary of a gigabyte, which a decoder would allocate at once."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    data = lzma.compress(lzma.decompress(packed(NVCC)), filters=filters)
    with pytest.raises(BadArchive, match=r"[Mm]emory"):
        filtered(data, tmp_path)


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.cuda.layer._MAX_ENTRIES", 10)

    with pytest.raises(BadArchive, match="more than 10 entries"):
        filtered(packed(*((f"bin/{number}", b"", {}) for number in range(20))), tmp_path)


def test_links_follow_their_targets_and_dangling_ones_are_omitted(tmp_path: Path) -> None:
    """Links across folders are rewritten; chains and links to folders are followed."""
    data = packed(
        link("bin/cicc", "../nvvm/bin/cicc"),
        link("bin/again", "cicc"),
        link("include/nv", "../nvvm/include"),
        link("lib/stubs/libx.so", "../libgone.so"),
        ("lib/libgone.so", b"x", {}),
        ("nvvm/bin/cicc", b"cicc", {"mode": 0o755}),
        ("nvvm/include/nvvm.h", b"h", {}),
        link("bin/hard", f"{TOP}/nvvm/bin/cicc", tarfile.LNKTYPE),
    )
    with tarfile.open(fileobj=io.BytesIO(filtered(data, tmp_path))) as tar:
        found = {member.name: member for member in tar}

    assert {name: one.linkname for name, one in found.items() if one.issym()} == {
        "bin/again": "cicc",
        "bin/cicc": "../nvvm/bin/cicc",
        "targets/x86_64-linux/include/nv": "../../../nvvm/include",
    }
    assert (found["bin/hard"].islnk(), found["bin/hard"].linkname) == (True, "nvvm/bin/cicc")
    assert "targets/x86_64-linux/lib/stubs/libx.so" not in found


def _layer(folder: Path, *contents: tuple[str, Entry]) -> None:
    parts = []
    for component, entry in contents:
        data = packed(entry, top=f"{component}-linux-x86_64-1-archive")
        archive = archive_of(data, component, "1")
        path = folder / component
        path.write_bytes(data)
        with (folder / f"{component}.tar").open("wb") as out:
            keep(archive, path, out)
        parts.append((archive, folder / f"{component}.tar"))
    write_layer(parts, "usr/local/cuda-12.1", folder / "layer")


def test_two_archives_may_share_an_identical_file_but_not_a_different_one(tmp_path: Path) -> None:
    one: Entry = ("include/x.h", b"x", {})
    _layer(tmp_path, ("cuda_a", one), ("cuda_b", one))

    with pytest.raises(
        BadArchive, match=r"cuda_b.*'targets/x86_64-linux/include/x.h' differs from the file in cuda_a"
    ):
        _layer(tmp_path, ("cuda_a", one), ("cuda_b", ("include/x.h", b"y", {})))
    with pytest.raises(BadArchive, match="a file of another archive"):
        _layer(tmp_path, ("cuda_a", ("bin/x", b"x", {})), ("cuda_b", ("bin/x/y", b"y", {})))


_PART = st.text("abcdef._-", min_size=1, max_size=6).filter(lambda part: part not in (".", ".."))
_FIRST = st.one_of(
    _PART,
    st.sampled_from(["bin", "lib", "lib64", "include", "nvvm", "share", "pkg-config", "doc", "LICENSE"]),
)


@given(st.lists(_PART, max_size=4), _FIRST, st.sampled_from(["cuda_nvcc", "libcublas"]))
def test_installed_files_are_below_the_toolkit(rest: list[str], first: str, component: str) -> None:
    """No two files have the same path, although the folders lib and lib64 are one."""
    path = "/".join([first, *rest])
    placed = cuda_tree.place(component, path)

    if placed is not None:
        assert ".." not in placed.split("/")
        assert not placed.startswith("/")
        assert placed.endswith(path.split("/")[-1])
        top = placed.split("/")[0]
        assert top in {
            "bin",
            "compute-sanitizer",
            "extras",
            "licenses",
            "nvvm",
            "pkgconfig",
            "share",
            "targets",
        }
