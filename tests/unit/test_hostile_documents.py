"""Untrusted documents: each reader returns a value or an error message; it neither crashes nor hangs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.arranged_documents import TAG
from tests.document_strategies import FEW, VALUES, answer, json_bytes, mutated, spoiled
from tests.hostile_documents import CASES, Ran, page_of, provoke
from tests.peak import LIMIT, run
from tests.planned import FACTS
from torchkiln.base.contents import parse_status
from torchkiln.errors import ConfigError, Stale, printable
from torchkiln.locks import file as lock_file
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix
from torchkiln.smoke import report
from torchkiln.util import located_yaml, schema
from torchkiln.util.places import ROOT
from torchkiln.util.strict_json import json_of, read_file

LOCK = (ROOT / "images" / TAG / "lock.json").read_bytes()
REPORT = (ROOT / "docs/proofs/2.7.1-cuda12.1-debian12-tier0.json").read_bytes()
MATRIX = (ROOT / "matrix.yaml").read_text()


# --- through the command line ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The message of each case; each command is run once."""
    found = {}
    for case in CASES:
        found[case.name] = provoke(case, tmp_path_factory.mktemp("case"))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_message_has_the_fault_and_a_hint(case: Any, results: dict[str, Ran]) -> None:
    """It has no control characters. stdout is empty, and there is no traceback."""
    found = results[case.name]

    assert (found.code, found.out) == (case.code, "")
    assert case.message in found.err
    assert found.err.startswith("error: ")
    assert "\nhint: " in found.err
    assert "Traceback" not in found.err
    assert found.err == printable(found.err)
    assert len(found.err) < 5000


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("project: ")])
def test_a_hostile_project_needs_little_memory(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case.arrange()
    done = run(*case.argv, folder=tmp_path)
    assert (done.code, done.peak < LIMIT) == (case.code, True), done


def test_the_page_of_messages_is_fresh(results: dict[str, Ran]) -> None:
    """`make golden` updates the page."""
    assert (ROOT / "tests/golden/hostile-documents.md").read_text() == page_of(results)


def test_the_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40


# --- locks ----------------------------------------------------------------------------------------


def resealed(document: dict[str, Any]) -> bytes:
    """*document* with a new seal, as an attacker who knows the algorithm can make it."""
    with suppress(TypeError, KeyError):  # wheels of another type have no digest
        document["digest"] = lock_file._digest(document)
    document["seal"] = lock_file._seal(document)
    return json_bytes(document)


def agree(data: bytes, name: str) -> None:
    """Check that the jsonschema package accepts *data*, too, which torchkiln has accepted."""
    jsonschema.Draft202012Validator(schema.shipped(name)).validate(json.loads(data))


@given(
    data=st.binary(max_size=200)
    | VALUES.map(json_bytes)
    | spoiled(LOCK)
    | mutated(json.loads(LOCK)).map(json_bytes)
)
@FEW
def test_a_changed_lock_is_refused(data: bytes) -> None:
    """Only changes of white space and of the order of keys are accepted."""
    found = answer(lambda: lock_file.from_json(data))
    if found is not None:
        assert json.loads(data) == json.loads(LOCK)
        assert lock_file.to_json(found) == LOCK


@given(document=mutated(json.loads(LOCK)))
@FEW
def test_a_valid_seal_does_not_make_a_lock_valid(document: dict[str, Any]) -> None:
    """Even with a new seal, a lock must fit the schema. An accepted lock reads back the same."""
    try:
        data = resealed(document)
    except UnicodeEncodeError:
        return
    found = answer(lambda: lock_file.from_json(data))
    if found is not None:
        agree(data, "lock")
        again = lock_file.to_json(found)
        assert lock_file.from_json(again) == found
        assert lock_file.to_json(lock_file.from_json(again)) == again
        for wheel in found.wheels:
            assert Path(wheel.filename).name == wheel.filename
            assert not set(wheel.name + wheel.version) & set("\n\r /;#")


LEAVES = (
    ("wheels", 0, "sha256", "0" * 64),
    ("wheels", 0, "size", 1),
    ("wheels", 0, "index", "pytorch"),
    ("base", "digest", "sha256:" + "0" * 64),
    ("layers", 0, "digest", "sha256:" + "0" * 64),
    ("layers", 0, "diff_id", "sha256:" + "0" * 64),
    ("layers", 0, "unpacked", 1),
    ("epoch", 1),
    ("as_of", "2020-01-01"),
    ("inputs", "sha256:" + "0" * 64),
    ("digest", "sha256:" + "0" * 64),
    ("seal", "sha256:" + "0" * 64),
)


@pytest.mark.parametrize("change", LEAVES, ids=lambda change: ".".join(map(str, change[:-1])))
def test_each_value_of_a_lock_is_under_the_seal(change: tuple[Any, ...]) -> None:
    """The seal covers even values that no other check compares."""
    *parents, key, value = change
    document = owner = json.loads(LOCK)
    for step in parents:
        owner = owner[step]
    owner[key] = value
    if change[:3] == ("wheels", 0, "index"):
        document["indexes"] = ["default-index", "pytorch"]
    with pytest.raises(Stale, match="edited or merged incorrectly"):
        lock_file.from_json(json_bytes(document))


def test_a_final_newline_does_not_pass_a_pattern() -> None:
    """Python's `$` also matches before a final newline, which would add a line to requirements.txt."""
    document = json.loads(LOCK)
    document["wheels"][0]["sha256"] += "\n"
    with pytest.raises(Stale, match=r"wheels\[0\]\.sha256: .* is not a sha256"):
        lock_file.from_json(resealed(document))


def test_a_wheel_that_no_index_has_is_not_in_the_lock_of_a_cell() -> None:
    """The image of a cell is published, so its packages must not come from a project's folder."""
    document = json.loads(LOCK)
    document["wheels"][0]["index"] = "project"
    document["indexes"] = sorted({wheel["index"] for wheel in document["wheels"]})
    with pytest.raises(Stale, match="only the lock of a project may have wheels that are on no index"):
        lock_file.from_json(resealed(document))


def test_the_layout_of_the_text_is_not_under_the_seal() -> None:
    """A checkout with other line endings or a code formatter may change it."""
    known = lock_file.from_json(LOCK)

    assert lock_file.from_json(LOCK.replace(b"\n", b"\r\n")) == known
    assert lock_file.from_json(json.dumps(json.loads(LOCK), indent=8, sort_keys=True).encode()) == known


@pytest.mark.parametrize("tag", ["../../etc", "a/b", "", ".", "..", "a\0b", "x" * 200])
def test_a_tag_is_not_a_path(tmp_path: Path, tag: str) -> None:
    """The name of a lock's folder may come from an image's label."""
    with pytest.raises(ConfigError, match="is not the tag of an image"):
        load_locked(tmp_path, tag)


# --- YAML -----------------------------------------------------------------------------------------


@given(data=mutated(yaml.safe_load(MATRIX)))
@FEW
def test_a_matrix_with_one_change_is_read_or_refused(data: Any) -> None:
    """The jsonschema package accepts each matrix that torchkiln accepts."""
    text = yaml.safe_dump(data)
    found = answer(lambda: matrix.load(text, FACTS))
    if found is not None:
        read = located_yaml.parse(text, name="x").data
        jsonschema.Draft202012Validator(schema.shipped("matrix")).validate(read)


@given(
    data=spoiled(MATRIX.encode())
    | st.binary(max_size=100)
    | VALUES.map(lambda v: yaml.dump(v).encode("utf-8", "replace"))
)
@FEW
def test_a_matrix_of_any_bytes_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes(data)
    answer(lambda: matrix.read(path, FACTS))


def test_a_yaml_bomb_in_the_facts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compat\.yaml:1: anchors and aliases"):
        facts_of.parse(b"a: &a [x]\nb: [*a, *a]\n")


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("\ufeffa: '1'\n", {"a": "1"}),
        ("a: '1'\r\nb: '2'\r\n", {"a": "1", "b": "2"}),
        (
            "a: 012\nb: 1_000\nc: 12:30:00\nd: .nan\n",
            {"a": "012", "b": "1_000", "c": "12:30:00", "d": ".nan"},
        ),
        ("a: 2024-02-07\n", {"a": "2024-02-07"}),
    ],
    ids=["byte order mark", "CRLF", "numbers of older YAML", "date"],
)
def test_yaml_that_other_readers_interpret_differently(text: str, accepted: dict[str, str]) -> None:
    """Values that other versions of YAML read as numbers are strings here."""
    assert located_yaml.parse(text, name="x").data == accepted


@pytest.mark.parametrize(("length", "kind"), [(80, float), (81, str)])
def test_numbers_in_yaml_have_at_most_80_characters(length: int, kind: type) -> None:
    found = located_yaml.parse(f"a: 0.{'1' * (length - 2)}\n", name="x").data
    assert isinstance(found["a"], kind)


def test_no_yaml_is_parsed_beyond_its_limit() -> None:
    longest = "a: b" + " " * (located_yaml.MAX_TEXT - 4)
    assert located_yaml.parse(longest, name="x").data == {"a": "b"}
    with pytest.raises(ConfigError, match="x: longer than 131072 characters"):
        located_yaml.parse(longest + " ", name="x")


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": 1, "a": 1}', "duplicate key 'a'"),
        (b"[1e999]", "out of range"),
        (b"[" + b"9" * 5000 + b"]", "a number of 5000 digits"),
        (b"[-Infinity]", "-Infinity is not valid JSON"),
        (b'["\\ud800"]', "unpaired surrogate"),
        (b'{"\\udfff": 1}', "unpaired surrogate"),
        (b"\xef\xbb\xbf[]", "byte order mark"),
        ("[]".encode("utf-16"), "line 1: not UTF-8"),
        (b'{\n"a": "\xff"}', "line 2: not UTF-8"),
        (b"[" * 41 + b"]" * 41, "nested too deep: more than 40"),
        (b'{"a":' * 41 + b"1" + b"}" * 41, "nested too deep: more than 40"),
        (b"[" * 100_000, "nested too deep"),
        (b"{\n=======\n}", "line 2: unresolved merge conflict"),
        (b"", "line 1: not JSON"),
    ],
)
def test_ambiguous_json_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_of(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[18446744073709551616]", "more than 64 bits"),
        (b"[-9223372036854775809]", "more than 64 bits"),
        (b"[" + b"{}," * 600_000 + b"{}]", "more than 1048576 values"),
        (b"[" + b'"",' * 2_200_000 + b'""]', "more than 1048576 values"),
        (b'["' + b'\\"[' * 100_000, "line 1: not JSON"),
        (b'["' + b"\\\\" * 100_000 + b'", [[' + b"[" * 50, "nested too deep"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_json_that_needs_much_memory_is_refused_before_parsing(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_of(data)


def test_integers_of_64_bits_are_read() -> None:
    assert json_of(b"[18446744073709551615, -9223372036854775808]") == [2**64 - 1, -(2**63)]


def test_a_duplicate_key_among_many_is_found_fast() -> None:
    """A search in quadratic time would take minutes."""
    data = b"{" + b",".join(b'"k%d":0' % number for number in range(200_000)) + b',"k199999":1}'
    with pytest.raises(ValueError, match="duplicate key 'k199999'"):
        json_of(data)


def test_messages_are_truncated() -> None:
    found = ConfigError.of(["x" * 1_000_000, *(str(number) for number in range(10_000))], hint="y" * 9000)

    assert len(found.message) < 10_000
    assert found.message.endswith("and 9501 more lines")
    assert len(found.hint) < 2100


def test_no_file_is_read_beyond_its_limit(tmp_path: Path) -> None:
    """One of the files is a sparse file of 5 GB."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        read_file(tmp_path / "big", 1000)
    with pytest.raises(OSError, match="is a device, not a file"):
        read_file(Path("/dev/zero"), 1000)


@given(
    text=st.text(max_size=60)
    | spoiled(b"Package: tar\nStatus: install ok installed\nVersion: 1\n\n").map(
        lambda b: b.decode("latin-1")
    )
)
def test_a_dpkg_status_is_read_or_refused(text: str) -> None:
    answer(lambda: parse_status(text))


@given(data=st.binary(max_size=100) | mutated(json.loads(REPORT)).map(json_bytes))
@FEW
def test_a_report_is_read_or_refused(data: bytes) -> None:
    """Every report that is accepted can be shown in each format."""
    found = answer(lambda: report.from_json(data))
    if found is not None:
        agree(data, "smoke-report")
        assert report.from_json(report.to_json(found)) == found
        assert all(line == printable(line) for line in report.to_lines(found))
        report.to_junit(found)
        report.to_markdown(found)


# --- the terminal ---------------------------------------------------------------------------------


@given(st.text())
def test_messages_contain_no_control_characters(text: str) -> None:
    """Escape sequences, invisible characters and lone surrogates are escaped."""
    shown = ConfigError(text, hint=text).message

    assert not {char for char in shown if not (char.isprintable() or char in "\t\n")}
    shown.encode()
    assert ConfigError(shown).message == shown
