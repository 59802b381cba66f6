"""matrix.yaml is read into a Matrix, or its errors are reported with their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.expected import DEFAULT_OS as DEFAULT_OF_THE_SUITE
from tests.planned import FACTS, MATRIX, ROOT
from torchkiln.errors import ConfigError
from torchkiln.matrix.matrix import load
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.util import located_yaml
from torchkiln.util.schema import KEYWORDS

SCHEMA: dict[str, Any] = json.loads((ROOT / "torchkiln" / "data" / "matrix.schema.json").read_text())

GOOD = """\
torch: ["2.7.1", "2.6.0"]
cuda: ["12.1"]
flavors: [runtime]
os:
  debian12: {python: "3.11"}
packages: [numpy, "pillow>=10,<13"]
repository: pytorch-cuda
"""


def _faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, FACTS)
    assert caught.value.exit_code == 2
    return caught.value.message.splitlines()


def test_the_repositorys_own_matrix():
    assert len(MATRIX.torch) * len(MATRIX.cuda) * len(MATRIX.flavors) == 54
    assert [(os.name, os.python) for os in MATRIX.os] == [
        ("debian12", "3.11"),
        ("debian13", "3.13"),
        ("ubuntu22.04", "3.10"),
        ("ubuntu24.04", "3.12"),
    ]
    assert (MATRIX.repository, MATRIX.prefer) == ("pytorch-cuda", "default-index")
    (index,) = MATRIX.indexes
    assert index.variable == "TORCHKILN_INDEX_PYTORCH"
    assert index.packages == ("torch", "torchvision", "torchaudio", "triton")


def test_a_small_matrix_has_defaults_and_is_sorted():
    matrix = load(GOOD, FACTS)
    assert matrix.torch == ("2.6.0", "2.7.1")
    assert (matrix.prefer, matrix.bounds, matrix.indexes) == ("default-index", (), ())
    assert matrix.aliases.newest_torch is None


def test_all_errors_are_reported_at_once_with_their_lines():
    text = """\
torch: [2.7, "2.9.9", "2.7.1", "2.7.1"]
cudda: ["12.1"]
flavors: [runtme]
os:
  debian12: {pyton: "3.11"}
packages: [torch==2, numpy]
repository: A B
prefer: nativ
bounds:
  - {torch: "2.6.0"}
"""
    assert _faults(text) == [
        "matrix.yaml:1: torch[0]: must be text, not 2.7; put it in quotes",
        "matrix.yaml:1: torch[3]: duplicate entry '2.7.1'",
        "matrix.yaml:1: the key 'cuda' is missing",
        "matrix.yaml:1: torch[1]: torch 2.9.9 is not in compat.yaml; nearest: 2.9.1, 2.9.0, 2.10.0",
        "matrix.yaml:2: cudda: unknown key; nearest valid: cuda",
        "matrix.yaml:3: flavors[0]: 'runtme' is not valid; nearest valid: runtime",
        "matrix.yaml:5: os.debian12.pyton: unknown key; nearest valid: python",
        "matrix.yaml:5: os.debian12: the key 'python' is missing",
        "matrix.yaml:6: packages[0]: every image has the torch of its cell; remove it here",
        "matrix.yaml:7: repository: 'A B' is not a repository name in lower case; example: \"pytorch-cuda\"",
        "matrix.yaml:8: prefer: 'nativ' is not valid; nearest valid: native",
        "matrix.yaml:10: bounds[0]: the key 'reason' is missing",
        "matrix.yaml:10: bounds[0].torch: '2.6.0' is not in this matrix; nearest: 2.7.1, 2.9.9",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD + "prefer: 3\n", "matrix.yaml:8: prefer: must be text, not 3; put it in quotes"),
        (GOOD + "bounds: none\n", "matrix.yaml:8: bounds: must be a list, not 'none'"),
        (GOOD + "bounds:\n", "matrix.yaml:8: bounds: must be a list, not nothing"),
        (
            GOOD + "aliases: {newest_torch: '{best}'}\n",
            "aliases.newest_torch: '{best}' is not a tag in which",
        ),
        (GOOD + "components: {a: {suffix: sm90}}\n", "matrix.yaml:8: components: unknown key; valid: torch,"),
        (GOOD + "indexes: {mirror: [torch]}\n", "indexes.mirror: unknown key; valid: pytorch"),
        (GOOD + "bounds: [{reason: bad}]\n", "bounds[0]: matches every cell"),
        (GOOD.replace("12.1", "12.3"), "cuda[0]: CUDA 12.3 is not in compat.yaml; nearest: 12.4"),
        (GOOD.replace('["12.1"]', "[]"), "matrix.yaml:2: cuda: must not be empty"),
        (GOOD.replace("debian12", "debain12"), "os.debain12: unknown key; nearest valid: debian12"),
        (
            GOOD.replace('"3.11"', '"3.12"'),
            "matrix.yaml:5: os.debian12.python: debian12 has Python 3.11, not 3.12",
        ),
        (GOOD + "torch: []\n", "matrix.yaml:8: torch: duplicate key, first on line 1"),
        ("? [a]\n: 1\n", "matrix.yaml:1: a key must be a scalar"),
    ],
)
def test_an_error_is_reported(text: str, fault: str):
    assert any(fault in line for line in _faults(text))


def test_a_bound_is_read(tmp_path: Path):
    matrix = load(GOOD + 'bounds: [{torch: "2.7.1", os: debian12, reason: "fell over"}]\n', FACTS)
    assert [(bound.torch, bound.cuda, bound.os, bound.reason) for bound in matrix.bounds] == [
        ("2.7.1", None, "debian12", "fell over")
    ]


# --- our check compared with the jsonschema package --------------------------


def _keywords(schema: Any) -> set[str]:
    """The keywords of JSON Schema that *schema* uses, without the names of its properties."""
    found: set[str] = set()
    for key, value in schema.items():
        found.add(key)
        if key in ("properties", "$defs"):
            for child in value.values():
                found |= _keywords(child)
        elif isinstance(value, dict):
            found |= _keywords(value)
    return found


def test_the_schema_and_the_suite_know_each_system():
    """Both repeat the code's table: the schema is JSON, and the suite runs without torchkiln."""
    assert set(SCHEMA["properties"]["os"]["properties"]) == set(SYSTEMS)
    assert DEFAULT_OF_THE_SUITE == DEFAULT_OS


def test_the_schema_uses_only_keywords_that_our_check_supports():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert _keywords(SCHEMA) <= KEYWORDS


VALUES = st.recursive(
    st.sampled_from([None, True, 2, "2.7.1", "12.1", "runtime", "debian12", "native", "", "3.11", "{torch}"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["python", "torch", "reason"]), inner)
    ),
    max_leaves=4,
)


@given(changes=st.dictionaries(st.sampled_from([*SCHEMA["properties"], "cudda"]), VALUES, max_size=3))
def test_our_check_and_jsonschema_refuse_the_same(changes: dict[str, Any]):
    data = yaml.safe_load(GOOD) | changes
    ours = located_yaml.parse(yaml.safe_dump(data), name="x")
    assert ours.data == data
    assert bool(located_yaml.faults(ours, SCHEMA)) != jsonschema.Draft202012Validator(SCHEMA).is_valid(data)
