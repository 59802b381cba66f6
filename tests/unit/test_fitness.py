"""A wheel is the one of its name, and for this image's Python and machine; or it says which it is."""

import pytest

from torchkiln.errors import BadWheel
from torchkiln.wheel import fitness
from torchkiln.wheel.install import Scheme, parse_name

SCHEME = Scheme(prefix="/opt/venv", python="3.11")
NAME = "some_thing-1.0-py3-none-any.whl"


def check(
    filename: str = NAME,
    *,
    name: str = "some-thing",
    version: str = "1.0",
    wheel_version: str = "1.0",
    wheel: str = "",
    metadata: str = "",
) -> None:
    """The wheel *filename* with those fields; *wheel* and *metadata* are further lines."""
    fitness.check(
        f"Wheel-Version: {wheel_version}\n{wheel}".encode(),
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\nbody\nName: other\n".encode(),
        parse_name(filename),
        SCHEME,
    )


@pytest.mark.parametrize(
    ("filename", "name", "version"),
    [
        (NAME, "Some.Thing", "1.0"),
        (NAME, "some-thing", "1"),
        ("torch-2.7.1+cu126-py3-none-any.whl", "torch", "2.7.1+cu126"),
        ("torch-2.7.1-py3-none-any.whl", "torch", "2.7.1+cu126"),
    ],
)
def test_metadata_of_this_wheel(filename: str, name: str, version: str) -> None:
    """Names are compared normalized, versions by value; the file name may leave a local version out."""
    check(filename, name=name, version=version)


@pytest.mark.parametrize(
    ("name", "version", "wheel_version", "reason"),
    [
        ("other", "1.0", "1.0", "inconsistent name or version: METADATA has other 1.0"),
        ("some-thing", "1.1", "1.0", "inconsistent name or version: METADATA has some-thing 1.1"),
        ("some-thing", "one", "1.0", "inconsistent name or version: METADATA has some-thing one"),
        (
            "some-thing\nName: some-thing",
            "1.0",
            "1.0",
            "inconsistent name or version: METADATA has some-thing, some-thing 1.0",
        ),
        ("", "", "1.0", "inconsistent name or version: METADATA has"),
        ("some-thing", "1.0", "2.0", "unsupported Wheel-Version: 2.0; only 1.x"),
        ("some-thing", "1.0", "", "unsupported Wheel-Version: missing"),
    ],
)
def test_metadata_of_another_wheel(name: str, version: str, wheel_version: str, reason: str) -> None:
    """Said with what was found."""
    with pytest.raises(BadWheel, match=f"^{NAME}: {reason}"):
        check(name=name, version=version, wheel_version=wheel_version)


def test_two_local_versions_of_one_release_are_two() -> None:
    """The wheel of CUDA 11.8 is not that of CUDA 12.6."""
    with pytest.raises(BadWheel, match=r"inconsistent name or version: METADATA has torch 2\.7\.1\+cu118"):
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
OTHERS = [
    "py2-none-any",
    "py312-none-any",
    "cp312-cp312-manylinux_2_28_x86_64",
    "cp310-cp310-manylinux_2_28_x86_64",
    "cp312-abi3-manylinux_2_28_x86_64",
    "cp310-none-any",
    "py3-abi3-any",
    "pp311-pypy311_pp73-manylinux_2_28_x86_64",
    "cp311-cp311-manylinux_2_28_aarch64",
    "cp311-cp311-musllinux_1_2_x86_64",
    "cp311-cp311-win_amd64",
    "cp311-cp311-macosx_11_0_arm64",
    "py3-none-manylinux_2_28_i686",
]


@pytest.mark.parametrize("tag", FITTING)
def test_tags_that_fit(tag: str) -> None:
    """In the file's name, and in WHEEL, where one of several is enough."""
    check(f"some_thing-1.0-{tag}.whl", wheel=f"Tag: cp39-cp39-win32\nTag: {tag}\n")


@pytest.mark.parametrize("tag", OTHERS)
def test_tags_of_another_python_or_machine(tag: str) -> None:
    """Wherever they stand."""
    with pytest.raises(
        BadWheel, match=r": not a supported wheel on this platform: Python 3\.11, x86_64 Linux"
    ):
        check(f"some_thing-1.0-{tag}.whl")
    with pytest.raises(
        BadWheel,
        match=r": the tags in WHEEL are not supported on this platform \(Python 3\.11, x86_64 Linux\): ",
    ):
        check(wheel=f"Tag: {tag}\n")


@pytest.mark.parametrize("line", ["Tag: any", "Tag:", "Tag: a-b-c-d"])
def test_a_tag_that_is_none(line: str) -> None:
    """Three parts."""
    with pytest.raises(BadWheel, match="WHEEL contains an invalid tag"):
        check(wheel=line)


@pytest.mark.parametrize("requires", ["", ">=3.8", "<3.12", "==3.11.*", ">=3.11.7", "!=3.11.1", "about 3"])
def test_the_python_that_it_requires(requires: str) -> None:
    """A patch release may do; what is no specifier asks for nothing, as in pip."""
    check(metadata=f"Requires-Python: {requires}\n")


@pytest.mark.parametrize("requires", [">=3.12", "<3.11", "==3.10.*", "!=3.11.*"])
def test_it_requires_another_python(requires: str) -> None:
    """Said as it stands there."""
    with pytest.raises(BadWheel, match=r": requires a different Python: 3\.11 not in "):
        check(metadata=f"Requires-Python: {requires}\n")
