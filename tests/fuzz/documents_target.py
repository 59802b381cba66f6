"""Fuzz all readers with documents of hostile shapes; and the JSON reader with bytes and changed documents.

It must refuse, or agree with the standard library's reader and orjson's, which is independent (Rust).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from tests.document_strategies import json_bytes, places
from tests.fuzz.source import Decisions
from tests.unit.document_readers import READERS, value_of
from tests.unit.document_shapes import shaped, shapes
from torchkiln.errors import KilnError, printable
from torchkiln.oci.documents import descriptors, diff_ids
from torchkiln.oci.spelling import wrong_case_keys
from torchkiln.util.strict_json import json_of

# fmt: off
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1 << 63, 1 << 64, 10**30, float("inf"), float("nan"), "", "\0", "\ud800",
    "\x1b[2J", "ü", [], {}, [[]], ["x"], {"a": "b"}, [None], {"Layers": []}, "x" * 500, [0] * 50,
)
# fmt: on
JSON = {name: reader for name, reader in READERS.items() if reader.form == "json"}
_OF_LOCKS = ("lock", "base", "report")  # a lock is a hundred times longer than other documents


def check(data: bytes, _scratch: Path) -> str:
    """The result: "accepted" or "refused"; raises AssertionError if two readers disagree."""
    decisions = Decisions(data)
    if (form := decisions.number(3)) == 2:
        return shape(decisions)
    return judge(decisions.rest() if form == 3 else program(decisions))


def shape(decisions: Decisions) -> str:
    """Give any reader a document with a long, deep or wide part, of which some bytes may be changed."""
    reader = decisions.choice(tuple(READERS.values()))
    part = decisions.choice(shapes(reader.form))
    data = _spoiled(shaped(reader.form, reader.sound, part, decisions.number((1 << 16) - 1)), decisions)
    return "accepted" if _read_or_refuse(lambda: reader.read(data)) else "refused"


def judge(data: bytes) -> str:
    """Compare torchkiln's reader with the standard library and orjson."""
    for name, reader in JSON.items():
        if len(data) < 8192 or name in _OF_LOCKS:
            _read_or_refuse(lambda read=reader.read: read(data))  # type: ignore[misc]
    try:
        value = json_of(data)
    except ValueError:
        return "refused"
    same(value, json.loads(data))
    same(value, orjson.loads(data))
    if isinstance(value, dict):
        for key in ("manifests", "layers"):
            _read_or_refuse(lambda key=key: descriptors(Path("x"), key, value))  # type: ignore[misc]
        _read_or_refuse(lambda: diff_ids(Path("x"), value))
        assert all(line == line.strip() for line in wrong_case_keys(value))
    return "accepted"


def _read_or_refuse(read: Callable[[], object]) -> bool:
    message = ""
    try:
        read()
    except KilnError as error:
        message = error.message
    except ValueError as error:
        message = printable(str(error))
    assert message == printable(message)
    assert len(message) < 200_000
    return not message


def same(ours: Any, theirs: Any) -> None:
    """Require equal values and types: 1 is neither true nor 1.0."""
    pairs = [(ours, theirs)]
    while pairs:
        left, right = pairs.pop()
        assert type(left) is type(right), (left, right)
        if isinstance(left, dict):
            assert list(left) == list(right)
            pairs += zip(left.values(), right.values(), strict=True)
        elif isinstance(left, list):
            pairs += zip(left, right, strict=True)
        else:
            assert left == right, (left, right)


def program(decisions: Decisions) -> bytes:
    """A valid document with up to four changes, and possibly some changed bytes."""
    changed = copy.deepcopy(decisions.choice(tuple(map(value_of, JSON.values()))))
    for _ in range(1 + decisions.number(3)):
        there = list(places(changed))
        if not there:
            break
        owner, key = decisions.choice(there)
        change = decisions.number(3)
        if change == 0:
            del owner[key]
        elif change == 1:
            owner[key] = copy.deepcopy(decisions.choice(_ODD))
        elif change == 2 and isinstance(owner, dict):
            owner[key.swapcase()] = owner[key]
        else:
            owner[key] = [owner[key]]
    data = json_bytes(changed)
    return _spoiled(data, decisions) if decisions.number(3) == 3 and data else data


def _spoiled(data: bytes, decisions: Decisions) -> bytes:
    at = decisions.number(len(data))
    return data[:at] + decisions.take(decisions.number(6)) + data[at + decisions.number(4) :]


def corpus(_scratch: Path) -> list[bytes]:
    """Raw JSON of each kind of value, and a few inputs for `program`."""
    raw = [
        b'{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"]}',
        b"[1e999]",
        b'{"a": 1, "a": 2}',
        b"[[[[]]]]",
    ]
    raw += [reader.sound for reader in JSON.values() if len(reader.sound) < 8192]
    return [b"\x03" + item for item in raw] + [bytes(range(n, n + 40)) for n in range(0, 200, 10)]
