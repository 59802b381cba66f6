"""The flavor devel of CUDA 13: the runtime image's layers, the toolkit's wheels, links for compilers."""

from __future__ import annotations

import io
import json
import re
import tarfile
from dataclasses import replace
from typing import Any

import pytest

from tests.planned import FACTS, LOCK_DIGEST, MATRIX, PROFILE, locked, tools_on, wheel
from torchkiln.docker.dockerfile import bake, load_templates, render
from torchkiln.engine.cache_keys import key_of
from torchkiln.errors import Stale, Unresolvable
from torchkiln.locks import file as lock_file
from torchkiln.locks.file import from_json, to_json
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.model.recipe import ImagePython
from torchkiln.oci import tar
from torchkiln.plan.layers import archive_layers
from torchkiln.plan.plan import plan
from torchkiln.util.places import ROOT

SITE = ImagePython.of_base("3.11").site.lstrip("/")
PARTS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl")
WIDER = replace(MATRIX, torch=(*MATRIX.torch, "2.11.0"), cuda=(*MATRIX.cuda, "12.9", "13.0"))


def answer(flavor: str, *, cuda: str = "13.0", torch: str = "2.11.0") -> Resolution:
    cell = Cell(torch=torch, cuda=cuda, flavor=flavor, os="debian12", python="3.11")  # type: ignore[arg-type]
    return resolve(cell, WIDER, FACTS)


def cell_of(flavor: str) -> LockedCell:
    """The lock of the cell with this flavor. For devel, it contains the toolkit's wheels, too."""
    made = locked()
    more = [wheel(name, "13.0.88", megabytes=30) for name in PARTS] if flavor == "devel" else []
    wheels = tuple(sorted((*made.wheels, *more), key=lambda wheel: wheel.name))
    tools = tools_on(made.base) if flavor == "devel" else None
    return replace(made, resolution=answer(flavor), wheels=wheels, tools=tools)


def planned(flavor: str) -> ImagePlan:
    return plan(cell_of(flavor), (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


def test_the_toolkit_is_required_beside_torch_and_can_be_locked() -> None:
    runtime, devel = answer("runtime"), answer("devel")
    assert set(devel.requirements) - set(runtime.requirements) == {FACTS.toolkits["13.0"].requires}
    assert (runtime.toolkit, runtime.lockable) == (None, True)
    assert devel.toolkit is not None
    assert (devel.toolkit.cuda, devel.lockable) == ("13.0", True)
    assert devel.limits == runtime.limits
    assert require_buildable(devel) == require_buildable(runtime)


def link_map(image: ImagePlan) -> dict[str, str]:
    """The links in the top layer and their targets, read with tarfile."""
    top = image.layers[-1]
    data = tar.archive((*top.files, *top.links), mtime=1)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return {member.name: member.linkname for member in opened if member.issym()}


def followed(path: str, links: dict[str, str]) -> str:
    """*path*, resolved like by the kernel: `..` is the parent of the folder that a link leads to."""
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
    ("path", "found"),
    [
        ("usr/local/cuda/bin/nvcc", f"{SITE}/nvidia/cu13/bin/nvcc"),
        ("usr/local/cuda/bin/../nvvm/bin/cicc", f"{SITE}/nvidia/cu13/nvvm/bin/cicc"),
        ("usr/local/cuda/bin/../include/cuda.h", f"{SITE}/nvidia/cu13/include/cuda.h"),
        ("usr/local/cuda/bin/../lib64/libcudart.so", f"{SITE}/nvidia/cu13/lib/libcudart.so.13"),
        ("usr/local/cuda/bin/../lib64/libcudadevrt.a", f"{SITE}/nvidia/cu13/lib/libcudadevrt.a"),
        ("usr/local/cuda-13.0/lib64/libcudnn.so", f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"),
    ],
)
def test_search_paths_of_nvcc_and_linkers(path: str, found: str) -> None:
    assert followed(path, link_map(planned("devel"))) == found


def test_no_link_is_in_site_packages() -> None:
    """The smoke check `lock` would report a link there as a file that belongs to no wheel."""
    links = link_map(planned("devel"))
    assert links
    assert all(path.startswith("usr/local/cuda") for path in links)
    assert link_map(planned("runtime")) == {}


def test_without_a_toolkit_only_runtime_can_be_built() -> None:
    message = answer("devel", torch="2.8.0", cuda="12.9")
    assert (message.toolkit, message.lockable) == (None, False)
    with pytest.raises(Unresolvable, match=r"neither wheels nor archives of the CUDA 12\.9 toolkit"):
        require_buildable(message)


OF_ARCHIVES = tuple(f"nvidia-{name}-cu12" for name in ("cublas", "cuda-runtime", "cudnn", "cufft", "nccl"))


def of_archives(**versions: str) -> LockedCell:
    """The lock of torch 2.7.1 for CUDA 12.1 with NVIDIA's archives, and newer wheels or *versions*."""
    message = answer("devel", torch="2.7.1", cuda="12.1")
    made = {name: versions.get(name.replace("-", "_"), "12.6.77") for name in OF_ARCHIVES}
    wheels = tuple(wheel(name, version, megabytes=9) for name, version in made.items())
    made_for = locked()
    return replace(
        made_for,
        resolution=message,
        wheels=wheels,
        tools=tools_on(made_for.base),
        archives=FACTS.redist.releases["12.1.1"],
    )


def planned_of_archives(**versions: str) -> ImagePlan:
    return plan(of_archives(**versions), (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


TREE = "usr/local/cuda-12.1/targets/x86_64-linux"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("usr/local/cuda/bin/nvcc", "usr/local/cuda-12.1/bin/nvcc"),
        ("usr/local/cuda/include/cuda.h", f"{TREE}/include/cuda.h"),
        ("usr/local/cuda/lib64/libcudart_static.a", f"{TREE}/lib/libcudart_static.a"),
        ("usr/local/cuda/lib64/libcublas.so", f"{SITE}/nvidia/cublas/lib/libcublas.so.12"),
        ("usr/local/cuda/lib64/libcudnn.so", f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"),
        ("usr/local/cuda/extras/CUPTI/include/cupti.h", f"{TREE}/include/cupti.h"),
        ("usr/local/cuda/extras/CUPTI/lib64/libcublas.so", f"{SITE}/nvidia/cublas/lib/libcublas.so.12"),
    ],
)
def test_archives_search_paths_of_nvcc_and_linkers(path: str, found: str) -> None:
    assert followed(path, link_map(planned_of_archives())) == found


def test_a_wheel_older_than_the_archives_headers_replaces_nothing() -> None:
    """A wheel that is missing, or whose version cannot be compared, replaces nothing either."""
    links = set(link_map(planned_of_archives(nvidia_cublas_cu12="12.0.1.1", nvidia_cufft_cu12="11.9+x")))
    assert f"{TREE}/lib/libcudart.so" in links
    assert not {f"{TREE}/lib/lib{name}.so" for name in ("cublas", "cublasLt", "cufft", "curand")} & links


def test_archives_variables_for_shells_and_build_systems() -> None:
    """Headers of the archives are found before those that only wheels have; stubs come last."""
    env = dict(planned_of_archives().config.env)
    assert env["CPATH"].split(":") == [
        "/usr/local/cuda/include",
        f"/{SITE}/nvidia/cudnn/include",
        f"/{SITE}/nvidia/nccl/include",
    ]
    assert env["LIBRARY_PATH"] == "/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs"
    assert f":/{SITE}/nvidia/cublas/lib:" in env["LD_LIBRARY_PATH"]
    assert "/usr/local/cuda/bin" in env["PATH"].split(":")


def test_all_torch_releases_of_a_cuda_have_the_same_toolkit_layers() -> None:
    """These layers are above the wheels of the runtime image, and below the base."""
    older = replace(of_archives(), resolution=answer("devel", torch="2.1.2", cuda="12.1"))
    current, earlier = (archive_layers(cell) for cell in (of_archives(), older))
    assert current == earlier
    top = ["base", "tools", "overlay"]
    assert [layer.kind for layer in planned_of_archives().layers[-7:]] == [*["toolkit"] * 4, *top]
    of_layers = [archive for layer in current for archive in layer.archives]
    assert sorted(archive.component for archive in of_layers) == [
        archive.component for archive in of_archives().archives
    ]
    assert {key_of(layer) for layer in current} == {key_of(layer) for layer in earlier}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "do not match resolution.toolkit"),
        ({"version": "12.2.0"}, "is not an archive of cuda_cccl 12.2.0"),
        ({"path": "a/b/../../x.tar.xz"}, "path"),
        ({"path": "https://host/x/y.tar.xz"}, "path"),
        ({"component": "cuda_nvcc"}, "duplicate component"),
    ],
)
def test_a_lock_with_wrong_archives_is_refused(change: dict[str, str], message: str) -> None:
    """Even if the lock has a new seal."""
    document = json.loads(to_json(of_archives()))
    document["archives"][0] |= change
    with pytest.raises(Stale, match=re.escape(message)):
        from_json(_resealed(document))


def _resealed(document: dict[str, Any]) -> bytes:
    """*document* with a new seal, which an attacker can compute."""
    document["digest"] = lock_file._digest(document)
    document["seal"] = lock_file._seal(document)
    return json.dumps(document).encode()


def test_the_dockerfile_copies_the_tree_from_a_context() -> None:
    image = planned_of_archives()
    pip = wheel("pip", "25.3", megabytes=2)
    text = render(
        replace(image, locked=replace(image.locked, wheels=(pip,))), load_templates(ROOT / "templates"), ()
    )
    assert "FROM scratch AS toolkit\n" in text
    assert "COPY --from=toolkit usr/local/cuda-12.1/ /usr/local/cuda-12.1/\n" in text
    assert {path: target for target, path in re.findall(r"ln -s (\S+) /(\S+)", text)} == link_map(image)
    message = json.loads(bake([image], "pytorch-cuda"))
    (target,) = message["target"].values()
    assert target["contexts"]["toolkit"] == "${TOOLKIT_12_1}"
    assert message["variable"]["TOOLKIT_12_1"] == {"default": "toolkit-12.1"}
