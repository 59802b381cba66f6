"""Lines are inserted into matrix.yaml, in the format of their neighbours."""

from __future__ import annotations

import pytest
import yaml

from tests.planned import FACTS, ROOT
from torchkiln.errors import ConfigError
from torchkiln.matrix.add_release import with_item
from torchkiln.matrix.matrix import load

OURS_EDIT = (ROOT / "matrix.yaml").read_text()


def put(text: str, version: str, key: str = "torch") -> str:
    return with_item(text, key, f'"{version}"', name="matrix.yaml")


def test_our_matrix_gets_one_line() -> None:
    text = put(put(OURS_EDIT, "2.9.0"), "12.8", "cuda")

    assert text.replace('  - "2.9.0"\n', "", 1).replace('  - "12.8"\n', "", 1) == OURS_EDIT
    assert load(text, FACTS).torch[-2:] == ("2.8.0", "2.9.0")
    assert load(text, FACTS).cuda == ("11.7", "11.8", "12.1", "12.8")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('torch:\n  - "2.8.0"\n', 'torch:\n  - "2.8.0"\n  - "2.9.1"\n'),
        ('torch:\n  - "2.8.0"', 'torch:\n  - "2.8.0"\n  - "2.9.1"\n'),
        ('torch:\n- "2.8.0"  # kept\n\n# x\n', 'torch:\n- "2.8.0"  # kept\n- "2.9.1"\n\n# x\n'),
        ('torch:\n  - "2.10.0"\n  # x\n', 'torch:\n  - "2.10.0"\n  - "2.9.1"\n  # x\n'),
        ('torch:\n  -   "2.8.0"\n', 'torch:\n  -   "2.8.0"\n  -   "2.9.1"\n'),
        ('torch:\n  - "2.8.0"\r\n', 'torch:\n  - "2.8.0"\r\n  - "2.9.1"\r\n'),
        ('# ä €\ntorch:\n  - "2.8.0"\n', '# ä €\ntorch:\n  - "2.8.0"\n  - "2.9.1"\n'),
        ('torch: ["2.8.0"]\n', 'torch: ["2.8.0", "2.9.1"]\n'),
        ('torch: ["2.10.0"]  # c\n', 'torch: ["2.10.0", "2.9.1"]  # c\n'),
        ('torch: [\n  "2.8.0",\n  "2.10.0",\n]\n', 'torch: [\n  "2.8.0",\n  "2.10.0", "2.9.1",\n]\n'),
    ],
)
def test_a_line_has_the_format_of_its_neighbours(before: str, after: str) -> None:
    assert put(before, "2.9.1") == after
    assert "2.9.1" in yaml.safe_load(after)["torch"]


@pytest.mark.parametrize("text", ['torch:\n  -\n    "2.8.0"\n', "torch: []\n", "cuda: [1]\n", "x\n"])
def test_an_unsupported_format_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot insert a line into the list torch") as caught:
        put(text, "2.9.1")

    assert '- "2.9.1"' in caught.value.hint


PAIR = '{torch: "2.9.1", cuda: "12.8"}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x: 1\n", f"x: 1\n\nbeyond:\n  - {PAIR}\n"),
        ("x: 1", f"x: 1\n\nbeyond:\n  - {PAIR}\n"),
        ("x: 1\r\n", f"x: 1\r\n\r\nbeyond:\r\n  - {PAIR}\r\n"),
        (
            'beyond:\n  - {torch: "2.8.0", cuda: "12.8"}\nx: 1\n',
            f'beyond:\n  - {{torch: "2.8.0", cuda: "12.8"}}\n  - {PAIR}\nx: 1\n',
        ),
        (
            'beyond:\n- {cuda: "13.0", torch: "2.11.0"}  # kept\n',
            f'beyond:\n- {{cuda: "13.0", torch: "2.11.0"}}  # kept\n- {PAIR}\n',
        ),
        (
            'beyond: [{torch: "2.8.0", cuda: "12.8"}]\n',
            f'beyond: [{{torch: "2.8.0", cuda: "12.8"}}, {PAIR}]\n',
        ),
    ],
)
def test_an_extra_cell_is_the_last(before: str, after: str) -> None:
    assert with_item(before, "beyond", PAIR, name="matrix.yaml") == after
    assert {"torch": "2.9.1", "cuda": "12.8"} in yaml.safe_load(after)["beyond"]


@pytest.mark.parametrize("text", ["beyond: []\n", 'beyond:\n  - torch: "2.8.0"\n    cuda: "12.8"\n'])
def test_extra_cells_in_an_unsupported_format_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot insert a line into the list beyond") as caught:
        with_item(text, "beyond", PAIR, name="matrix.yaml")

    assert PAIR in caught.value.hint
