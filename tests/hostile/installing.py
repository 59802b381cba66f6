"""What an installer reads: RECORD, WHEEL, METADATA, entry points, schemes, tags in the file's name."""

from __future__ import annotations

import hashlib

from tests.hostile.making import (
    CODE,
    INFO,
    LIB,
    SPEC,
    Kind,
    entries,
    info,
    metadata,
    named,
    points,
    record,
    record_line,
    with_file,
    with_spec,
    without,
)
from tests.rawzip import entry, read, write
from tests.wheels import File

POINT_OVER_SCRIPT = {
    "files": (*SPEC.files, File(path="run", data=bytes(1_100_000), scheme="scripts")),
    "console": (("run", "bad:main"),),
}


def _file(path: str, scheme: str, reason: str = "") -> Kind:
    return Kind(with_file(File(path=path, data=b"x = 2\n", scheme=scheme)), reason)  # type: ignore[arg-type]


def _hash(text: str) -> Kind:
    """RECORD tells that in place of a file's hash."""
    return Kind(
        record_line(lambda line: ",".join((LIB, text, line.rsplit(",")[-1]))),
        "RECORD has no SHA-256 of 'bad/lib.so'",
    )


def _tagged(tag: str, reason: str) -> Kind:
    """The honest wheel, tag in WHEEL included, under another file name."""
    return Kind(lambda honest: honest.read_bytes(), reason, f"bad-1.0-{tag}.whl")


def _wheel_tag(tag: str, reason: str = "WHEEL's tags are not for Python 3.11") -> Kind:
    return Kind(metadata("WHEEL", b"py3-none-any", tag.encode()), reason)


def _requires(python: str, reason: str = "requires Python .*, the image has 3.11") -> Kind:
    line = f"Version: 1.0\nRequires-Python: {python}\n".encode()
    return Kind(metadata("METADATA", b"Version: 1.0\n", line), reason)


_OWN = "would replace the environment's own"
_PLAIN = "entry point .* is not plain"

INSTALLING: dict[str, Kind] = {
    # RECORD
    "record lies on a hash": Kind(
        record_line(lambda line: line.replace("sha256=", "sha256=A", 1)),
        "'bad/lib.so' is not what RECORD says",
    ),
    "record lies on a size": Kind(
        record_line(lambda line: line + "0"), "'bad/lib.so' has no hash in RECORD, or another size"
    ),
    "record tells no number": Kind(
        record_line(lambda line: line.rpartition(",")[0] + ",many"), "has no hash in RECORD, or another size"
    ),
    "record lacks a file": Kind(
        record(lambda lines: [line for line in lines if LIB not in line]), "'bad/lib.so' is not in RECORD"
    ),
    "record lacks a hash": Kind(record_line(lambda _: f"{LIB},,"), "has no hash in RECORD"),
    "record lacks nearly all": Kind(record(lambda _: []), r"not in RECORD; .* \(and 2 more\)"),
    "record tells twice": Kind(
        record(lambda lines: [*lines, f"{LIB},sha256=x,1"]), "RECORD tells 'bad/lib.so' twice"
    ),
    "record with md5": _hash("md5=" + hashlib.md5(CODE * 9).hexdigest()),
    "record with sha1": _hash("sha1=" + hashlib.sha1(CODE * 9).hexdigest()),
    "record with sha512": _hash("sha512=" + hashlib.sha512(CODE * 9).hexdigest()),
    "record with an unknown hash": _hash("best=abc"),
    "record climbs": Kind(record(lambda lines: [*lines, "../../../../../../etc/passwd,,"]), "a path outside"),
    "record is absolute": Kind(record(lambda lines: [*lines, "/etc/passwd,,"]), "a path outside"),
    "record with an empty line": Kind(record(lambda lines: ["", *lines]), "RECORD cannot be read"),
    "record with an odd line end": Kind(record_line(lambda line: line + "\x0cx,,"), "RECORD cannot be read"),
    "record with an open quote": Kind(record(lambda lines: [*lines, '"x,,']), "RECORD cannot be read"),
    "record is no text": Kind(
        entries(
            lambda raws: [
                entry(raw.name.decode(), b"\xff\xfe") if raw.name.endswith(b"/RECORD") else raw
                for raw in raws
            ]
        ),
        "RECORD cannot be read",
    ),
    "no record": Kind(
        entries(lambda raws: [raw for raw in raws if not raw.name.endswith(b"/RECORD")]), "RECORD is missing"
    ),
    # the wheel's own metadata
    "no METADATA": Kind(without(f"{INFO}/METADATA"), "METADATA is missing"),
    "no WHEEL": Kind(without(f"{INFO}/WHEEL"), "WHEEL is missing"),
    "another project": Kind(
        metadata("METADATA", b"Name: bad", b"Name: good"), "METADATA is that of good 1.0"
    ),
    "another version": Kind(
        metadata("METADATA", b"Version: 1.0\n", b"Version: 1.1\n"), "METADATA is that of bad 1.1"
    ),
    "two names": Kind(
        metadata("METADATA", b"Name: bad\n", b"Name: bad\nName: good\n"), "METADATA is that of bad, good 1.0"
    ),
    "no name": Kind(metadata("METADATA", b"Name: bad\n", b""), "METADATA is that of  1.0"),
    "no version": Kind(metadata("METADATA", b"\nVersion: 1.0\n", b"\n"), "METADATA is that of bad"),
    "version that is none": Kind(
        metadata("METADATA", b"Version: 1.0\n", b"Version: $(id)\n"), r"METADATA is that of bad \$\(id\)"
    ),
    "format 2": Kind(metadata("WHEEL", b"Version: 1.0", b"Version: 2.0"), "Wheel-Version 2.0; only 1.x"),
    "format that is none": Kind(metadata("WHEEL", b"Version: 1.0", b"Version: new"), "Wheel-Version new"),
    "format missing": Kind(metadata("WHEEL", b"Wheel-Version: 1.0\n", b""), "Wheel-Version missing"),
    "another project's folder": Kind(with_spec(name="other"), "its metadata folder is other-1.0.dist-info"),
    "another version's folder": Kind(with_spec(version="2.0"), "its metadata folder is bad-2.0.dist-info"),
    "two metadata folders": Kind(
        with_file(File(path="more-1.0.dist-info/METADATA", data=b"")), "2 .dist-info folders"
    ),
    "no metadata folder": Kind(lambda _: write([entry("bad/__init__.py", CODE)]), "0 .dist-info folders"),
    # for another Python or machine
    "file name: Python 3.12": _tagged(
        "cp312-cp312-manylinux_2_28_x86_64", "its tags are not for Python 3.11"
    ),
    "file name: Python 2": _tagged("py2-none-any", "its tags are not for Python 3.11"),
    "file name: PyPy": _tagged("pp311-pypy311_pp73-any", "its tags are not for Python 3.11"),
    "file name: Windows": _tagged("cp311-cp311-win_amd64", "its tags are not for .* x86_64 Linux"),
    "file name: macOS": _tagged("cp311-cp311-macosx_11_0_arm64", "its tags are not for .* x86_64 Linux"),
    "file name: arm": _tagged("cp311-cp311-manylinux_2_28_aarch64", "its tags are not for .* x86_64 Linux"),
    "file name: musl": _tagged("cp311-cp311-musllinux_1_2_x86_64", "its tags are not for .* x86_64 Linux"),
    "file name: no wheel's": Kind(lambda h: h.read_bytes(), "not the file name of a wheel", "bad-1.0.whl"),
    "WHEEL: Python 3.12": _wheel_tag("cp312-cp312-any"),
    "WHEEL: Windows": _wheel_tag("py3-none-win_amd64"),
    "WHEEL: no tag": _wheel_tag("any", "WHEEL has a tag that is none"),
    "requires a newer Python": _requires(">=3.12"),
    "requires an older Python": _requires("<3.11"),
    # entry points
    "point with code": points("run = bad:main();import os", _PLAIN),
    "point with shell": points("$(id) = bad:main", _PLAIN),
    "point with a semicolon": points("a;id = bad:main", _PLAIN),
    "point with a path": points("../../usr/bin/env = bad:main", _PLAIN),
    "point, absolute": points("/bin/sh = bad:main", _PLAIN),
    "point with two lines": points("run = bad:main\rimport os", "no entry|not plain"),
    "point with a form feed": points("run = bad:main\x0cimport os", "no entry|not plain"),
    "point without attribute": points("run = bad", _PLAIN),
    "point hidden": points(".bashrc = bad:main", _PLAIN),
    "point with a dash": points("-rf = bad:main", _PLAIN),
    "point turned around": points("\u202enur = bad:main", _PLAIN),
    "point too long": points("r" * 256 + " = bad:main", "too long"),
    "point over python": points("python3 = bad:main", "the environment's own"),
    "point over activate": points("activate = bad:main", "the environment's own"),
    "points not utf-8": Kind(
        info("entry_points.txt", b"[console_scripts]\n\xff = bad:main\n"), "is not UTF-8"
    ),
    "points without a section": Kind(info("entry_points.txt", b"run = bad:main\n"), "no entry"),
    "point over a large script": Kind(with_spec(**POINT_OVER_SCRIPT), "a script and an entry point are both"),
    # places
    "no such scheme": Kind(
        lambda honest: write([*read(honest), entry("bad-1.0.data/nowhere/x", b"x")]), "no such data scheme"
    ),
    "scheme without a path": Kind(
        lambda honest: write([*read(honest), entry("bad-1.0.data/scripts", b"x")]), "no such data scheme"
    ),
    "over python": _file("bin/python", "data", _OWN),
    "over python, as a script": _file("python3.11", "scripts", _OWN),
    "over activate": _file("bin/activate", "data", _OWN),
    "over pyvenv.cfg": _file("pyvenv.cfg", "data", _OWN),
    "by way of lib64": _file("lib64/python3.11/site-packages/x.py", "data", _OWN),
    "file over folder, by data": _file("bad/lib.so/x", "platlib", "a different file at .*bad/lib.so"),
    "two files, by data": _file("bad/lib.so", "purelib", "a different file at .*bad/lib.so"),
    "over RECORD, by data": _file(f"{INFO}/RECORD", "purelib", "a different file at"),
    "over INSTALLER": Kind(info("INSTALLER", b"conda\n"), "a different file at"),
    # taken, as pip takes them
    "record tells the same twice": Kind(record(lambda lines: [lines[0], *lines])),
    "record tells what is not there": Kind(record(lambda lines: [*lines, "bad/gone.py,sha256=x,1"])),
    "record lacks itself": Kind(record(lambda lines: [line for line in lines if "/RECORD," not in line])),
    "record without sizes": Kind(record_line(lambda line: line.rpartition(",")[0] + ",")),
    "record with more columns": Kind(record_line(lambda line: line + ",more")),
    "signature that RECORD does not tell": Kind(
        entries(lambda raws: [*raws, entry(f"{INFO}/RECORD.jws", b"{}")])
    ),
    "root is no purelib": Kind(metadata("WHEEL", b"Root-Is-Purelib: true", b"Root-Is-Purelib: maybe")),
    "root untold": Kind(metadata("WHEEL", b"Root-Is-Purelib: true\n", b"")),
    "no tag": Kind(metadata("WHEEL", b"Tag: py3-none-any\n", b"")),
    "format 1.9": Kind(metadata("WHEEL", b"Version: 1.0", b"Version: 1.9")),
    "version by value": Kind(metadata("METADATA", b"Version: 1.0\n", b"Version: 1\n")),
    "requires no specifier": _requires("about three", ""),
    "metadata folder deep inside": named("bad/other-1.0.dist-info/METADATA", ""),
    "folder of old metadata": named("bad.egg-info/PKG-INFO", ""),
    "etc by data": _file("etc/passwd", "data"),
    "another project's data": named("other-2.0.data/data/share/x", ""),
    "over site-packages, by data": _file("lib/python3.11/site-packages/by_data.py", "data"),
    "source that is no Python": Kind(with_file(File(path="bad/broken.py", data=b"def (\0\n"))),
    "script that names a shell": Kind(
        with_file(File(path="run", data=b"#!/bin/sh -c id\n", scheme="scripts", mode=0o755))
    ),
    "shebang with more": Kind(
        with_file(File(path="run", data=b"#!python -c 'import os'\n", scheme="scripts", mode=0o755))
    ),
    "points of other groups": Kind(
        info("entry_points.txt", b"[x.y]\na = $(id)\n[console_scripts]\nrun = bad:main\n")
    ),
}
