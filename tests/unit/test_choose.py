"""The choice of a release's wheel by its tags, and the checks of the wheel's metadata."""

from __future__ import annotations

import hashlib

import pytest
from packaging.tags import cpython_tags

from torchkiln.errors import BadWheel, Unresolvable
from torchkiln.index.choose import choose, tags_of
from torchkiln.model.index import FileAt
from torchkiln.wheel import splice
from torchkiln.wheel.install import Scheme, parse_name

SCHEME = Scheme(prefix="/opt/venv", python="3.11")
NAME = "some_thing-1.0-py3-none-any.whl"


def check(
    filename: str = NAME,
    *,
    name: str = "some-thing",
    version: str = "1.0",
    wheel: str = "",
    metadata: str = "",
) -> None:
    """Check the wheel *filename*; *wheel* and *metadata* are added to its files WHEEL and METADATA."""
    splice.check(
        f"Wheel-Version: 1.0\n{wheel}".encode(),
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\nbody\nName: other\n".encode(),
        parse_name(filename),
        SCHEME,
    )


def test_two_local_versions_of_a_release_differ() -> None:
    """The wheel of CUDA 11.8 is not that of CUDA 12.6."""
    with pytest.raises(
        BadWheel,
        match=r"inconsistent name or version: METADATA has Name 'torch' and Version '2\.7\.1\+cu118'",
    ):
        check("torch-2.7.1+cu126-py3-none-any.whl", name="torch", version="2.7.1+cu118")


FITTING = [
    "py3-none-any",
    "py2.py3-none-any",
    "py311-none-any",
    "py38-none-manylinux1_x86_64",
    "cp311-cp311-manylinux_2_28_x86_64",
    "cp36-abi3-manylinux2014_x86_64",
    "cp311-none-linux_x86_64",
    "cp310.cp311-cp310.cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
]
# tests/hostile has those of other interpreters and machines.
OTHERS = [
    "py312-none-any",
    "cp310-cp310-manylinux_2_28_x86_64",
    "cp312-abi3-manylinux_2_28_x86_64",
    "cp310-none-any",
    "py3-abi3-any",
    "py3-none-manylinux_2_28_i686",
]


@pytest.mark.parametrize("tag", FITTING)
def test_tags_that_fit(tag: str) -> None:
    """The tag is in the file name and in WHEEL, where another tag does not fit; one fitting tag is enough."""
    check(f"some_thing-1.0-{tag}.whl", wheel=f"Tag: cp39-cp39-win32\nTag: {tag}\n")


@pytest.mark.parametrize("tag", OTHERS)
def test_tags_of_another_python_or_machine(tag: str) -> None:
    """Such tags are refused in the file name and in WHEEL."""
    with pytest.raises(
        BadWheel, match=r": not a supported wheel on this platform: Python 3\.11, x86_64 Linux"
    ):
        check(f"some_thing-1.0-{tag}.whl")
    with pytest.raises(
        BadWheel,
        match=r": the tags in WHEEL are not supported on this platform \(Python 3\.11, x86_64 Linux\): ",
    ):
        check(wheel=f"Tag: {tag}\n")


@pytest.mark.parametrize("requires", ["", ">=3.8", "<3.12", "==3.11.*", ">=3.11.7", "!=3.11.1", "about 3"])
def test_the_python_that_it_requires(requires: str) -> None:
    """An invalid Requires-Python is ignored, as pip does."""
    check(metadata=f"Requires-Python: {requires}\n")


@pytest.mark.parametrize("requires", [">=3.12", "<3.11", "==3.10.*", "!=3.11.*"])
def test_another_required_python(requires: str) -> None:
    """The message contains Requires-Python as it is written in METADATA."""
    with pytest.raises(BadWheel, match=r": requires a different Python: 3\.11 not in "):
        check(metadata=f"Requires-Python: {requires}\n")


DEBIAN = tags_of("3.11", (2, 36))


def chosen(*names: str, but: str = "") -> str:
    files = [
        FileAt(filename=name, url="", size=1, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in names
    ]
    return choose("x 1", files, {file.sha256 for file in files if file.filename != but}, DEBIAN).filename


@pytest.mark.parametrize(
    ("best", "worse"),
    [
        pytest.param(
            "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
            "x-1-cp311-cp311-manylinux_2_17_x86_64.whl",
            id="newer glibc",
        ),
        pytest.param("x-1-2-py3-none-any.whl", "x-1-1-py3-none-any.whl", id="higher build number"),
        pytest.param("x-1-py2.py3-none-any.whl", "x-1-cp311-cp311-musllinux_1_2_x86_64.whl", id="no musl"),
        pytest.param("x-1-py3-none-any.whl", "x-1-cp311-cp311-manylinux_2_39_x86_64.whl", id="glibc too new"),
        pytest.param(
            "x-1-py3-none-any.whl", "x-1-cp311-cp311-manylinux_2_17_aarch64.whl", id="other machine"
        ),
    ],
)
def test_the_better_wheel_is_chosen_in_either_order(best: str, worse: str) -> None:
    assert chosen(best, worse) == chosen(worse, best) == best


def test_only_files_that_the_resolver_saw_count() -> None:
    first, second = "x-1-cp311-cp311-manylinux1_x86_64.whl", "x-1-py3-none-any.whl"

    assert chosen(first, second, but=first) == second


@pytest.mark.parametrize("name", ["x-1.tar.gz", "x-1-cp312-cp312-linux_x86_64.whl", "nonsense.whl"])
def test_no_fitting_wheel_is_an_error_that_names_the_release(name: str) -> None:
    with pytest.raises(Unresolvable, match="x 1: no compatible wheel"):
        chosen(name)


def test_the_order_is_that_of_packaging_on_such_a_host() -> None:
    """For the same list of platforms, the library `packaging` gives the same tags in the same order."""
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
