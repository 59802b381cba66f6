"""What a host lacks: the real probe asks a driver made for the test, and a sentence says what is missing."""

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
from tests.smoke_suites import CLAIMS, SUITE
from torchkiln.matrix.facts import load

SHM = 1 << 30


def asked(**fake: str) -> dict[str, Any]:
    """What the probe tells of a driver that answers *fake*."""
    env = os.environ | {"LD_LIBRARY_PATH": str(fake_driver())} | fake
    command = [sys.executable, "-I", "-B", str(SUITE / "probes" / "driver.py")]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def lacks(
    tier: int = 1, claims: Mapping[str, Any] = CLAIMS, *, nodes: int = 1, shm: int = SHM, **fake: str
) -> str | None:
    """The sentence for a check of *tier* on a host with that driver and *nodes* device nodes."""
    driver = asked(**fake) | {"nodes": [f"nvidia{at}" for at in range(nodes)]}
    return lacking(tier, {"driver": driver, "shm": shm}, claims)


@needs_gcc
def test_the_probe_tells_what_the_driver_says() -> None:
    told = asked(FAKE_GPUS="2", FAKE_NVLINKS="18", FAKE_FREE_MIB="70000", CUDA_VISIBLE_DEVICES="0,1")
    assert told == {
        "visible": "0,1",
        "nodes": told["nodes"],
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
def test_without_nvlink_the_way_over_pcie_is_told() -> None:
    told = asked(FAKE_GPUS="3", FAKE_WAY="20", FAKE_PEERS="0")
    assert told["links"] == [[0, 1, "PXB"], [0, 2, "PXB"], [1, 2, "PXB"]]
    assert told["peers"] == []


@needs_gcc
def test_a_driver_without_its_management_library_is_still_asked() -> None:
    """A container that has only the compute part: no free memory, no version; the rest is known."""
    told = asked(FAKE_NVML="9", FAKE_GPUS="2")
    assert (told["driver"], told["gpus"][0]["free"], told["links"]) == (None, None, [])
    assert lacking(2, {"driver": told, "shm": SHM}, CLAIMS) is None


@needs_gcc
def test_a_sound_host_lacks_nothing() -> None:
    assert lacks(1) is None
    assert lacks(2, FAKE_GPUS="2") is None
    assert lacks(3) is None
    assert lacking(0, {}, {}) is None


@needs_gcc
@pytest.mark.parametrize(
    ("fake", "sentence"),
    [
        ({"FAKE_INIT": "34"}, "{library} is the toolkit's stub, not a driver (CUDA error 34)"),
        (
            {"FAKE_INIT": "100"},
            "the driver finds no GPU, although nvidia0 is there: is it lost? dmesg may tell",
        ),
        (
            {"FAKE_INIT": "100", "CUDA_VISIBLE_DEVICES": "7"},
            "CUDA_VISIBLE_DEVICES='7' hides every GPU, or names one that is not here",
        ),
        (
            {"FAKE_INIT": "100", "CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES='' hides every GPU, or names one that is not here",
        ),
        (
            {"FAKE_INIT": "802"},
            "the system is not ready: machines with NVSwitch want nvidia-fabricmanager to run "
            "(CUDA error 802)",
        ),
        ({"FAKE_INIT": "803"}, "{library} does not fit the kernel's driver (CUDA error 803)"),
        (
            {"FAKE_INIT": "999"},
            "the driver does not start and does not say why: dmesg may, often it is nvidia-uvm that is "
            "missing (CUDA error 999)",
        ),
        ({"FAKE_INIT": "205"}, "the driver does not start (CUDA error 205)"),
        (
            {"FAKE_DRIVER": "470.57.02", "FAKE_CUDA": "11040"},
            "driver 470.57.02 is too old: this build needs 525.60.13 or newer",
        ),
        (
            {"FAKE_NVML": "9", "FAKE_CUDA": "11040"},
            "the driver serves CUDA 11.4 at most, and this build is made with 12.6",
        ),
        (
            {"FAKE_CAPABILITY": "70"},
            "no kernel for sm_70 in this build; use an older torch, or a build for an older CUDA "
            "(it holds sm_80 sm_90)",
        ),
        (
            {"FAKE_CAPABILITY": "100"},
            "no kernel for sm_100 in this build; use torch >= 2.7 with CUDA 12.8 (it holds sm_80 sm_90)",
        ),
        (
            {"FAKE_FREE_MIB": "1024"},
            "GPU 0 has 1 of 80 GiB free, the check needs 4: another process holds the rest "
            "(nvidia-smi shows it)",
        ),
        ({"FAKE_MIB": "2048"}, "GPU 0 has 2 GiB, the check needs 4"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_each_fault_of_a_host_has_its_sentence(fake: dict[str, str], sentence: str) -> None:
    claims = CLAIMS | {"min_driver": "525.60.13"}
    library = fake_driver() / "libcuda.so.1"
    assert lacks(1, claims, **fake) == f"host: {sentence.format(library=library)}"


@needs_gcc
def test_without_a_device_node_that_is_what_is_told() -> None:
    """Whatever CUDA_VISIBLE_DEVICES says: nothing could be visible."""
    sentence = "host: no GPU's device node (/dev/nvidia0 ...) in here: docker run wants --gpus all"
    assert lacks(1, nodes=0, FAKE_INIT="100", CUDA_VISIBLE_DEVICES="0") == sentence
    assert lacks(1, nodes=0, FAKE_INIT="100") == sentence


def test_without_libcuda_that_is_what_is_told() -> None:
    driver = {"libcuda": "libcuda.so.1: cannot open shared object file", "gpus": [], "init": None}
    assert str(lacking(1, {"driver": driver}, CLAIMS)).startswith("host: no NVIDIA driver in here (libcuda")


@needs_gcc
@pytest.mark.parametrize(
    ("init", "how"),
    [("crash", "probe driver was killed by SIGSEGV"), ("hang", "probe driver had no end within 2 s")],
)
def test_a_driver_that_kills_or_keeps_who_asks_it_is_told(
    init: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_INIT", init)
    monkeypatch.setattr(host_module, "DRIVER_LIMIT", 2.0)
    found = host_module.host_facts()
    assert capability(found) is None
    told = fault("cuda", 1, found, CLAIMS)
    assert told == f"host: the NVIDIA driver cannot be asked, {how}: is a GPU lost? dmesg may tell"


@needs_gcc
def test_several_gpus_need_several_gpus() -> None:
    assert lacks(2, FAKE_GPUS="1") == "host: 1 GPU here, this check needs two or more"
    told = lacks(2, FAKE_GPUS="1", CUDA_VISIBLE_DEVICES="3")
    assert told == "host: 1 GPU here (CUDA_VISIBLE_DEVICES='3'), this check needs two or more"


@needs_gcc
def test_without_peer_access_messages_need_shared_memory() -> None:
    assert lacks(2, FAKE_GPUS="2", shm=1 << 20) is None
    assert lacks(2, FAKE_GPUS="2", FAKE_PEERS="0") is None
    told = lacks(2, FAKE_GPUS="2", FAKE_PEERS="0", shm=1 << 20)
    assert told == (
        "host: no peer access between the GPUs, and /dev/shm has 1 MiB, NCCL needs 64 (--shm-size)"
    )


@needs_gcc
def test_the_fullest_gpu_is_named() -> None:
    told = lacks(1, FAKE_GPUS="2", FAKE_FREE_MIB="512")
    assert str(told).startswith("host: GPU 1 has 0.5 of 80 GiB free")
    assert str(lacks(3, FAKE_FREE_MIB="8192")).startswith(
        "host: GPU 0 has 8 of 80 GiB free, the check needs 22"
    )


@needs_gcc
def test_torch_2_0_on_a_hopper_gpu_is_the_hosts_affair() -> None:
    """torch 2.0.1+cu117 has neither sm_90 code nor PTX; an A100 it serves."""
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
def test_what_a_build_serves(archs: list[str], wanted: tuple[int, int], served: bool) -> None:
    assert serves(archs, wanted) is served


@needs_gcc
def test_a_driver_older_than_the_compiler_does_not_take_its_ptx() -> None:
    claims = {"wheel_cuda": "12.6", "archs": ["sm_80", "compute_80"]}
    assert lacks(1, claims, FAKE_CUDA="12060") is None
    assert "no kernel for sm_90" in str(lacks(1, claims, FAKE_CUDA="12040"))


def test_the_lowest_capability_counts() -> None:
    gpus = [{"capability": [9, 0]}, {"capability": [8, 6]}]
    assert capability({"driver": {"gpus": gpus}}) == (8, 6)
    assert capability({"driver": {"fault": "x"}}) is None


def test_no_uuid_of_a_gpu_gets_into_a_report(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "host: 1 GPU here (CUDA_VISIBLE_DEVICES='GPU-...,1')" in str(fault("ddp", 2, found, CLAIMS))


@needs_gcc
def test_a_version_with_words_in_it_is_read() -> None:
    assert lacks(1, {"min_driver": "525.60.13"}, FAKE_DRIVER="560.35.05-open") is None


def test_a_probe_that_hangs_is_ended() -> None:
    with pytest.raises(AssertionError, match=r"probe installed had no end within 0\.01 s"):
        probe("installed", limit=0.01)
