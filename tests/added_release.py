"""An index with invented releases of torch, and functions that run `matrix add` with this index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.planned import ROOT
from tests.servers.index_server import IndexServer
from torchkiln.cli.matrix import matrix
from torchkiln.errors import KilnError

LIBRARY = "torch/lib/libtorch_python.so"
CODE = {LIBRARY: b"\x7fELF\0sm_75 sm_90 compute_90\0sm_75\0"}
OURS = (ROOT / "matrix.yaml").read_text().replace('  - {torch: "2.9.1", cuda: "12.8"}\n', "")
LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
CU12 = [
    "filelock",
    'setuptools; python_version >= "3.12"',
    f"nvidia-cuda-runtime-cu12==12.8.90; {LINUX}",
    f"nvidia-cudnn-cu12==9.10.2.21; {LINUX}",
    f"nvidia-nccl-cu12==2.27.5; {LINUX}",
    f'triton==3.5.1; {LINUX} and python_version < "3.15"',
    'pywin32; platform_system == "Windows"',
    'opt-einsum>=3.3; extra == "opt-einsum"',
]
CU13 = [
    'cuda-toolkit[nvrtc,cublas,cudart]==13.3.1; platform_system == "Linux"',
    'nvidia-cublas==13.1.0.3.*; platform_system == "Linux"',
    'cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.15"',
    'nvidia-cudnn-cu13==9.26.0.51; platform_system == "Linux"',
    'triton~=3.9.0; platform_system == "Linux"',
]


def tag(python: str, abi: str = "", platform: str = "manylinux_2_28_x86_64") -> str:
    return f"{python}-{abi or python}-{platform}"


class Workspace:
    """A matrix.yaml, an index with invented releases of torch, and `matrix add` with both."""

    def __init__(self, server: IndexServer, folder: Path) -> None:
        self.server, self.file = server, folder / "matrix.yaml"
        self.file.write_text(OURS)
        self.environ = {
            "TORCHKILN_CACHE": str(folder / "cache"),
            "UV_DEFAULT_INDEX": server.url("default"),
            "PIP_CONFIG_FILE": "/dev/null",
        }

    def run(self, *words: str) -> tuple[KilnError | None, str, str]:
        """Run `matrix add` with *words*; returns its error (None if it succeeds), stdout and stderr."""
        done = CliRunner(env=self.environ).invoke(matrix, ["add", *words, "--matrix", str(self.file)])
        assert done.exception is None or isinstance(done.exception, KilnError), done.exception
        return done.exception, done.stdout, done.stderr

    def refused(self, *words: str) -> KilnError:
        """Run `matrix add`, which must fail and leave the matrix unchanged; returns the error."""
        error = self.run(*words)[0]
        assert error is not None
        assert self.file.read_text() == OURS
        return error


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with IndexServer() as server:
        add = server.add
        for python in ("cp310", "cp311"):
            add("default", "torch", "2.9.1", requires=CU12, tag=tag(python))
        add("default", "torch", "2.9.1", requires=CU12, tag=tag("cp313", "cp313t"), payload=b"t")
        add("default", "torch", "2.9.1", tag=tag("cp311", platform="manylinux_2_28_aarch64"))
        add("default", "torch", "2.9.1", tag=tag("cp311", platform="win_amd64"))
        add("default", "torch", "2.99.0", requires=CU12, tag=tag("cp310"), files=CODE, python=">=3.10")
        for build, payload in (("", b"1"), ("1-", b"2")):
            details = {"requires": CU13, "payload": payload, "python": ">=3.10"}
            add("default", "torch", "2.99.1", tag=build + tag("cp311"), **details)
        add("default", "torch", "2.99.2", requires=["filelock"], tag=tag("cp311"))
        add("default", "torch", "2.99.3", tag=tag("cp311", platform="macosx_11_0_arm64"))
        for version, torch in (("0.23.0", "2.8.0"), ("0.24.1", "2.9.1"), ("0.98.0", "2.98.0")):
            add("default", "torchvision", version, requires=[f"torch (=={torch})"], tag=tag("cp311"))
        add("default", "torchvision", "0.99.0", requires=["torch>=2.99.0"], tag=tag("cp311"))
        add("default", "torchvision", "0.100.0rc1", requires=["torch==2.99.0"], tag=tag("cp311"))
        add("default", "torchaudio", "2.9.1", requires=["torch==2.9.1"], tag=tag("cp311"))
        add("default", "torchaudio", "2.99.0", tag=tag("cp311"))
        yield Workspace(server, tmp_path)
