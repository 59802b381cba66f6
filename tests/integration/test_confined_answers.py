"""torchkiln checks the output of a base's Python against the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile_python import PYC, SOURCES, VERSION, WHEEL, answer, answering, compiled, refused
from tests.needs import needs_gcc, needs_namespaces
from torchkiln.engine.worker import Bytecode
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store

pytestmark = [needs_gcc, needs_namespaces]

WRONG_ANSWERS = {
    "another path": (answer([("/a/one.py", PYC), ("/etc/evil.py", PYC)]), "'/etc/evil.py'"),
    "another order": (answer([("/a/two.py", PYC), ("/a/one.py", PYC)]), "'/a/two.py'"),
    "more": (answer([*((path, PYC) for path in SOURCES), ("/a/three.py", PYC)]), "'/a/three.py'"),
    "twice": (answer([("/a/one.py", PYC), ("/a/one.py", PYC), ("/a/two.py", PYC)]), "'/a/one.py'"),
    "less": (answer([("/a/one.py", PYC)]), "no byte-code of '/a/two.py'"),
    "nothing": (b"", "truncated"),
    "an empty path": (answer([("", PYC)]), "''"),
    "a path of 4 GB": (b"\xfe\xff\xff\xff", "an entry of 4294967294 bytes"),
    "a code of 4 GB": (
        answer([("/a/one.py", b"")])[:13] + b"\xfe\xff\xff\xff",
        "an entry of 4294967294 bytes",
    ),
    "a code of 1 MB": (answer([("/a/one.py", PYC + bytes(1 << 20))])[: 1 << 12], "an entry of 1048593 bytes"),
    "a path that is not UTF-8": (b"\x02\0\0\0\xff\xfe\0\0\0\0", "codec"),
    "no byte-code": (
        answer([("/a/one.py", b"#!/bin/sh\nexit 0\n"), ("/a/two.py", PYC)]),
        "invalid byte-code",
    ),
    "byte-code with a source timestamp": (
        answer([("/a/one.py", PYC[:4] + bytes(4) + PYC[8:]), ("/a/two.py", PYC)]),
        "invalid byte-code",
    ),
    "another hash": (answer([(path, PYC) for path in SOURCES], bytes(32)), "hash of the pack does not match"),
    "more behind it": (answer([(path, PYC) for path in SOURCES]) + b"x", "hash of the pack does not match"),
    "a complete pack": (b"torchkiln pack 2\n" + bytes(64), "an entry of"),
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS)
def test_an_unexpected_answer_is_refused(tmp_path: Path, answer: str) -> None:
    data, message = WRONG_ANSWERS[answer]
    assert message in refused(answering(data, tmp_path), tmp_path / "cache")


def test_a_valid_answer_is_accepted(tmp_path: Path) -> None:
    """The same program sends a valid answer. So the answers above are refused because of their content."""
    data = answer([("/a/one.py", PYC), ("/a/two.py", b"")])
    python = answering(data, tmp_path)
    work = Bytecode(WHEEL, Store(tmp_path / "cache"), ImagePython.of_base(VERSION), tuple(python.argv()))
    assert compiled(work, SOURCES) == [("/a/one.py", PYC)]
    work.close()
