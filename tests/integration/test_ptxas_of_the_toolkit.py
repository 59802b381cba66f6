"""CUDA 12.1's own assembler, which PyPI has though it has no nvcc: the version that the facts name, at work.

nvcc 12.1 itself lies in NVIDIA's archive, which these tests do not reach.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.gridcase import FACTS
from torchkiln.index.download import open_downloads
from torchkiln.index.package_index import open_index
from torchkiln.model.index import IndexRequest
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

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
    """That of the wheel whose version is the archive's."""
    (nvcc,) = (one for one in FACTS.redist.releases["12.1.1"] if one.component == "cuda_nvcc")
    store = Store(cache_root())
    wanted = IndexRequest(
        requirements=(f"nvidia-cuda-nvcc-cu12=={nvcc.version}",),
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of="2026-11-22",
        keep=(),
        bound=(),
    )
    (wheel,) = open_index(os.environ, store).wheels(wanted)
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
def test_it_is_12_1s(ptxas: Path) -> None:
    said = subprocess.run([str(ptxas), "--version"], capture_output=True, text=True, check=True).stdout

    assert "release 12.1, V12.1.105" in said


@pytest.mark.proof
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_it_assembles_our_kernel(target: str, ptxas: Path, tmp_path: Path) -> None:
    """Into an ELF file for that GPU; and refuses what a newer CUDA would write."""
    done = assembled(ptxas, tmp_path, "8.1", target)
    assert done.returncode == 0, done.stderr
    cubin = (tmp_path / f"{target}.cubin").read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == 190  # EM_CUDA
    assert int.from_bytes(cubin[48:52], "little") & 0xFF == int(target.removeprefix("sm_"))

    newer = assembled(ptxas, tmp_path, "8.2", target)
    assert newer.returncode != 0
    assert "8.2" in newer.stderr
