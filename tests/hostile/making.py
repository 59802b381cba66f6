"""The honest wheel -> one that has a single thing wrong: the ways to make it so."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.rawzip import Lies, Raw, changed, content, edited, entry, read, write
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

Make = Callable[[Path], bytes]  # given the honest wheel, the bad one's bytes


@dataclass(frozen=True)
class Kind:
    """How it is made of the honest wheel, and a regular expression for the reason that is told.

    No reason: it is taken, and must be what pip installs.
    """

    make: Make
    reason: str = ""
    filename: str = SPEC.filename

    def write(self, honest: Path, folder: Path) -> Path:
        """This wheel in *folder*."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / self.filename
        place.write_bytes(self.make(honest))
        return place


def with_file(file: File) -> Make:
    """One more file, in RECORD too."""
    return with_spec(files=(*SPEC.files, file))


def with_spec(**fields: object) -> Make:
    """Another wheel of the same file name."""
    return lambda honest: write_wheel(replace(SPEC, **fields), honest.parent / "spec").read_bytes()  # type: ignore[arg-type]


def named(name: str, reason: str = "an absolute path|the path is not normalized|control") -> Kind:
    """A file of that name."""
    return Kind(with_file(File(path=name, data=b"x")), f"entry .*: ({reason})" if reason else "")


def raw_named(name: bytes, reason: str = "", *, flags: int = 0x800) -> Kind:
    """An entry of that name, which need not be text, nor what RECORD can tell."""

    def make(honest: Path) -> bytes:
        data = b"x"
        odd = replace(entry("", data, stored=True), name=name, flags=flags)
        text = name.decode("utf-8" if flags & 0x800 else "cp437", "surrogateescape")
        return write([*rerecorded(read(honest), {text: data} if not reason else {}), odd])

    return Kind(make, reason)


def field(of: str = LIB, **fields: object) -> Make:
    """One entry with other fields, in both places."""
    return lambda honest: changed(honest, of, **fields)


def told(of: str = LIB, **lies: int | bytes) -> Make:
    """The directory lies about one entry."""
    return lambda honest: changed(honest, of, told=lies)


def local(of: str = LIB, **lies: int | bytes) -> Make:
    """An entry's own header lies."""
    return lambda honest: changed(honest, of, local=lies)


def mode(bits: int, reason: str = "") -> Kind:
    """A file of that mode."""
    return Kind(field(mode=bits), reason)


def whole(
    *,
    front: bytes = b"",
    gap: bytes = b"",
    comment: bytes = b"",
    behind: bytes = b"",
    end: Lies | None = None,
    end64: Lies | None = None,
) -> Make:
    """All entries, put together otherwise."""
    return lambda honest: write(
        read(honest), front=front, gap=gap, comment=comment, behind=behind, end=end, end64=end64
    )


def entries(edit: Callable[[list[Raw]], list[Raw]]) -> Make:
    """Other entries; RECORD stays as it is."""
    return lambda honest: write(edit(read(honest)))


def info(name: str, data: bytes) -> Make:
    """One more metadata file, in RECORD too."""
    return with_file(File(path=f"{INFO}/{name}", data=data))


def without(name: str) -> Make:
    """That entry is left out, in RECORD too."""
    return lambda honest: write(rerecorded([raw for raw in read(honest) if raw.name != name.encode()]))


def metadata(name: str, old: bytes, new: bytes) -> Make:
    """METADATA or WHEEL with *new* for *old*, and RECORD made anew."""

    def edit(raw: Raw) -> Raw:
        if raw.name != f"{INFO}/{name}".encode():
            return raw
        text = content(raw)
        assert old in text
        return entry(raw.name.decode(), text.replace(old, new))

    return lambda honest: write(rerecorded([edit(raw) for raw in read(honest)]))


def record(edit: Callable[[list[str]], list[str]]) -> Make:
    """Other lines in RECORD."""

    def of(raw: Raw) -> Raw:
        lines = content(raw).decode().splitlines()
        return entry(raw.name.decode(), "".join(f"{line}\n" for line in edit(lines)).encode())

    return lambda honest: edited(honest, f"{INFO}/RECORD", of)


def record_line(edit: Callable[[str], str]) -> Make:
    """Another line for one file."""
    return record(lambda lines: [edit(line) if line.startswith(LIB) else line for line in lines])


def points(text: str, reason: str = "entry point|no entry") -> Kind:
    """entry_points.txt with these lines in console_scripts."""
    return Kind(info("entry_points.txt", f"[console_scripts]\n{text}\n".encode()), reason)


def cut(where: Callable[[bytes], int], reason: str = "bad zip file|hash mismatch") -> Kind:
    """Only the beginning."""

    def make(honest: Path) -> bytes:
        data = honest.read_bytes()
        return data[: where(data)]

    return Kind(make, reason)


def stream(edit: Callable[[bytes], bytes], name: str = LIB) -> Make:
    """Another stream in one entry, with the old size and CRC."""
    return lambda honest: edited(honest, name, lambda raw: replace(raw, stream=edit(raw.stream)))


def rerecorded(raws: list[Raw], more: dict[str, bytes] | None = None) -> list[Raw]:
    """*raws* with a RECORD that tells the truth, and of the files *more* too; none if there was none."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    found = {raw.name.decode(): content(raw) for raw in raws if not raw.name.endswith(b"/RECORD")}
    for name, data in {**found, **(more or {})}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{INFO}/RECORD", "", ""))
    made = entry(f"{INFO}/RECORD", out.getvalue().encode())
    return [made if raw.name.endswith(b"/RECORD") else raw for raw in raws]
