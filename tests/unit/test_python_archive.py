"""Archives of standalone Pythons: the layers made of them, and archives that are refused."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from tests.layers import tree_of_layer
from tests.python_builds import HARD, HEADER, LINK, PROGRAM, SMALL, Entries, archive_in
from tests.roots import entry, tar_of
from torchkiln.base.python_archive import PythonFiles, layer_tar, read_python, sources
from torchkiln.errors import BadArchive
from torchkiln.model.recipe import WHEEL_EPOCH

LIBRARY = "opt/python/lib/python3.12"


def read(
    folder: Path, *entries: tuple[tarfile.TarInfo, bytes], python: str = "3.12"
) -> tuple[PythonFiles, bytes]:
    """The files that are read from an archive of `SMALL` and *entries*, and their contents."""
    path, archive = archive_in(folder, (*SMALL, *entries))
    contents = io.BytesIO()
    return read_python(path, archive, python, contents), contents.getvalue()


def layer(folder: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """The tar of the layer made of an archive of `SMALL` and *entries*."""
    found, contents = read(folder, *entries)
    code = {f"{LIBRARY}/__pycache__/os.cpython-312.pyc": b"code"}
    return b"".join(layer_tar(found, io.BytesIO(contents), base="3.11.2", bytecode=code))


def test_the_layer_moves_the_environment_to_the_python(tmp_path: Path) -> None:
    """Python's files are in /opt/python, settings and links to it in /opt/venv. Packages are not moved."""
    tree = tree_of_layer(gzip.compress(layer(tmp_path)))

    files = {path: (item.mode, item.data) for path, item in tree.items() if item.kind == "file"}
    links = {path: item.data.decode() for path, item in tree.items() if item.kind == "link"}
    config = files.pop("opt/venv/pyvenv.cfg")[1].decode().splitlines()
    assert files == {
        "opt/python/bin/python3.12": (0o755, PROGRAM),
        "opt/python/include/python3.12/patchlevel.h": (0o644, HEADER),
        f"{LIBRARY}/os.py": (0o644, b"# os\n"),
        f"{LIBRARY}/__pycache__/os.cpython-312.pyc": (0o644, b"code"),
        "opt/venv/bin/.wh.python3.11": (0o644, b""),
    }
    assert config[:3] == ["home = /opt/python/bin", "include-system-site-packages = true", "version = 3.12.8"]
    assert links == {
        "opt/python/bin/python3": "python3.12",
        "opt/venv/bin/python": "/opt/python/bin/python3.12",
        "opt/venv/bin/python3": "/opt/python/bin/python3.12",
        "opt/venv/bin/python3.12": "/opt/python/bin/python3.12",
        "opt/venv/lib/python3.12": "python3.11",
    }
    assert all(item.mode == 0o755 for item in tree.values() if item.kind == "folder")


def test_the_order_owners_and_times_of_the_archive_do_not_matter(tmp_path: Path) -> None:
    """The same files give the same layer, in which root owns all files and all times are equal."""

    def other(info: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        changed = info.replace(mtime=1_800_000_000, uid=1000, gid=1000, uname="builder")
        return changed, data

    more = (entry("python/lib/libpython3.12.so.1.0", b"library"), entry("python/lib/a.txt", b"a"))
    one = layer(tmp_path, *more)
    path, archive = archive_in(tmp_path, [other(*each) for each in reversed((*SMALL, *more))])
    contents = io.BytesIO()
    found = read_python(path, archive, "3.12", contents)
    code = {f"{LIBRARY}/__pycache__/os.cpython-312.pyc": b"code"}
    assert b"".join(layer_tar(found, contents, base="3.11.2", bytecode=code)) == one

    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        items = tar.getmembers()
    assert {(item.uid, item.gid, item.uname, item.mtime) for item in items} == {(0, 0, "", WHEEL_EPOCH)}
    assert [item.name for item in items] == sorted(item.name for item in items)


def test_packages_tests_byte_code_and_other_programs_are_left_out(tmp_path: Path) -> None:
    """Links to these files are left out, too."""
    left_out = (
        "bin/pip3",
        "lib/python3.12/__pycache__/os.cpython-312.pyc",
        "lib/python3.12/site-packages/pip/__init__.py",
        "lib/python3.12/test/test_os.py",
        "lib/python3.12/tkinter/__init__.py",
        "lib/tk8.6/tk.tcl",
        "share/man/man1/python3.12.1",
    )
    entries = [entry(f"python/{name}", b"x") for name in left_out]
    kept = entry("python/lib/python3.12/json/__init__.py", b"json")
    dangling = entry("python/share/python.1", kind=LINK, to="man/man1/python3.12.1")
    found, _ = read(tmp_path, *entries, kept, dangling)

    assert sorted(sources(found)) == [f"{LIBRARY}/json/__init__.py", f"{LIBRARY}/os.py"]
    assert len(found.files) == 4
    assert sorted(found.links) == ["opt/python/bin/python3"]


def test_a_hard_link_becomes_a_file(tmp_path: Path) -> None:
    found, contents = read(tmp_path, entry("python/bin/python", kind=HARD, to="python/bin/python3.12"))

    file = found.files["opt/python/bin/python"]
    assert contents[file.start : file.start + file.size] == PROGRAM


REFUSED: dict[str, tuple[Entries, str]] = {
    "another folder": ([entry("etc/passwd", b"x")], r"'etc/passwd' is outside of the folder python/"),
    "a similar folder": ([entry("python3/bin/sh", b"x")], "is outside of the folder python/"),
    "the folder as a link": ([entry("python", kind=LINK, to="/etc")], "is outside of the folder python/"),
    "an absolute link": ([entry("python/lib/x", kind=LINK, to="/etc")], "is a link to '/etc', outside"),
    "a link above": (
        [entry("python/lib/x", kind=LINK, to="../../etc")],
        r"is a link to '\.\./\.\./etc', outside",
    ),
    "a link through another": (
        [entry("python/lib/x", kind=LINK, to="python3.12/../../y")],
        "is a link to .*, outside",
    ),
    "a device": ([entry("python/x", kind=tarfile.CHRTYPE)], "is a device or a pipe"),
    "setuid": ([entry("python/bin/python", b"x", mode=0o4755)], "has a set-user-id, set-group-id or sticky"),
    "setgid": ([entry("python/bin/python", b"x", mode=0o2755)], "has a set-user-id, set-group-id or sticky"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_archive_is_refused(name: str, tmp_path: Path) -> None:
    """Even if the entry would be left out of the layer. The message names the archive and the entry."""
    entries, why = REFUSED[name]
    with pytest.raises(BadArchive, match=why) as caught:
        read(tmp_path, *entries)
    assert caught.value.message.startswith("cpython-3.12.8+20241219-")


def test_extended_attributes_are_refused(tmp_path: Path) -> None:
    """One of them, a file capability, would give a program additional rights."""
    info, data = entry("python/bin/python", b"x")
    info.pax_headers = {"SCHILY.xattr.security.capability": "cap"}
    with pytest.raises(BadArchive, match="has extended attributes"):
        read(tmp_path, (info, data))


WRONG: dict[str, tuple[Entries, str]] = {
    "another version": (
        [entry(name.replace("3.12", "3.13"), data) for name, data in (("python/bin/python3.12", PROGRAM),)],
        r"has Python 3\.13, not 3\.12$",
    ),
    "no Python": ([entry("python/README", b"x")], "has no python/bin/python3.12$"),
    "for another machine": (
        [entry("python/bin/python3.12", PROGRAM[:18] + b"\xb7\x00"), *SMALL[2:]],
        "python/bin/python3.12 is not a program for x86-64 Linux$",
    ),
    "for another system": (
        [entry("python/bin/python3.12", b"\xcf\xfa\xed\xfe".ljust(18, b"\0") + PROGRAM[18:]), *SMALL[2:]],
        "is not a program for x86-64 Linux$",
    ),
    "a script": (
        [entry("python/bin/python3.12", b"#!/bin/sh\n"), *SMALL[2:]],
        "is not a program for x86-64 Linux$",
    ),
    "no headers": ([*SMALL[:3], SMALL[4]], "or no version in python/include/python3.12/patchlevel.h$"),
    "no library": (SMALL[:4], "has no python/lib/python3.12/os.py"),
    "another version in its headers": (
        [
            *SMALL[:3],
            entry("python/include/python3.12/patchlevel.h", HEADER.replace(b"12.8", b"11.8")),
            SMALL[4],
        ],
        r"has Python 3\.11\.8, not a release of 3\.12$",
    ),
    "a release candidate": (
        [
            *SMALL[:3],
            entry("python/include/python3.12/patchlevel.h", HEADER.replace(b"12.8", b"12.0rc1")),
            SMALL[4],
        ],
        r"has Python 3\.12\.0rc1, not a release of 3\.12$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_program_is_refused(name: str, tmp_path: Path) -> None:
    entries, why = WRONG[name]
    path, archive = archive_in(tmp_path, entries)
    with pytest.raises(BadArchive, match=why):
        read_python(path, archive, "3.12", io.BytesIO())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 a zip file",
        tar_of(SMALL),
        gzip.compress(b"no tar"),
        gzip.compress(tar_of(SMALL))[:-40],
    ],
    ids=["empty", "zip", "tar", "gzip", "truncated"],
)
def test_another_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path, archive = archive_in(tmp_path)
    path.write_bytes(data)
    with pytest.raises(BadArchive, match=r"cannot be read as a \.tar\.gz file: "):
        read_python(path, archive, "3.12", io.BytesIO())


def test_an_endless_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.base.python_archive._MAX_READ", 20_000)
    with pytest.raises(BadArchive, match="unpacks to more than"):
        read(tmp_path, entry("python/lib/large", bytes(100_000)))


def test_many_hard_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the layer, each hard link would be a full copy of the file."""
    monkeypatch.setattr("torchkiln.base.python_archive._MAX_READ", 200_000)
    links = [entry(f"python/lib/{number}", kind=HARD, to="python/lib/large") for number in range(3)]
    read(tmp_path, entry("python/lib/large", bytes(80_000)), *links[:2])
    with pytest.raises(BadArchive, match="unpacks to more than"):
        read(tmp_path, entry("python/lib/large", bytes(80_000)), *links)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.base.python_archive._MAX_FILE", 1000)
    with pytest.raises(BadArchive, match=r"'python/lib/large' has 1001 bytes; at most 1000 are allowed"):
        read(tmp_path, entry("python/lib/large", bytes(1001)))
