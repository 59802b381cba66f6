"""The suite as plain pytest runs it, and its ranks, here without a GPU and with stubs of torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.catalogue import catalogue
from smoke_tests.ranks import Ending, fault
from tests.programs import run_program
from tests.smoke_mutants.mutant import PYTHON, needs_torch
from tests.smoke_suites import SUITE, suite_with

# Stubs of the functions of torch that a rank calls before it starts its work.
TORCH = "from torch import cuda, distributed\n"
CUDA = "def set_device(number): pass\n\n\ndef device_count(): return 3\n"
DISTRIBUTED = (
    "def init_process_group(backend, *, init_method, rank, world_size, timeout): pass\n\n\n"
    "def destroy_process_group(): pass\n"
)
ACTS = """
import os, signal, subprocess, sys, time
from pathlib import Path


def greet(rank, world, words="", seconds=0.0):
    time.sleep(seconds * (world - rank))  # the last one first
    print(f"{words} from {rank}")
    return {"rank": rank, "world": world, "words": words, "env": os.environ.get("KILN_TEST")}


def die(rank, world, number):
    if rank == 1:
        os.kill(os.getpid(), number)
    time.sleep(600)


def fail(rank, world):
    if rank == 1:
        raise ValueError("no such thing as rank one")
    wait_for_the_others()


def wait_for_the_others():
    time.sleep(600)


def hang(rank, world):
    if rank == 2:
        wait_for_the_others()
    return rank


def hang_stubbornly(rank, world):
    if rank == 2:
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        wait_for_the_others()
    return rank


def leave(rank, world):
    if rank == 1:
        os._exit(0)
    return rank


def sit(rank, world, folder):
    Path(folder, str(rank)).write_text(str(os.getpid()))
    time.sleep(600)
"""
DRIVE = """
import json, runpy, sys
from pathlib import Path
suite, scratch, grace, call, options = sys.argv[1:]
runpy.run_path(f"{suite}/one.py")["load_suite"](Path(suite))
import tempfile
tempfile.tempdir = scratch
from smoke_tests import ranks
ranks.GRACE = float(grace)
try:
    print(json.dumps(getattr(ranks, call)(**json.loads(options))))
except AssertionError as error:
    print(json.dumps({"refused": str(error)}))
"""


class Stage:
    """A suite with workers for tests, and a Python whose torch is a stub."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder, folder / "scratch"
        self.scratch.mkdir()
        self.suite = suite_with(folder / "suite", {})
        (self.suite / "workers" / "acts.py").write_text(ACTS)
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        torch = next((folder / "venv" / "lib").glob("python*")) / "site-packages" / "torch"
        torch.mkdir()
        for name, source in {"__init__": TORCH, "cuda": CUDA, "distributed": DISTRIBUTED}.items():
            (torch / f"{name}.py").write_text(source)

    def start(self, worker: str, *, call: str = "run_ranks", grace: float = 1.0, **options: Any) -> Any:
        command = [str(self.folder / "venv" / "bin" / "python"), "-I", "-B", "-c", DRIVE, str(self.suite)]
        command += [str(self.scratch), str(grace), call, json.dumps({"worker": f"acts:{worker}", **options})]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, worker: str, **options: Any) -> Any:
        """The result of the ranks. Also checks that no file and no process is left."""
        process = self.start(worker, **options)
        result = json.loads(process.communicate(timeout=300)[0])
        assert list(self.scratch.iterdir()) == []
        assert not running(str(self.suite))
        return result


def running(word: str) -> list[int]:
    """The processes whose command lines contain *word*, except for zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("ranks"))


def test_values_are_returned_in_the_order_of_the_ranks(stage: Stage) -> None:
    """The order of their exits makes no difference. One rank starts for each GPU, with the same arguments."""
    results = stage.run("greet", limit=300, words="hello", seconds=0.2)
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert results[0] == {"rank": 0, "world": 3, "words": "hello", "env": None}


def test_the_exit_of_each_rank_is_returned(stage: Stage) -> None:
    endings = stage.run("greet", call="rank_endings", limit=300, world=2, words="x", env={"KILN_TEST": "set"})
    assert [(rank, code, output) for rank, code, _, output, _ in endings] == [
        (0, 0, "x from 0\n"),
        (1, 0, "x from 1\n"),
    ]
    assert [values["env"] for *_, values in endings] == ["set", "set"]


def test_a_killed_rank_is_named_first_and_the_others_are_ended(stage: Stage) -> None:
    message = stage.run("die", limit=600, number=int(signal.SIGSEGV))["refused"]
    assert message.startswith("rank 1 was killed by SIGSEGV\n")
    assert "rank 0 timed out after" in message
    assert "rank 2 timed out after" in message
    assert "in die" in message.split("rank 0")[0]


def test_a_rank_that_raises_is_reported_with_its_exception(stage: Stage) -> None:
    message = stage.run("fail", limit=600)["refused"]
    assert message.startswith("rank 1 ended with exit code 1\n")
    assert "ValueError: no such thing as rank one" in message


def test_a_rank_that_hangs_is_named_and_ends_at_the_limit(stage: Stage) -> None:
    """The rank even ignores SIGABRT."""
    for limit in (3, 30, 300):  # on a busy machine, the other ranks need more time to end
        if "rank 0" not in (message := stage.run("hang_stubbornly", limit=limit)["refused"]):
            break
    assert message.startswith("rank 2 timed out after ")
    assert "rank 0" not in message
    assert "in wait_for_the_others" not in message


def test_a_rank_that_hangs_is_stopped_and_the_others_return_values(stage: Stage) -> None:
    for limit in (3, 30, 300):
        endings = stage.run("hang", call="rank_endings", limit=limit)
        if endings[0][1] == endings[1][1] == 0:
            break
    assert [(code, values) for _, code, _, _, values in endings] == [(0, 0), (0, 1), (None, None)]
    assert endings[2][2] >= 3
    assert "in wait_for_the_others" in endings[2][3]


def test_a_rank_that_exits_without_a_result_has_failed(stage: Stage) -> None:
    assert stage.run("leave", limit=300)["refused"].startswith("rank 1 ended without a result")


def test_ranks_end_with_the_check_that_started_them(stage: Stage, tmp_path: Path) -> None:
    """Here the check ends by SIGKILL, too."""
    process = stage.start("sit", limit=600, folder=str(tmp_path))
    patience = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < patience:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while running(str(stage.suite)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert running(str(stage.suite)) == []


def test_the_error_of_a_rank_is_reported_without_nccls_log() -> None:
    """C++ prints the exception first; lines of NCCL's log follow it."""
    nccl = "".join(
        f"host:1:9 [0] NCCL INFO Channel {at:02}/0 : 0[0] -> 1[1] via P2P/IPC\n" for at in range(30)
    )
    raised = fault(Ending(1, 1, 2.0, f"ValueError: no\n{nccl}", None))
    assert raised == "rank 1 ended with exit code 1\nValueError: no"
    dump = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File in absent\n"
    died = fault(Ending(0, -6, 2.0, f"terminate called\n  what():  Watchdog caught it\n{dump}{nccl}", None))
    assert died.splitlines()[:3] == [
        "rank 0 was killed by SIGABRT",
        "what():  Watchdog caught it",
        "Fatal Python error: Aborted",
    ]
    assert died.splitlines()[-1] == "  File in absent"


CHECKS = {
    "test_checks.py": """
@pytest.mark.tier(0)
@pytest.mark.limit(9)
def test_one(measure):
    import warnings
    warnings.warn("a library's own")
    measure("x", 1)

@pytest.mark.tier(0)
def test_of_an_image(facts, measure):
    raise SystemExit(3)

@pytest.mark.tier(1)
def test_bf16(measure):
    raise SystemExit(3)

@pytest.mark.tier(0)
def test_extension(measure):
    raise SystemExit(3)

@pytest.mark.tier(3)
def test_bench(measure):
    raise SystemExit(3)
"""
}
TORCH_PLAIN = """
class version: cuda = None
class _C: pass
__version__ = "2.7.1+cpu"
"""
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\")"
NO_DRIVER = "host: no NVIDIA driver here"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with this process's pytest, and a torch that only has a version."""
    return environment(tmp_path_factory.mktemp("environment"), TORCH_PLAIN)


def environment(folder: Path, torch: str) -> Path:
    """The Python of an environment in *folder*, with pytest and with *torch* as the module torch."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "pytest.pth").write_text(str(Path(pytest.__file__).parent.parent) + "\n")
    (site / "torch.py").write_text(torch)
    return folder / "bin" / "python"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite with one check of each kind, in a project with its own configuration of pytest."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--strict-markers"\nfilterwarnings = ["error"]\n'
    )
    return suite_with(tmp_path / "smoke_tests", CHECKS)


def run(python: Path | str, cwd: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code and output of pytest, called in *cwd*. It may write bytecode, and PATH has no nvcc."""
    ours = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = run_program(
        [str(python), "-m", "pytest", "-rs", *arguments],
        cwd=cwd,
        env=ours | {"LD_LIBRARY_PATH": "", "PATH": "/usr/bin:/bin", "COLUMNS": "400"} | env,
    )
    return done.returncode, done.stdout + done.stderr


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_pytest_runs_applicable_checks_and_gives_reasons_for_the_others(python: Path, suite: Path) -> None:
    before = files(suite)
    code, output = run(python, suite.parent, "smoke_tests")

    assert code == 0, output
    assert "1 passed, 4 skipped" in output
    assert "compares an image with its lock: run it with torchkiln smoke" in output
    assert "not applicable: extension-is-for-devel" in output
    assert "a benchmark: add --bench to run it" in output
    assert NO_DRIVER in output
    assert files(suite) == before


def test_benchmarks_are_skipped_without_a_gpu(python: Path, suite: Path, tmp_path: Path) -> None:
    """pytest is called in another folder, with some of its own options."""
    code, output = run(python, Path("/"), str(suite), "--bench", f"--junitxml={tmp_path}/junit.xml")
    assert (code, "1 passed, 4 skipped" in output, "add --bench to run it" in output) == (0, True, False)
    assert (tmp_path / "junit.xml").exists()


def test_a_failed_check_reports_all_its_values(python: Path, suite: Path) -> None:
    """pytest is called in the suite's folder."""
    (suite / "test_bad.py").write_text(
        "import pytest\n\nVALUES = {'bad': {'a': {'equals': 2}, 'b': {'at_most': 2}}}\n\n"
        "@pytest.mark.tier(0)\ndef test_bad(measure):\n    measure('a', 1)\n    measure('b', 3)\n"
    )
    before = files(suite)
    code, output = run(python, suite, ".")
    assert (code, "1 failed, 1 passed, 4 skipped" in output) == (1, True), output
    assert "a: is 1, expected 2\nb: 3 is not at most 2\n" in output
    assert files(suite) == before


def test_another_projects_tests_and_settings_are_unaffected(python: Path, suite: Path) -> None:
    """A project contains the suite in a folder; `pytest` uses the project's settings and runs its tests."""
    (suite / "pytest.ini").unlink()
    (suite.parent / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--strict-markers --import-mode=importlib"\n'
    )
    (suite.parent / "test_theirs.py").write_text("def test_one():\n    pass\n")
    code, output = run(python, suite.parent)
    assert code == 0, output
    assert "2 passed, 4 skipped" in output


def test_without_torch_no_check_runs(suite: Path, tmp_path: Path) -> None:
    bare = environment(tmp_path / "bare", NO_TORCH)
    code, output = run(bare, suite.parent, "smoke_tests")
    sentence = f"ERROR: {bare} has no torch that imports: ModuleNotFoundError: No module named 'torch'"
    assert code == pytest.ExitCode.USAGE_ERROR
    assert sentence in output.splitlines()
    assert "Traceback" not in output


@needs_torch
def test_the_real_suite_without_a_gpu() -> None:
    """pytest is called in the repository's root, with a real torch. No check fails, and no file is left."""
    before = [path for path in files(SUITE) if "__pycache__" not in path.parts]
    ours = {"PYTHONPATH": str(Path(pytest.__file__).parent.parent), "CUDA_VISIBLE_DEVICES": ""}
    code, output = run(PYTHON, SUITE.parent, "smoke_tests", "--bench", **ours)
    assert code == 0, output

    checks = catalogue(SUITE)
    here = {check.id for check in checks if check.tier == 0 and not check.of_image}
    assert f"{len(here)} passed, {len(checks) - len(here)} skipped" in output
    assert [path for path in files(SUITE) if "__pycache__" not in path.parts] == before
