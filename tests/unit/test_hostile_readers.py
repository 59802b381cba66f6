"""Every reader of untrusted documents gets every kind of hostile document: it refuses it with a message."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.document_strategies import FEW, VALUES, json_bytes, mutated, spoiled
from tests.unit.document_readers import READERS, DocumentReader, value_of
from torchkiln.errors import KilnError, printable

JSON = {name: reader for name, reader in READERS.items() if not reader.yaml}
STRICT = {name: reader for name, reader in JSON.items() if reader.strict}
YAML = {name: reader for name, reader in READERS.items() if reader.yaml}
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
            assert key in message or name == "lock", (key, message)
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
