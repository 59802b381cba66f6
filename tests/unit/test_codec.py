"""Data classes, their plain values and their JSON Schemas agree; committed schemas match the types."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from tools import schemas
from tools.json_schemas import schema_of
from torchkiln.util import codec
from torchkiln.util.places import ROOT
from torchkiln.util.schema import KEYWORDS, violations


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    name: Annotated[str, Meta(pattern="^[a-z]{1,5}$")]
    note: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    size: Annotated[int, Meta(ge=1)]
    colour: Colour
    inner: Inner | None = None
    more: tuple[Inner, ...] = ()
    flag: bool = False
    text: str = field(default="", metadata={codec.SCHEMA: {"type": "string", "minLength": 1}})
    comment: str = field(default="", compare=False)


inners = st.builds(Inner, name=st.from_regex("^[a-z]{1,5}\\Z"), note=st.none() | st.text())
outers = st.builds(
    Outer,
    size=st.integers(1, 1 << 40),
    colour=st.sampled_from(Colour),
    inner=st.none() | inners,
    more=st.lists(inners, max_size=3).map(tuple),
    flag=st.booleans(),
    text=st.text(),
)


@given(outers)
def test_plain_values_fit_the_schema_and_read_back(outer: Outer) -> None:
    document = json.loads(json.dumps(codec.plain(outer)))

    assert violations(document, schema_of(Outer)) == []
    jsonschema.Draft202012Validator(schema_of(Outer)).validate(document)
    assert codec.typed(Outer, document) == outer


def test_a_default_is_not_written() -> None:
    assert codec.plain(Outer(size=1, colour=Colour.RED)) == {"size": 1, "colour": "red"}


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": "1"},
        {"colour": "green"},
        {"more": []},
        {"flag": False},
        {"inner": None},
        {"inner": {"name": "a"}},
        {"inner": {"name": "A", "note": None}},
        {"comment": "x"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_values_that_plain_never_writes_do_not_fit_the_schema(change: dict[str, Any]) -> None:
    document = {"size": 1, "colour": "red", **change}

    assert violations(document, schema_of(Outer))
    assert not jsonschema.Draft202012Validator(schema_of(Outer)).is_valid(document)


# This runs in another process, because a crash ends the process.
MANY_THREADS = """
import sys, threading
from dataclasses import make_dataclass

{imports}
sys.setswitchinterval(1e-6)
for number in range(50):
    use = {use}
    barrier, found = threading.Barrier(6), []

    def read():
        barrier.wait()
        found.append(use())

    threads = [threading.Thread(target=read) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 6
"""
CLASSES = """
def new(number):
    inner = make_dataclass("Inner", [("a", int), ("b", list[str])], frozen=True)
    outer = make_dataclass("Outer", [("inner", inner), ("others", tuple[inner, ...])], frozen=True)
    part = {"a": number, "b": ["x"]}
    return lambda: CONVERT(outer, {"inner": part, "others": [part]})
"""


def threads_use(convert: str) -> int:
    """The exit code of a process in which six threads at once call *convert* with a new data class.

    With `lambda kind, value: msgspec.convert(value, kind)` and msgspec 0.22 the exit code is -11 (SIGSEGV).
    """
    code = MANY_THREADS.format(imports=CLASSES.replace("CONVERT", convert), use="new(number)")
    head = "import msgspec\nfrom torchkiln.util.codec import typed\n"
    return subprocess.run([sys.executable, "-c", head + code], cwd=ROOT, check=False).returncode


def test_threads_may_use_a_class_for_the_first_time_together() -> None:
    assert threads_use("typed") == 0


def test_a_page_of_an_index_is_read_by_several_threads_first() -> None:
    body = {
        "meta": {"api-version": "1.0"},
        "name": "x",
        "files": [{"filename": "a.whl", "url": "a.whl", "hashes": {"sha256": "ab" * 32}}],
    }
    code = f"""
from torchkiln.index.listing import Page, listing
page = Page(url="http://127.0.0.1/x/", body={json.dumps(body).encode()!r}, json=True)
"""
    program = MANY_THREADS.format(imports=code, use="lambda: listing(page)")
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_the_names_of_keys_are_checked() -> None:
    schema = {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}
    assert violations({"a": 1, "B": 2}, schema) == [(("B",), "'B' is not of the form ^[a-z]+$")]


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_the_committed_schema_is_that_of_the_types(name: str) -> None:
    assert schemas.path(name).read_text() == schemas.text(schemas.SCHEMAS[name]()), "run: make golden"


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_a_generated_schema_is_valid_and_uses_known_keywords(name: str) -> None:
    schema = schemas.SCHEMAS[name]()

    jsonschema.Draft202012Validator.check_schema(schema)
    assert _keywords(schema) <= KEYWORDS


def _keywords(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for key, value in schema.items():
        below = value.values() if key in ("properties", "$defs") else [value]
        found |= set().union(*(_keywords(subschema) for subschema in below))
    return found
