"""The cells that options of the command line select, and the tags of cells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import FACTS, MATRIX, NATIVE_FIRST, ROOT, WITHOUT_BEYOND, answer
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix.matrix import Aliases, Bound, Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Option, Selection, all_cells, option_of, plain, select
from torchkiln.matrix.tags import aliases_of, dated, tag_of, undated
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.util.versions import nearest


def _named(**options: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(cell.torch, cell.cuda) for cell in select(Selection(**options), MATRIX)]  # type: ignore[arg-type]


def test_a_prefix_selects_the_newest_match():
    assert _named(torch=("2.7",), cuda=("12.1",)) == [("2.7.1", "12.1")]
    assert _named(cuda=("13",)) == [("2.15.0", "13.2")]
    assert _named(torch=("2.8",), cuda=("12",)) == [("2.8.0", "12.1")]
    assert _named(torch=("2.8",), cuda=("11",)) == [("2.8.0", "11.8")]
    assert _named(torch=("2.7.1",), cuda=("12",)) == [("2.7.1", "12.1")]


@pytest.mark.parametrize("options", [{}, {"cuda": ("12.1",)}, {"cuda": ("9.9",)}])
def test_a_major_version_of_several_series_is_ambiguous(options: dict[str, tuple[str, ...]]):
    with pytest.raises(ConfigError) as caught:
        _named(torch=("2",), **options)
    first = caught.value.message.splitlines()[0]
    assert first == f"--torch 2: ambiguous; the matrix has {', '.join(MATRIX.releases)}"
    assert caught.value.exit_code == 2


def test_a_major_version_of_one_series_selects_it():
    matrix = replace(WITHOUT_BEYOND, torch=("1.13.1", "2.7.0", "2.7.1"))
    cells = select(Selection(torch=("2",), cuda=("12.1",)), matrix)
    assert [cell.torch for cell in cells] == ["2.7.1"]


def test_an_unknown_torch_is_reported_without_its_cuda():
    with pytest.raises(ConfigError) as caught:
        _named(torch=("2.77",), cuda=("12.1",))
    assert caught.value.message == "--torch 2.77: not in the matrix; nearest: 2.7.1"


@pytest.mark.parametrize(
    ("option", "texts", "version"),
    [
        ("torch", "2.7 v2.7 V2.7 torch==2.7 torch=2.7 torch-2.7 pytorch-v2.7 torch==2.7.*", "2.7"),
        (
            "torch",
            "2.7.1+cu126 torch==2.7.1+cu126 torch-2.7.1+cu126-cp311-cp311-linux_x86_64.whl",
            "2.7.1+cu126",
        ),
        ("cuda", "12.6 cu126 cu12.6 CUDA12.6 cuda-12.6 v12.6 V12.6.85 12.6.3", "12.6"),
        ("python", "3.11 3.11.9 py311 cp311 python3.11", "3.11"),
    ],
)
def test_versions_in_the_forms_that_people_paste(option: Option, texts: str, version: str):
    assert {plain(option, text) for text in texts.split()} == {version}


@pytest.mark.parametrize("text", ["torch>=2.7", "2.7.1+cpu", "torchvision==0.22", "latest", "2.7.1-cuda12.1"])
def test_what_names_no_version_stays(text: str):
    assert plain("torch", text) == text
    assert option_of(text) is None


@pytest.mark.parametrize(
    ("names", "options", "cells"),
    [
        (("2.7.1+cu126",), {}, [("2.7.1", "12.1")]),  # the build of this cell's wheel
        (("2.7", "cu121"), {}, [("2.7.1", "12.1")]),
        (("torch==2.7.1",), {"cuda": ("12.6",)}, [("2.7.1", "12.1")]),
        ((), {"torch": ("v2.7,torch==2.6.0",), "cuda": ("12.1",)}, [("2.6.0", "12.1"), ("2.7.1", "12.1")]),
    ],
)
def test_a_version_selects_cells(
    names: tuple[str, ...], options: dict[str, Any], cells: list[tuple[str, str]]
):
    chosen = CellOptions(matrix_file=ROOT / "matrix.yaml", names=names, **options)
    assert [(cell.torch, cell.cuda) for cell in chosen.cells(must_name=True)[0]] == cells


def test_a_prefix_ends_at_a_dot():
    """1 does not select 12.1, and 2.0 does not select 2.01."""
    with pytest.raises(ConfigError):
        _named(cuda=("1",))


def test_several_values_are_unique_in_the_matrixs_order():
    assert _named(torch=("2.8,2.6", "2.8.0"), cuda=("12.1",)) == [("2.6.0", "12.1"), ("2.8.0", "12.1")]


def test_unnamed_options_have_defaults():
    cells = select(Selection(torch=("2.7",)), MATRIX)
    assert {(cell.flavor, cell.os, cell.python) for cell in cells} == {("runtime", "debian12", "3.11")}
    assert [cell.cuda for cell in cells] == ["11.7", "11.8", "12.1"]


def test_all_includes_every_flavor_and_system_unless_named():
    assert len(all_cells(WITHOUT_BEYOND)) == 216
    assert len(all_cells(MATRIX)) == 216 + 8 * len(MATRIX.beyond)
    assert len(select(Selection(every=True, flavor=("devel",)), WITHOUT_BEYOND)) == 108
    assert len(select(Selection(every=True, torch=("2.7",), os=("ubuntu22.04",)), MATRIX)) == 6


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=str)
def test_the_python_is_that_of_the_system(system):
    (cell,) = select(Selection(torch=("2.7",), cuda=("12.1",), os=(system.name,)), MATRIX)
    assert cell.python == system.python


def test_a_python_selects_the_systems_that_have_it():
    cells = select(Selection(torch=("2.7",), cuda=("12.1",), python=("3.13,3.11",)), MATRIX)
    assert {(cell.os, cell.python) for cell in cells} == {("debian12", "3.11"), ("debian13", "3.13")}
    (cell,) = select(Selection(torch=("2.7",), cuda=("12.1",), python=("3.13",), os=("debian13",)), MATRIX)
    assert cell.os == "debian13"
    assert {cell.os for cell in select(Selection(every=True, python=("3.10",)), MATRIX)} == {"ubuntu22.04"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"python": ("3.14",)},
            "--python 3.14: no selected operating system has it: debian12 has 3.11, debian13 has"
            " 3.13, ubuntu22.04 has 3.10, ubuntu24.04 has 3.12",
        ),
        (
            {"python": ("3.13",), "os": ("debian12",)},
            "--python 3.13: no selected operating system has it: debian12 has 3.11",
        ),
    ],
)
def test_a_python_that_no_system_has(options: dict[str, tuple[str, ...]], message: str):
    with pytest.raises(ConfigError) as caught:
        select(Selection(torch=("2.7",), **options), MATRIX)
    assert caught.value.message == message


def test_an_extra_cell_is_selected_like_others():
    assert _named(torch=("2.15",)) == _named(cuda=("13",)) == [("2.15.0", "13.2")]
    assert _named(torch=("2.8,2.11",), cuda=("12.1,13.0",)) == [("2.8.0", "12.1"), ("2.11.0", "13.0")]
    assert ("2.11.0", "12.1") not in {(cell.torch, cell.cuda) for cell in all_cells(MATRIX)}


def test_options_without_a_common_cell_are_reported_with_the_alternatives():
    with pytest.raises(ConfigError) as caught:
        _named(torch=("2.7,2.8",), cuda=("12.1,13.0",))
    assert caught.value.message.splitlines() == [
        "--cuda 13.0: not in the matrix with this torch, only with torch 2.11.0, 2.12.1, 2.13.0, 2.14.1"
    ]
    with pytest.raises(ConfigError) as caught:
        _named(torch=("2.11",), cuda=("12.1",))
    assert caught.value.message.splitlines()[0] == (
        "--torch 2.11.0: not in the matrix with this CUDA, only with CUDA 13.0"
    )


def test_unknown_values_are_reported_at_once_with_the_nearest():
    wrong = Selection(torch=("2.9", "banana"), cuda=("12.2",), flavor=("dev",), os=("ubuntu",))
    with pytest.raises(ConfigError) as caught:
        select(wrong, WITHOUT_BEYOND)
    assert caught.value.message.splitlines() == [
        "--torch 2.9: not in the matrix; nearest: 2.8.0, 2.7.1, 2.6.0",
        "--torch banana: not in the matrix (not a version); nearest: " + ", ".join(MATRIX.torch),
        "--cuda 12.2: not in the matrix; nearest: 12.1, 11.8, 11.7",
        "--flavor dev: not in the matrix; nearest: devel",
        "--os ubuntu: not in the matrix; nearest: ubuntu24.04, ubuntu22.04",
    ]
    assert caught.value.exit_code == 2


@given(
    st.lists(st.sampled_from(MATRIX.torch), min_size=1), st.lists(st.sampled_from(MATRIX.cuda), min_size=1)
)
def test_exact_versions_select_exactly_their_product(torch: list[str], cuda: list[str]):
    named = _named(torch=(",".join(torch),), cuda=tuple(cuda))
    assert set(named) == {(t, c) for t in torch for c in cuda}
    assert len(named) == len(set(named))


@given(st.text(max_size=12))
def test_any_text_is_an_error(text: str):
    with pytest.raises((ConfigError, NothingSelected)):
        select(Selection(torch=(text,), cuda=("12.1",), flavor=(text,), os=(text,)), MATRIX)


@pytest.mark.parametrize(
    ("value", "best"),
    [
        ("2.7.2", "2.7.1"),
        ("2.9", "2.8.0"),
        ("1.13", "2.0.1"),
        ("2.4", "2.4.1"),
        ("3.0", "2.8.0"),
        ("2.77", "2.7.1"),
        ("27", "2.7.1"),
    ],
)
def test_nearest_version(value: str, best: str):
    """The numbers are compared; if they differ too much, the spelling is."""
    assert nearest(value, MATRIX.torch)[0] == best


def test_a_wheel_with_only_a_known_cudnn_major_has_a_tag():
    assert tag_of(answer("2.5.1", "12.1", matrix=NATIVE_FIRST)) == "2.5.1-cuda12.1-cudnn9-runtime"


def test_an_unavailable_cell_has_no_name():
    unavailable = answer("2.0.1", "12.1")
    with pytest.raises(ValueError, match="no tag"):
        tag_of(unavailable)
    assert aliases_of(unavailable, MATRIX, FACTS) == ()


def _aliases(torch: str, cuda: str, *, matrix=MATRIX, **more: str) -> tuple[str, ...]:
    return aliases_of(answer(torch, cuda, matrix=matrix, **more), matrix, FACTS)


TWO_PATCHES = replace(WITHOUT_BEYOND, torch=("2.7.0", "2.7.1"))
BOUND = Bound(torch="2.8.0", cuda=None, flavor=None, os=None, reason="fails")
BOUNDED = replace(WITHOUT_BEYOND, bounds=(BOUND,))


@pytest.mark.parametrize(
    ("cell", "matrix", "aliases"),
    [
        (("2.7.1", "12.1"), MATRIX, ("2.7-cuda12.1-runtime", "v2.7")),
        # latest is the newest torch
        (("2.8.0", "12.1"), WITHOUT_BEYOND, ("2.8-cuda12.1-runtime", "v2.8", "latest")),
        (("2.15.0", "13.2"), MATRIX, ("2.15-cuda13.2-runtime", "v2.15", "latest")),
        (("2.11.0", "13.0"), MATRIX, ("2.11-cuda13.0-runtime", "v2.11")),
        # an extra cell moves no alias of another minor
        (("2.8.0", "12.1"), MATRIX, ("2.8-cuda12.1-runtime", "v2.8")),
        (("2.10.0", "12.8"), MATRIX, ("2.10-cuda12.8-runtime", "v2.10")),
        # torch 2.0.1 with CUDA 12.1 does not exist, so the alias of the newest CUDA is that of 11.8
        (("2.0.1", "11.8"), MATRIX, ("2.0-cuda11.8-runtime", "v2.0")),
        (("2.0.1", "11.7"), MATRIX, ("2.0-cuda11.7-runtime",)),
        # an older patch has only its own tag
        (("2.7.0", "12.1"), TWO_PATCHES, ()),
        (("2.7.1", "12.1"), TWO_PATCHES, ("2.7-cuda12.1-runtime", "v2.7", "latest")),
        # an alias moves to the next if a bound excludes the newest
        (("2.7.1", "12.1"), BOUNDED, ("2.7-cuda12.1-runtime", "v2.7", "latest")),
    ],
)
def test_aliases(cell: tuple[str, str], matrix: Matrix, aliases: tuple[str, ...]) -> None:
    assert _aliases(*cell, matrix=matrix) == aliases


def test_other_systems_and_flavors_have_no_short_alias():
    assert _aliases("2.8.0", "12.1", os="ubuntu22.04") == ("2.8-cuda12.1-runtime-ubuntu22.04",)
    assert _aliases("2.8.0", "12.1", flavor="devel") == ("2.8-cuda12.1-devel",)


def test_a_disabled_rule_makes_no_alias():
    silent = replace(
        WITHOUT_BEYOND, aliases=Aliases(newest_patch=None, newest_cuda=None, newest_torch="edge-{torch}")
    )
    assert _aliases("2.8.0", "12.1", matrix=silent) == ("edge-2.8.0",)


@pytest.mark.parametrize(
    "matrix", [MATRIX, NATIVE_FIRST, replace(MATRIX, torch=(*MATRIX.torch[:-1], "2.7.0", "2.8.0"))]
)
def test_names_are_unique(matrix):
    resolutions = [resolve(cell, matrix, FACTS) for cell in all_cells(matrix)]
    names = Counter(
        name
        for resolution in resolutions
        if resolution.build
        for name in (tag_of(resolution), *aliases_of(resolution, matrix, FACTS))
    )
    assert [name for name, count in names.items() if count > 1] == []
    assert "latest" in names


@pytest.mark.parametrize("day", ["20260102", "20260102b"])
def test_dated(day):
    tag = "2.7.1-cuda12.1-cudnn9-runtime"
    assert dated(tag, day) == f"{tag}-{day}"
    assert undated(dated(tag, day)) == (tag, day)
    assert undated(tag) is None


@pytest.mark.parametrize("day", ["", "2", "2026-01-02", "20260102B", "20260102-2", "v2.7"])
def test_invalid_dates(day):
    """Such a tag is no dated tag, so `withdraw` would treat it as a moving tag."""
    with pytest.raises(ConfigError, match="is not a valid date"):
        dated("2.7.1-cuda12.1-cudnn9-runtime", day)
