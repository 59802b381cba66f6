"""Only IDs and values determine identity: a reworded sentence changes no lock, image or suite digest."""

from __future__ import annotations

import ast
import json
import shutil
import tokenize
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

import torchkiln
from tests.planned import FACTS, MATRIX
from tests.smoke_suites import SUITE
from torchkiln.locks import lock as lock_module
from torchkiln.locks.file import lock_digest, requirements_txt, to_json
from torchkiln.locks.lock import inputs_digest, load_locked
from torchkiln.matrix import resolve as resolve_module
from torchkiln.matrix.facts import Facts, parse
from torchkiln.matrix.public_record import on_record
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Source
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.recipe import RECIPE
from torchkiln.model.untrusted import is_untrusted
from torchkiln.plan.plan import GENERATED, plan
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.suite import canonical, load_suite, stripped, suite_digest
from torchkiln.util.places import ROOT

COMPAT = (Path(torchkiln.__file__).parent / "data/compat.yaml").read_bytes()
IMAGES = ROOT / "images"
CELLS = tuple(all_cells(MATRIX))
# Where compat.yaml has sentences: the name of the table, and the key in its entries.
SENTENCES = [
    ("traps", "why"),
    ("traps", "limit"),
    ("rules", "limit"),
    ("checks", "limit"),
    ("sources", "what"),
]
FILES = sorted(path.relative_to(SUITE).as_posix() for path in SUITE.rglob("*.py"))
LOCKS = sorted(path.parent.name for path in IMAGES.glob("*/lock.json"))


def inputs(facts: Facts, answer: Callable[..., Any] = resolve) -> dict[Cell, Digest]:
    """For every available cell, the values that `lock --check` compares."""
    resolutions = (answer(cell, MATRIX, facts) for cell in CELLS)
    return {found.cell: inputs_digest(found, ("torch",)) for found in resolutions if found.build}


BEFORE = inputs(FACTS)


@cache
def committed(tag: str) -> LockedCell:
    return load_locked(IMAGES, tag)


def changed(edit: Callable[[dict[str, Any]], object]) -> Facts:
    """The facts of compat.yaml after *edit* has changed its data."""
    data = yaml.load(COMPAT, yaml.CSafeLoader)
    edit(data)
    return parse(yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False).encode())


def test_reworded_sentences_leave_every_lock_fresh() -> None:
    def reword(data: dict[str, Any]) -> None:
        for table, key in SENTENCES:
            entries = [entry for entry in data[table].values() if key in entry]
            assert entries
            for entry in entries:
                entry[key] = "Other words." + " {}" * entry[key].count("{}")

    assert inputs(changed(reword)) == BEFORE


def test_comments_of_the_facts_leave_every_lock_fresh() -> None:
    assert inputs(parse(b"# other words\n" + COMPAT.replace(b"#", b"# other words,"))) == BEFORE


def _set(*path: str, to: object) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        *above, last = path
        for name in above:
            data = data[name]
        assert data[last] != to
        data[last] = to

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        _set("floors", "12", "driver", to="525.85.12"),
        _set("cuda", "12.6", "full", to="560.35.06"),
        _set("traps", "numpy-2", "constrain", to="numpy<1.27"),
        _set("traps", "pkg-resources", "require", to="setuptools<71"),
        _set("releases", "2.7.1", "variants", "cu126", "archs", to=["sm_90"]),
        _set("releases", "2.7.1", "companions", "torchvision", to="0.22.2"),
        _set("gpus", "10.0", "aarch64", to=["B200", "GB200"]),
        _set("toolkits", "13.0", "programs", to=["nvcc"]),
    ],
    ids=["floor", "full driver", "bound", "requirement", "code", "torchvision", "GPUs", "toolkit"],
)
def test_a_changed_value_makes_locks_stale(edit: Callable[[dict[str, Any]], None]) -> None:
    found = inputs(changed(edit))
    moved = [cell for cell, digest in found.items() if digest != BEFORE[cell]]

    assert moved
    assert len(moved) < len(BEFORE), "it concerns some cells"


def test_comments_and_docstrings_of_resolve_leave_every_lock_fresh() -> None:
    module = ModuleType("torchkiln.resolve_reworded")
    exec(
        compile(reworded(Path(str(resolve_module.__file__)).read_bytes()), "resolve.py", "exec"),
        module.__dict__,
    )

    assert inputs(FACTS, module.resolve) == BEFORE


@pytest.mark.parametrize("tag", LOCKS)
def test_an_image_has_no_sentence_of_the_facts(tag: str) -> None:
    """Labels, generated files and the claims for the checks contain none."""
    locked = committed(tag)
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    files = [file.data.decode() for file in planned.layers[-1].files if file.path in GENERATED]
    claims = facts_of(
        locked, {}, tag=tag, lock_digest=lock_digest(locked), manifest=Digest("sha256:" + "0" * 64)
    )
    text = "\n".join(
        [*files, *dict(planned.config.labels).values(), str(claims), (IMAGES / tag / "lock.json").read_text()]
    )

    assert locked.resolution.limits
    for sentence in [*FACTS.limit_texts.values(), *(trap.why for trap in FACTS.traps if trap.why)]:
        assert max(sentence.split("{}"), key=len).strip() not in text


def reworded(source: bytes) -> bytes:
    """*source* with other text in each comment and docstring, and with a comment at the end of each line."""
    lines = source.decode().split("\n")
    tokens = [item for item in tokenize.tokenize(BytesIO(source).readline) if item.type == tokenize.COMMENT]
    for token in tokens:
        row, column = token.start
        lines[row - 1] = lines[row - 1][:column] + "# other words: é"
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            value = node.body[0].value  # type: ignore[attr-defined]
            first, last = value.lineno - 1, value.end_lineno - 1
            lines[first : last + 1] = [
                lines[first].encode()[: value.col_offset].decode() + '"""Other words: é."""',
                *[""] * (last - first),
            ]
    return "\n".join(lines).encode()


def test_a_suite_with_other_comments_has_the_same_digest(tmp_path: Path) -> None:
    copied = tmp_path / "suite"
    shutil.copytree(SUITE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for path in FILES:
        (copied / path).write_bytes(reworded((SUITE / path).read_bytes()))

    assert suite_digest(copied) == load_suite(copied).digest == suite_digest(SUITE)
    assert load_suite(copied).runnable() == load_suite(SUITE).runnable()


def code_of(source: bytes) -> tuple[object, ...]:
    """*source*, compiled without docstrings (as with -OO)."""

    def constants_of(code: CodeType) -> tuple[object, ...]:
        consts = tuple(constants_of(item) if isinstance(item, CodeType) else item for item in code.co_consts)
        rows = [line for _, _, line in code.co_lines()]
        return (code.co_name, code.co_code, consts, code.co_names, code.co_varnames, rows)

    return constants_of(compile(source, "check.py", "exec", optimize=2, dont_inherit=True))


@pytest.mark.parametrize("path", FILES)
def test_the_stripped_check_runs_line_for_line(path: str) -> None:
    source = (SUITE / path).read_bytes()
    found = stripped(source)

    assert code_of(found) == code_of(source)
    assert found.count(b"\n") == source.count(b"\n")
    assert b"#" not in b"".join(
        token.string.encode()
        for token in tokenize.tokenize(BytesIO(found).readline)
        if token.type == tokenize.COMMENT
    )


@pytest.mark.parametrize(
    ("item", "changed_source"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = '\\u0661'", "x = '1'"),
        ("def f():\n    'doc'\n    return 1", "def f():\n    return 2"),
        ("def f():\n    x = 'no docstring'", "def f():\n    x = 'another'"),
        ("assert a\nassert b", "assert a"),
        ("if a:\n    b\nc", "if a:\n    b\n    c"),
        ("from x import y", "from x import z"),
        ("@one\ndef f(): ...", "@other\ndef f(): ..."),
        ("x = [None]", "x = []"),
        ("f(a=None)", "f()"),
        ("x = f'{a!r}'", "x = f'{a!s}'"),
        ("x: int", "x: str"),
        ("a < b", "a <= b"),
    ],
)
def test_two_programs_have_two_texts(item: str, changed_source: str) -> None:
    assert canonical(item.encode()) != canonical(changed_source.encode())


@pytest.mark.parametrize(
    "source",
    [
        b'"""a\n\xc3\xa9"""; x = 1\n',
        b'def f(): "one"; return 1\n',
        b'class A:\n    (\n    """doc"""  # why\n    )\n    b = 1\n',
        b'def f():\n    "one" "two"\n    return "#no comment"\n',
        b'x = """\n# no comment\n"""\n',
        b"# -*- coding: latin-1 -*-\nx = '\xe9'  # \xe9\n",
        b"\xef\xbb\xbfx = 1  # bom\r\ny = 2\r\n",
        b"def f():\n    'only'\n",
        b"async def f():\n    '''only'''\nclass A: 'only'\n",
        b"",
        b"# only a comment",
        b"if x:\n    pass\n    # last\n# end\n",
        b"x = (1,  # one\n     2)  # two\n",
    ],
)
def test_odd_sources_are_stripped_to_the_same_program(source: bytes) -> None:
    found = stripped(source)

    assert canonical(found) == canonical(source)
    assert ast.dump(ast.parse(stripped(found))) == ast.dump(ast.parse(found))


@pytest.mark.parametrize(
    "source",
    [
        b"def",
        b"x = \x00",
        b"\xff",
        b"# coding: nonesuch\n",
        b"(" * 500 + b")" * 500,
        b"x = " + b"-" * 9000 + b"1",
    ],
)
def test_invalid_python_is_refused(source: bytes) -> None:
    with pytest.raises(ValueError, match="not Python"):
        stripped(source)


def test_another_recipe_makes_every_lock_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI compares locks, so it builds every image again."""
    monkeypatch.setattr(lock_module, "RECIPE", RECIPE + 1)
    after = inputs(FACTS)

    assert all(after[cell] != digest for cell, digest in BEFORE.items())


# --- committed locks are complete and have no data of the machine ----------------------------------


SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "torchkiln/data/lock.schema.json").read_bytes()))


@pytest.mark.parametrize("tag", LOCKS)
def test_a_committed_lock_is_complete_and_has_no_data_of_its_maker(tag: str) -> None:
    data = (IMAGES / tag / "lock.json").read_bytes()
    found = committed(tag)
    SCHEMA.validate(json.loads(data))

    assert to_json(found) == data
    assert (IMAGES / tag / "requirements.txt").read_bytes() == requirements_txt(found)
    assert b"://" not in data
    assert b"/work" not in data
    assert not is_untrusted(found)


@pytest.mark.parametrize("tag", LOCKS)
def test_a_committed_lock_of_another_index_matches_the_record(tag: str) -> None:
    found = committed(tag)
    cell, build = found.resolution.cell, found.resolution.build
    assert build
    known = {item.name: (item.filename, item.sha256) for item in on_record(FACTS, build, cell.python)}
    mine = {
        wheel.name: (wheel.filename, wheel.sha256) for wheel in found.wheels if wheel.index is Source.PYTORCH
    }
    assert mine == known
    assert {*found.by_record} == mine.keys()


def test_every_cell_of_the_default_index_is_committed_without_the_traps() -> None:
    """All lockable cells of the default OS are committed, and some cells of other systems."""
    found = [resolve(cell, MATRIX, FACTS) for cell in all_cells(MATRIX)]
    of_default = {tag_of(item) for item in found if item.build and item.build.source is Source.DEFAULT}
    lockable = {tag_of(item) for item in found if item.lockable and item.cell.os == DEFAULT_OS}
    by_record = {tag for tag in LOCKS if committed(tag).by_record}
    thin = {tag for tag in LOCKS if committed(tag).resolution.cell.gpus}  # made from full locks
    assert lockable <= {*LOCKS} - by_record - thin <= of_default
    for tag in LOCKS:
        versions = {wheel.name: wheel.version for wheel in committed(tag).wheels}
        old = tag.startswith(("2.0.", "2.1.", "2.2."))
        assert versions["numpy"].startswith("1.26.") == old, tag
        if "cuda12.1" in tag and tag.startswith(("2.1.", "2.2.", "2.3.", "2.4.")):
            assert versions["nvidia-nvjitlink-cu12"] == "12.1.105"
        if tag.startswith(("2.0.", "2.1.")):
            assert int(versions["setuptools"].partition(".")[0]) < 70
    assert {"cmake", "lit", "wheel"} <= {wheel.name for wheel in committed(LOCKS[0]).wheels}
