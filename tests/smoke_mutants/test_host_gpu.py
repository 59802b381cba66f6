"""Host faults on a real GPU, through the runner: each has its message, and no check passes.

Ranks that are killed or hang are also tested without a GPU, over gloo (see pretend_ranks.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.probe import probe
from tests.smoke_mutants.mutant import (
    PYTHON,
    alone,
    broken_python,
    environment,
    gpus,
    needs_gpus,
    on_cpu,
    pytest_folder,
)
from tests.smoke_suites import SUITE, findings, run_suite, suite_with
from torchkiln.model.report import Finding
from torchkiln.smoke.verdict import host_fault

GIB = 1 << 30
# Allocates all memory of GPU 0 except for the given bytes until its stdin is closed.
HOLD = """
import sys, torch
free, _ = torch.cuda.mem_get_info(0)
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""
# The check starts with free memory, then another process allocates it.
CROWDED = f"""
import subprocess, sys
HOLD = {HOLD!r}
VALUES = {{
    "crowded": {{"bytes": {{"equals": {4 << 30}}}}},
    "greedy": {{"bytes": {{"at_least": 1}}}},
}}

@pytest.mark.tier(1)
def test_crowded(measure):
    import torch
    torch.ones(1, device="cuda")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-I", "-c", HOLD, str(1 << 30)], **pipes) as other:
        assert other.stdout.readline() == b"held\\n"
        try:
            measure("bytes", torch.ones(4 << 30, dtype=torch.uint8, device="cuda").nbytes)
        finally:
            other.stdin.close()

@pytest.mark.tier(1)
def test_greedy(measure):
    import torch
    _, total = torch.cuda.mem_get_info()
    measure("bytes", torch.ones(2 * total, dtype=torch.uint8, device="cuda").nbytes)
"""
RANKS = """
from smoke_tests.ranks import run_ranks

@pytest.mark.tier(0)
def test_wait(measure):
    run_ranks("waiting:wait", world=2, limit={limit})
    measure("x", 1)

@pytest.mark.tier(0)
def test_sum(measure):
    run_ranks("waiting:sum", world=2, limit=120)
    measure("x", 1)
"""
WAITING = """
import pathlib, time
import torch, torch.distributed as dist

def wait(rank, world):
    pathlib.Path(__file__).with_name(f"started-{rank}").touch()
    time.sleep(600)

def sum(rank, world):
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
"""
ON_ONE_GPU = "import torch\nreal = torch.cuda.set_device\ntorch.cuda.set_device = lambda number: real(0)\n"
PRETEND = Path(__file__).with_name("pretend_ranks.py").read_text("utf-8")
anywhere = pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(PRETEND, marks=on_cpu, id="pretended"),
        pytest.param(ON_ONE_GPU, marks=needs_gpus(1), id="gpu"),
    ],
)


def run(
    tmp_path: Path,
    *options: str,
    suite: Path = SUITE,
    mutant: str = "",
    claims: Mapping[str, Any] | None = None,
    **env: str,
) -> dict[str, Mapping[str, Any]]:
    """The runner's findings with this torch, changed by *mutant* if there is one."""
    facts = environment()
    return findings(
        run_suite(
            suite,
            tmp_path,
            *options,
            python=broken_python() if mutant else PYTHON,
            isolated=not mutant,
            facts=facts | {"claims": facts["claims"] | (claims or {})},
            env=os.environ | {"KILN_MUTANT": mutant} | env,
            wheels=Path(pytest_folder()),
        )
    )


def fault_of(found: Mapping[str, Any]) -> str | None:
    """The host fault that the verdict recognizes in a failed check, or None."""
    values = {"seconds": 1.0, "measured": "{}", "threshold": "{}"}
    return host_fault(Finding(id="x", tier=1, outcome="failed", message=found["message"], **values))


@needs_gpus(1)
def test_the_check_passes_on_this_host(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The host's description is written to the XML file of --junitxml."""
    found = run(tmp_path, "--tier", "1", "--only", "cuda")["cuda"]
    assert (found["outcome"], found["message"]) == ("passed", "")
    names = found["measured"]["names"]
    record_property("gpus", f"{len(names)} × {names[0]}")
    record_property("torch", f"{found['measured']['torch']} for CUDA {found['measured']['build_cuda']}")


@needs_gpus(1)
@pytest.mark.parametrize("visible", ["", str(gpus() + 7)], ids=["none", "one that is not here"])
def test_wrong_cuda_visible_devices(visible: str, tmp_path: Path) -> None:
    found = run(tmp_path, "--tier", "2", "--only", "cuda", "--only", "fsdp", CUDA_VISIBLE_DEVICES=visible)
    sentence = f"host: CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs, or names one that does not exist"
    assert {(item["outcome"], item["message"]) for item in found.values()} == {("skipped", sentence)}


@needs_gpus(1)
def test_one_gpu_is_too_few_for_several(tmp_path: Path) -> None:
    found = run(tmp_path, "--tier", "2", "--only", "ddp", CUDA_VISIBLE_DEVICES="0")["ddp"]
    sentence = "host: found 1 GPU (CUDA_VISIBLE_DEVICES='0'), but this check needs two or more"
    assert (found["outcome"], found["message"]) == ("skipped", sentence)


@alone
@needs_gpus(1)
def test_memory_in_use_by_another_process(tmp_path: Path) -> None:
    with memory_held():
        found = run(tmp_path, "--tier", "1", "--only", "cuda")["cuda"]
    assert found["outcome"] == "skipped"
    assert found["message"].startswith("host: GPU 0 has ")
    assert found["message"].endswith("other processes use the rest (see nvidia-smi)")


@alone
@needs_gpus(1)
def test_memory_allocated_by_another_process_during_the_check(tmp_path: Path) -> None:
    """The message of this torch shows a host fault, unless the check itself allocates too much."""
    suite = suite_with(tmp_path / "suite", {"test_crowded.py": CROWDED})
    found = run(tmp_path, "--tier", "1", suite=suite)
    assert {finding["outcome"] for finding in found.values()} == {"failed"}
    assert all("CUDA out of memory" in finding["message"] for finding in found.values()), found
    faults = {id: fault_of(finding) for id, finding in found.items()}
    assert faults == {"crowded": "other processes use the GPU's memory", "greedy": None}


@needs_gpus(1)
def test_torch_2_0_on_a_hopper_gpu(tmp_path: Path) -> None:
    """The message for an image of torch 2.0.1+cu117: the runner has its archs from the lock."""
    if probe("driver")["gpus"][0]["capability"] != [9, 0]:
        pytest.skip("the GPU here is no Hopper")
    archs = ["sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86"]  # torchkiln/data/compat.yaml
    claims = {"torch": "2.0.1+cu117", "wheel_cuda": "11.7", "min_driver": "450.80.02", "archs": archs}
    found = run(tmp_path, "--tier", "1", "--only", "cuda", claims=claims)["cuda"]
    sentence = "host: no kernel for sm_90 in this build; use torch >= 2.1 with CUDA 12.1 (it has sm_37 "
    assert found["outcome"] == "skipped"
    assert found["message"].startswith(sentence)


@needs_gpus(1)
def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    """NCCL refuses this; it is a fault of the program that starts the ranks, not of the host."""
    found = run(tmp_path, "--only", "sum", suite=ranks(tmp_path), mutant=ON_ONE_GPU)["sum"]
    assert found["outcome"] == "failed"
    assert "Duplicate GPU detected" in found["message"]
    assert fault_of(found) is None


@anywhere
def test_a_rank_killed_from_outside(mutant: str, tmp_path: Path) -> None:
    """A rank is killed, as by the kernel for lack of memory. The message names the rank, not the image."""
    suite = ranks(tmp_path)
    hand = threading.Thread(target=kill, args=(suite, 1))
    hand.start()
    found = run(tmp_path, "--only", "wait", suite=suite, mutant=mutant)["wait"]
    hand.join()
    assert found["outcome"] == "failed"
    assert found["message"].startswith("rank 1 was killed by SIGKILL\n")
    assert "rank 0 timed out after " in found["message"]
    assert str(fault_of(found)).startswith("the kernel killed a process")


@anywhere
def test_a_rank_that_hangs(mutant: str, tmp_path: Path) -> None:
    """The check ends at the time limit, with the stack of each rank, and fails, because the image may be at
    fault."""
    suite = ranks(tmp_path, limit=20)
    found = run(tmp_path, "--only", "wait", suite=suite, mutant=mutant)["wait"]
    assert found["outcome"] == "failed"
    for rank in (0, 1):
        assert re.search(rf"^rank {rank} timed out after [\d.]+ s", found["message"], re.M)
    assert found["message"].count("Fatal Python error: Aborted") == 2
    assert fault_of(found) is None


def ranks(tmp_path: Path, limit: int = 120) -> Path:
    """A suite of two checks with two ranks: one check waits, the other sums."""
    suite = suite_with(tmp_path / "suite", {"test_ranks.py": RANKS.format(limit=limit)})
    (suite / "workers" / "waiting.py").write_text(WAITING)
    return suite


def kill(suite: Path, rank: int) -> None:
    """Send SIGKILL to the rank of *suite*, found by its command line, as soon as it waits."""
    wanted = [str(suite / "rank.py").encode(), str(suite).encode(), b"waiting:wait", str(rank).encode()]
    started, patience = suite / "workers" / f"started-{rank}", time.monotonic() + 90
    while not started.exists() and time.monotonic() < patience:
        time.sleep(0.1)
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if words[3:7] == wanted:
                os.kill(int(place.name), signal.SIGKILL)


@contextlib.contextmanager
def memory_held() -> Iterator[None]:
    """Another process that has allocated all of GPU 0 except for one GiB."""
    command = [PYTHON, "-I", "-c", HOLD, str(GIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            other.stdin.close()
