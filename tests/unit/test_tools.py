"""The OS tools of a devel image: their packages, base and layer, and the compiler for nvcc."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.planned import FACTS, LOCK_DIGEST, PROFILE, answer, locked, tools_on, wheel
from torchkiln.docker.dockerfile import load_templates
from torchkiln.errors import Stale
from torchkiln.locks.file import from_json, to_json
from torchkiln.matrix.os_tools import host_gcc, is_tools, packages_of, tools_of
from torchkiln.model.cell import Cell
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.operating_system import operating_system
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.cuda_toolkit import compiler_links
from torchkiln.plan.plan import plan
from torchkiln.plan.plan import to_json as plan_json
from torchkiln.util.places import ROOT

TEMPLATES = load_templates(ROOT / "templates")


def cell(cuda: str, flavor: str = "devel", os: str = "debian12") -> Cell:
    python = operating_system(os).python
    return Cell(torch="2.7.1", cuda=cuda, flavor=flavor, os=os, python=python)  # type: ignore[arg-type]


def devel(name: str = "devel") -> LockedCell:
    made = locked()
    devel_cell = replace(made.resolution.cell, flavor="devel")
    toolkit = replace(FACTS.toolkits["12.1"].toolkit, libraries=("nvidia/cublas/lib/libcublas.so.12",))
    resolution = replace(made.resolution, cell=devel_cell, limits=(), tools=name, toolkit=toolkit)
    more = wheel("nvidia-nvvm", "13.0.88", megabytes=60)
    return replace(
        made,
        resolution=resolution,
        wheels=tuple(sorted((*made.wheels, more), key=lambda locked_wheel: locked_wheel.name)),
        tools=tools_on(made.base, name),
    )


def planned(found: LockedCell) -> ImagePlan:
    return plan(found, (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


@pytest.mark.parametrize(
    ("cuda", "os", "name"),
    [
        ("11.7", "debian12", "devel-gcc11"),
        ("11.8", "debian12", "devel-gcc11"),
        ("12.1", "debian12", "devel"),
        ("13.0", "debian12", "devel"),
        ("12.1", "debian13", "devel-gcc12"),
        ("12.8", "debian13", "devel"),
        ("12.1", "ubuntu24.04", "devel-gcc12"),
        ("11.7", "ubuntu22.04", "devel"),
        ("13.0", "ubuntu22.04", "devel"),
        ("12.2", "debian12", "devel"),  # no fact about 12.2: the one for 12.1 applies
        ("11.9", "debian12", "devel-gcc11"),
        ("99.0", "debian12", "devel"),
    ],
)
def test_an_older_gcc_is_added_if_nvcc_refuses_that_of_the_system(cuda: str, os: str, name: str) -> None:
    assert tools_of(cell(cuda, os=os), FACTS) == name
    assert tools_of(cell(cuda, "runtime", os), FACTS) is None


def test_a_system_without_a_gcc_for_nvcc_has_no_devel_image() -> None:
    found = answer("2.7.1", "11.8", flavor="devel", os="debian13")
    assert found.why_unavailable == ("nvcc of CUDA 11.8 needs gcc 11 or older; the oldest of debian13 is 12")
    assert found.nearest == (("2.7.1", "12.1"),)
    assert answer("2.7.1", "12.1", flavor="devel", os="debian13").tools == "devel-gcc12"
    assert answer("2.7.1", "11.8", os="debian13").build


def test_the_facts_have_a_gcc_for_each_cuda_in_increasing_order() -> None:
    assert set(FACTS.cuda) <= set(FACTS.host_gcc)
    newest = [FACTS.host_gcc[cuda] for cuda in sorted(FACTS.host_gcc, key=float)]
    assert newest == sorted(newest)


def test_packages_requested_from_the_archive() -> None:
    assert packages_of("devel") == ("cmake", "ninja-build", "g++", "gdb", "pkg-config", "git-lfs")
    assert packages_of("devel-gcc11") == (*packages_of("devel"), "gcc-11", "g++-11")
    assert (host_gcc("devel"), host_gcc("devel-gcc9")) == (None, "9")


@pytest.mark.parametrize("name", ["", "base", "devel-gcc", "devel-gcc11x", "../devel", "devel\n"])
def test_unknown_names(name: str) -> None:
    assert not is_tools(name)
    with pytest.raises(ValueError, match="unknown tools"):
        packages_of(name)


def test_the_older_gcc_is_beside_nvcc_with_every_name() -> None:
    found = {link.path: link.target for link in compiler_links(devel("devel-gcc11"))}

    assert found == {
        "usr/local/cuda-12.1/bin/c++": "/usr/bin/g++-11",
        "usr/local/cuda-12.1/bin/cc": "/usr/bin/gcc-11",
        "usr/local/cuda-12.1/bin/g++": "/usr/bin/g++-11",
        "usr/local/cuda-12.1/bin/gcc": "/usr/bin/gcc-11",
    }
    assert compiler_links(devel()) == compiler_links(locked()) == ()
    links = {link.path: link.target for link in planned(devel("devel-gcc11")).layers[-1].links}
    assert links["usr/local/cuda-12.1/bin/gcc"] == "/usr/bin/gcc-11"


def test_tools_are_above_the_toolkit_and_below_our_files() -> None:
    """The layers of runtime and toolkit therefore do not depend on the state of the OS archive."""
    image, runtime = planned(devel()), planned(locked())

    assert [layer.kind for layer in image.layers[-4:]] == ["wheels", "base", "tools", "overlay"]
    assert image.layers[-4].title == "nvidia-nvvm 13.0.88"
    assert image.layers[-2].title == "debian12 tools devel (2 packages)"
    assert [layer.kind for layer in runtime.layers[-2:]] == ["base", "overlay"]
    shared = len(runtime.layers) - 2
    assert image.layers[:shared] == runtime.layers[:shared]
    assert not [layer for layer in runtime.layers if layer.kind == "tools"]


def test_image_json_lists_the_tools() -> None:
    image, runtime = planned(devel()), planned(locked())
    tools = devel().tools
    assert tools is not None

    (image_json,) = [f.data for f in image.layers[-1].files if f.path == "etc/torchkiln/image.json"]
    assert json.loads(image_json)["tools"] == {
        "name": "devel",
        "digest": tools.digest,
        "packages": {"cmake": "3.25.1-1", "gdb": "13.1-3"},
    }
    assert dict(image.config.labels)["torchkiln.tools"] == tools.digest
    assert "torchkiln.tools" not in dict(runtime.config.labels)
    row = plan_json(image)["layers"][-2]
    assert (row["kind"], row["digest"], row["bytes"]) == ("tools", tools.digest, tools.size)


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (replace(devel(), tools=None), "tools: none, but the cell needs devel"),
        (replace(locked(), tools=tools_on(locked().base)), "tools: devel, but the cell needs none"),
        (
            replace(devel("devel-gcc11"), tools=tools_on(locked().base)),
            "tools: devel, but the cell needs devel-gcc11",
        ),
        (
            replace(devel(), tools=replace(tools_on(locked().base), base=Digest("sha256:" + "e" * 64))),
            "tools: made for another base",
        ),
        (
            replace(devel(), tools=replace(tools_on(locked().base), os="ubuntu22.04")),
            "tools: made for another base",
        ),
        (
            replace(devel("devel"), tools=replace(tools_on(locked().base), name="../../x")),
            "'../../x' is not the OS's tools of a devel image",
        ),
    ],
)
def test_a_lock_with_wrong_tools_is_refused(spoiled: LockedCell, words: str) -> None:
    with pytest.raises(Stale, match="tools") as caught:
        from_json(to_json(spoiled))
    assert words in caught.value.message
