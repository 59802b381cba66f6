"""Make wheels with a single fault from a valid wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.rawzip import Raw, changed, content, edited, entry, read, write
from tests.wheels import File, WheelSpec, write_wheel

CODE = b"def main():\n    return 0\n" * 20
INFO = "bad-1.0.dist-info"
LIB = "bad/lib.so"
SPEC = WheelSpec(
    name="bad",
    files=(
        File(path="bad/__init__.py", data=CODE),
        File(path="bad/stored.bin", data=b"stored" * 50, stored=True),
        File(path=LIB, data=CODE * 9, mode=0o755),
    ),
)

Make = Callable[[Path], bytes]  # path of the valid wheel → bytes of the faulty wheel


@dataclass(frozen=True)
class Kind:
    """A kind of faulty wheel: a function that makes it from a valid wheel, and a pattern for the reason.

    Without a reason, torchkiln must accept the wheel, and install the same files as pip.
    """

    make: Make
    reason: str = ""
    filename: str = SPEC.filename

    def write(self, valid: Path, folder: Path) -> Path:
        """Write this wheel into *folder*."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / self.filename
        place.write_bytes(self.make(valid))
        return place


def with_file(file: File) -> Make:
    """Add a file, also to RECORD."""
    return with_spec(files=(*SPEC.files, file))


def with_spec(**fields: object) -> Make:
    """A wheel built from SPEC with *fields* changed, in place of the valid wheel."""
    return lambda valid: write_wheel(replace(SPEC, **fields), valid.parent / "spec").read_bytes()  # type: ignore[arg-type]


def named(name: str, reason: str = "an absolute path|the path is not normalized|control") -> Kind:
    """Add a file named *name*."""
    return Kind(with_file(File(path=name, data=b"x")), f"entry .*: ({reason})" if reason else "")


def raw_named(name: bytes, reason: str = "", *, flags: int = 0x800) -> Kind:
    """Add an entry named *name*, which need not be valid UTF-8 or valid in RECORD."""

    def make(valid: Path) -> bytes:
        data = b"x"
        odd = replace(entry("", data, stored=True), name=name, flags=flags)
        text = name.decode("utf-8" if flags & 0x800 else "cp437", "surrogateescape")
        return write([*with_new_record(read(valid), {text: data} if not reason else {}), odd])

    return Kind(make, reason)


def field(of: str = LIB, **fields: object) -> Make:
    """Change fields of an entry, in both headers."""
    return lambda valid: changed(valid, of, **fields)


def central(of: str = LIB, **fields: int | bytes) -> Make:
    """Change fields of an entry in the central directory."""
    return lambda valid: changed(valid, of, central=fields)


def local(of: str = LIB, **fields: int | bytes) -> Make:
    """Change fields of an entry in its local header."""
    return lambda valid: changed(valid, of, local=fields)


def mode(bits: int, reason: str = "") -> Kind:
    """Add a file with that mode."""
    return Kind(field(mode=bits), reason)


def rewritten(**changes: Any) -> Make:
    """Reassemble all entries, with *changes*: see `tests.rawzip.write`."""
    return lambda valid: write(read(valid), **changes)


def entries(edit: Callable[[list[Raw]], list[Raw]]) -> Make:
    """Change the entries without updating RECORD."""
    return lambda valid: write(edit(read(valid)))


def info(name: str, data: bytes) -> Make:
    """Add a metadata file, also to RECORD."""
    return with_file(File(path=f"{INFO}/{name}", data=data))


def without(name: str) -> Make:
    """Remove an entry, also from RECORD."""
    return lambda valid: write(with_new_record([raw for raw in read(valid) if raw.name != name.encode()]))


def metadata(name: str, old: bytes, new: bytes) -> Make:
    """Replace *old* by *new* in METADATA or WHEEL, and update RECORD."""

    def edit(raw: Raw) -> Raw:
        if raw.name != f"{INFO}/{name}".encode():
            return raw
        text = content(raw)
        assert old in text
        return entry(raw.name.decode(), text.replace(old, new))

    return lambda valid: write(with_new_record([edit(raw) for raw in read(valid)]))


def record(edit: Callable[[list[str]], list[str]]) -> Make:
    """Change the lines of RECORD."""

    def of(raw: Raw) -> Raw:
        lines = content(raw).decode().splitlines()
        return entry(raw.name.decode(), "".join(f"{line}\n" for line in edit(lines)).encode())

    return lambda valid: edited(valid, f"{INFO}/RECORD", of)


def record_line(edit: Callable[[str], str]) -> Make:
    """Change the line of one file."""
    return record(lambda lines: [edit(line) if line.startswith(LIB) else line for line in lines])


def points(text: str, reason: str = "entry point|no entry") -> Kind:
    """Add an entry_points.txt with these lines in console_scripts."""
    return Kind(info("entry_points.txt", f"[console_scripts]\n{text}\n".encode()), reason)


def cut(where: Callable[[bytes], int], reason: str = "bad zip file|hash mismatch") -> Kind:
    """Truncate the wheel."""

    def make(valid: Path) -> bytes:
        data = valid.read_bytes()
        return data[: where(data)]

    return Kind(make, reason)


def stream(edit: Callable[[bytes], bytes], name: str = LIB) -> Make:
    """Change the stream of an entry, but not its size and CRC."""
    return lambda valid: edited(valid, name, lambda raw: replace(raw, stream=edit(raw.stream)))


def with_new_record(raws: list[Raw], more: dict[str, bytes] | None = None) -> list[Raw]:
    """*raws* with a new RECORD for all of its files and for *more*; unchanged if *raws* has no RECORD."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    found = {raw.name.decode(): content(raw) for raw in raws if not raw.name.endswith(b"/RECORD")}
    for name, data in {**found, **(more or {})}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{INFO}/RECORD", "", ""))
    made = entry(f"{INFO}/RECORD", out.getvalue().encode())
    return [made if raw.name.endswith(b"/RECORD") else raw for raw in raws]
