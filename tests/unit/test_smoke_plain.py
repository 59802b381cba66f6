"""Plain pytest over the suite: it runs what applies here, says why not the rest, leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

from smoke_tests.catalogue import catalogue
from tests.smoke_mutants.mutant import PYTHON, needs_torch
from tests.smoke_suites import SUITE, suite_with

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
TORCH = """
class version: cuda = None
class _C: pass
__version__ = "2.7.1+cpu"
"""
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\")"
NO_DRIVER = "host: no NVIDIA driver in here"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's pytest and as much of a torch as is asked for its version."""
    return environment(tmp_path_factory.mktemp("environment"), TORCH)


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
