"""devel of CUDA 13: what runtime has, then the toolkit's wheels, then links where compilers look."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from tests.gridcase import FACTS, MATRIX
from tests.planned import LOCK_DIGEST, PROFILE, locked, tools_on, wheel
from torchkiln.errors import Unresolvable
from torchkiln.lockfile import from_json, to_json
from torchkiln.nouns import Cell, ImagePlan, LockedCell, Resolution
from torchkiln.oci import tar
from torchkiln.places import ROOT
from torchkiln.plan import plan
from torchkiln.recipe import site
from torchkiln.render import load_templates, render
from torchkiln.resolve import require_buildable, resolve

SITE = site("3.11").lstrip("/")
PARTS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl")
WIDER = replace(MATRIX, torch=(*MATRIX.torch, "2.11.0"), cuda=(*MATRIX.cuda, "12.9", "13.0"))


def answer(flavor: str, *, cuda: str = "13.0", torch: str = "2.11.0") -> Resolution:
    cell = Cell(torch=torch, cuda=cuda, flavor=flavor, os="debian12", python="3.11")  # type: ignore[arg-type]
    return resolve(cell, WIDER, FACTS)


def cell_of(flavor: str) -> LockedCell:
    """Its lock: the same wheels, and the toolkit's for devel."""
    made = locked()
    more = [wheel(name, "13.0.88", megabytes=30) for name in PARTS] if flavor == "devel" else []
    wheels = tuple(sorted((*made.wheels, *more), key=lambda one: one.name))
    tools = tools_on(made.base) if flavor == "devel" else None
    return replace(made, resolution=answer(flavor), wheels=wheels, tools=tools)


def planned(flavor: str) -> ImagePlan:
    return plan(cell_of(flavor), (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


def test_it_is_asked_for_beside_torch_and_can_be_locked() -> None:
    runtime, devel = answer("runtime"), answer("devel")

    assert set(devel.requirements) - set(runtime.requirements) == {FACTS.toolkits["13.0"].requires}
    assert (runtime.toolkit, runtime.lockable) == (None, True)
    assert devel.toolkit is not None
    assert (devel.toolkit.cuda, devel.lockable) == ("13.0", True)
    assert devel.limits == runtime.limits
    assert require_buildable(devel) == require_buildable(runtime)


def test_what_runtime_has_lies_below() -> None:
    """So that who has the one pulls little for the other."""
    runtime, devel = planned("runtime"), planned("devel")
    shared = len(runtime.layers) - 1

    assert devel.layers[:shared] == runtime.layers[:shared]
    above = {one.name for layer in devel.layers[shared:] for one in layer.wheels}
    assert above == set(PARTS)


def link_map(image: ImagePlan) -> dict[str, str]:
    """The links in the topmost layer, by Python's own tarfile."""
    top = image.layers[-1]
    data = tar.archive((*top.files, *top.links), mtime=1)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return {member.name: member.linkname for member in opened if member.issym()}


def followed(path: str, links: dict[str, str]) -> str:
    """Where *path* ends, step by step, as the kernel goes; `..` leaves the folder that was reached."""
    done: list[str] = []
    steps = path.split("/")
    while steps:
        step = steps.pop(0)
        if step == "..":
            done.pop()
            continue
        target = links.get("/".join((*done, step)))
        if target is None:
            done.append(step)
            continue
        if target.startswith("/"):
            done = []
        steps = [*target.lstrip("/").split("/"), *steps]
    return "/".join(done)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("usr/local/cuda/bin/nvcc", f"{SITE}/nvidia/cu13/bin/nvcc"),
        ("usr/local/cuda/bin/../nvvm/bin/cicc", f"{SITE}/nvidia/cu13/nvvm/bin/cicc"),
        ("usr/local/cuda/bin/../include/cuda.h", f"{SITE}/nvidia/cu13/include/cuda.h"),
        ("usr/local/cuda/bin/../lib64/libcudart.so", f"{SITE}/nvidia/cu13/lib/libcudart.so.13"),
        ("usr/local/cuda/bin/../lib64/libcudadevrt.a", f"{SITE}/nvidia/cu13/lib/libcudadevrt.a"),
        ("usr/local/cuda-13.0/lib64/libcudnn.so", f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"),
    ],
)
def test_where_nvcc_and_linkers_look(asked: str, found: str) -> None:
    assert followed(asked, link_map(planned("devel"))) == found


def test_nothing_lies_among_the_packages() -> None:
    """The smoke check `lock` takes what no wheel brought for a stranger."""
    links = link_map(planned("devel"))

    assert links
    assert all(path.startswith("usr/local/cuda") for path in links)
    assert link_map(planned("runtime")) == {}


def test_what_shells_and_build_systems_are_told() -> None:
    runtime, devel = (dict(planned(flavor).config.env) for flavor in ("runtime", "devel"))

    assert devel["CUDA_HOME"] == "/usr/local/cuda"
    assert devel["PATH"] == runtime["PATH"].replace("/opt/venv/bin:", "/opt/venv/bin:/usr/local/cuda/bin:")
    assert devel["LD_LIBRARY_PATH"].startswith(f"{runtime['LD_LIBRARY_PATH']}:/{SITE}/nvidia/cu13/lib:")
    assert f"/{SITE}/nvidia/nccl/include" in devel["CPATH"].split(":")
    assert devel["LIBRARY_PATH"] == "/usr/local/cuda/lib64"
    assert not {"CUDA_HOME", "CPATH", "LIBRARY_PATH"} & set(runtime)


def test_the_lock_holds_it() -> None:
    """A lock without one stays as it was written before there were any."""
    devel, runtime = cell_of("devel"), cell_of("runtime")

    assert from_json(to_json(devel)) == devel
    assert b'"toolkit"' in to_json(devel)
    assert b'"toolkit"' not in to_json(runtime)


def test_the_dockerfile_makes_the_same_links() -> None:
    image = planned("devel")
    pip = wheel("pip", "25.3", megabytes=2)
    text = render(
        replace(image, locked=replace(image.locked, wheels=(pip,))), load_templates(ROOT / "templates"), ()
    )

    assert {path: target for target, path in re.findall(r"ln -s (\S+) /(\S+)", text)} == link_map(image)
    made = re.search(r"mkdir -p ((?:/\S+ ?)+)", text)
    assert made is not None
    assert {f"/{PurePosixPath(path).parent}" for path in link_map(image)} == set(made[1].split())


def test_of_a_cuda_without_toolkit_only_runtime_can_be_built() -> None:
    told = answer("devel", torch="2.8.0", cuda="12.9")

    assert (told.toolkit, told.lockable) == (None, False)
    with pytest.raises(Unresolvable, match="no toolkit of this CUDA is known"):
        require_buildable(told)
