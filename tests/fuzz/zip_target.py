"""Fuzz the wheel reader with raw bytes or false headers: it must reject them, or agree with other readers."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.fuzz.oracle import SITE, installed
from tests.fuzz.source import Decisions
from tests.hostile import SPEC
from tests.hostile.installing import INSTALLING
from tests.hostile.making import INFO, with_new_record
from tests.hostile.names import NAMES
from tests.hostile.zips import ZIPS
from tests.layers import SCHEME, Item, as_locked, tree_of_layer
from tests.rawzip import Raw, deflated, entry, read, write
from tests.realpip import source_of
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.errors import BadWheel
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci.layer import LayerWriter
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

RICH = WheelSpec(
    name="bad",
    files=(
        *SPEC.files,
        File(path="run", data=b"#!python\nprint(1)\n", mode=0o755, scheme="scripts"),
        File(path="share/x", data=b"x" * 9, scheme="data"),
        File(path="x.h", data=b"", scheme="headers"),
        File(path="bad/deep/é.txt", data=b"text " * 40, scheme="platlib"),
    ),
    console=(("tool", "bad:main"),),
    folders=True,
)
_PARTS = (
    b"bad",
    b"..",
    b"",
    b".",
    b"x.py",
    b"\xc3\xa9",
    b".wh.x",
    b"bad-1.0.data",
    b"scripts",
    b"data",
    b"a b",
)
_NUMBERS = (0, 1, 2, 8, 30, 0xFF, 0x800, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)
_FIELDS = ("version", "flags", "method", "crc", "compressed", "size", "name_length", "extra_length")
_MODES = (0o100644, 0o100755, 0o120777, 0o040755, 0, 0o104755, 0o020644, 0o100000)


def check(data: bytes, scratch: Path) -> str:
    """The result: "accepted" or the reason; raises AssertionError if two readers disagree."""
    decisions = Decisions(data)
    wheel = decisions.rest() if decisions.number(3) == 3 else program(decisions, scratch)
    return judge(wheel, scratch)


def judge(wheel: bytes, scratch: Path) -> str:
    """Compare torchkiln's reader with `zipfile` and `tarfile`."""
    place = scratch / SPEC.filename
    place.write_bytes(wheel)
    out = io.BytesIO()
    layer = LayerWriter(out, mtime=WHEEL_EPOCH)
    try:
        with WheelFile(place, len(wheel)) as file:
            splice(file, as_locked(place), layer, SCHEME, source=lambda *_: None, bytecode=lambda: iter(()))
    except BadWheel as error:
        return error.reason
    written = layer.finish()
    blob = out.getvalue()
    plain = gzip.decompress(blob)
    assert (len(blob), len(plain)) == (written.size, written.unpacked)
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == written.digest
    assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == written.diff_id
    ours = {path: item for path, item in tree_of_layer(blob).items() if item.kind == "file"}
    theirs = installed(wheel)
    added = {path for path in ours if path not in theirs}
    record = next(path for path in theirs if path.endswith(".dist-info/RECORD"))
    info = record.removesuffix("RECORD")
    assert all(path == f"{info}INSTALLER" or path.startswith("opt/venv/bin/") for path in added), added
    launchers = {path for path in theirs if path.startswith("opt/venv/bin/")}
    for path, item in theirs.items():
        if path == record or (path in launchers and path not in ours):
            continue  # rewritten; a generated launcher replaces the wheel's
        if stale(path, theirs):
            continue
        if path in launchers and path in ours and ours[path] != item:
            assert b"sys.exit" in ours[path].data, path
            continue
        assert ours.get(path) == item, path
    return "accepted"


def stale(path: str, tree: dict[str, Item]) -> bool:
    """Whether the file is a .pyc whose source is also in the wheel."""
    cached = path.rpartition("/")[0].endswith("/__pycache__")
    return path.startswith(SITE) and cached and path.endswith(".pyc") and source_of(path) in tree


@cache
def seeds(scratch: Path) -> tuple[Path, ...]:
    """Valid wheels to start from."""
    forms = (SPEC, RICH, replace(RICH, streamed=True), replace(RICH, zip64=True), replace(RICH, shuffle=3))
    return tuple(write_wheel(spec, scratch / f"seed{n}") for n, spec in enumerate(forms))


def program(decisions: Decisions, scratch: Path) -> bytes:
    """A valid wheel, changed step by step."""
    seed = decisions.choice(seeds(scratch))
    if decisions.number(7) == 0:
        return spoiled(bytearray(seed.read_bytes()), decisions)
    raws = read(seed)
    fix = decisions.number(1)
    steps = 0
    while decisions and steps < 8:
        raws = decisions.choice(STEPS)(raws, decisions)
        steps += 1
    if fix:
        with contextlib.suppress(
            UnicodeDecodeError, zlib.error, AssertionError
        ):  # some have lost their content
            raws = with_new_record(raws)
    ends = {
        key: _value(decisions) for key in ("here", "count", "size", "offset") if decisions.number(15) == 1
    }
    wide = {key: _value(decisions) for key in ("at", "length", "count") if decisions.number(15) == 1}
    ends = {key: value & (0xFFFF if key in ("here", "count") else 0xFFFFFFFF) for key, value in ends.items()}
    return write(
        raws,
        end=ends,
        end64=wide if decisions.number(7) == 1 else None,
        comment=decisions.take(decisions.number(40)) if decisions.number(7) == 1 else b"",
        gap=decisions.take(decisions.number(40)) if decisions.number(7) == 1 else b"",
    )


def spoiled(wheel: bytearray, decisions: Decisions) -> bytes:
    """Change, remove or duplicate bytes anywhere."""
    while decisions and wheel:
        at = decisions.number(len(wheel) - 1)
        match decisions.number(3):
            case 0:
                wheel[at] ^= 1 << decisions.number(7)
            case 1:
                wheel[at] = decisions.number(255)
            case 2:
                del wheel[at : at + decisions.number(30)]
            case 3:
                wheel[at:at] = decisions.take(decisions.number(30))
    return bytes(wheel)


def _value(decisions: Decisions) -> int:
    return decisions.choice(_NUMBERS) if decisions.number(1) else decisions.number(2000)


def _name(decisions: Decisions) -> bytes:
    if decisions.number(3) == 0:
        return decisions.take(decisions.number(20))
    return b"/".join(decisions.choice(_PARTS) for _ in range(1 + decisions.number(3)))


def _falsified(raws: list[Raw], decisions: Decisions, edit: Callable[[Raw], Raw]) -> list[Raw]:
    at = decisions.number(len(raws) - 1)
    return [*raws[:at], edit(raws[at]), *raws[at + 1 :]]


def _falsify(where: str) -> Callable[[list[Raw], Decisions], list[Raw]]:
    def step(raws: list[Raw], decisions: Decisions) -> list[Raw]:
        def edit(raw: Raw) -> Raw:
            field = decisions.choice((*_FIELDS, "extra", "offset", "mode", "comment", "name"))
            if field in ("extra", "comment", "name"):
                value: int | bytes = decisions.take(decisions.number(30))
            else:
                value = _value(decisions) & (0xFFFFFFFF if field in _WIDE else 0xFFFF)
            return replace(raw, **{where: {**getattr(raw, where), field: value}})

        return _falsified(raws, decisions, edit)

    return step


_WIDE = ("crc", "compressed", "size", "offset", "mode")


def _both(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    def edit(raw: Raw) -> Raw:
        match decisions.number(5):
            case 0:
                return replace(raw, name=_name(decisions))
            case 1:
                return replace(raw, mode=decisions.choice(_MODES))
            case 2:
                return replace(raw, flags=decisions.choice((0, 0x800, 0x808, 8, 1, 0x806, 0x20)))
            case 3:
                return replace(raw, gap=decisions.take(decisions.number(20)))
            case 4:
                return replace(raw, descriptor=decisions.take(decisions.number(24)), flags=0x808)
            case _:
                return replace(
                    raw, stream=raw.stream[: decisions.number(len(raw.stream))] + decisions.take(9)
                )

    return _falsified(raws, decisions, edit)


def _content(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    """Replace content, with correct size and CRC."""

    def edit(raw: Raw) -> Raw:
        made = entry("", decisions.take(decisions.number(300)), stored=bool(decisions.number(1)))
        return replace(made, name=raw.name, mode=raw.mode)

    return _falsified(raws, decisions, edit)


def _info(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    """Add or remove a line of a metadata file."""

    def edit(raw: Raw) -> Raw:
        name = f"{INFO}/{decisions.choice(('RECORD', 'METADATA', 'WHEEL', 'entry_points.txt'))}".encode()
        return replace(entry("", decisions.take(decisions.number(200))), name=name)

    return [*raws, edit(raws[0])] if decisions.number(1) else _falsified(raws, decisions, edit)


def _more(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    """Add an entry."""
    made = replace(entry("", decisions.take(decisions.number(60)), stored=True), name=_name(decisions))
    at = decisions.number(len(raws))
    return [*raws[:at], made, *raws[at:]]


def _fewer(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    at = decisions.number(len(raws) - 1)
    return [*raws[:at], *raws[at + 1 :]] if len(raws) > 1 else raws


def _doubled(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    return [*raws, decisions.choice(raws)]


def _stream(raws: list[Raw], decisions: Decisions) -> list[Raw]:
    """Replace a stream by an empty one with up to 40 bytes of trailing data."""
    tail = decisions.take(decisions.number(40))
    return _falsified(
        raws, decisions, lambda raw: replace(raw, stream=deflated(b"") + tail, size=0, crc=0, method=8)
    )


STEPS = (_falsify("local"), _falsify("central"), _both, _content, _info, _more, _fewer, _doubled, _stream)


def corpus(scratch: Path) -> list[bytes]:
    """The initial corpus: the seeds and all small kinds as raw bytes, and a few inputs for `program`."""
    valid = seeds(scratch)[0]
    raw = [path.read_bytes() for path in seeds(scratch)]
    kinds = (*NAMES.values(), *ZIPS.values(), *INSTALLING.values())
    raw += [made for kind in kinds if len(made := kind.make(valid)) < 8192]
    return [b"\3" + wheel for wheel in raw] + [bytes(range(n, n + 60)) for n in range(99)]
