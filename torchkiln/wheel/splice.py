"""Splices the deflate streams of a wheel into a layer, without recompressing them.

A wheel is a zip: raw deflate streams, each after a small header. A layer is a gzipped tar, and gzip allows
many members. So each file of the wheel, in its order, becomes:

    zip entry    [local header][ deflate stream ........................ ]
                                        │ copied unchanged
    layer        [tar header, stored][gzip header][ deflate stream ][CRC-32, size]

One pass reads the wheel and computes three hashes: of the wheel (compared with the lock), of the layer (its
digest), and of its tar (the diff_id). The diff_id needs the inflated bytes. These are also compared with the
CRC-32, the size and the hash in RECORD of each entry. The files that an installer adds follow at the end:
launchers, INSTALLER and RECORD stored, the .pyc files compressed by the pinned encoder. A library whose
device code is cut (`Cut`) is compressed by that encoder, too, and has a new hash in RECORD.

Everything is checked before the layer is used; a wheel with a fault gives no layer. If the lock records the
layer's digest, nothing is inflated (`LayerWriter`): the same wheel passed these checks.
"""

from __future__ import annotations

import email.parser
import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from torchkiln.errors import BadWheel
from torchkiln.model.index import MAX_FIELD
from torchkiln.model.lock import LockedWheel
from torchkiln.model.platform import Platform
from torchkiln.oci.encode import members
from torchkiln.oci.layer import Collision, LayerWriter
from torchkiln.util.wheel_names import limited
from torchkiln.wheel import install
from torchkiln.wheel.bytecode import Code, cached_name
from torchkiln.wheel.content import EntryReader, SecondRead, copied, inflate, whole
from torchkiln.wheel.cut import Cut
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.entries import SCRIPT, entries, skip_local_header
from torchkiln.wheel.install import Row, Scheme, WheelName
from torchkiln.wheel.source import WheelFile

Bytecode = Callable[[], Iterable[Code]]
SourceSink = Callable[[str, bytes], None]
# builder.bak.cpython-311.opt-1.pyc is compiled from builder.bak.py, not from builder.py.
_CACHED = re.compile(r"(?P<stem>.+?)(\.[^.]+(\.opt-[^.]+)?)?\.pyc", re.DOTALL)
_MAX_HEADERS = 10_000  # lines; at most 151 in torch 2.7.1's 127 wheels
_BLANK_LINE = re.compile(r"\n\r?\n|\r\r")
_PATCHES = range(100)  # patch releases of a Python; a scheme has only its major and minor version


@dataclass(slots=True)
class _Installation:
    """The state of the installation of one wheel."""

    name: str  # of the wheel, normalized
    wheel: WheelName
    scheme: Scheme
    info: str  # name of the .dist-info directory
    cut: Cut | None
    seen: set[str] = field(default_factory=set)  # entries
    entries: dict[str, WheelEntry] = field(default_factory=dict)
    hashes: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # entry → sha256, size
    metadata: dict[str, bytes] = field(default_factory=dict)
    scripts: list[tuple[WheelEntry, bytes]] = field(default_factory=list)
    large_scripts: list[str] = field(default_factory=list)
    changed: dict[str, Row] = field(default_factory=dict)  # entry → its line in the image's RECORD


def splice(
    file: WheelFile,
    locked: LockedWheel,
    layer: LayerWriter,
    scheme: Scheme,
    *,
    source: SourceSink | None,
    bytecode: Bytecode,
    cut: Cut | None = None,
) -> None:
    """Install the wheel *locked* into *layer* under *scheme*.

    :param source: called with each Python source (path in the image, bytes).
    :param bytecode: called once after the last source; returns the .pyc files.
    :param cut: which device code its libraries keep; None: all.
    :raises BadWheel: the wheel has a fault; the layer must not be used.
    """
    filename, wheel = locked.filename, install.parse_name(locked.filename)
    listed = entries(file, filename)
    names = {entry.name for entry in listed}
    work = _Installation(
        name=locked.name, wheel=wheel, scheme=scheme, info=install.dist_info(names, wheel), cut=cut
    )
    try:
        for entry in listed:
            if not _is_stale_bytecode(entry.name, names):
                _install_file(file, entry, work, layer, source)
            else:  # it is not installed, but pip would refuse a damaged one
                skip_local_header(file, entry, filename)
                deque(() if layer.recorded else inflate(file, entry, filename), maxlen=0)
        _check_hash(file, locked)
        record = _check(work, file, locked)
        _finish(work, record, layer, bytecode())
    except Collision as error:
        raise BadWheel(filename, f"another wheel of the layer has a different file at {error}") from error


def sources(file: WheelFile, locked: LockedWheel, scheme: Scheme, sink: SourceSink) -> None:
    """Pass each Python source of the wheel to *sink*, as `splice` does.

    :raises BadWheel: the file is not the locked wheel, or not a valid wheel.
    """
    filename, wheel = locked.filename, install.parse_name(locked.filename)
    for entry in entries(file, filename):
        path = install.destination(entry.name, wheel, scheme)
        if _is_source(path, scheme):
            skip_local_header(file, entry, filename)
            sink("/" + path, whole(file, entry, filename))
    _check_hash(file, locked)


def _install_file(
    file: WheelFile, entry: WheelEntry, work: _Installation, layer: LayerWriter, source: SourceSink | None
) -> None:
    """Read one entry and install it."""
    filename = work.wheel.filename
    skip_local_header(file, entry, filename)
    path = install.destination(entry.name, work.wheel, work.scheme)
    work.seen.add(entry.name)
    work.entries[entry.name] = entry
    top, _, name = entry.name.partition("/")
    in_info = top == work.info
    if (install.is_script(entry.name) and entry.size <= SCRIPT) or (in_info and name == "RECORD"):
        data = whole(file, entry, filename)
        work.hashes[entry.name] = (hashlib.sha256(data).digest(), len(data))
        if in_info:
            work.metadata[name] = data
        else:
            work.scripts.append((entry, data))
        return
    reader: EntryReader = file
    if work.cut and work.cut.concerns(work.name, entry):
        if dead := work.cut.dead_ranges(file, entry, filename):
            _install_cut(entry, path, work.cut.pieces(file, entry, dead), work, layer)
            return
        reader = SecondRead(file, entry)
    is_source = source is not None and _is_source(path, work.scheme)
    keep = is_source or (in_info and name in ("METADATA", "WHEEL", "entry_points.txt"))
    kept: list[bytes] = []
    mode = 0o755 if entry.executable else 0o644
    pieces = inflate(reader, entry, filename) if keep or not layer.recorded else copied(reader, entry)
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


def _install_cut(
    entry: WheelEntry,
    path: str,
    pieces: Iterator[tuple[bytes, bytes]],
    work: _Installation,
    layer: LayerWriter,
) -> None:
    """Install the library *entry*; *pieces* are pairs of its original and its cut bytes."""
    original = hashlib.sha256()

    def cut() -> Iterator[bytes]:
        for before, after in pieces:
            if not layer.recorded:
                original.update(before)
            yield after

    mode = 0o755 if entry.executable else 0o644
    with layer.entry(path, mode, size=entry.size, crc=entry.crc) as member:
        for content, packed in members(cut()):
            member.packed(packed, content)
    if not layer.recorded:
        work.hashes[entry.name] = (original.digest(), entry.size)
    hash_ = install.urlsafe_sha256(member.sha256.digest())
    work.changed[entry.name] = Row(install.record_path(path, work.scheme), hash_, str(entry.size))
    if install.is_script(entry.name):
        work.large_scripts.append(path)


def _is_source(path: str, scheme: Scheme) -> bool:
    return path.endswith(".py") and path.startswith(scheme.site + "/")


def _check_hash(file: WheelFile, locked: LockedWheel) -> None:
    if (found := file.sha256()) != locked.sha256:
        got = f"the downloaded file has sha256:{found}" if found else "the index sent two versions of its end"
        raise BadWheel(locked.filename, f"hash mismatch: the lock has sha256:{locked.sha256}, {got}")


def _check(work: _Installation, file: WheelFile, locked: LockedWheel) -> dict[str, tuple[str, str]]:
    """Check METADATA, WHEEL, the locked libraries and the hash of each file in RECORD; return RECORD."""
    filename = work.wheel.filename
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if needed not in work.metadata:
            raise BadWheel(filename, f"{work.info}/{needed} is missing")
    if absent := sorted({*locked.libraries} - work.seen):
        raise BadWheel(filename, f"{absent[0]} is missing; the lock lists it")
    check(work.metadata["WHEEL"], work.metadata["METADATA"], work.wheel, work.scheme)
    record = install.parse_record(work.metadata["RECORD"], work.wheel)
    faults, unhashed = [], _unhashed(work.info)
    for name, (digest, size) in sorted(work.hashes.items()):
        if name in unhashed:
            continue
        hash_, length = record.get(name, ("", ""))
        if name not in record:
            faults.append(f"{name!r} is not in RECORD")
        elif hash_ and hash_.rstrip("=") != _recorded_hash(hash_, file, work.entries[name], filename, digest):
            faults.append(f"hash of {name!r} does not match RECORD")
        elif not hash_ or (length and length != str(size)):
            faults.append(f"{name!r} has no hash or a wrong size in RECORD")
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise BadWheel(filename, "; ".join(faults[:3]) + more)
    return record


def _recorded_hash(hash_: str, file: WheelFile, entry: WheelEntry, filename: str, sha256: bytes) -> str:
    """The hash of *entry* by the algorithm that RECORD uses.

    The SHA-256 is known; for another algorithm, which is rare, the entry is read again.

    :raises BadWheel: the file changed in the meantime.
    """
    algorithm = hash_.partition("=")[0]
    if algorithm == "sha256":
        return install.urlsafe_sha256(sha256)
    hasher, check = hashlib.new(algorithm), hashlib.sha256()
    for _, content in inflate(SecondRead(file, entry), entry, filename):
        hasher.update(content)
        check.update(content)
    if check.digest() != sha256:
        raise BadWheel(filename, f"entry {entry.name!r} changed while it was read")
    return install.urlsafe(algorithm, hasher.digest())


def _unhashed(info: str) -> frozenset[str]:
    """The files without a hash in RECORD: RECORD itself and its signatures."""
    return frozenset(f"{info}/{name}" for name in ("RECORD", "RECORD.jws", "RECORD.p7s"))


def _finish(
    work: _Installation, record: dict[str, tuple[str, str]], layer: LayerWriter, bytecode: Iterable[Code]
) -> None:
    """Add scripts, launchers, INSTALLER, .pyc files and the new RECORD after the wheel's own files."""
    scheme, wheel = work.scheme, work.wheel
    record |= dict.fromkeys(work.seen - record.keys(), ("", ""))  # RECORD and its signatures: as in pip
    points = work.metadata.get("entry_points.txt", b"")
    launchers = install.launchers(points, wheel, scheme)
    named = install.launcher_names(points, wheel)
    for path in work.large_scripts:
        if path in launchers or install.is_old_launcher(path, named):
            raise BadWheel(wheel.filename, f"a script and an entry point have the same path: {path}")
    dropped = set()
    for entry, data in work.scripts:
        path = install.destination(entry.name, wheel, scheme)
        if path in launchers or install.is_old_launcher(path, named):  # replaced by the generated one
            dropped.add(entry.name)
            continue
        rewritten = install.with_interpreter(data, scheme)
        layer.file(path, 0o755 if entry.executable else 0o644, rewritten)
        if rewritten != data:
            work.changed[entry.name] = install.row(path, rewritten, scheme)
    rows = [
        work.changed.get(name)
        or Row(install.record_path(install.destination(name, wheel, scheme), scheme), hash_, size)
        for name, (hash_, size) in record.items()
        if name in work.seen and name not in dropped
    ]
    added = {**launchers, f"{scheme.site}/{work.info}/INSTALLER": install.INSTALLER}
    for path, data in added.items():
        layer.file(path, 0o755 if path in launchers else 0o644, data)
        rows.append(install.row(path, data, scheme))
    for code in bytecode:
        path = cached_name(code.source, scheme.python)
        with layer.entry(path, 0o644, size=code.size, crc=code.crc) as member:
            member.spliced(code.deflate, b"" if layer.recorded else code.content())
        rows.append(Row(install.record_path(path, scheme), "", ""))
    layer.file(f"{scheme.site}/{work.info}/RECORD", 0o644, install.record(rows))


def _is_stale_bytecode(name: str, names: set[str]) -> bool:
    """Whether *name* is a .pyc whose source is in the wheel: the image's own Python compiles it again."""
    folder, _, file = name.rpartition("/")
    found = _CACHED.fullmatch(file)
    if found is None or folder.rpartition("/")[2] != "__pycache__":
        return False
    return f"{folder.removesuffix('__pycache__')}{found['stem']}.py" in names


def check(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> None:
    """:raises BadWheel: these are not the files of *wheel*, or it does not support the Python of *scheme*."""
    if fault := _fault(wheel_file, metadata, wheel, scheme):
        raise BadWheel(wheel.filename, fault)


def _fault(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> str:
    wheel_headers = _headers("WHEEL", wheel_file, wheel)
    fields = _headers("METADATA", metadata, wheel)
    format_version = _field(wheel_headers, "Wheel-Version")
    if format_version.split(".")[0] != "1":
        return f"unsupported Wheel-Version: {format_version or 'missing'}; only 1.x is supported"
    name, version, requires = (_field(fields, key) for key in ("Name", "Version", "Requires-Python"))
    if max(map(len, (name, version, requires, format_version))) > MAX_FIELD:
        return f"METADATA or WHEEL has a field of more than {MAX_FIELD} characters"
    if canonicalize_name(name) != canonicalize_name(wheel.distribution) or not wheel.is_of(version):
        return f"inconsistent name or version: METADATA has Name {name!r} and Version {version!r}"
    platform = f"Python {scheme.python}, {scheme.platform.machine} Linux"
    if not _fits(wheel.tags, scheme):
        return f"not a supported wheel on this platform: {platform}"
    lines = [str(line).strip() for line in wheel_headers.get_all("Tag", [])]
    try:
        fitting = [_fits(parse_tag(limited(line)), scheme) for line in lines]
    except ValueError:
        return "WHEEL contains an invalid tag"
    if lines and not any(fitting):
        return f"the tags in WHEEL are not supported on this platform ({platform}): {lines[0]}"
    if not _allows(requires, scheme.python):
        return f"requires a different Python: {scheme.python} not in {requires!r}"
    return ""


def _headers(name: str, data: bytes, wheel: WheelName) -> Message:
    """The headers of the file *name*; like pip, this requires UTF-8 for the whole file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadWheel(wheel.filename, f"{name} is not valid UTF-8 (at byte {error.start})") from error
    head = _BLANK_LINE.split(text, maxsplit=1)[0]
    if max(head.count("\n"), head.count("\r")) > _MAX_HEADERS:
        raise BadWheel(wheel.filename, f"{name} has more than {_MAX_HEADERS} header lines")
    return email.parser.HeaderParser().parsestr(text)


def _field(message: Message, key: str) -> str:
    """The value of the header *key*; several values are joined, so that no comparison accepts them."""
    return ", ".join(str(value).strip() for value in message.get_all(key, []))


def _fits(tags: Iterable[Tag], scheme: Scheme) -> bool:
    """Whether the Python of *scheme* supports one of *tags*."""
    names = _platforms(scheme.platform)
    return any(_python_fits(tag, scheme.python) and names.fullmatch(tag.platform) for tag in tags)


@cache
def _platforms(platform: Platform) -> re.Pattern[str]:
    """The platforms in the tags of wheels for *platform*."""
    kinds = "|".join(("linux", r"manylinux_2_\d+", *platform.manylinux.values()))
    # NVIDIA writes "sbsa" into the file WHEEL.
    return re.compile(f"any|(?:{kinds})_(?:{platform.machine}|{platform.cuda})")


def _python_fits(tag: Tag, python: str) -> bool:
    major, minor = (int(part) for part in python.split("."))
    found = re.fullmatch(r"(cp|py)(\d)(\d*)", tag.interpreter)
    if not found or int(found[2]) != major:
        return False
    if tag.abi == f"cp{major}{minor}" or (tag.abi == "none" and found[1] == "cp"):
        return tag.interpreter == f"cp{major}{minor}"
    older = not found[3] or int(found[3]) <= minor
    return older and (tag.abi, found[1]) in (("none", "py"), ("abi3", "cp"))


def _allows(requires: str, python: str) -> bool:
    """Whether a patch release of *python* satisfies *requires*; an invalid specifier is ignored."""
    try:
        specifier = SpecifierSet(requires)
    except InvalidSpecifier:
        return True
    return any(specifier.contains(f"{python}.{patch}") for patch in _PATCHES)
