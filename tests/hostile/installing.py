"""Faults in RECORD, WHEEL, METADATA, entry points, schemes and the tags of the file name."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

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
from tests.rawzip import changed, entry, read, write
from tests.wheels import File

POINT_OVER_SCRIPT = {
    "files": (*SPEC.files, File(path="run", data=bytes(1_100_000), scheme="scripts")),
    "console": (("run", "bad:main"),),
}


def _file(path: str, scheme: str, reason: str = "") -> Kind:
    return Kind(with_file(File(path=path, data=b"x = 2\n", scheme=scheme)), reason)  # type: ignore[arg-type]


_WEAK = "use SHA-256 or better"
_OTHER = "hash of 'bad/lib.so' does not match RECORD"


def _hash(text: str, reason: str = _WEAK) -> Kind:
    """Replace a file's hash in RECORD by *text*."""
    return Kind(record_line(lambda line: ",".join((LIB, text, line.rsplit(",")[-1]))), reason)


def _by(algorithm: str, *, of: bytes | None = None, pad: bool = False) -> str:
    """The hash of *of*, by default of the file LIB, in RECORD's format."""
    content = next(file.data for file in SPEC.files if file.path == LIB) if of is None else of
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).decode()
    return f"{algorithm}={digest if pad else digest.rstrip('=')}"


def _headers(old: bytes, new: bytes, reason: str = "") -> Kind:
    return Kind(metadata("METADATA", old, new), reason)


_PYC = "bad/__pycache__/x.cpython-311.pyc"


def _pyc(path: str, *sources: str) -> Kind:
    """Add an unrelated .pyc at *path*, and *sources*."""
    more = (File(path=path, data=b"\x00old"), *(File(path=source, data=CODE) for source in sources))
    return Kind(with_spec(files=(*SPEC.files, *more)))


def _damaged_pyc(**fields: object) -> Kind:
    """A .pyc that is compiled again, with *fields* in its local header."""

    def make(valid: Path) -> bytes:
        wheel = _pyc(_PYC, "bad/x.py").write(valid, valid.parent / "pyc")
        return changed(wheel, _PYC, **fields)

    return Kind(make, f"entry '{_PYC}': ")


def _tagged(tag: str, reason: str) -> Kind:
    """The valid wheel, with *tag* in WHEEL and in its file name."""
    return Kind(lambda valid: valid.read_bytes(), reason, f"bad-1.0-{tag}.whl")


def _wheel_tag(
    tag: str, reason: str = "the tags in WHEEL are not supported on this platform .Python 3.11"
) -> Kind:
    return Kind(metadata("WHEEL", b"py3-none-any", tag.encode()), reason)


def _requires(python: str, reason: str = "requires a different Python: 3.11 not in") -> Kind:
    line = f"Version: 1.0\nRequires-Python: {python}\n".encode()
    return Kind(metadata("METADATA", b"Version: 1.0\n", line), reason)


_OWN = "would replace .* of the virtual environment"
_PLAIN = "invalid script entry point: "

INSTALLING: dict[str, Kind] = {
    # RECORD
    "record with a wrong hash": Kind(
        record_line(lambda line: line.replace("sha256=", "sha256=A", 1)),
        "hash of 'bad/lib.so' does not match RECORD",
    ),
    "record with a wrong size": Kind(
        record_line(lambda line: line + "0"), "'bad/lib.so' has no hash or a wrong size in RECORD"
    ),
    "record with an invalid size": Kind(
        record_line(lambda line: line.rpartition(",")[0] + ",many"), "has no hash or a wrong size in RECORD"
    ),
    "record without one file": Kind(
        record(lambda lines: [line for line in lines if LIB not in line]), "'bad/lib.so' is not in RECORD"
    ),
    "record without a hash": Kind(record_line(lambda _: f"{LIB},,"), "has no hash or a wrong size in RECORD"),
    "empty record": Kind(record(lambda _: []), r"not in RECORD; .* \(and 2 more\)"),
    "record with two lines for a file": Kind(
        record(lambda lines: [*lines, f"{LIB},sha256=x,1"]),
        "RECORD contains two different lines for 'bad/lib.so'",
    ),
    "record with md5": _hash("md5=" + hashlib.md5(CODE * 9).hexdigest()),
    "record with sha1": _hash("sha1=" + hashlib.sha1(CODE * 9).hexdigest()),
    "record with sha224": _hash("sha224=x"),
    "record with sha3_224": _hash("sha3_224=x"),
    "record with shake_256": _hash("shake_256=x"),
    "record with crc32": _hash("crc32=x"),
    "record with an unknown hash": _hash("best=abc"),
    "record with a hash without an algorithm": _hash("abc"),
    "record with an algorithm without a hash": _hash("sha256"),
    "record with a Python attribute as algorithm": _hash("__class__=x"),
    "record with SHA256 in capitals": _hash("SHA256=x"),
    "record with sha512 of something else": _hash(_by("sha512", of=b"else"), _OTHER),
    "record with blake2b of something else": _hash(_by("blake2b", of=b"else"), _OTHER),
    "record with sha512 in hex": _hash("sha512=" + hashlib.sha512(CODE * 9).hexdigest(), _OTHER),
    "record with a truncated sha512": _hash(_by("sha512")[:50], _OTHER),
    "record with an empty sha512": _hash("sha512=", _OTHER),
    "record with an empty sha256": _hash("sha256=", _OTHER),
    "record with two hashes": _hash(_by("sha256") + " " + _by("sha512"), _OTHER),
    "record with sha256 in standard base64": _hash("sha256=" + "+/" * 21 + "A", _OTHER),
    "record with sha512 and a wrong size": Kind(
        record_line(lambda _: f"{LIB},{_by('sha512')},7"), "has no hash or a wrong size in RECORD"
    ),
    "record with two lines of different algorithms": Kind(
        record(lambda lines: [*lines, f"{LIB},{_by('sha512')},1"]),
        "RECORD contains two different lines for 'bad/lib.so'",
    ),
    "record with a leading ./": Kind(record_line(lambda line: "./" + line), "'bad/lib.so' is not in RECORD"),
    "record with a path in capitals": Kind(
        record_line(str.upper), "use SHA-256|'bad/lib.so' is not in RECORD"
    ),
    "record with backslashes": Kind(
        record_line(lambda line: line.replace("/", "\\", 1)), "'bad/lib.so' is not in RECORD"
    ),
    "record with a byte order mark": Kind(
        record(lambda lines: ["\ufeff" + lines[0], *lines[1:]]), "is not in RECORD"
    ),
    "record with ..": Kind(
        record(lambda lines: [*lines, "../../../../../../etc/passwd,,"]), "a path outside"
    ),
    "record with an absolute path": Kind(record(lambda lines: [*lines, "/etc/passwd,,"]), "a path outside"),
    "record with an empty line": Kind(record(lambda lines: ["", *lines]), "invalid RECORD"),
    "record with a form feed": Kind(record_line(lambda line: line + "\x0cx,,"), "invalid RECORD"),
    "record with an unclosed quote": Kind(record(lambda lines: [*lines, '"x,,']), "invalid RECORD"),
    "record that is not UTF-8": Kind(
        entries(
            lambda raws: [
                entry(raw.name.decode(), b"\xff\xfe") if raw.name.endswith(b"/RECORD") else raw
                for raw in raws
            ]
        ),
        "invalid RECORD",
    ),
    "no record": Kind(
        entries(lambda raws: [raw for raw in raws if not raw.name.endswith(b"/RECORD")]), "RECORD is missing"
    ),
    # the wheel's own metadata
    "no METADATA": Kind(without(f"{INFO}/METADATA"), "METADATA is missing"),
    "METADATA in Latin-1": _headers(
        b"Name: bad\n", b"Name: bad\nAuthor: Andr\xe9\n", "METADATA is not valid UTF-8"
    ),
    "METADATA in UTF-16": _headers(
        b"Name: bad\n", "Name: bad\n".encode("utf-16"), "METADATA is not valid UTF-8"
    ),
    "METADATA with a description in Latin-1": Kind(
        metadata("METADATA", b"Version: 1.0\n", b"Version: 1.0\n\nCaf\xe9\n"), "METADATA is not valid UTF-8"
    ),
    "METADATA with a surrogate": _headers(
        b"Name: bad\n", b"Name: bad\nSummary: \xed\xa0\x80\n", "METADATA is not valid UTF-8"
    ),
    "METADATA with an overlong slash": _headers(
        b"Name: bad\n", b"Name: bad\nSummary: \xc0\xaf\n", "METADATA is not valid UTF-8"
    ),
    "METADATA with a byte order mark": _headers(
        b"Metadata-Version", b"\xef\xbb\xbfMetadata-Version", "METADATA has Name '' and Version ''"
    ),
    "METADATA with a million headers": _headers(
        b"Name: bad\n", b"A: b\n" * 700_000, "more than 10000 header lines"
    ),
    "METADATA with a million continuation lines": _headers(
        b"Name: bad\n", b"Name: bad\n" + b" x\n" * 900_000, "more than 10000 header lines"
    ),
    "METADATA with CR line endings": _headers(
        b"Name: bad\n", b"A: b\r" * 700_000, "more than 10000 header lines"
    ),
    "METADATA with a line of 10 MB": _headers(
        b"Name: bad\n", b"Name: bad\nSummary: " + b"x" * 10_000_000 + b"\n", "at most 4194304 are allowed"
    ),
    "METADATA with an empty first line": _headers(b"Metadata-Version", b"\nMetadata-Version", "METADATA has"),
    "name folded over two lines": _headers(b"Name: bad\n", b"Name: bad\n evil\n", "METADATA has"),
    "two versions": _headers(b"Version: 1.0\n", b"Version: 1.0\nVersion: 2.0\n", "Version '1.0, 2.0'"),
    "two names, in capitals": _headers(b"Name: bad\n", b"Name: bad\nNAME: good\n", "Name 'bad, good'"),
    "WHEEL not UTF-8": Kind(
        metadata("WHEEL", b"Wheel-Version", b"Generator: \xff\nWheel-Version"), "WHEEL is not valid UTF-8"
    ),
    "no WHEEL": Kind(without(f"{INFO}/WHEEL"), "WHEEL is missing"),
    "another project": Kind(metadata("METADATA", b"Name: bad", b"Name: good"), "METADATA has Name 'good'"),
    "another version": Kind(
        metadata("METADATA", b"Version: 1.0\n", b"Version: 1.1\n"), "Name 'bad' and Version '1.1'"
    ),
    "two names": Kind(
        metadata("METADATA", b"Name: bad\n", b"Name: bad\nName: good\n"), "Name 'bad, good' and Version '1.0'"
    ),
    "no name": Kind(metadata("METADATA", b"Name: bad\n", b""), "Name '' and Version '1.0'"),
    "no version": Kind(metadata("METADATA", b"\nVersion: 1.0\n", b"\n"), "Name 'bad' and Version ''"),
    "invalid version": Kind(
        metadata("METADATA", b"Version: 1.0\n", b"Version: $(id)\n"), r"Version '\$\(id\)'"
    ),
    "format 2": Kind(
        metadata("WHEEL", b"Version: 1.0", b"Version: 2.0"), "unsupported Wheel-Version: 2.0; only 1.x"
    ),
    "invalid format": Kind(
        metadata("WHEEL", b"Version: 1.0", b"Version: new"), "unsupported Wheel-Version: new"
    ),
    "format missing": Kind(
        metadata("WHEEL", b"Wheel-Version: 1.0\n", b""), "unsupported Wheel-Version: missing"
    ),
    "another project's folder": Kind(
        with_spec(name="other"), "directory 'other-1.0.dist-info' does not start with"
    ),
    "another version's folder": Kind(
        with_spec(version="2.0"), "directory 'bad-2.0.dist-info' does not start with"
    ),
    "two metadata folders": Kind(
        with_file(File(path="more-1.0.dist-info/METADATA", data=b"")), "2 .dist-info directories"
    ),
    "no metadata folder": Kind(lambda _: write([entry("bad/__init__.py", CODE)]), "0 .dist-info directories"),
    # for another Python or machine
    "file name: Python 3.12": _tagged(
        "cp312-cp312-manylinux_2_28_x86_64", "not a supported wheel on this platform: Python 3.11"
    ),
    "file name: Python 2": _tagged("py2-none-any", "not a supported wheel on this platform: Python 3.11"),
    "file name: PyPy": _tagged(
        "pp311-pypy311_pp73-any", "not a supported wheel on this platform: Python 3.11"
    ),
    "file name: Windows": _tagged(
        "cp311-cp311-win_amd64", "not a supported wheel on this platform: .* x86_64 Linux"
    ),
    "file name: macOS": _tagged(
        "cp311-cp311-macosx_11_0_arm64", "not a supported wheel on this platform: .* x86_64 Linux"
    ),
    "file name: arm": _tagged(
        "cp311-cp311-manylinux_2_28_aarch64", "not a supported wheel on this platform: .* x86_64 Linux"
    ),
    "file name: musl": _tagged(
        "cp311-cp311-musllinux_1_2_x86_64", "not a supported wheel on this platform: .* x86_64 Linux"
    ),
    "file name: not of a wheel": Kind(lambda h: h.read_bytes(), "not a valid wheel filename", "bad-1.0.whl"),
    "WHEEL: Python 3.12": _wheel_tag("cp312-cp312-any"),
    "WHEEL: Windows": _wheel_tag("py3-none-win_amd64"),
    "WHEEL: invalid tag": _wheel_tag("any", "WHEEL contains an invalid tag"),
    "requires a newer Python": _requires(">=3.12"),
    "requires an older Python": _requires("<3.11"),
    # entry points
    "entry point with code": points("run = bad:main();import os", _PLAIN),
    "entry point with a shell command": points("$(id) = bad:main", _PLAIN),
    "entry point with a semicolon": points("a;id = bad:main", _PLAIN),
    "entry point with a path": points("../../usr/bin/env = bad:main", _PLAIN),
    "entry point with an absolute path": points("/bin/sh = bad:main", _PLAIN),
    "entry point with two lines": points(
        "run = bad:main\rimport os", "invalid line|invalid script entry point"
    ),
    "entry point with a form feed": points(
        "run = bad:main\x0cimport os", "invalid line|invalid script entry point"
    ),
    "entry point without an attribute": points("run = bad", _PLAIN),
    "entry point with a leading dot": points(".bashrc = bad:main", _PLAIN),
    "entry point with a leading dash": points("-rf = bad:main", _PLAIN),
    "entry point with a bidirectional control character": points("\u202enur = bad:main", _PLAIN),
    "entry point with a long name": points("r" * 256 + " = bad:main", "too long"),
    "entry point named python3": points("python3 = bad:main", "of the virtual environment"),
    "entry point named activate": points("activate = bad:main", "of the virtual environment"),
    "entry points that are not UTF-8": Kind(
        info("entry_points.txt", b"[console_scripts]\n\xff = bad:main\n"), "is not valid UTF-8"
    ),
    "entry points without a section": Kind(info("entry_points.txt", b"run = bad:main\n"), "invalid line"),
    "entry point with the name of a large script": Kind(
        with_spec(**POINT_OVER_SCRIPT), "a script and an entry point have the same path"
    ),
    # places
    "unknown scheme": Kind(
        lambda valid: write([*read(valid), entry("bad-1.0.data/nowhere/x", b"x")]), "unknown scheme key"
    ),
    "scheme without a path": Kind(
        lambda valid: write([*read(valid), entry("bad-1.0.data/scripts", b"x")]), "unknown scheme key"
    ),
    "data replaces python": _file("bin/python", "data", _OWN),
    "script replaces python": _file("python3.11", "scripts", _OWN),
    "data replaces activate": _file("bin/activate", "data", _OWN),
    "data replaces pyvenv.cfg": _file("pyvenv.cfg", "data", _OWN),
    "data through lib64": _file("lib64/python3.11/site-packages/x.py", "data", _OWN),
    "data below a file": _file("bad/lib.so/x", "platlib", "a different file at .*bad/lib.so"),
    "data replaces a file": _file("bad/lib.so", "purelib", "a different file at .*bad/lib.so"),
    "data replaces RECORD": _file(f"{INFO}/RECORD", "purelib", "a different file at"),
    "own INSTALLER": Kind(info("INSTALLER", b"conda\n"), "a different file at"),
    "byte-code that is compiled again, with another name in its local header": _damaged_pyc(
        local={"name": _PYC.replace("x.", "y.").encode()}
    ),
    "byte-code that is compiled again, with a wrong CRC": _damaged_pyc(crc=1),
    # accepted, as by pip
    "record with a duplicate line": Kind(record(lambda lines: [lines[0], *lines])),
    "record with a file that does not exist": Kind(record(lambda lines: [*lines, "bad/gone.py,sha256=x,1"])),
    "record without its own line": Kind(
        record(lambda lines: [line for line in lines if "/RECORD," not in line])
    ),
    **{
        f"record with {algorithm}": _hash(_by(algorithm), "")
        for algorithm in ("sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s")
    },
    "record with sha512, padded": _hash(_by("sha512", pad=True), ""),
    "record with sha256, padded": _hash(_by("sha256", pad=True), ""),
    "record with CRLF line endings": Kind(record(lambda lines: [line + "\r" for line in lines])),
    "record with quotes": Kind(record_line(lambda line: '"{}",{},"{}"'.format(*line.split(",")))),
    "name with a comma and quotes": Kind(with_file(File(path='bad/a,"b".txt', data=b"x"))),
    "METADATA with 600 headers": _headers(
        b"Name: bad\n", b"Name: bad\n" + b"Classifier: Topic :: Software Development\n" * 600
    ),
    "METADATA with letters of several scripts": _headers(
        b"Name: bad\n", "Name: bad\nAuthor: André 日本語 \U0001f600\n".encode()
    ),
    "METADATA with a long line": _headers(b"Name: bad\n", b"Name: bad\nSummary: " + b"x" * 1_000_000 + b"\n"),
    "METADATA with CRLF line endings": Kind(metadata("METADATA", b"\n", b"\r\n")),
    "METADATA with continuation lines": _headers(b"Name: bad\n", b"Name: bad\nSummary: a\n b\n\tc\n"),
    "byte-code of another stem": _pyc("bad/__pycache__/x.bak.cpython-311.pyc", "bad/x.py"),
    "byte-code of a stem with a dot": _pyc("bad/__pycache__/x.bak.cpython-311.pyc", "bad/x.bak.py"),
    "byte-code of two possible sources": _pyc(
        "bad/__pycache__/x.bak.cpython-311.pyc", "bad/x.bak.py", "bad/x.py"
    ),
    "source with a dot": _pyc("bad/unused.pyc", "bad/builder.bak.py"),
    "byte-code of another Python": _pyc("bad/__pycache__/x.cpython-39.pyc", "bad/x.py"),
    "byte-code of PyPy": _pyc("bad/__pycache__/x.pypy310-pp73.pyc", "bad/x.py"),
    "byte-code, optimized": _pyc("bad/__pycache__/x.cpython-311.opt-1.pyc", "bad/x.py"),
    "byte-code, optimized, of a stem with a dot": _pyc(
        "bad/__pycache__/x.bak.cpython-311.opt-2.pyc", "bad/x.py"
    ),
    "byte-code with more dots": _pyc("bad/__pycache__/x.a.b.c.d.pyc", "bad/x.py"),
    "byte-code without a stem": _pyc("bad/__pycache__/.cpython-311.pyc", "bad/x.py"),
    "byte-code beside its source": _pyc("bad/x.pyc", "bad/x.py"),
    "byte-code without a source": _pyc("bad/__pycache__/gone.cpython-311.pyc"),
    "byte-code at the top": _pyc("__pycache__/top.cpython-311.pyc", "top.py"),
    "byte-code of byte-code": _pyc("bad/__pycache__/__pycache__/x.cpython-311.pyc", "bad/__pycache__/x.py"),
    "byte-code with the suffix .pyo": _pyc("bad/__pycache__/x.cpython-311.pyo", "bad/x.py"),
    "record without sizes": Kind(record_line(lambda line: line.rpartition(",")[0] + ",")),
    "record with more columns": Kind(record_line(lambda line: line + ",more")),
    "signature that is not in RECORD": Kind(
        entries(lambda raws: [*raws, entry(f"{INFO}/RECORD.jws", b"{}")])
    ),
    "invalid Root-Is-Purelib": Kind(metadata("WHEEL", b"Root-Is-Purelib: true", b"Root-Is-Purelib: maybe")),
    "no Root-Is-Purelib": Kind(metadata("WHEEL", b"Root-Is-Purelib: true\n", b"")),
    "WHEEL without a tag": Kind(metadata("WHEEL", b"Tag: py3-none-any\n", b"")),
    "format 1.9": Kind(metadata("WHEEL", b"Version: 1.0", b"Version: 1.9")),
    "version 1 instead of 1.0": Kind(metadata("METADATA", b"Version: 1.0\n", b"Version: 1\n")),
    "invalid Requires-Python": _requires("about three", ""),
    "metadata folder below another folder": named("bad/other-1.0.dist-info/METADATA", ""),
    "folder of egg-info": named("bad.egg-info/PKG-INFO", ""),
    "data in etc": _file("etc/passwd", "data"),
    "another project's data": named("other-2.0.data/data/share/x", ""),
    "data in site-packages": _file("lib/python3.11/site-packages/by_data.py", "data"),
    "source with invalid syntax": Kind(with_file(File(path="bad/broken.py", data=b"def (\0\n"))),
    "script with a shell": Kind(
        with_file(File(path="run", data=b"#!/bin/sh -c id\n", scheme="scripts", mode=0o755))
    ),
    "script with options for Python": Kind(
        with_file(File(path="run", data=b"#!python -c 'import os'\n", scheme="scripts", mode=0o755))
    ),
    "entry points of other groups": Kind(
        info("entry_points.txt", b"[x.y]\na = $(id)\n[console_scripts]\nrun = bad:main\n")
    ),
}
