"""Faults of a host: the real probe queries a fake driver, and the check's message names the fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from smoke_tests import host as host_module
from smoke_tests.gpus import capability, lacking, serves
from smoke_tests.host import fault, host_texts, without_uuids
from smoke_tests.probe import probe
from tests.fake_driver import fake_driver
from tests.needs import needs_gcc
from tests.smoke_suites import CLAIMS, DRIVER_PROBE
from torchkiln.matrix.facts import load

SHM = 1 << 30


def probed(**fake: str) -> dict[str, Any]:
    """The output of the probe if the driver returns *fake*."""
    env = os.environ | {"LD_LIBRARY_PATH": str(fake_driver())} | fake
    command = [sys.executable, "-I", "-B", str(DRIVER_PROBE)]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def lacks(
    tier: int = 1, claims: Mapping[str, Any] = CLAIMS, *, nodes: int = 1, shm: int = SHM, **fake: str
) -> str | None:
    """The message for a check of *tier* on a host with the driver *fake* and with *nodes* device nodes."""
    driver = probed(**fake) | {"nodes": [f"nvidia{at}" for at in range(nodes)]}
    return lacking(tier, {"driver": driver, "shm": shm}, claims)


@needs_gcc
def test_the_probe_reports_the_drivers_values() -> None:
    driver = probed(FAKE_GPUS="2", FAKE_NVLINKS="18", FAKE_FREE_MIB="70000", CUDA_VISIBLE_DEVICES="0,1")
    assert driver == {
        "visible": "0,1",
        "nodes": driver["nodes"],
        "libcuda": None,
        "library": str(fake_driver() / "libcuda.so.1"),
        "init": 0,
        "cuda": "13.0",
        "driver": "580.159.04",
        "gpus": [
            {
                "name": f"Fake H{at + 1}00",
                "capability": [9, 0],
                "processors": 132,
                "memory": 81920 << 20,
                "free": free << 20,
                "nvlinks": 18,
            }
            for at, free in enumerate((80000, 70000))
        ],
        "peers": [[0, 1], [1, 0]],
        "links": [[0, 1, "NVLINK"]],
    }


@needs_gcc
def test_without_nvlink_the_pcie_path_is_reported() -> None:
    driver = probed(FAKE_GPUS="3", FAKE_WAY="20", FAKE_PEERS="0")
    assert driver["links"] == [[0, 1, "PXB"], [0, 2, "PXB"], [1, 2, "PXB"]]
    assert driver["peers"] == []


@needs_gcc
def test_a_driver_without_its_management_library_is_queried() -> None:
    """With only the driver capability `compute`, there is no NVML: free memory and version are unknown."""
    driver = probed(FAKE_NVML="9", FAKE_GPUS="2")
    assert (driver["driver"], driver["gpus"][0]["free"], driver["links"]) == (None, None, [])
    assert lacking(2, {"driver": driver, "shm": SHM}, CLAIMS) is None


@needs_gcc
def test_a_suitable_host_has_no_fault() -> None:
    assert lacks(1) is None
    assert lacks(2, FAKE_GPUS="2") is None
    assert lacks(3) is None
    assert lacking(0, {}, {}) is None


@needs_gcc
@pytest.mark.parametrize(
    ("fake", "sentence"),
    [
        (
            {"FAKE_INIT": "34"},
            "{library} is the stub library of the CUDA toolkit, not a driver (CUDA error 34)",
        ),
        (
            {"FAKE_INIT": "100"},
            "the driver finds no GPU, although nvidia0 exists: a GPU may be lost: see dmesg",
        ),
        (
            {"FAKE_INIT": "100", "CUDA_VISIBLE_DEVICES": "7"},
            "CUDA_VISIBLE_DEVICES='7' hides all GPUs, or names one that does not exist",
        ),
        (
            {"FAKE_INIT": "100", "CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES='' hides all GPUs, or names one that does not exist",
        ),
        (
            {"FAKE_INIT": "802"},
            "the system is not ready: machines with NVSwitch need nvidia-fabricmanager (CUDA error 802)",
        ),
        ({"FAKE_INIT": "803"}, "{library} does not match the driver in the kernel (CUDA error 803)"),
        (
            {"FAKE_INIT": "999"},
            "unknown error when the driver starts: see dmesg; often the kernel module nvidia-uvm is missing "
            "(CUDA error 999)",
        ),
        ({"FAKE_INIT": "205"}, "the driver does not start (CUDA error 205)"),
        (
            {"FAKE_DRIVER": "470.57.02", "FAKE_CUDA": "11040"},
            "driver 470.57.02 is too old: this build needs 525.60.13 or newer",
        ),
        (
            {"FAKE_NVML": "9", "FAKE_CUDA": "11040"},
            "the driver supports CUDA 11.4 at most, but this build needs 12.6",
        ),
        (
            {"FAKE_CAPABILITY": "70"},
            "no kernel for sm_70 in this build; use an older torch, or a build for an older CUDA "
            "(it has sm_80 sm_90)",
        ),
        (
            {"FAKE_CAPABILITY": "100"},
            "no kernel for sm_100 in this build; use torch >= 2.7 with CUDA 12.8 (it has sm_80 sm_90)",
        ),
        (
            {"FAKE_FREE_MIB": "1024"},
            "GPU 0 has 1 of 80 GiB free, but the check needs 4: other processes use the rest "
            "(see nvidia-smi)",
        ),
        ({"FAKE_MIB": "2048"}, "GPU 0 has 2 GiB of memory, but the check needs 4"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_each_fault_of_a_host_has_its_message(fake: dict[str, str], sentence: str) -> None:
    claims = CLAIMS | {"min_driver": "525.60.13"}
    library = fake_driver() / "libcuda.so.1"
    assert lacks(1, claims, **fake) == f"host: {sentence.format(library=library)}"


@needs_gcc
def test_a_missing_device_node_is_reported() -> None:
    """CUDA_VISIBLE_DEVICES makes no difference."""
    sentence = "host: no GPU device node here (/dev/nvidia0 ...)"
    assert lacks(1, nodes=0, FAKE_INIT="100", CUDA_VISIBLE_DEVICES="0") == sentence
    assert lacks(1, nodes=0, FAKE_INIT="100") == sentence


def test_a_missing_libcuda_is_reported() -> None:
    driver = {"libcuda": "libcuda.so.1: cannot open shared object file", "gpus": [], "init": None}
    assert str(lacking(1, {"driver": driver}, CLAIMS)).startswith("host: no NVIDIA driver here (libcuda")


@needs_gcc
@pytest.mark.parametrize(
    ("init", "how"),
    [("crash", "probe driver was killed by SIGSEGV"), ("hang", "probe driver timed out after 0.5 s")],
)
def test_a_driver_that_crashes_or_hangs_its_caller_is_reported(
    init: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_INIT", init)
    monkeypatch.setattr(host_module, "DRIVER_LIMIT", 0.5 if init == "hang" else 20.0)
    found = host_module.host_facts()
    assert capability(found) is None
    message = fault("cuda", 1, found, {"claims": CLAIMS})
    assert message == f"host: cannot query the NVIDIA driver: {how}; a GPU may be lost: see dmesg"


@needs_gcc
def test_tier_2_needs_two_gpus() -> None:
    assert lacks(2, FAKE_GPUS="1") == "host: found 1 GPU, but this check needs two or more"
    message = lacks(2, FAKE_GPUS="1", CUDA_VISIBLE_DEVICES="3")
    assert message == "host: found 1 GPU (CUDA_VISIBLE_DEVICES='3'), but this check needs two or more"


@needs_gcc
def test_without_peer_access_messages_need_shared_memory() -> None:
    assert lacks(2, FAKE_GPUS="2", shm=1 << 20) is None
    assert lacks(2, FAKE_GPUS="2", FAKE_PEERS="0") is None
    message = lacks(2, FAKE_GPUS="2", FAKE_PEERS="0", shm=1 << 20)
    assert message == (
        "host: no peer access between the GPUs, and /dev/shm has 1 MiB free, but NCCL needs 64 (--shm-size)"
    )


@needs_gcc
def test_the_fullest_gpu_is_named() -> None:
    message = lacks(1, FAKE_GPUS="2", FAKE_FREE_MIB="512")
    assert str(message).startswith("host: GPU 1 has 0.5 of 80 GiB free")
    assert str(lacks(3, FAKE_FREE_MIB="8192")).startswith(
        "host: GPU 0 has 8 of 80 GiB free, but the check needs 22"
    )


@needs_gcc
def test_torch_2_0_on_a_hopper_gpu_is_a_fault_of_the_host() -> None:
    """torch 2.0.1+cu117 has no code for sm_90 and no PTX, so it needs another GPU, such as an A100."""
    variant = load().releases["2.0.1"].variant("cu117")
    claims = {"torch": "2.0.1+cu117", "wheel_cuda": "11.7", "archs": list(variant.archs)}
    sentence = "host: no kernel for sm_90 in this build; use torch >= 2.1 with CUDA 12.1"
    assert str(lacks(1, claims, FAKE_GPUS="2")).startswith(sentence)
    assert str(lacks(2, claims, FAKE_GPUS="2")).startswith(sentence)
    assert lacks(1, claims, FAKE_CAPABILITY="80") is None


@pytest.mark.parametrize(
    ("archs", "wanted", "served"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_120"], (12, 1), True),
        (["sm_80", "compute_80"], (9, 0), True),
        (["compute_90a"], (10, 0), False),
        (["compute_120"], (10, 0), False),
        ([], (9, 0), False),
    ],
)
def test_which_gpus_a_build_supports(archs: list[str], wanted: tuple[int, int], served: bool) -> None:
    assert serves(archs, wanted) is served


@needs_gcc
def test_a_driver_older_than_the_compiler_cannot_use_its_ptx() -> None:
    claims = {"wheel_cuda": "12.6", "archs": ["sm_80", "compute_80"]}
    assert lacks(1, claims, FAKE_CUDA="12060") is None
    assert "no kernel for sm_90" in str(lacks(1, claims, FAKE_CUDA="12040"))


def test_the_lowest_capability_counts() -> None:
    gpus = [{"capability": [9, 0]}, {"capability": [8, 6]}]
    assert capability({"driver": {"gpus": gpus}}) == (8, 6)
    assert capability({"driver": {"fault": "x"}}) is None


def test_a_report_contains_no_uuid_of_a_gpu(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho 'GPU-{uuid} MIG-{uuid} MIG-GPU-{uuid}/1/0 NVIDIA GPU-Z'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert host_texts()["nvidia_smi"] == "GPU-... MIG-... MIG-GPU-... NVIDIA GPU-Z"
    assert without_uuids("no driver") == "no driver"


@needs_gcc
def test_a_gpu_chosen_by_its_uuid_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-01234567-89ab-cdef-0123-456789abcdef,1")
    found = host_module.host_facts()
    assert found["driver"]["visible"] == "GPU-...,1"
    assert "host: found 1 GPU (CUDA_VISIBLE_DEVICES='GPU-...,1')" in str(
        fault("ddp", 2, found, {"claims": CLAIMS})
    )


@needs_gcc
def test_a_driver_version_with_a_suffix_is_read() -> None:
    assert lacks(1, {"min_driver": "525.60.13"}, FAKE_DRIVER="560.35.05-open") is None


def test_a_probe_that_hangs_is_killed() -> None:
    with pytest.raises(AssertionError, match=r"probe installed timed out after 0\.01 s"):
        probe("installed", limit=0.01)
