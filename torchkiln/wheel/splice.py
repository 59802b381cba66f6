"""Wheel → layer, without recompressing: the heart of torchkiln.

A wheel is a zip: raw deflate streams, each behind a small header. A layer is a gzip of a tar, and a gzip
file may hold many members. So, file by file, in the order in which they lie in the wheel:

    zip entry    [local header][ deflate stream ........................ ]
                                        │ copied as it stands
    layer        [tar header, stored][gzip header][ deflate stream ][CRC-32, size]

One pass reads the wheel, and gives three hashes: of the wheel (it must be the locked one), of the layer
(its digest), and of the tar inside (its diff_id). That last one needs the inflated bytes, which also prove
each entry's CRC-32, size and the hash that RECORD tells. What the wheel does not carry, and an installer
adds, follows behind: launchers, INSTALLER and RECORD stored; the .pyc files, a twentieth of an image, by the
pinned encoder.

Everything is checked before anybody sees the layer: a wheel that lies anywhere gives none. Only a layer
that the lock has recorded is made without inflating (`LayerWriter`): its digest says that all of this was
seen to hold before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from isal import igzip_lib, isal_zlib

from torchkiln.errors import BadWheel
from torchkiln.oci.layer import Collision, LayerWriter
from torchkiln.wheel import fitness, install
from torchkiln.wheel.bytecode import Code, cached_name
from torchkiln.wheel.entries import Entry, data_offset, entries, skip_local_header
from torchkiln.wheel.install import Row, Scheme, WheelName
from torchkiln.wheel.source import WheelFile

_READ = 1 << 18  # compressed bytes at a time
_INFLATE = 1 << 20  # the most that one step may inflate to: bounds memory against bombs
_OTHER = "the index serves another file than the lock names: sha256 is {}, locked was {}"
_SCRIPT = 1 << 20  # scripts up to this size are held back and may be rewritten

Bytecode = Callable[[], Iterable[Code]]
SourceSink = Callable[[str, bytes], None]


@dataclass(slots=True)
class _Installation:
    """What gathers while one wheel goes by."""

    wheel: WheelName
    scheme: Scheme
    info: str
    rows: list[Row] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # entries
    entries: dict[str, Entry] = field(default_factory=dict)
    hashes: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # entry → sha256, size
    metadata: dict[str, bytes] = field(default_factory=dict)
    scripts: list[tuple[Entry, bytes]] = field(default_factory=list)
    large_scripts: list[str] = field(default_factory=list)


def splice(
    file: WheelFile,
    filename: str,
    sha256: str,
    layer: LayerWriter,
    scheme: Scheme,
    *,
    source: SourceSink | None,
    bytecode: Bytecode,
) -> None:
    """Install the wheel *filename* into *layer* under *scheme*.

    :param sha256: of the wheel as locked, hex.
    :param source: takes each Python source as it goes by (path in the image, bytes); None: nobody asks.
    :param bytecode: called once behind the last source; gives each .pyc.
    :raises BadWheel: anything in it is not as it must be. The layer is then worthless.
    """
    wheel = install.parse_name(filename)
    listed = entries(file, filename)
    names = {entry.name for entry in listed}
    work = _Installation(wheel=wheel, scheme=scheme, info=install.dist_info(names, wheel))
    try:
        for entry in listed:
            if not _is_stale_bytecode(entry.name, names):
                _one_file(file, entry, work, layer, source)
        _check_hash(file, filename, sha256)
        told = _check(work, file)
        _finish(work, told, layer, bytecode())
    except Collision as error:
        raise BadWheel(filename, f"another wheel of its layer has a different file at {error}") from error


def sources(file: WheelFile, filename: str, sha256: str, scheme: Scheme, sink: SourceSink) -> None:
    """Hand over each Python source of the wheel, as `splice` does on its way, and nothing else.

    :raises BadWheel: it is not the locked wheel, or not one at all.
    """
    wheel = install.parse_name(filename)
    for entry in entries(file, filename):
        path = install.destination(entry.name, wheel, scheme)
        if _is_source(path, scheme):
            skip_local_header(file, entry, filename)
            sink("/" + path, _whole(file, entry, filename))
    _check_hash(file, filename, sha256)


def _one_file(
    file: WheelFile, entry: Entry, work: _Installation, layer: LayerWriter, source: SourceSink | None
) -> None:
    """Read one entry and put it where it belongs."""
    filename = work.wheel.filename
    skip_local_header(file, entry, filename)
    path = install.destination(entry.name, work.wheel, work.scheme)
    work.seen.add(entry.name)
    work.entries[entry.name] = entry
    top, _, name = entry.name.partition("/")
    in_info = top == work.info
    if (install.is_script(entry.name) and entry.size <= _SCRIPT) or (in_info and name == "RECORD"):
        data = _whole(file, entry, filename)
        work.hashes[entry.name] = (hashlib.sha256(data).digest(), len(data))
        if in_info:
            work.metadata[name] = data
        else:
            work.scripts.append((entry, data))
        return
    is_source = source is not None and _is_source(path, work.scheme)
    keep = is_source or (in_info and name in ("METADATA", "WHEEL", "entry_points.txt"))
    kept: list[bytes] = []
    mode = 0o755 if entry.executable else 0o644
    pieces = _inflate(file, entry, filename) if keep or not layer.recorded else _copied(file, entry)
    with layer.entry(path, mode, size=entry.size, crc=entry.crc) as member:
        for deflate, content in pieces:
            if not entry.deflated:
                member.plain(content)
            elif entry.size:
                member.spliced(deflate, content)
            if keep:
                kept.append(content)
    if not layer.recorded:
        work.hashes[entry.name] = (member.sha256.digest(), entry.size)
    if install.is_script(entry.name):
        work.large_scripts.append(path)
    if is_source and source:
        source("/" + path, b"".join(kept))
    elif keep:
        work.metadata[name] = b"".join(kept)


def _is_source(path: str, scheme: Scheme) -> bool:
    return path.endswith(".py") and path.startswith(scheme.site + "/")


def _whole(file: WheelFile, entry: Entry, filename: str) -> bytes:
    return b"".join(content for _, content in _inflate(file, entry, filename))


def _check_hash(file: WheelFile, filename: str, sha256: str) -> None:
    if (found := file.sha256()) != sha256:
        raise BadWheel(filename, _OTHER.format(found, sha256))


def _inflate(file: WheelFile | _Again, entry: Entry, filename: str) -> Iterator[tuple[bytes, bytes]]:
    """The entry's bytes as (deflate stream, content) pieces; a piece of the stream comes once.

    Ends only if size and CRC-32 are those of the directory and the stream ends where the entry does:
    bytes behind its end could smuggle in a gzip member of their own.
    """
    left, produced, crc = entry.compressed, 0, 0
    inflater = isal_zlib.decompressobj(-15) if entry.deflated else None
    while left:
        piece = file.read_exactly(min(left, _READ))
        left -= len(piece)
        pending, more = piece, True
        while more:
            try:
                content = inflater.decompress(pending, _INFLATE) if inflater else piece
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub says otherwise
                raise BadWheel(filename, f"entry {entry.name!r}: broken deflate stream ({error})") from error
            produced += len(content)
            if produced > entry.size:
                raise BadWheel(filename, f"entry {entry.name!r} inflates to more than its {entry.size} bytes")
            crc = isal_zlib.crc32(content, crc)
            yield piece, content
            piece, pending = b"", inflater.unconsumed_tail if inflater else b""
            more = inflater is not None and not inflater.eof and bool(pending or len(content) == _INFLATE)
        if inflater and inflater.eof and (left or inflater.unused_data):
            raise BadWheel(filename, f"entry {entry.name!r}: bytes behind the end of its deflate stream")
    if inflater and not inflater.eof:
        raise BadWheel(filename, f"entry {entry.name!r}: its deflate stream does not end")
    if (produced, crc) != (entry.size, entry.crc):
        raise BadWheel(filename, f"entry {entry.name!r}: size or CRC-32 is not that of the directory")


def _copied(file: WheelFile, entry: Entry) -> Iterator[tuple[bytes, bytes]]:
    """`_inflate` for a recorded layer: the bytes as they stand, the content only where it is the same."""
    left = entry.compressed
    while left:
        piece = file.read_exactly(min(left, _READ))
        left -= len(piece)
        yield piece, b"" if entry.deflated else piece


def _check(work: _Installation, file: WheelFile) -> dict[str, tuple[str, str]]:
    """METADATA and WHEEL are this wheel's; RECORD, which is given back, tells each file truly."""
    filename = work.wheel.filename
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if needed not in work.metadata:
            raise BadWheel(filename, f"{work.info}/{needed} is missing")
    fitness.check(work.metadata["WHEEL"], work.metadata["METADATA"], work.wheel, work.scheme)
    told = install.parse_record(work.metadata["RECORD"], work.wheel)
    faults, unhashed = [], _unhashed(work.info)
    for name, (digest, size) in sorted(work.hashes.items()):
        if name in unhashed:
            continue
        hash_, length = told.get(name, ("", ""))
        if name not in told:
            faults.append(f"{name!r} is not in RECORD")
        elif hash_ and hash_.rstrip("=") != _as_told(hash_, file, work.entries[name], filename, digest):
            faults.append(f"{name!r} is not what RECORD says")
        elif not hash_ or (length and length != str(size)):
            faults.append(f"{name!r} has no hash in RECORD, or another size")
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise BadWheel(filename, "; ".join(faults[:3]) + more)
    return told


def _as_told(hash_: str, file: WheelFile, entry: Entry, filename: str, sha256: bytes) -> str:
    """The hash of *entry* by the algorithm that RECORD took for it.

    All files are hashed by SHA-256 as they go by; for another algorithm, which is rare, one is read again.

    :raises BadWheel: it is not the file that went by.
    """
    algorithm = hash_.partition("=")[0]
    if algorithm == "sha256":
        return install.urlsafe_sha256(sha256)
    asked, same = hashlib.new(algorithm), hashlib.sha256()
    for _, content in _inflate(_Again(file, entry), entry, filename):
        asked.update(content)
        same.update(content)
    if same.digest() != sha256:
        raise BadWheel(filename, f"entry {entry.name!r} changed while it was read")
    return install.urlsafe(algorithm, asked.digest())


class _Again:
    """The bytes of one entry of a file that was read to its end."""

    def __init__(self, file: WheelFile, entry: Entry) -> None:
        self._file, self._position = file, data_offset(file, entry)

    def read_exactly(self, count: int) -> bytes:
        data = self._file.at(self._position, count)
        if len(data) < count:
            raise EOFError(f"{count} bytes wanted at {self._position}")
        self._position += count
        return data


def _unhashed(info: str) -> frozenset[str]:
    """What RECORD cannot hash: itself and the signatures over it."""
    return frozenset(f"{info}/{name}" for name in ("RECORD", "RECORD.jws", "RECORD.p7s"))


def _finish(
    work: _Installation, told: dict[str, tuple[str, str]], layer: LayerWriter, bytecode: Iterable[Code]
) -> None:
    """Behind the wheel's own files: scripts, launchers, INSTALLER, .pyc files, RECORD as it was *told*."""
    scheme, wheel = work.scheme, work.wheel
    told |= dict.fromkeys(work.seen - told.keys(), ("", ""))  # RECORD itself, signatures: as pip does
    points = work.metadata.get("entry_points.txt", b"")
    launchers = install.launchers(points, wheel, scheme)
    named = install.launcher_names(points, wheel)
    changed = {}
    for path in work.large_scripts:
        if path in launchers or install.is_old_launcher(path, named):
            raise BadWheel(wheel.filename, f"a script and an entry point are both {path}")
    dropped = set()
    for entry, data in work.scripts:
        path = install.destination(entry.name, wheel, scheme)
        if path in launchers or install.is_old_launcher(path, named):  # ours is the fresh one
            dropped.add(entry.name)
            continue
        rewritten = install.with_interpreter(data, scheme)
        layer.file(path, 0o755 if entry.executable else 0o644, rewritten)
        if rewritten != data:
            changed[entry.name] = install.row(path, rewritten, scheme)
    rows = [
        changed.get(name)
        or Row(
            path=install.record_path(install.destination(name, wheel, scheme), scheme),
            hash=hash_,
            size=size,
        )
        for name, (hash_, size) in told.items()
        if name in work.seen and name not in dropped
    ]
    made = {**launchers, f"{scheme.site}/{work.info}/INSTALLER": install.INSTALLER}
    for path, data in made.items():
        layer.file(path, 0o755 if path in launchers else 0o644, data)
        rows.append(install.row(path, data, scheme))
    for code in bytecode:
        path = cached_name(code.source, scheme.python)
        with layer.entry(path, 0o644, size=code.size, crc=code.crc) as member:
            member.spliced(code.deflate, b"" if layer.recorded else code.content())
        rows.append(Row(path=install.record_path(path, scheme), hash="", size=""))
    layer.file(f"{scheme.site}/{work.info}/RECORD", 0o644, install.record(rows))


def _is_stale_bytecode(name: str, names: set[str]) -> bool:
    """A .pyc whose source lies in the wheel: ours, of the image's own Python, takes its place."""
    folder, _, file = name.rpartition("/")
    found = _CACHED.fullmatch(file)
    if found is None or folder.rpartition("/")[2] != "__pycache__":
        return False
    return f"{folder.removesuffix('__pycache__')}{found['stem']}.py" in names


# As Python names them: builder.bak.cpython-311.opt-1.pyc is that of builder.bak.py, and not of builder.py.
_CACHED = re.compile(r"(?P<stem>.+?)(\.[^.]+(\.opt-[^.]+)?)?\.pyc", re.DOTALL)
