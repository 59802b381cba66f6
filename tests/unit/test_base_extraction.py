"""Extraction of Python from a base's tar: whatever is in the tar, nothing is written outside the folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_program
from tests.reports import LOCKED
from tests.roots import entry, tar_of
from torchkiln.base import interpreter
from torchkiln.base.interpreter import LIBRARIES, LOADER, extract_python
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase
from torchkiln.oci.read_tar import DAMAGED

PYTHON, LIBRARY = "usr/bin/python3.11", "usr/lib/python3.11"
VALID = (entry(PYTHON, b"python"), entry(f"{LIBRARY}/os.py", b"os", mode=0o600), entry(LOADER, b"loader"))
LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def base_of(tar: bytes) -> LockedBase:
    """The lock entry of a base whose uncompressed tar is *tar*."""
    digest = Digest(f"sha256:{hashlib.sha256(tar).hexdigest()}")
    return replace(LOCKED.base, python="3.11.2", diff_id=digest)


def extracted(folder: Path, *entries: tuple[tarfile.TarInfo, bytes], tar: bytes = b"") -> dict[str, str]:
    """Extract a base of *entries*; returns each file's content and each link's target."""
    blob = folder / "base.tar.gz"
    tar_bytes = tar or tar_of(entries)
    blob.write_bytes(gzip.compress(tar_bytes, 1, mtime=0))
    into = folder / "in" / "python"
    extract_python(blob, base_of(tar_bytes), into)
    return {
        str(path.relative_to(into)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in into.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_python_is_extracted(tmp_path: Path) -> None:
    """Each link becomes a link to its final target; other files of the base are not extracted."""
    found = extracted(
        tmp_path,
        entry("etc/passwd", b"root"),
        entry(f"{LIBRARY}/", kind=FOLDER),
        *VALID,
        entry(f"{LIBRARIES}/libz.so.1.2", b"z"),
        entry(f"{LIBRARIES}/libz.so.1", kind=LINK, to="libz.so.1.2"),
        entry(f"{LIBRARIES}/libm.so.6", kind=LINK, to="libz.so.1"),
        entry(f"{LIBRARIES}/libc.so.6", kind=LINK, to=f"/{LIBRARIES}/libm.so.6"),
        entry(f"{LIBRARY}/again.py", kind=HARD, to=f"{LIBRARY}/os.py"),
    )
    assert found == {
        PYTHON: "python",
        f"{LIBRARY}/os.py": "os",
        f"{LIBRARY}/again.py": "os",
        LOADER: "loader",
        f"{LIBRARIES}/libz.so.1.2": "z",
        f"{LIBRARIES}/libz.so.1": "-> libz.so.1.2",
        f"{LIBRARIES}/libm.so.6": "-> libz.so.1.2",
        f"{LIBRARIES}/libc.so.6": "-> libz.so.1.2",
    }


def test_another_user_can_read_it(tmp_path: Path) -> None:
    """The sandbox runs as the user `nobody`, so the umask and the modes in the tar must not matter."""
    before = os.umask(0o077)
    try:
        extracted(tmp_path, *VALID)
    finally:
        os.umask(before)
    root = tmp_path / "in" / "python"
    modes = {path.stat().st_mode & 0o7777 for path in (root, *root.rglob("*"))}
    assert modes == {0o755, 0o644}


def test_modes_of_the_tar_are_ignored(tmp_path: Path) -> None:
    extracted(tmp_path, *VALID, entry(f"{LIBRARY}/su", b"", mode=0o6777))
    assert (tmp_path / "in" / "python" / LIBRARY / "su").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "target",
    [
        "/etc/python3.11/sitecustomize.py",
        "/etc/passwd",
        "../../../../../../../../etc/passwd",
        "../../../outside",
        "/proc/self/environ",
        "none.py",
        "loop.py",
        "../../../../in/python/usr/bin/python3.11/../../../../outside",
        "/" + "a/" * 2000,
    ],
)
def test_a_link_to_another_place_is_omitted(tmp_path: Path, target: str) -> None:
    """Real bases have links out of the extracted folders; nothing may follow them on the host."""
    (tmp_path / "outside").write_text("secret")
    found = extracted(tmp_path, *VALID, entry(f"{LIBRARY}/loop.py", kind=LINK, to=target))
    assert [name for name in found if "loop" in name] == []


def test_links_through_links_stay_inside(tmp_path: Path) -> None:
    """In a path, `..` after a link means the parent of the link's target."""
    found = extracted(
        tmp_path,
        *VALID,
        entry(f"{LIBRARY}/json/x.py", b"x"),
        entry(f"{LIBRARY}/deep", kind=LINK, to="../../bin"),
        entry(f"{LIBRARY}/one", kind=LINK, to="deep/../lib/python3.11/os.py"),
        entry(f"{LIBRARY}/two", kind=LINK, to="json/../deep/../../../../../usr/bin/python3.11"),
    )
    root = (tmp_path / "in" / "python").resolve()
    for name in found:
        assert (root / name).resolve().is_relative_to(root)
    assert found[f"{LIBRARY}/one"] == "-> os.py"


# Refused tars: entries before those of `VALID`, entries after them, the message.
REFUSED: dict[str, tuple[list[Any], list[Any], str]] = {
    "a file below a link to the host": (
        [entry(f"{LIBRARY}/json", kind=LINK, to="HOST")],
        [entry(f"{LIBRARY}/json/evil", b"x")],
        "is below",
    ),
    "a file below a link to the folder above": (
        [entry(f"{LIBRARY}/json", kind=LINK, to="../../../../..")],
        [entry(f"{LIBRARY}/json/outside", b"x")],
        "is below",
    ),
    "a link below a link": (
        [entry(f"{LIBRARY}/json", kind=LINK, to="HOST")],
        [entry(f"{LIBRARY}/json/more", kind=LINK, to="HOST")],
        "is below",
    ),
    "a file in the place of a link": (
        [entry(f"{LIBRARY}/x.py", kind=LINK, to="HOST/passwd")],
        [entry(f"{LIBRARY}/x.py", b"evil")],
        "is a duplicate",
    ),
    "a link in the place of a folder": (
        [],
        [entry(LIBRARY + "/json/x.py", b""), entry(f"{LIBRARY}/json", kind=LINK, to="HOST")],
        "is a duplicate",
    ),
    "a folder in the place of a link": (
        [entry(f"{LIBRARY}/json", kind=LINK, to="HOST")],
        [entry(f"{LIBRARY}/json", kind=FOLDER)],
        "is a duplicate",
    ),
    "a file twice": ([], [entry(f"{LIBRARY}/os.py", b"other")], "is a duplicate"),
    "a file below a file": ([], [entry(f"{LIBRARY}/os.py/x", b"x")], "is below"),
    "a hard link to the host": ([], [entry(f"{LIBRARY}/x", kind=HARD, to="HOST/passwd")], "hard link"),
    "a hard link that climbs": ([], [entry(f"{LIBRARY}/x", kind=HARD, to="../../../outside")], "hard link"),
    "a hard link to a link": (
        [entry(f"{LIBRARY}/y", kind=LINK, to="HOST/passwd")],
        [entry(f"{LIBRARY}/x", kind=HARD, to=f"{LIBRARY}/y")],
        "hard link",
    ),
    "a hard link to a file that is not extracted": (
        [entry("etc/passwd", b"root")],
        [entry(f"{LIBRARY}/x", kind=HARD, to="etc/passwd")],
        "hard link",
    ),
    "a device": ([], [entry(f"{LIBRARY}/x", kind=tarfile.CHRTYPE)], "not a file or link"),
    "a disk": ([], [entry(f"{LIBRARY}/x", kind=tarfile.BLKTYPE)], "not a file or link"),
    "a pipe": ([], [entry(f"{LIBRARY}/x", kind=tarfile.FIFOTYPE)], "not a file or link"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malicious_entries_are_refused(tmp_path: Path, case: str) -> None:
    before, behind, message = REFUSED[case]
    host = tmp_path / "host"
    host.mkdir()
    (host / "passwd").write_text("root")
    with pytest.raises((BuildFailed, *DAMAGED), match=message):
        extracted(tmp_path, *on(host, before), *VALID, *on(host, behind))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.tar.gz", "host", "in"]
    assert [path.name for path in host.iterdir()] == ["passwd"]
    assert (host / "passwd").read_text() == "root"


def on(host: Path, entries: list[Any]) -> list[Any]:
    """Replace HOST in the links of *entries* by *host*, a test folder: a link that is followed ends there."""
    for info, _ in entries:
        info.linkname = info.linkname.replace("HOST", str(host))
    return entries


@pytest.mark.parametrize("replaced", [PYTHON, f"{LIBRARY}/os.py", LOADER])
@pytest.mark.parametrize("target", ["/bin/sh", "../../../../../../bin/sh", "/usr/lib/python3.11"])
def test_a_program_that_is_a_link_to_another_place(tmp_path: Path, replaced: str, target: str) -> None:
    """If such a link were followed, a program of the host would be started."""
    remaining = [entry_and_data for entry_and_data in VALID if entry_and_data[0].name != replaced]
    with pytest.raises(BuildFailed, match=f"the base has no /{replaced}"):
        extracted(tmp_path, *remaining, entry(replaced, kind=LINK, to=target))


def bomb(count: int, size: int) -> bytes:
    """A tar of *count* files of *size* zeros, after the files of a complete Python."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in VALID:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for number in range(count):
            info, _ = entry(f"{LIBRARY}/{number}.py")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "most", "count", "size"),
    [
        ("_MAX_FILE", 1000, 1, 1001),
        ("_MAX_TOTAL", 5000, 6, 1000),
        ("_MAX_FILES", 10, 11, 1),
        ("_MAX_READ", 20_000, 20, 1000),
    ],
)
def test_sizes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int, count: int, size: int
) -> None:
    monkeypatch.setattr(interpreter, name, most)
    with pytest.raises(BuildFailed, match="cannot be extracted"):
        extracted(tmp_path, tar=bomb(count, size))


@pytest.mark.proof
def test_a_file_that_is_too_large_uses_no_memory(tmp_path: Path) -> None:
    """The peak memory of a separate process is measured, with the default limits."""
    blob = tmp_path / "base.tar.gz"
    info, _ = entry(f"{LIBRARY}/x.py")
    info.size = 63 << 20
    with gzip.open(blob, "wb", 1) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for number in range(9):
            info.name = f"{LIBRARY}/{number}.py"
            tar.addfile(info, _Zeros())  # type: ignore[arg-type]
    code = (
        "import sys; from pathlib import Path; from torchkiln.errors import BuildFailed\n"
        "from torchkiln.base.interpreter import extract_python\n"
        "from tests.unit.test_base_extraction import base_of\n"
        "try: extract_python(Path(sys.argv[1]), base_of(b''), Path(sys.argv[2]))\n"
        "except BuildFailed as error: print(error.message)\n"
        "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    argv = [sys.executable, "-c", code, str(blob), str(tmp_path / "into")]
    done = run_program(argv, check=True)
    message, peak = done.stdout.splitlines()
    assert "its Python is too large" in message
    assert int(peak) << 10 < 200 << 20


class _Zeros:
    def read(self, size: int) -> bytes:
        return bytes(size)


def test_another_blob_than_the_locked_one(tmp_path: Path) -> None:
    """The files of a layout are verified only before something of them is executed, as here."""
    blob = tmp_path / "base"
    blob.write_bytes(gzip.compress(tar_of(VALID)))
    with pytest.raises(BuildFailed, match="diff_id mismatch"):
        extract_python(blob, base_of(tar_of(VALID[:2])), tmp_path / "into")
