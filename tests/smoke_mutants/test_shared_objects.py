"""`another_cudnn` and `without_library` of pretended.py cause their faults; tested with a fake cuDNN."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.cudnn_libraries import unused
from tests.needs import needs_gcc
from tests.smoke_mutants.pretended import another_cudnn, without_library
from tests.smoke_suites import SUITE

pytestmark = needs_gcc
CODE = (
    "import ctypes, sys; caller = ctypes.CDLL(sys.argv[1]); "
    "print(caller.number(), caller.minor(), caller.create())"
)


@pytest.fixture
def caller(tmp_path: Path) -> Path:
    """A library that needs a cuDNN 9.5.1 with symbol versions, as the real cuDNN has."""
    (tmp_path / "map").write_text("libcudnn.so.9 { global: *; };\n")
    real, caller = tmp_path / "libcudnn.so.9", tmp_path / "libcaller.so"
    _build(
        "unsigned long cudnnGetVersion(void) { return 90501; }"
        "int cudnnGetProperty(int which, int *value) { *value = 5; return 0; }"
        "int cudnnCreate(void) { return 7; }",
        ["-o", str(real), "-Wl,-soname,libcudnn.so.9", f"-Wl,--version-script,{tmp_path}/map"],
    )
    _build(
        "unsigned long cudnnGetVersion(void); int cudnnGetProperty(int, int *); int cudnnCreate(void);"
        "int number(void) { return cudnnGetVersion(); } int create(void) { return cudnnCreate(); }"
        "int minor(void) { int value; cudnnGetProperty(1, &value); return value; }",
        ["-x", "none", str(real), "-o", str(caller), "-Wl,-rpath,$ORIGIN"],
    )
    return caller


@pytest.mark.parametrize(("version", "number"), [((9, 1, 0), 90100), ((8, 9, 7), 8907)])
def test_another_cudnn_returns_its_version_and_the_real_one_does_the_rest(
    version: tuple[int, int, int], number: int, caller: Path, tmp_path: Path
) -> None:
    assert _run(caller, {}).stdout.split() == ["90501", "5", "7"]
    result = _run(caller, another_cudnn(tmp_path, version))
    assert result.stdout.split() == [str(number), str(version[1]), "7"]


def test_a_library_that_is_hidden_is_not_found_and_others_are(caller: Path, tmp_path: Path) -> None:
    assert _run(caller, without_library(tmp_path, "libcublas")).stdout.split() == ["90501", "5", "7"]
    result = _run(caller, without_library(tmp_path, "libcudnn.so"))
    assert result.returncode != 0
    assert "libcudnn.so.9: cannot open shared object file" in result.stderr


PARTS = ("", "_adv", "_engines_runtime_compiled", "_graph", "_ops")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a fake torch that loads cuDNN, and with a fake of NVIDIA's cuDNN distribution."""
    folder = tmp_path / "site"
    libraries = folder / "nvidia" / "cudnn" / "lib"
    libraries.mkdir(parents=True)
    for part in PARTS:
        needed = [] if part in ("", "_graph") else ["-x", "none", str(libraries / "libcudnn_graph.so.9")]
        name = f"libcudnn{part}.so.9"
        options = ["-o", str(libraries / name), f"-Wl,-soname,{name}", "-Wl,--no-as-needed,-rpath,$ORIGIN"]
        if needed and not Path(needed[-1]).exists():
            _build("", ["-o", needed[-1], "-Wl,-soname,libcudnn_graph.so.9"])
        _build(f"int kiln{part}(void) {{ return 0; }}", [*options, *needed])
    (folder / "torch.py").write_text(
        "import ctypes, os\n"
        "ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'nvidia/cudnn/lib/libcudnn.so.9'))\n"
    )
    distribution = folder / "nvidia_cudnn_cu12-9.5.1.17.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Name: nvidia-cudnn-cu12\nVersion: 9.5.1.17\n")
    files = [f"nvidia/cudnn/lib/libcudnn{part}.so.9" for part in PARTS] + ["nvidia/cudnn/include/cudnn.h"]
    (distribution / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return folder


def _probed(site: Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What probes/cudnn.py prints in an environment with *site*; paths as names."""
    code = f"import runpy, sys; sys.path.insert(0, {str(site)!r}); runpy.run_path({str(PROBE)!r})"
    command = [sys.executable, "-I", "-S", "-c", code]  # without the cuDNN of this environment
    done = subprocess.run(command, env=os.environ | (env or {}), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {key: [Path(path).name for path in found[key]] for key in ("loaded", "libraries")}


PROBE = SUITE / "probes" / "cudnn.py"
NAMES = [f"libcudnn{part}.so.9" for part in PARTS]


def test_every_library_of_cudnn_is_listed_and_loaded(site: Path) -> None:
    assert _probed(site) == {"loaded": ["libcudnn.so.9"], "libraries": NAMES, "faults": []}


@pytest.mark.parametrize("part", ["_adv", "_engines_runtime_compiled", "_ops"])
def test_a_library_of_cudnn_that_is_hidden_or_deleted_is_named(part: str, site: Path, tmp_path: Path) -> None:
    name = f"libcudnn{part}.so.9"
    fault = f"{name}: cannot open shared object file: No such file or directory"
    assert _probed(site, without_library(tmp_path, f"libcudnn{part}.so"))["faults"] == [fault]
    (site / "nvidia" / "cudnn" / "lib" / name).unlink()
    assert _probed(site) == {"loaded": ["libcudnn.so.9"], "libraries": NAMES, "faults": [fault]}


def test_a_library_of_cudnn_that_others_need_is_named_by_each(site: Path) -> None:
    (site / "nvidia" / "cudnn" / "lib" / "libcudnn_graph.so.9").unlink()
    faults = _probed(site)["faults"]  # with some linkers, only the library's own file needs it
    assert faults
    assert all("libcudnn_graph.so.9: cannot open" in fault for fault in faults)


def test_without_a_distribution_the_libraries_are_those_in_the_folder_of_the_loaded_one(site: Path) -> None:
    """As with conda. Each library is listed once, although a link for the linker is in the same folder."""
    shutil.rmtree(next(site.glob("*.dist-info")))
    folder = site / "nvidia" / "cudnn" / "lib"
    (folder / "libcudnn_ops.so.9").rename(folder / "libcudnn_ops.so.9.5.1")
    for link in ("libcudnn_ops.so.9", "libcudnn_ops.so"):
        (folder / link).symlink_to("libcudnn_ops.so.9.5.1")
    assert _probed(site)["libraries"] == [*NAMES[:-1], "libcudnn_ops.so.9.5.1"]


def test_a_distribution_that_torch_does_not_use_is_ignored(site: Path) -> None:
    another = site / "nvidia" / "another"
    (site / "nvidia" / "cudnn" / "lib").rename(another)
    (site / "torch.py").write_text(f"import ctypes\nctypes.CDLL({str(another / 'libcudnn.so.9')!r})\n")
    assert _probed(site) == {"loaded": ["libcudnn.so.9"], "libraries": NAMES, "faults": []}


def test_libraries_of_cudnn_that_torch_uses_must_be_in_use() -> None:
    """Engines that compile at run time, and names of later releases, need not be."""
    names = ("", "_adv", "_cnn", "_engines_runtime_compiled", "_engines_tensor_ir", "_graph", "_later")
    paths = [f"/opt/lib/libcudnn{name}.so.9" for name in names]
    assert unused(paths, ["/opt/lib/libcudnn_graph.so.9"]) == ["libcudnn_adv.so.9", "libcudnn_cnn.so.9"]
    assert unused(paths, ["/opt/lib/libcudnn_graph.so.9", "/usr/lib/libcudnn_adv.so.9", paths[2]]) == [
        "libcudnn_adv.so.9"
    ]
    assert unused(["/lib/libcudnn_ops_infer-1a2b3c4d.so.8"], []) == ["libcudnn_ops_infer-1a2b3c4d.so.8"]


def _build(source: str, options: list[str]) -> None:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", *options]
    subprocess.run(command, input=source, text=True, check=True)


def _run(caller: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", CODE, str(caller)]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
