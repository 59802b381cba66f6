"""The toolkits in compat.yaml, compared with the index: each library is in one wheel; ptxas works."""

from __future__ import annotations

import io
import os
import re
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import nightly
from tests.planned import FACTS, MATRIX
from torchkiln.index.download import open_downloads
from torchkiln.index.package_index import open_index
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Resolution
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedWheel
from torchkiln.plan.cuda_toolkit import libraries_of
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

TAIL = 1 << 20  # bytes at a wheel's end that contain its directory


def on_the_index(store: Store, *requirements: str) -> tuple[LockedWheel, ...]:
    """The wheels that the default index has for *requirements*."""
    request = IndexRequest(
        requirements=requirements,
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of="2026-11-22",
        keep=(),
        bound=(),
    )
    return open_index(os.environ, store).wheels(request)


@pytest.mark.proof
@nightly
@pytest.mark.parametrize(("cuda", "torch"), [("13.0", "2.11.0")])
def test_every_link_leads_to_a_file_of_a_wheel(cuda: str, torch: str, tmp_path: Path) -> None:
    toolkit, store = FACTS.toolkits[cuda], Store(tmp_path)
    known = toolkit.toolkit
    found = on_the_index(store, f"torch=={torch}", toolkit.requires)
    wheels = [item for item in found if item.name.startswith("nvidia-")]
    downloads = open_downloads(os.environ, store)
    wheel_of_file: dict[str, str] = {}
    for wheel in wheels:
        tail = downloads.tail(wheel, min(TAIL, wheel.size))
        assert tail is not None
        with zipfile.ZipFile(io.BytesIO(tail)) as archive:
            for name in archive.namelist():
                assert name.endswith("/") or name not in wheel_of_file, (
                    f"{name}: of {wheel.name} and {wheel_of_file[name]}"
                )
                wheel_of_file[name] = wheel.name

    links = [*(f"{known.folder}/bin/{name}" for name in known.programs), *known.libraries]
    folders = [f"{known.folder}/include/", f"{known.folder}/nvvm/"]
    there = {name for link in links for name in wheel_of_file if name == link or name.startswith(f"{link}/")}
    assert [
        link for link in links if not any(item == link or item.startswith(f"{link}/") for item in there)
    ] == []
    assert [folder for folder in folders if not any(name.startswith(folder) for name in wheel_of_file)] == []
    # The facts list all libraries that a program could be linked with.
    unnumbered = {
        name for name in wheel_of_file if name.startswith(f"{known.folder}/lib/lib") and ".so." in name
    }
    assert unnumbered - set(known.libraries) == {
        f"{known.folder}/lib/{name}"
        for name in (
            "libcufile_rdma.so.1",
            "libnvrtc-builtins.alt.so.13.0",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc.alt.so.13",
            "libnvtx3interop.so.1",
        )
    }


LIBRARY = re.compile(r".*/lib/lib\w+\.so\.[\d.]+")
LOCKED = {
    path.parent.name: load_locked(ROOT / "images", path.parent.name)
    for path in sorted((ROOT / "images").glob("*-runtime/lock.json"))
}


def devel(tag: str) -> Resolution:
    """The resolution of a devel image of the cell."""
    return resolve(replace(LOCKED[tag].resolution.cell, flavor="devel"), MATRIX, FACTS)


@pytest.mark.proof
@nightly
@pytest.mark.parametrize("tag", [tag for tag in LOCKED if (kit := devel(tag).toolkit) and kit.release])
def test_the_wheels_have_the_libraries_that_replace_those_of_the_archives(tag: str, tmp_path: Path) -> None:
    """For each locked torch: each link leads to a file, and no library of the toolkit is missing."""
    locked, resolution = LOCKED[tag], devel(tag)
    assert resolution.toolkit
    archives = FACTS.redist.releases[resolution.toolkit.release]
    linked = libraries_of(replace(locked, resolution=resolution, archives=archives))
    downloads = open_downloads(os.environ, Store(tmp_path))
    wheel_of_file = set()
    for wheel in locked.wheels:
        if wheel.name.startswith("nvidia-"):
            tail = downloads.tail(wheel, min(TAIL, wheel.size))
            assert tail is not None
            with zipfile.ZipFile(io.BytesIO(tail)) as archive:
                wheel_of_file |= {
                    name for name in archive.namelist() if re.fullmatch(r".*/lib/lib\w+\.so\.[\d.]+", name)
                }

    assert set(linked) - wheel_of_file == set()
    # Exceptions: parts of other libraries, which nothing links directly, and those that the facts exclude.
    not_linked = re.compile(r".*/lib(cudnn_\w+|cufile_rdma|cusparseLt|OpenCL)\.so\.\d")
    assert {name for name in wheel_of_file - set(linked) if not not_linked.fullmatch(name)} == set()


# --- ptxas -----------------------------------------------------------------------------------------


# CUDA 12.1 has PTX ISA 8.1 (NVIDIA's release notes of the PTX ISA). x[i] *= 2.
PTX = """\
.version {isa}
.target {target}
.address_size 64
.visible .entry twice(.param .u64 x, .param .u32 n)
{{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [x];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra done;
    cvta.to.global.u64 %rd1, %rd0;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.f32 %f0, [%rd3];
    add.f32 %f1, %f0, %f0;
    st.global.f32 [%rd3], %f1;
done:
    ret;
}}
"""


@pytest.fixture(scope="module")
def ptxas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ptxas of the wheel with the archive's version."""
    (nvcc,) = (item for item in FACTS.redist.releases["12.1.1"] if item.component == "cuda_nvcc")
    store = Store(cache_root())
    (wheel,) = on_the_index(store, f"nvidia-cuda-nvcc-cu12=={nvcc.version}")
    with zipfile.ZipFile(open_downloads(os.environ, store).fetch_wheel(wheel, store)) as archive:
        path = Path(archive.extract("nvidia/cuda_nvcc/bin/ptxas", tmp_path_factory.mktemp("ptxas")))
    path.chmod(0o755)
    return path


def assembled(ptxas: Path, folder: Path, isa: str, target: str) -> subprocess.CompletedProcess[str]:
    source, cubin = folder / "twice.ptx", folder / f"{target}.cubin"
    source.write_text(PTX.format(isa=isa, target=target))
    argv = [str(ptxas), f"-arch={target}", "-o", str(cubin), str(source)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.proof
@nightly
def test_the_version_is_12_1(ptxas: Path) -> None:
    output = subprocess.run([str(ptxas), "--version"], capture_output=True, text=True, check=True).stdout

    assert "release 12.1, V12.1.105" in output


@pytest.mark.proof
@nightly
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_ptxas_assembles_our_kernel(target: str, ptxas: Path, tmp_path: Path) -> None:
    """The output is an ELF file for that GPU; PTX of a newer CUDA is refused."""
    done = assembled(ptxas, tmp_path, "8.1", target)
    assert done.returncode == 0, done.stderr
    cubin = (tmp_path / f"{target}.cubin").read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == 190  # EM_CUDA
    assert int.from_bytes(cubin[48:52], "little") & 0xFF == int(target.removeprefix("sm_"))

    newer = assembled(ptxas, tmp_path, "8.2", target)
    assert newer.returncode != 0
    assert "8.2" in newer.stderr
