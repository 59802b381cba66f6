"""Tags say what a cell promises, and no two images claim the same name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.gridcase import ASKED, FACTS, MATRIX, NATIVE_FIRST, answer
from torchkiln.errors import ConfigError
from torchkiln.matrix.matrix import Aliases, Bound
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import aliases_of, dated, tag_of, undated


@pytest.mark.parametrize(
    ("tag", "cell"),
    [
        ("2.7.1-cuda12.1-cudnn9-runtime", {"torch": "2.7.1", "cuda": "12.1"}),
        ("2.7.1-cuda12.1-cudnn9-devel", {"torch": "2.7.1", "cuda": "12.1", "flavor": "devel"}),
        (
            "2.7.1-cuda12.1-cudnn9-runtime-ubuntu22.04",
            {"torch": "2.7.1", "cuda": "12.1", "os": "ubuntu22.04"},
        ),
        ("2.0.1-cuda11.7-cudnn8-runtime", {"torch": "2.0.1", "cuda": "11.7"}),
        ("2.3.1-cuda11.7-cudnn8-runtime", {"torch": "2.3.1", "cuda": "11.7"}),
    ],
)
def test_tag(tag: str, cell: dict[str, str]):
    assert tag_of(answer(**cell)) == tag  # type: ignore[arg-type]


def test_a_wheel_whose_cudnn_is_known_by_its_major_only_has_a_tag_too():
    assert tag_of(answer("2.5.1", "12.1", matrix=NATIVE_FIRST)) == "2.5.1-cuda12.1-cudnn9-runtime"


def test_what_cannot_be_had_has_no_name():
    unavailable = answer("2.0.1", "12.1")
    with pytest.raises(ValueError, match="no tag"):
        tag_of(unavailable)
    assert aliases_of(unavailable, MATRIX, FACTS) == ()


def _aliases(torch: str, cuda: str, *, matrix=MATRIX, **more: str) -> tuple[str, ...]:
    return aliases_of(answer(torch, cuda, matrix=matrix, **more), matrix, FACTS)


def test_aliases_of_the_headline_cell():
    assert _aliases("2.7.1", "12.1") == ("2.7-cuda12.1-runtime", "v2.7")


def test_latest_is_the_newest_torch():
    assert _aliases("2.8.0", "12.1", matrix=ASKED) == ("2.8-cuda12.1-runtime", "v2.8", "latest")
    assert _aliases("2.11.0", "13.0") == ("2.11-cuda13.0-runtime", "v2.11", "latest")


def test_a_cell_beyond_moves_no_name_of_another_minor():
    assert _aliases("2.8.0", "12.1") == ("2.8-cuda12.1-runtime", "v2.8")
    assert _aliases("2.10.0", "12.8") == ("2.10-cuda12.8-runtime", "v2.10")


def test_other_systems_and_flavors_bear_no_short_name():
    assert _aliases("2.8.0", "12.1", os="ubuntu22.04") == ("2.8-cuda12.1-runtime-ubuntu22.04",)
    assert _aliases("2.8.0", "12.1", flavor="devel") == ("2.8-cuda12.1-devel",)


def test_an_unavailable_cuda_outranks_nobody():
    """2.0.1 with CUDA 12.1 does not exist, so 11.8 is the newest that can be had."""
    assert "v2.0" in _aliases("2.0.1", "11.8")
    assert "v2.0" not in _aliases("2.0.1", "11.7")


def test_an_older_patch_bears_its_own_tag_only():
    both = replace(ASKED, torch=("2.7.0", "2.7.1"))
    assert _aliases("2.7.0", "12.1", matrix=both) == ()
    assert _aliases("2.7.1", "12.1", matrix=both) == ("2.7-cuda12.1-runtime", "v2.7", "latest")


def test_an_alias_falls_to_the_next_when_a_bound_takes_the_newest():
    bound = Bound(torch="2.8.0", cuda=None, flavor=None, os=None, reason="fails")
    bounded = replace(ASKED, bounds=(bound,))
    assert "latest" in _aliases("2.7.1", "12.1", matrix=bounded)


def test_a_rule_that_is_off_grants_nothing():
    silent = replace(ASKED, aliases=Aliases(newest_patch=None, newest_cuda=None, newest_torch="edge-{torch}"))
    assert _aliases("2.8.0", "12.1", matrix=silent) == ("edge-2.8.0",)


@pytest.mark.parametrize(
    "matrix", [MATRIX, NATIVE_FIRST, replace(MATRIX, torch=(*MATRIX.torch[:-1], "2.7.0", "2.8.0"))]
)
def test_no_name_is_borne_twice(matrix):
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
def test_what_is_no_day(day):
    """`retract` would take such a tag for one that moves."""
    with pytest.raises(ConfigError, match="is not a valid date"):
        dated("2.7.1-cuda12.1-cudnn9-runtime", day)
