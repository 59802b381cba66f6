"""The search for a driver's files, on hosts simulated in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import without_gpus
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes import driver
from torchkiln.runtimes.driver import HostDriver, driver_for, find_driver

LIB = "usr/lib/x86_64-linux-gnu"
CACHE = f"""\
3 libs found in cache `/etc/ld.so.cache'
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /{LIB}/libcuda.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /{LIB}/libnvidia-ml.so.1
\tlibnvidia-glcore.so.580.1 (libc6,x86-64) => /{LIB}/libnvidia-glcore.so.580.1
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with two GPUs. Its libraries are links to files with the version, as distributions do it."""
    for node in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / node).write_text("")
    (tmp_path / LIB).mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
        (tmp_path / LIB / f"{name}.580.1").write_text("")
        (tmp_path / LIB / f"{name}.1").symlink_to(f"{name}.580.1")
    (tmp_path / LIB / "libnvidia-gpucomp.so.580.1").write_text("")
    (tmp_path / LIB / "libnvidia-glcore.so.580.1").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("")
    return tmp_path


def found(host: Path, **more: str) -> HostDriver | None:
    environ = {"PATH": str(host / "bin"), **{key: value for key, value in more.items() if key.isupper()}}
    rest = {key: value for key, value in more.items() if key.islower()}
    return find_driver(environ, host=host, **{"cache": CACHE, **rest})


def test_files_for_compute_and_utility(host: Path) -> None:
    """Libraries are found by ldconfig's cache and in folders. Graphics and 32-bit libraries are left out."""
    driver = found(host)
    assert driver is not None

    assert dict(driver.libraries) == {
        "libcuda.so": host / LIB / "libcuda.so.580.1",
        "libcuda.so.1": host / LIB / "libcuda.so.580.1",
        "libnvidia-gpucomp.so.580.1": host / LIB / "libnvidia-gpucomp.so.580.1",
        "libnvidia-ml.so.1": host / LIB / "libnvidia-ml.so.580.1",
        "libnvidia-ptxjitcompiler.so.1": host / LIB / "libnvidia-ptxjitcompiler.so.580.1",
    }
    assert [name for name, _ in driver.nodes] == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert (driver.gpus, dict(driver.tools)) == (2, {"nvidia-smi": host / "bin/nvidia-smi"})


def test_without_a_cache_the_folders_give_the_same_result(host: Path) -> None:
    assert found(host, cache="") == found(host)


def test_the_loaders_cache_names_libraries_in_other_folders(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an explicit cache, the host's cache is read."""
    (host / LIB).rename(host / "opt")
    cache = CACHE.replace(LIB, "opt")
    monkeypatch.setattr(driver, "_ldconfig", lambda: cache)

    for given in (cache, None):
        one = find_driver({}, host=host, cache=given)
        assert one is not None
        assert dict(one.libraries)["libcuda.so.1"] == host / "opt/libcuda.so.580.1"
    assert find_driver({}, host=host, cache="") is None


def test_a_driver_in_a_folder_of_the_environment(host: Path, tmp_path: Path) -> None:
    (host / LIB).rename(host / "elsewhere")

    driver = found(host, cache="", LD_LIBRARY_PATH=f":{host / 'elsewhere'}")
    assert driver is not None
    assert dict(driver.libraries)["libcuda.so.1"] == host / "elsewhere/libcuda.so.580.1"
    assert found(host, cache="") is None  # there are device nodes, but no driver libraries


@pytest.mark.parametrize(
    ("capabilities", "libraries"),
    [
        ("utility", {"libnvidia-ml.so.1"}),
        ("all", {"libcuda.so", "libcuda.so.1", "libnvidia-gpucomp.so.580.1", "libnvidia-ml.so.1"}),
        ("graphics, utility", {"libnvidia-ml.so.1"}),
    ],
)
def test_capabilities_of_the_image(host: Path, capabilities: str, libraries: set[str]) -> None:
    driver = found(host, capabilities=capabilities)
    assert driver is not None
    assert {name for name, _ in driver.libraries} - {"libnvidia-ptxjitcompiler.so.1"} == libraries


@without_gpus
def test_missing_requested_capabilities_are_reported() -> None:
    """--gpus all requires a driver; capabilities that only the image requests may be missing."""
    assert driver_for({"NVIDIA_VISIBLE_DEVICES": "all"}, None) is None
    assert driver_for({}, "none") is None
    with pytest.raises(ToolMissing, match="no NVIDIA driver"):
        driver_for({}, "all")
    with pytest.raises(ConfigError, match="all or none"):
        driver_for({}, "device=1")


def test_without_a_gpu_there_is_no_driver(host: Path) -> None:
    assert found(host, capabilities="graphics") is None
    (host / "dev/nvidiactl").unlink()
    assert found(host) is None
