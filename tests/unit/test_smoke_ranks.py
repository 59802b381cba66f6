"""The suite by plain pytest, and its ranks without a GPU and without torch."""

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
from tests.smoke_mutants.mutant import PYTHON, needs_torch
from tests.smoke_suites import SUITE, suite_with

# As much of torch as a rank asks for before it does its work.
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
    """A suite with workers that act, and a Python whose torch is a stub."""

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
        """A process that runs the ranks."""
        command = [str(self.folder / "venv" / "bin" / "python"), "-I", "-B", "-c", DRIVE, str(self.suite)]
        command += [str(self.scratch), str(grace), call, json.dumps({"worker": f"acts:{worker}", **options})]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, worker: str, **options: Any) -> Any:
        """What came of it, and nothing has stayed."""
        process = self.start(worker, **options)
        told = json.loads(process.communicate(timeout=300)[0])
        assert list(self.scratch.iterdir()) == []
        assert not running(str(self.suite))
        return told


def running(word: str) -> list[int]:
    """Processes, no zombies, with *word* on their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("ranks"))


def test_values_come_back_in_order_of_the_ranks(stage: Stage) -> None:
    """Whoever ends first; arguments arrive, and as many ranks start as torch sees GPUs."""
    told = stage.run("greet", limit=300, words="hello", seconds=0.2)
    assert [one["rank"] for one in told] == [0, 1, 2]
    assert told[0] == {"rank": 0, "world": 3, "words": "hello", "env": None}


def test_each_ending_is_told_to_who_asks(stage: Stage) -> None:
    told = stage.run("greet", call="rank_endings", limit=300, world=2, words="x", env={"KILN_TEST": "set"})
    assert [(rank, code, output) for rank, code, _, output, _ in told] == [
        (0, 0, "x from 0\n"),
        (1, 0, "x from 1\n"),
    ]
    assert [values["env"] for *_, values in told] == ["set", "set"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed_is_named_first_and_the_others_do_not_wait_for_ever(
    number: signal.Signals, stage: Stage
) -> None:
    told = stage.run("die", limit=600, number=int(number))["refused"]
    assert told.startswith(f"rank 1 was killed by {number.name}\n")
    assert "rank 0 had not ended after" in told
    assert "rank 2 had not ended after" in told
    if number == signal.SIGSEGV:
        assert "in die" in told.split("rank 0")[0]


def test_a_rank_that_raises_is_told_with_its_words(stage: Stage) -> None:
    told = stage.run("fail", limit=600)["refused"]
    assert told.startswith("rank 1 ended with exit code 1\n")
    assert "ValueError: no such thing as rank one" in told


@pytest.mark.parametrize("worker", ["hang", "hang_stubbornly"])
def test_a_rank_that_hangs_is_named_and_ends_at_the_limit(worker: str, stage: Stage) -> None:
    for limit in (3, 30, 300):  # a busy machine takes longer to end the others
        if "rank 0" not in (told := stage.run(worker, limit=limit)["refused"]):
            break
    assert told.startswith("rank 2 had not ended after ")
    assert "rank 0" not in told
    assert ("in wait_for_the_others" in told) is (worker == "hang")


def test_where_a_rank_hangs_it_is_told_as_stopped_and_the_others_keep_their_values(stage: Stage) -> None:
    for limit in (3, 30, 300):
        told = stage.run("hang", call="rank_endings", limit=limit)
        if told[0][1] == told[1][1] == 0:
            break
    assert [(code, values) for _, code, _, _, values in told] == [(0, 0), (0, 1), (None, None)]
    assert told[2][2] >= 3


def test_a_rank_that_leaves_without_a_result_has_failed(stage: Stage) -> None:
    assert stage.run("leave", limit=300)["refused"].startswith("rank 1 ended without a result")


def test_ranks_go_with_the_check_that_started_them(stage: Stage, tmp_path: Path) -> None:
    """Killed so that it cannot end them itself."""
    process = stage.start("sit", limit=600, folder=str(tmp_path))
    patience = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < patience:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while running(str(stage.suite)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert running(str(stage.suite)) == []


def test_what_a_rank_died_of_is_told_and_not_what_nccl_was_asked_to_tell() -> None:
    """C++ says first what the exception was; NCCL's lines come last of all."""
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
    measure("one", 1, equals=1)

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
NO_DRIVER = "host: no NVIDIA driver in here"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's pytest and as much of a torch as is asked for its version."""
    return environment(tmp_path_factory.mktemp("environment"), TORCH_PLAIN)


def environment(folder: Path, torch: str) -> Path:
    """The interpreter of an environment in *folder* that has pytest, and *torch* for a torch."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "pytest.pth").write_text(str(Path(pytest.__file__).parent.parent) + "\n")
    (site / "torch.py").write_text(torch)
    return folder / "bin" / "python"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite of one check of each kind, in a project with a configuration of its own."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--strict-markers"\nfilterwarnings = ["error"]\n'
    )
    return suite_with(tmp_path / "smoke_tests", CHECKS)


def run(python: Path | str, cwd: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code and output of pytest in *cwd*, with leave to write byte code and no nvcc in its PATH."""
    ours = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [str(python), "-m", "pytest", "-rs", *arguments],
        cwd=cwd,
        env=ours | {"LD_LIBRARY_PATH": "", "PATH": "/usr/bin:/bin", "COLUMNS": "400"} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def files(folder: Path) -> list[Path]:
    """Everything in *folder*."""
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("where", ["above", "inside", "elsewhere"])
def test_it_runs_what_applies_and_says_why_not_the_rest(python: Path, suite: Path, where: str) -> None:
    before = files(suite)
    cwd, path = {
        "above": (suite.parent, "smoke_tests"),
        "inside": (suite, "."),
        "elsewhere": (Path("/"), str(suite)),
    }[where]
    code, output = run(python, cwd, path)

    assert code == 0, output
    assert "1 passed, 4 skipped" in output
    assert "compares an image with its lock: torchkiln smoke does that" in output
    assert "not applicable: extension-is-for-devel" in output
    assert "a benchmark: --bench runs it" in output
    assert NO_DRIVER in output
    assert files(suite) == before


def test_bench_asks_the_host_for_a_gpu(python: Path, suite: Path) -> None:
    code, output = run(python, suite.parent, "smoke_tests", "--bench", "-k", "bench")
    assert (code, "1 skipped" in output, "--bench runs it" in output) == (0, True, False)
    assert NO_DRIVER in output


def test_a_check_that_fails_fails_the_run_with_every_value(python: Path, suite: Path) -> None:
    (suite / "test_bad.py").write_text(
        "import pytest\n\n@pytest.mark.tier(0)\ndef test_bad(measure):\n"
        "    measure('a', 1, equals=2)\n    measure('b', 3, at_most=2)\n"
    )
    code, output = run(python, suite.parent, "smoke_tests")
    assert code == 1
    assert "a: is 1, wanted 2\nb: 3 is not at most 2\n" in output


def test_results_can_be_written_as_for_any_other_suite(python: Path, suite: Path, tmp_path: Path) -> None:
    code, output = run(python, suite.parent, "smoke_tests", f"--junitxml={tmp_path}/junit.xml")
    assert (code, (tmp_path / "junit.xml").exists()) == (0, True), output


def test_another_projects_tests_are_left_alone(python: Path, suite: Path) -> None:
    """`pytest` in a project that has the suite in a folder: its own settings rule, its own tests run."""
    (suite / "pytest.ini").unlink()
    (suite.parent / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--strict-markers --import-mode=importlib"\n'
    )
    (suite.parent / "test_theirs.py").write_text("def test_one():\n    pass\n")
    code, output = run(python, suite.parent)
    assert code == 0, output
    assert "2 passed, 4 skipped" in output


def test_without_torch_there_is_nothing_to_check(suite: Path, tmp_path: Path) -> None:
    bare = environment(tmp_path / "bare", NO_TORCH)
    code, output = run(bare, suite.parent, "smoke_tests")
    sentence = f"ERROR: {bare} has no torch that imports: ModuleNotFoundError: No module named 'torch'"
    assert code == pytest.ExitCode.USAGE_ERROR
    assert sentence in output.splitlines()
    assert "Traceback" not in output


@needs_torch
def test_the_suite_itself() -> None:
    """From the repository's root, with a real torch and no GPU: nothing fails, and nothing is left there."""
    before = [path for path in files(SUITE) if "__pycache__" not in path.parts]
    ours = {"PYTHONPATH": str(Path(pytest.__file__).parent.parent), "CUDA_VISIBLE_DEVICES": ""}
    code, output = run(PYTHON, SUITE.parent, "smoke_tests", "--bench", **ours)
    assert code == 0, output

    checks = catalogue(SUITE)
    here = {check.id for check in checks if check.tier == 0 and not check.of_image}
    assert f"{len(here)} passed, {len(checks) - len(here)} skipped" in output
    assert [path for path in files(SUITE) if "__pycache__" not in path.parts] == before
