"""Host faults end to end: runner, report, verdict. Each is `skipped` with a sentence, and `inconclusive`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_driver import fake_driver, has_libcuda
from tests.mounts import dev
from tests.needs import needs_gcc
from tests.smoke_suites import CLAIMS, FACTS, suite_with
from torchkiln.matrix.facts import load
from torchkiln.model.digest import Digest
from torchkiln.model.report import SmokeReport
from torchkiln.smoke.run import Checks, SmokeSubject, smoke
from torchkiln.smoke.suite import load_suite

DIGEST = Digest("sha256:" + "ab" * 32)
IMAGE = SmokeSubject(image=DIGEST, tag=CLAIMS["tag"], facts=FACTS)
# One check a tier, and the one that looks at shared memory. None may start where the host cannot carry it.
CHECKS = "\n".join(
    f"@pytest.mark.tier({tier})\ndef test_{name}(measure):\n    measure('ran', True, equals=True)\n\n"
    for tier, name in ((0, "nothing"), (0, "cpu_train"), (1, "one"), (2, "two"), (3, "bench"))
)


@dataclass(frozen=True)
class Ended:
    """How the runner ended."""

    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


@dataclass(frozen=True)
class Here:
    """A runtime without an image: this interpreter with *env*, after *before*."""

    env: Mapping[str, str]
    before: Sequence[str] = ()
    name: str = "here"
    python: str = sys.executable

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Ended:
        found = [
            next((word.replace(at, str(path)) for at, path in binds.items() if word.startswith(at)), word)
            for word in (*self.before, *argv)
        ]
        done = subprocess.run(found, env=self.env, capture_output=True, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)

    def killed_for_memory(self) -> int:
        return 0


def report(
    tmp_path: Path, before: Sequence[str] = (), claims: Mapping[str, Any] = CLAIMS, **env: str
) -> SmokeReport:
    """What torchkiln reports of a host with the driver that *env* makes."""
    suite = load_suite(suite_with(tmp_path / "suite", {"test_checks.py": CHECKS}))
    inside = Here(os.environ | {"LD_LIBRARY_PATH": str(fake_driver())} | env, before)
    facts = FACTS | {"claims": claims}
    checks, subject = Checks(suite=suite, tier=3), replace(IMAGE, facts=facts)
    return smoke(subject, inside, checks, wheels=tmp_path, when="2026-11-21T17:05:16Z")


def told(found: SmokeReport) -> dict[str, str]:
    """By check: its sentence where the host was at fault, else its outcome."""
    skipped = "skipped"
    return {one.id: one.message if one.outcome == skipped else one.outcome for one in found.findings}


def everywhere(sentence: str) -> dict[str, str]:
    """What `told` gives where no check with a GPU can run."""
    gpu = dict.fromkeys(("one", "two", "bench"), f"host: {sentence}")
    return {"nothing": "passed", "cpu-train": "passed"} | gpu


@needs_gcc
def test_a_sound_host_carries_every_check(tmp_path: Path) -> None:
    found = report(tmp_path, FAKE_GPUS="2")
    assert set(told(found).values()) == {"passed"}
    assert found.verdict == "pass"
    assert json.loads(found.host)["driver"]["gpus"][0]["name"] == "Fake H100"


@pytest.mark.skipif(has_libcuda(), reason="this machine has a driver")
def test_no_libcuda(tmp_path: Path) -> None:
    found = report(tmp_path, LD_LIBRARY_PATH="")
    assert told(found) == everywhere(
        "no NVIDIA driver in here (libcuda.so.1: cannot open shared object file: No such file or directory): "
        "docker run wants --gpus all, and the machine a driver"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
def test_no_device_nodes(tmp_path: Path) -> None:
    found = report(tmp_path, dev(tmp_path), FAKE_INIT="100")
    assert told(found) == everywhere(
        "no GPU's device node (/dev/nvidia0 ...) in here: docker run wants --gpus all"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
@pytest.mark.parametrize("visible", ["7", ""])
def test_wrong_cuda_visible_devices(visible: str, tmp_path: Path) -> None:
    found = report(tmp_path, dev(tmp_path, "nvidia0"), FAKE_INIT="100", CUDA_VISIBLE_DEVICES=visible)
    assert told(found) == everywhere(
        f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU, or names one that is not here"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
@pytest.mark.parametrize(
    ("fake", "sentence"),
    [
        (
            {"FAKE_DRIVER": "470.57.02", "FAKE_CUDA": "11040"},
            "driver 470.57.02 is too old: this build needs 525.60.13 or newer",
        ),
        ({"FAKE_INIT": "34"}, "{library} is the toolkit's stub, not a driver (CUDA error 34)"),
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
        (
            {"FAKE_INIT": "crash"},
            "the NVIDIA driver cannot be asked, probe driver was killed by SIGSEGV: is a GPU lost? "
            "dmesg may tell",
        ),
        (
            {"FAKE_FREE_MIB": "1024"},
            "GPU 1 has 1 of 80 GiB free, the check needs 4: another process holds the rest "
            "(nvidia-smi shows it)",
        ),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_a_driver_that_will_not_do(fake: dict[str, str], sentence: str, tmp_path: Path) -> None:
    found = report(tmp_path, (), CLAIMS | {"min_driver": "525.60.13"}, FAKE_GPUS="2", **fake)
    wanted = everywhere(sentence.format(library=fake_driver() / "libcuda.so.1"))
    assert told(found) == wanted | {"bench": wanted["bench"].replace("needs 4", "needs 22")}
    assert found.verdict == "inconclusive"


@needs_gcc
def test_a_driver_that_hangs(tmp_path: Path) -> None:
    before = ["sh", "-c", 'sed -i "s/^DRIVER_LIMIT = .*/DRIVER_LIMIT = 2.0/" "$0"; exec "$@"']
    found = report(tmp_path, [*before, "/opt/torchkiln/smoke_tests/host.py"], FAKE_INIT="hang")
    assert told(found) == everywhere(
        "the NVIDIA driver cannot be asked, probe driver had no end within 2 s: is a GPU lost? dmesg may tell"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
def test_torch_2_0_on_hopper_gpus(tmp_path: Path) -> None:
    archs = load().releases["2.0.1"].variant("cu117").archs
    old = CLAIMS | {"torch": "2.0.1+cu117", "wheel_cuda": "11.7", "cuda": "11.7", "archs": list(archs)}
    found = report(tmp_path, (), old, FAKE_GPUS="2")
    assert told(found) == everywhere(
        "no kernel for sm_90 in this build; use torch >= 2.1 with CUDA 12.1 "
        "(it holds sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86)"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
def test_one_gpu_is_enough_for_all_but_tier_2(tmp_path: Path) -> None:
    found = report(tmp_path, FAKE_GPUS="1")
    assert told(found) == {
        "nothing": "passed",
        "cpu-train": "passed",
        "one": "passed",
        "two": "host: 1 GPU here, this check needs two or more",
        "bench": "passed",
    }
    assert found.verdict == "inconclusive"


@needs_gcc
@pytest.mark.parametrize("peers", ["1", "0"])
def test_small_shared_memory(peers: str, tmp_path: Path) -> None:
    """It fails DataLoader workers, and messages between GPUs only where they cannot reach each other."""
    found = report(tmp_path, dev(tmp_path, "nvidia0", shm="1m"), FAKE_GPUS="2", FAKE_PEERS=peers)
    ways = "host: no peer access between the GPUs, and /dev/shm has 1 MiB, NCCL needs 64 (--shm-size)"
    assert told(found) == {
        "nothing": "passed",
        "cpu-train": "host: /dev/shm has 1 MiB, DataLoader workers need 64 MiB (--shm-size)",
        "one": "passed",
        "two": "passed" if peers == "1" else ways,
        "bench": "passed",
    }
    assert found.verdict == "inconclusive"
