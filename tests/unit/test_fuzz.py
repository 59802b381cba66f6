"""The fuzzers in short, from fixed seeds; the long run is `python -m tests.fuzz`."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import documents_target, layer_target, pages_target, tar_target, zip_target
from tests.fuzz.__main__ import run
from tests.fuzz.oracle import Refused, installed
from tests.fuzz.source import Decisions
from tests.hostile import SPEC
from tests.layers import Item
from tests.wheels import write_wheel


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize(
    "target",
    [zip_target, layer_target, tar_target, documents_target, pages_target],
    ids=["zip", "layer", "tar", "documents", "pages"],
)
def test_where_the_fuzzers_start_from(target: object, scratch: Path) -> None:
    """Readers agree about all of it, and it shows both sides: what is accepted and what is not."""
    found = {target.check(data, scratch) for data in target.corpus(scratch)}  # type: ignore[attr-defined]
    assert len(found) > 1
    assert found & {"taken", "written"}


@given(data=st.binary(max_size=300))
def test_any_program_of_lies(scratch: Path, data: bytes) -> None:
    """A refusal, or the tree that `zipfile` sees."""
    zip_target.judge(zip_target.program(Decisions(data), scratch), scratch)


@given(data=st.binary(max_size=400))
def test_any_order_of_files(scratch: Path, data: bytes) -> None:
    """A collision, or the tree that was asked for, to gzip and to tarfile."""
    layer_target.check(data, scratch)


@given(data=st.binary(max_size=300))
def test_any_tar_of_lies(scratch: Path, data: bytes) -> None:
    """A refusal, or the tree that Python's tarfile sees, and nothing outside of it."""
    tar_target.check(data, scratch)


@given(data=st.binary(max_size=200))
def test_any_changed_document(data: bytes) -> None:
    """A refusal in a sentence, or the value that other readers of JSON see."""
    documents_target.judge(documents_target.program(Decisions(data)))


@given(data=st.binary(max_size=200))
def test_any_page_of_an_index(scratch: Path, data: bytes) -> None:
    """A refusal in a sentence, or the files that pypi_simple finds on it."""
    pages_target.check(data, scratch)


def test_a_json_reader_that_sees_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the first of two keys, a number for a truth, or half a character."""
    for data, wrong in ((b'{"a": 1}', {"a": True}), (b"[1]", [1.0]), (b'["x"]', ["y"]), (b"[]", [0])):
        monkeypatch.setattr(documents_target, "json_of", lambda _, wrong=wrong: wrong)
        with pytest.raises((AssertionError, ValueError)):
            documents_target.judge(data)


@pytest.mark.parametrize(
    ("target", "runs"), [("zip", 1500), ("layer", 1500), ("tar", 1500), ("documents", 500), ("pages", 1500)]
)
def test_some_seconds_of_atheris(target: str, runs: int) -> None:
    """Guided by coverage. The seed is fixed."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris, which has builds for Python 3.11 to 3.13")
    figures = run(target, seed=1, runs=runs)
    assert figures["crashes"] == 0, figures.get("talk")
    assert int(figures["runs"]) >= runs
    assert int(figures["features"]) > 50


def test_a_reader_that_sees_something_else_is_noticed(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the two disagreed about one byte, or one file, the fuzzer would stop there."""
    wheel = write_wheel(SPEC, scratch / "seed").read_bytes()
    assert zip_target.judge(wheel, scratch) == "taken"
    true = installed(wheel)
    path = next(path for path in true if path.endswith("lib.so"))
    others = (
        {**true, path: Item(kind="file", mode=0o755, data=true[path].data + b"x")},
        {**true, path: Item(kind="file", mode=0o644, data=true[path].data)},
        {name: item for name, item in true.items() if name != path},
        {**true, f"{path}x": true[path]},
    )
    for other in others:
        monkeypatch.setattr(zip_target, "installed", lambda _, other=other: other)
        with pytest.raises(AssertionError):
            zip_target.judge(wheel, scratch)


def test_what_zipfile_refuses_is_no_agreement(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours may be stricter than the standard library, never laxer."""
    with pytest.raises(Refused):
        installed(b"no zip")
    wheel = write_wheel(SPEC, scratch / "seed").read_bytes()

    def refuse(_: bytes) -> dict[str, Item]:
        raise Refused("for the test")

    monkeypatch.setattr(zip_target, "installed", refuse)
    with pytest.raises(Refused):
        zip_target.judge(wheel, scratch)
