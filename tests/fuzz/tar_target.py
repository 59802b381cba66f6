"""Fuzz the tar reader with false headers: it must reject a tar, or unpack what Python's tarfile sees."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path

from tests.fuzz.source import Decisions
from tests.hostile.tars import END, binary, head, long, octal, padded, pax, record
from tests.readers import comparable
from tests.trees import differences, tree_of_folder, tree_of_tars
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.unpack import LayerBlob, unpack

_PARTS = (b"a", b"b", b"c", b"d", b"..", b".", b"", b"\xff", b"n" * 60, b"m" * 90, b" ", b".wh.a")
_KINDS = (b"0", b"5", b"2", b"1", b"0", b"5", b"\0", b"7", b"3", b"S", b"g", b"X", b"6", b"A")
_FORMS = ("ustar", "ustar", "ustar", "gnu")
_KEYS = (
    "path",
    "linkpath",
    "size",
    "uid",
    "mtime",
    "hdrcharset",
    "comment",
    "GNU.sparse.name",
    "SCHILY.xattr.user.x",
)
_NUMBERS = (b"0", b"4", b"512", b"1024", b"-1", b"", b"1.5", b"99999999999999", b"4 ")
_MAGICS = (b"ustar\x0000", b"ustar  \0", b"ustar 00", bytes(8), b"ustar\0\0\0")


def program(decisions: Decisions) -> bytes:
    """A mostly valid tar, because invalid ones are rejected early and test little."""
    parts = []
    while decisions and len(parts) < 24:
        what = decisions.number(15)
        if what == 0:
            parts.append(_extended(decisions))
        elif what == 1:
            kind = decisions.choice((b"L", b"K"))
            parts.append(long(_path(decisions) + decisions.choice((b"\0", b"\0", b"", b"\0a\0")), kind))
        elif what == 2:
            parts.append(decisions.choice((bytes(512), END, decisions.take(40).ljust(512, b"\0"))))
        else:
            parts.append(_entry(decisions, false_header=what == 3))
    data = b"".join(parts) + END
    if decisions.number(9) == 1 and data:
        at = decisions.number(len(data) - 1)
        data = data[:at] + decisions.take(1) + data[at + 1 :]
    return data


def _path(decisions: Decisions) -> bytes:
    return b"/".join(decisions.choice(_PARTS) for _ in range(1 + decisions.number(2)))


def _extended(decisions: Decisions) -> bytes:
    records = []
    for _ in range(1 + decisions.number(1)):
        key = decisions.choice(_KEYS)
        value = _path(decisions) if "path" in key or "name" in key else decisions.choice(_NUMBERS)
        records.append(record(key, value))
    return pax(*records, kind=decisions.choice((b"x", b"x", b"x", b"g")))


def _entry(decisions: Decisions, *, false_header: bool) -> bytes:
    kind = decisions.choice(_KINDS if false_header else _KINDS[:6])
    name = _path(decisions)[:100]
    data = decisions.take(decisions.number(20)) if kind in (b"0", b"\0", b"7") else b""
    to = _path(decisions)[:100] if kind in (b"1", b"2") else b""
    fields: dict[str, bytes] = {}
    size = len(data)
    if false_header:
        fields["magic"] = decisions.choice(_MAGICS)
        fields["prefix"] = decisions.choice((b"", b"a", b".."))
        fields["uid"] = decisions.choice((octal(0, 8), binary(1 << 20, 8), binary(1 << 40, 8), b"\xff" * 8))
        size = decisions.choice((size, 0, 512, 1 << 33, 7))
    form = decisions.choice(_FORMS)
    declared_size = octal(size, 12) if size < 8 << 30 else binary(size, 12)
    return head(name, kind, size=declared_size, to=to, form=form, **fields) + padded(data)


def check(data: bytes, scratch: Path) -> str:
    """ "accepted" or "refused"; raises AssertionError if a reader sees another tree."""
    return judge(program(Decisions(data)), scratch)


def judge(tar: bytes, scratch: Path) -> str:
    """Check a tar; *scratch* is unchanged afterwards."""
    blob, root = scratch / "blob", scratch / "roots" / "root"
    blob.write_bytes(tar)
    digest = Digest(f"sha256:{hashlib.sha256(tar).hexdigest()}")
    try:
        unpack([LayerBlob(path=blob, diff_id=digest)], root)
    except VerificationFailed:
        return "refused"
    finally:
        left = [path.name for path in (scratch / "roots").iterdir()]
        assert left in ([], ["root"]), left
    try:
        ours = comparable(tree_of_folder(root))
        theirs = comparable(tree_of_tars([io.BytesIO(tar)]))
    except tarfile.TarError as error:
        raise AssertionError(f"accepted, but Python's tarfile raises: {error}") from error
    finally:
        shutil.rmtree(scratch / "roots")
    unnamed = {path for path in ours if path not in theirs and ours[path].kind == "folder"}
    assert not (declared_size := differences({p: t for p, t in ours.items() if p not in unnamed}, theirs)), (
        declared_size
    )
    return "accepted"


def corpus(_scratch: Path) -> list[bytes]:
    """Initial inputs for `program`; most of the tars that it makes of them are refused."""
    return [hashlib.sha512(bytes([n])).digest() * 2 for n in range(60)] + [b"\x04" + bytes(30), b"\x05\0\0"]
