"""One wheel of a release: the tags of the image's Python and glibc decide, as pip's order does."""

from __future__ import annotations

import hashlib

import pytest
from packaging.tags import cpython_tags

from torchkiln.errors import Unresolvable
from torchkiln.index.choose import choose, tags_of
from torchkiln.model.index import FileAt

DEBIAN = tags_of("3.11", (2, 36))


def chosen(*names: str, but: str = "") -> str:
    files = [
        FileAt(filename=name, url="", size=1, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in names
    ]
    return choose("x 1", files, {file.sha256 for file in files if file.filename != but}, DEBIAN).filename


@pytest.mark.parametrize(
    ("best", "other"),
    [
        pytest.param(
            "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
            "x-1-cp311-cp311-manylinux_2_17_x86_64.whl",
            id="newer glibc",
        ),
        pytest.param(
            "x-1-cp311-cp311-manylinux1_x86_64.whl",
            "x-1-cp38-abi3-manylinux_2_28_x86_64.whl",
            id="own abi before abi3",
        ),
        pytest.param(
            "x-1-cp310-abi3-manylinux2014_x86_64.whl", "x-1-py3-none-any.whl", id="abi3 before pure"
        ),
        pytest.param(
            "x-1-py3-none-manylinux2010_x86_64.whl", "x-1-py3-none-any.whl", id="platform before any"
        ),
        pytest.param(
            "x-1-cp311-cp311-manylinux1_x86_64.whl",
            "x-1-cp311-cp311-linux_x86_64.whl",
            id="manylinux before linux",
        ),
        pytest.param(
            "x-1-cp311-cp311-linux_x86_64.whl", "x-1-cp312-cp312-linux_x86_64.whl", id="right Python"
        ),
        pytest.param("x-1-2-py3-none-any.whl", "x-1-1-py3-none-any.whl", id="higher build number"),
        pytest.param("x-1-py2.py3-none-any.whl", "x-1-cp311-cp311-musllinux_1_2_x86_64.whl", id="no musl"),
        pytest.param("x-1-py3-none-any.whl", "x-1-cp311-cp311-manylinux_2_39_x86_64.whl", id="glibc too new"),
        pytest.param(
            "x-1-py3-none-any.whl", "x-1-cp311-cp311-manylinux_2_17_aarch64.whl", id="other machine"
        ),
    ],
)
def test_the_better_wheel_wins_in_either_order(best: str, other: str) -> None:
    assert chosen(best, other) == chosen(other, best) == best


def test_only_files_that_the_resolver_saw_count() -> None:
    first, second = "x-1-cp311-cp311-manylinux1_x86_64.whl", "x-1-py3-none-any.whl"

    assert chosen(first, second, but=first) == second


@pytest.mark.parametrize("name", ["x-1.tar.gz", "x-1-cp312-cp312-linux_x86_64.whl", "nonsense.whl"])
def test_no_fitting_wheel_is_an_error_that_names_the_release(name: str) -> None:
    with pytest.raises(Unresolvable, match="x 1: no compatible wheel"):
        chosen(name)


def test_the_glibc_of_the_system_bounds_the_tags() -> None:
    platforms = {tag.platform for tag in tags_of("3.10", (2, 35))}

    assert "manylinux_2_35_x86_64" in platforms
    assert "manylinux_2_36_x86_64" not in platforms
    assert {tag.interpreter for tag in tags_of("3.10", (2, 35)) if tag.abi == "cp310"} == {"cp310"}


def test_the_order_is_that_of_packaging_on_such_a_host() -> None:
    """The names and their order, against the library's own for one platform list."""
    platforms = list(dict.fromkeys(tag.platform for tag in DEBIAN if tag.abi == "cp311"))

    assert (
        list(DEBIAN[: len(platforms)])
        == list(cpython_tags((3, 11), abis=["cp311"], platforms=platforms))[: len(platforms)]
    )
    assert platforms[:1] + platforms[-3:] == [
        "manylinux_2_36_x86_64",
        "manylinux_2_5_x86_64",
        "manylinux1_x86_64",
        "linux_x86_64",
    ]
