"""Every reader of untrusted documents gets every kind of hostile document: it refuses it with a message."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import forked
from tests.document_strategies import FEW, VALUES, json_bytes, mutated, spoiled
from tests.needs import nightly
from tests.peak import LIMIT
from tests.unit.document_readers import READERS, DocumentReader, value_of
from tests.unit.document_shapes import shapes
from torchkiln.errors import KilnError, printable
from torchkiln.util.places import ROOT

JSON, YAML, TOML = (
    {name: reader for name, reader in READERS.items() if reader.form == form}
    for form in ("json", "yaml", "toml")
)
STRICT = {name: reader for name, reader in JSON.items() if reader.strict}
ESCAPE = "\x1b]0;owned\x07"


def refusal(reader: DocumentReader, data: bytes) -> str:
    """The message that refuses *data*, short and without control characters; "" if *reader* reads it."""
    try:
        reader.read(data)
    except reader.refusal as error:
        message = error.message if isinstance(error, KilnError) else printable(str(error))
        assert message == printable(message) != ""
        assert all(len(line) < 2000 for line in message.splitlines())
        return message
    return ""


def within(inserted: bytes) -> Callable[[bytes], bytes]:
    """Insert a first key and value into a JSON object."""
    return lambda sound: sound.replace(b"{", b"{" + inserted + b", ", 1)


# Each changes a sound JSON document; for every reader, the result is not a document.
HOSTILE_JSON: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda sound: sound[: len(sound) // 2],
    "two documents": lambda sound: sound * 2,
    "a list": lambda sound: b"[" + sound + b"]",
    "text": lambda sound: json.dumps(sound.decode()).encode(),
    "null": lambda _: b"null",
    "a number": lambda _: b"7",
    "UTF-16": lambda sound: sound.decode().encode("utf-16"),
    "a byte order mark": lambda sound: b"\xef\xbb\xbf" + sound,
    "not UTF-8": within(b'"x": "\xff"'),
    "NUL": within(b'"x": "\0"'),
    "a control character": within(f'"x": "{ESCAPE}"'.encode()),
    "half a character": within(b'"x": "\\ud800"'),
    "half a character as key": within(b'"\\udfff": 1'),
    "a key twice": within(b'"x": 1, "x": 1'),
    "a key twice below": within(b'"x": {"a": [{"b": 1, "b": 1}]}'),
    "NaN": within(b'"x": NaN'),
    "infinity": within(b'"x": -Infinity'),
    "out of range": within(b'"x": 1e999'),
    "a number of 65 bits": within(b'"x": 18446744073709551616'),
    "a number of 100,000 digits": within(b'"x": ' + b"9" * 100_000),
    "deep lists": within(b'"x": ' + b"[" * 41 + b"]" * 41),
    "deep mappings": within(b'"x": ' + b'{"a":' * 41 + b"1" + b"}" * 41),
    "100,000 brackets": lambda _: b"[" * 100_000,
    "a million values": within(b'"x": [' + b"{}," * 1_100_000 + b"{}]"),
    "a million escapes": lambda _: b'["' + b'\\"[' * 100_000,
    "a merge conflict": lambda sound: b"<<<<<<< ours\n" + sound + b"\n>>>>>>> theirs\n",
    "a comment": lambda sound: sound + b"// x",
    "a final comma": within(b'"x": [1,]'),
}


@pytest.mark.parametrize("name", READERS)
def test_a_sound_document_is_read(name: str) -> None:
    """So each of the documents below has one fault."""
    READERS[name].read(READERS[name].sound)


@pytest.mark.parametrize("kind", HOSTILE_JSON)
@pytest.mark.parametrize("name", JSON)
def test_json_that_is_no_document_is_refused(name: str, kind: str) -> None:
    assert refusal(JSON[name], HOSTILE_JSON[kind](JSON[name].sound))


@pytest.mark.parametrize("name", STRICT)
def test_unknown_missing_and_renamed_keys_are_refused(name: str) -> None:
    """At the top of the document; the message names the key."""
    reader, document = STRICT[name], value_of(STRICT[name])
    assert "stowaway" in refusal(reader, json_bytes({**document, "stowaway": 1}))
    for key in document:
        rest = {other: value for other, value in document.items() if other != key}
        if message := refusal(reader, json_bytes(rest)):
            assert key in message or name in ("lock", "project's lock"), (key, message)
        assert refusal(reader, json_bytes({**rest, key.upper(): document[key]})), key
        assert refusal(reader, json_bytes({**document, "schema": 99}))


@pytest.mark.parametrize("name", JSON)
@given(data=st.data())
@FEW
def test_changed_json_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Any value, or a byte, is replaced, removed, added, renamed or doubled: no reader fails otherwise."""
    reader = JSON[name]
    refusal(reader, data.draw((mutated(value_of(reader)) | VALUES).map(json_bytes) | spoiled(reader.sound)))


# Each changes a sound YAML document.
HOSTILE_YAML: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"x\n",
    "not UTF-8": lambda sound: sound + b"# \xff\n",
    "UTF-16": lambda sound: sound.decode().encode("utf-16"),
    "NUL": lambda sound: sound + b"# \0\n",
    "an anchor": lambda sound: sound + b"x: &a 1\n",
    "billion laughs": lambda sound: sound + b"x: &a [1]\ny: [*a, *a]\n",
    "a tag": lambda sound: sound + b"x: !!python/object:os.system [x]\n",
    "a key twice": lambda sound: sound + b"x: 1\nx: 1\n",
    "a merge key": lambda sound: sound + b"<<: {x: 1}\n",
    "two documents": lambda sound: sound + b"---\n" + sound,
    "deep": lambda sound: sound + b"x: " + b"[" * 10_000,
    "open": lambda sound: sound + b"x: [\n",
    "a tab": lambda sound: sound + b"x:\n\t- y\n",
    "a merge conflict": lambda sound: b"<<<<<<< ours\n" + sound,
    "long": lambda sound: sound + b"# " + b"x" * (1 << 20),
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
@pytest.mark.parametrize("name", YAML)
def test_yaml_that_is_no_document_is_refused(name: str, kind: str) -> None:
    assert refusal(YAML[name], HOSTILE_YAML[kind](YAML[name].sound))


# Each changes a sound TOML document.
HOSTILE_TOML: dict[str, Callable[[bytes], bytes]] = {
    "not UTF-8": lambda sound: sound + b"# \xff\n",
    "UTF-16": lambda sound: sound.decode().encode("utf-16"),
    "a byte order mark": lambda sound: b"\xef\xbb\xbf" + sound,
    "NUL": lambda sound: sound + b"# \0\n",
    "half a character": lambda sound: b'zz = "\\ud800"\n' + sound,
    "a merge conflict": lambda sound: b"<<<<<<< ours\n" + sound,
    "a key twice": lambda sound: b"zz = 1\nzz = 1\n" + sound,
    "a table twice": lambda sound: sound + b"[zz]\n[zz]\n",
    "open": lambda sound: sound + b"zz = '''\n",
    "a key of 17 parts": lambda sound: b"a" + b".a" * 16 + b" = 1\n" + sound,
    "a key of 17 parts in strings": lambda sound: b"'a'" + b' . "#"' * 16 + b" = 1\n" + sound,
    "a key of 17 parts behind a string": lambda sound: (
        b"zz = ['''x''''', {a" + b".a" * 16 + b" = 1}]\n" + sound
    ),
    "a header of 17 parts": lambda sound: sound + b"[a" + b".a" * 16 + b"]\n",
    "deep": lambda sound: b"zz = " + b"[" * 17 + b"]" * 17 + b"\n" + sound,
    "a long number": lambda sound: b"zz = 1" + b"_1" * 100 + b"\n" + sound,
    "many values": lambda sound: b"zz = [" + b"1," * (1 << 18) + b"]\n" + sound,
    "a long version": lambda sound: b'zz = "' + b"9" * 1001 + b'"\n' + sound,
}


@pytest.mark.parametrize("kind", HOSTILE_TOML)
@pytest.mark.parametrize("name", TOML)
def test_toml_that_is_no_document_is_refused(name: str, kind: str) -> None:
    assert refusal(TOML[name], HOSTILE_TOML[kind](TOML[name].sound))


# --- size: long keys, deep, wide, long numbers and strings ------------------------------------------

_FORMS = sorted({reader.form for reader in READERS.values()})
_SMALL = [
    pytest.param([name for name in READERS if READERS[name].form == form], 128 << 10, id=form)
    for form in _FORMS
]
_LARGE = [pytest.param([name], 1 << 30, id=name, marks=nightly) for name in READERS]


@pytest.mark.parametrize(("names", "size"), _SMALL + _LARGE)
def test_every_reader_has_limits_of_memory_and_time(names: list[str], size: int) -> None:
    """In one process, whose memory includes the tests' modules; `nightly` with the most that a reader gets."""
    program = "tests.unit.document_readers:measured"
    done = forked.run((str(size), *names), env=dict(os.environ), target=program)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(rows) == sum(len(shapes(READERS[name].form)) for name in names)
    assert [row for row in rows if row[2] > 20 or row[3] > LIMIT] == []


# fmt: off
# ruff: noqa: E501
#: The modules that call parsers without limits. A module that reads foreign bytes must go through one of these rooms.
ROOMS = {
    "tomllib.loads": "util/toml",
    "yaml.compose": "util/located_yaml matrix/add_release",  # add_release: text that located_yaml has read
    "yaml.load": "matrix/facts",  # behind reject_aliases
    "yaml.parse": "util/located_yaml",
    "yaml.safe_load": "site/pages",  # a file of the package
    "utils.parse_wheel_filename": "util/wheel_names",
    "BytesHeaderParser": "model/index",
    "HeaderParser": "wheel/splice",
    "zipfile.ZipFile": "index/remote_wheel sbom/read_image projects/sources/sdist_driver",
    "ConfigParser": "projects/sources/sdist_driver",  # in the sandbox
    "literal_eval": "index/settings",  # lines of pip's output
    "json.load": "runtimes/enter",  # written by runtimes/rootfs
    # util/strict_json; texts that torchkiln, docker or buildx wrote; parts of documents that json_of has read; a bundle's own file
    "json.loads": "util/strict_json util/schema store/store oci/layer_index runtimes/verified_root runtimes/mounted runtimes/sandbox registry/push"
    " attest/machine_key attest/statement base/archive base/artefact engine/image_lock sbom/cyclonedx"
    " docker/build docker/daemon cli/bundle_run cli/shared/smoke_output gate/cell_state gate/check_status gate/gate gate/gpu_stack"
    " gate/inputs projects/gate/judge site/images smoke/declared smoke/report smoke/reuse smoke/verdict",
}
# fmt: on
_PARSER = re.compile(
    r"\b(?:json\.loads?|tomllib\.loads?|yaml\.(?:safe_)?(?:load|compose|parse)(?:_all)?|utils\.parse_wheel_filename"
    r"|(?:Bytes)?(?:Header|Feed)?Parser|zipfile\.ZipFile|ConfigParser|literal_eval|fromstring|ElementTree\.parse)(?=\()"
)


def test_only_these_modules_call_parsers_without_limits() -> None:
    found: dict[str, set[str]] = {}
    for file in (ROOT / "torchkiln").rglob("*.py"):
        text = file.read_text()
        module = file.relative_to(ROOT / "torchkiln").with_suffix("").as_posix()
        direct = re.search(r"from packaging\.\w+ import [^\n]*\bparse_(wheel|tag)", text)
        assert not direct or module == "wheel/splice", module  # it calls wheel_names.limited
        for call in _PARSER.findall(text):
            found.setdefault(call, set()).add(module)
    assert found == {call: set(modules.split()) for call, modules in ROOMS.items()}


#: The functions that parse without a reader in the table.
OTHERS = {
    "attest/dsse.wrap smoke/attestation._is_envelope": "an envelope, which the reader `envelope` reads, too",
    "base/plain_tree._info": "the control file of a .deb whose SHA-256 is locked",
    "cache/prune._record_fault store/file_locks.holder": "files of the user's cache",
    "cli/ci._digest_in": "the lock of an earlier commit, of which only the digest is read",
    "compare/images.read_saved": "the output of `docker save`",
    "engine/keep._kind_of": "a manifest that `lock in a vault` reads first",
    "jobs/run._last_object": "the output of torchkiln in a process of its own",
    "oci/validate/documents._read": "a layout: test_oci_validate",
    "projects/smoke/account.account_of projects/smoke/carried.carried_in": "project.json: test_project_smoke",
    "projects/smoke/checks._import_fault projects/smoke/checks._probed": "output of a program in the image",
    "sbom/evidence._installed": "a generator, which `dpkg's status in an image` calls",
    "smoke/run.read": "lines of a run: test_smoke_runner",
    "projects/sources/sdist.build": "the answer of a build backend: test_sdist_sandbox",
    "projects/symbols/os_libraries._data": "a file of the package",
    "registry/credentials._from_helper": "the output of the user's program",
}
_PARSERS = {"json_of": "strict_json", "toml_of": "toml", "parse": "located_yaml", "paragraphs": "deb822"}


def test_every_function_that_parses_has_a_reader_in_the_table() -> None:
    """The fuzzer `documents` and the tests above use all readers of the table; a new one must join it."""
    package, calls, seen = ROOT / "torchkiln", set(), set()

    def called(frame: FrameType, event: str, _: object) -> None:
        code, above = frame.f_code, frame.f_back
        if event == "call" and above and _PARSERS.get(code.co_name) == Path(code.co_filename).stem:
            seen.add(f"{Path(above.f_code.co_filename).with_suffix('')}.{above.f_code.co_name}")

    for file in package.rglob("*.py"):
        tree = list(ast.walk(ast.parse(file.read_text())))
        names = {
            alias.asname or alias.name
            for one in tree
            if isinstance(one, ast.ImportFrom)
            for alias in one.names
            if f"torchkiln.util.{_PARSERS.get(alias.name)}" == one.module
        }
        for function in (node for node in tree if isinstance(node, ast.FunctionDef)):
            if any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(function)):
                calls.add(f"{file.with_suffix('')}.{function.name}")
    sys.setprofile(called)
    try:
        for reader in READERS.values():
            reader.read(reader.sound)
    finally:
        sys.setprofile(None)
    unread = {name.removeprefix(f"{package}/") for name in calls - seen}
    assert unread == {name for names in OTHERS for name in names.split()}
