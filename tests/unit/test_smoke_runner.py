"""The runner: whatever a check does, it gets a finding, and so do the others."""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
import sys
import time
import venv
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from smoke_tests import runner
from smoke_tests.runner import SIDE_BY_SIDE, Process
from tests.smoke_suites import FACTS, SUITE, findings, run_suite, suite_with

GOOD = """
@pytest.mark.tier(0)
def test_zz_valid(measure):
    measure("x", 1)
"""


# Checks that fail: name, marks and body. One suite contains all of them.
BAD = {
    "killed": ("", "import os, signal; measure('x', 1); os.kill(os.getpid(), signal.SIGSEGV)"),
    "hangs": (
        "@pytest.mark.limit(2)",
        "import subprocess, pathlib; child = subprocess.Popen(['sleep', '600'])\n"
        "    (pathlib.Path(__file__).parent.parent / 'pid').write_text(str(child.pid)); child.wait()",
    ),
    "skips": ("", "pytest.skip('no wish')"),
    "has_skip_mark": ("@pytest.mark.skip(reason='no wish')", "pass"),
    "xfails": ("@pytest.mark.xfail(reason='no wish')", "assert 0"),
    "xpasses": ("@pytest.mark.xfail(reason='no wish')", "measure('x', 1)"),
    "exits": ("", "import os; os._exit(0)"),
    "asserts": ("", "found = [1]; assert found == [1, 2], 'two were looked for'"),
    "compares": ("", "assert 1 == 2"),
    "without_file": ("", "exec(compile('{}[1]', 'mutant', 'exec'))"),
    "gone": ("", "{}['gone']"),
}


# Other checks of that suite. `order` and `probe` pass if they find no modules and paths of the host.
MORE = {
    "test_compile_cpu.py": "@pytest.mark.tier(0)\ndef test_compile_cpu(measure):\n    raise SystemExit(3)\n",
    "test_bounds.py": "VALUES = {'bounds': {'a': {'equals': 2}, 'b': {'at_most': 2}}}\n"
    "@pytest.mark.tier(0)\ndef test_bounds(measure):\n    measure('a', 1)\n    measure('b', 3)\n",
    "test_order.py": """
import json, sys
import packaging

VALUES = {'order': {'shadowed': {'equals': []}, 'paths': {'equals': []}, 'last': {'equals': 'wheels'}}}

@pytest.mark.tier(0)
def test_order(measure):
    measure('shadowed', [m.__name__ for m in (json, packaging) if hasattr(m, 'WRONG')])
    measure('last', sys.path[-1].rpartition('/')[2])
    measure('paths', [p for p in sys.path if 'suite' in p or p == ''])
""",
    "test_probe.py": """
from smoke_tests.probe import probe

VALUES = {'probe': {'path': {'equals': []}}}

@pytest.mark.tier(0)
def test_probe(measure):
    measure('path', probe('path'))
""",
    "test_zz_valid.py": GOOD,
}
PATHS = "import json, sys\nprint(json.dumps([p for p in sys.path if '/wheels' in p or 'suite' in p]))\n"


@dataclass(frozen=True)
class Ran:
    """The suite's folder, the finding of each check, and the files that the run left in the suite."""

    folder: Path
    findings: Mapping[str, Mapping[str, Any]]
    written: set[Path]

    def message(self, name: str) -> str:
        finding = self.findings[name.replace("_", "-")]
        assert finding["outcome"] == "failed"
        return str(finding["message"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The run of all checks in BAD and MORE, with an old torch, and with a package `json` beside pytest."""
    folder = tmp_path_factory.mktemp("bad")
    checks = {
        f"test_{name}.py": f"@pytest.mark.tier(0)\n{marks}\ndef test_{name}(measure):\n    {body}\n"
        for name, (marks, body) in BAD.items()
    }
    suite = suite_with(folder / "suite", checks | MORE)
    (suite / "probes" / "path.py").write_text(PATHS)
    for name in ("json", "packaging", "yaml"):
        (folder / "wheels" / name).mkdir(parents=True)
        (folder / "wheels" / name / "__init__.py").write_text("WRONG = True\n")
    old = FACTS | {"claims": FACTS["claims"] | {"torch": "2.0.1+cu117"}}
    env = {"PATH": "/usr/bin:/bin", "PYTEST_ADDOPTS": "--collect-only", "PYTHONPATH": str(folder)}
    before = {*suite.rglob("*")}
    found = findings(run_suite(suite, folder, facts=old, env=env, wheels=folder / "wheels"))
    return Ran(folder, found, {*suite.rglob("*")} - before)


def test_the_other_checks_run_despite_any_failure(ran: Ran) -> None:
    """PYTEST_ADDOPTS has no effect. Modules of the image are found before those in pytest's folder."""
    passed = {name for name, found in ran.findings.items() if found["outcome"] == "passed"}
    assert passed == {"order", "probe", "zz-valid"}
    assert len(ran.findings) == len(BAD) + len(MORE)


def test_the_suite_is_not_written_to(ran: Ran) -> None:
    assert ran.written == set()


def test_all_values_out_of_bounds_are_reported(ran: Ran) -> None:
    found = ran.findings["bounds"]
    assert found["message"] == "a: is 1, expected 2\nb: 3 is not at most 2"
    assert found["measured"] == {"a": 1, "b": 3}
    assert found["threshold"] == {"a": {"equals": 2}, "b": {"at_most": 2}}


def test_a_check_that_does_not_apply_is_not_started(ran: Ran) -> None:
    found = ran.findings["compile-cpu"]
    assert (found["outcome"], found["message"]) == ("not-applicable", "no-compile-on-3.11")


def test_a_check_that_kills_its_process_fails_with_the_signals_name(ran: Ran) -> None:
    assert ran.message("killed").startswith("the process was killed by SIGSEGV")
    assert "test_killed.py" in ran.message("killed")  # the position, from pytest's faulthandler


def test_a_check_that_hangs_ends_at_its_limit_with_its_children(ran: Ran) -> None:
    assert ran.message("hangs").startswith("timed out after 2 s and was killed")
    status = Path(f"/proc/{(ran.folder / 'pid').read_text()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_checks_beyond_the_suites_time_limit_fail(tmp_path: Path) -> None:
    source = "@pytest.mark.tier(0)\ndef test_bad(measure):\n    import time\n    time.sleep(600)\n"
    bad = {f"test_bad{at}.py": source.replace("test_bad", f"test_bad{at}") for at in range(SIDE_BY_SIDE)}
    suite = suite_with(tmp_path / "suite", bad | {"test_zz_valid.py": GOOD})
    found = findings(run_suite(suite, tmp_path, "--limit", "2"))
    assert {finding["outcome"] for finding in found.values()} == {"failed"}
    assert found["bad0"]["message"].startswith("timed out after")
    assert found["zz-valid"]["message"] == "not started: the suite's limit of 2 s was reached"


def test_checks_of_tier_0_run_side_by_side(tmp_path: Path) -> None:
    """Each of two checks waits until the other has started."""
    source = """
import pathlib, time

@pytest.mark.tier(0)
@pytest.mark.limit(60)
def test_NAME(measure):
    folder = pathlib.Path(FOLDER)
    (folder / "NAME").touch()
    while not (folder / "OTHER").exists():
        time.sleep(0.01)
    measure("x", 1)
"""
    checks = {
        f"test_{name}.py": source.replace("NAME", name)
        .replace("OTHER", other)
        .replace("FOLDER", repr(str(tmp_path)))
        for name, other in (("left", "right"), ("right", "left"))
    }
    found = findings(run_suite(suite_with(tmp_path / "suite", checks), tmp_path))
    assert {finding["outcome"] for finding in found.values()} == {"passed"}


TURN = """
@pytest.mark.tier(1)
def test_turn(measure):
    import torch
    pathlib.Path(FOLDER, "ran").touch()
    measure("x", len(list(pathlib.Path(FOLDER).glob("imported-*"))))
"""


IMPORTED = "import os, pathlib\nfolder = pathlib.Path(FOLDER)\n(folder / f'imported-{os.getpid()}').touch()\n"
# As torch does, it also fails when a program that failed to import it tries again.
FAILS_ONCE = (
    f"{IMPORTED}import sys\nif not (folder / 'failed').exists() or hasattr(sys, 'failed'):\n"
    "    sys.failed = (folder / 'failed').touch()\n    raise ImportError\n"
)


@contextlib.contextmanager
def waiting(folder: Path, torch: str = IMPORTED) -> Iterator[Process]:
    """The process of a check that imports *torch*, as soon as the import has begun."""
    place = repr(str(folder))
    suite = suite_with(folder / "suite", {"test_turn.py": "import pathlib\n" + TURN.replace("FOLDER", place)})
    (folder / "wheels").mkdir()
    (folder / "wheels" / "torch.py").write_text(torch.replace("FOLDER", place))
    (folder / "facts.json").write_text("{}")
    options = Namespace(wheels=str(folder / "wheels"), facts=str(folder / "facts.json"))
    check = Namespace(file="test_turn.py", function="test_turn")
    with patch.object(runner, "HERE", suite), Process(check, options, waits=True) as process:
        while not any(folder.glob("imported-*")):
            time.sleep(0.01)
        yield process


@pytest.mark.parametrize("torch", [IMPORTED, FAILS_ONCE], ids=["imported", "fails once"])
def test_a_process_imports_torch_and_waits_for_its_turn(torch: str, tmp_path: Path) -> None:
    """If the import fails, the same process starts again: the check itself has to find the failure."""
    with waiting(tmp_path, torch) as process:
        time.sleep(0.2)
        assert not (tmp_path / "ran").exists()
        assert process.released()
        assert process.finding(60)["outcome"] == "passed"


def test_a_process_that_died_before_its_turn_is_not_released(tmp_path: Path) -> None:
    with waiting(tmp_path, IMPORTED + "os.abort()\n") as process:
        process._process.wait(60)
        assert not process.released()


@pytest.mark.parametrize("name", ["skips", "has_skip_mark", "xfails", "xpasses"])
def test_a_check_that_skips_itself_fails(name: str, ran: Ran) -> None:
    assert ran.message(name) == "the check skipped itself, which is not allowed: no wish"


def test_an_exit_without_a_result_is_a_failure(ran: Ran) -> None:
    assert ran.message("exits").startswith("no result: the process ended with exit code 0")


@pytest.mark.parametrize("phase", ["setup", "call"])
def test_a_result_of_a_process_that_died_is_a_failure(phase: str, tmp_path: Path) -> None:
    """A process that exits with 0 before the check ends must not leave a result that passed."""
    source = {
        "setup": "@pytest.fixture\ndef late():\n    import os\n    os._exit(0)\n\n"
        "@pytest.mark.tier(0)\ndef test_bad(late):\n    pass\n",
        "call": "@pytest.mark.tier(0)\ndef test_bad(measure):\n"
        "    import os\n    measure('x', 1)\n    os._exit(0)\n",
    }[phase]
    suite = suite_with(tmp_path / "suite", {"test_bad.py": source})
    facts, result = tmp_path / "facts.json", tmp_path / "result.json"
    facts.write_text("{}")
    command = [sys.executable, "-I", "-B", str(suite / "one.py"), str(suite), ""]
    command += ["test_bad.py::test_bad", str(facts), str(result)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    left = json.loads(result.read_bytes()) if result.exists() else {"outcome": "failed"}
    assert left["outcome"] == "failed"


def test_a_failed_assert_has_only_its_message(ran: Ran) -> None:
    assert ran.message("asserts") == "two were looked for"
    assert ran.message("compares").startswith("assert 1 == 2")


def test_an_error_in_code_without_a_file_is_reported(ran: Ran) -> None:
    assert ran.message("without_file") == "KeyError: 1\n(at mutant:1)"


def test_an_error_is_reported_with_file_and_line(ran: Ran) -> None:
    assert ran.message("gone") == "KeyError: 'gone'\n(at test_gone.py:8)"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has neither torch nor pytest."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.parametrize("wheels", [False, True])
def test_an_environment_without_torch_is_a_usage_error(bare: Path, tmp_path: Path, wheels: bool) -> None:
    command = [str(bare), "-I", "-B", str(SUITE / "runner.py"), "--tier", "2"]
    command += ["--wheels", str(tmp_path)] if wheels else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    without_torch = f"{bare} has no torch that imports: ModuleNotFoundError: No module named 'torch'"
    without_pytest = f"{bare} has no pytest: install it, or name its folder by --wheels"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"runner.py: {without_torch if wheels else without_pytest}\n"


def test_the_host_comes_first_with_torchs_configuration(tmp_path: Path, bare: Path) -> None:
    """torch's configuration is only information; it is missing if torch cannot be imported."""
    suite = suite_with(tmp_path / "suite", {"test_zz_valid.py": GOOD})
    host = run_suite(suite, tmp_path, python=str(bare))[0]
    assert (host["event"], host["torch_config"]) == ("host", None)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("from . import __config__\n")
    (site / "torch" / "__config__.py").write_text("def show(): return 'built with care'\n")
    assert run_suite(suite, tmp_path, python=str(bare))[0]["torch_config"] == "built with care"


def test_too_little_shared_memory_is_reported_before_the_check_starts() -> None:
    from smoke_tests.host import fault, shm_bytes

    assert fault("cpu-train", 0, {"shm": 1 << 30}, {"claims": {}}) is None
    assert "/dev/shm has 1 MiB" in str(fault("cpu-train", 0, {"shm": 1 << 20}, {"claims": {}}))
    assert "/dev/shm cannot be written" in str(fault("loader", 1, {"shm": 0}, {"claims": {}}))
    assert shm_bytes(Path("/no/such/folder")) == 0


def test_a_host_that_cannot_change_the_user_skips_only_the_check_user() -> None:
    from smoke_tests.host import fault

    host = {"shm": 1 << 30, "other_users": "OSError: [Errno 22] Invalid argument"}
    assert fault("user", 0, host, {"claims": {}}) == (
        "host: no process can run as another user here (OSError: [Errno 22] Invalid argument): "
        "run as root, or allow user namespaces (sysctl user.max_user_namespaces)"
    )
    assert fault("services", 0, host, {"claims": {}}) is None
    assert fault("user", 0, host | {"other_users": None}, {"claims": {}}) is None


def test_the_catalogue_has_all_checks_of_tier_0_and_refuses_one_without_a_tier(tmp_path: Path) -> None:
    from smoke_tests.catalogue import catalogue

    ids = [check.id for check in catalogue(SUITE) if check.tier == 0]
    assert ids == [
        "archs",
        "claims",
        "compile-cpu",
        "cpu-train",
        "defaults",
        "device-code",
        "import",
        "linkage",
        "lock",
        "services",
        "user",
    ]
    with pytest.raises(ValueError, match="has no @pytest"):
        catalogue(suite_with(tmp_path / "suite", {"test_bad.py": "def test_bad():\n    pass\n"}))


def test_no_module_of_the_suite_shadows_the_standard_library() -> None:
    """A Python that starts in the suite's folder has this folder first in sys.path."""
    names = {path.stem for path in (*SUITE.glob("*.py"), *(SUITE / "probes").glob("*.py"))}
    assert names & sys.stdlib_module_names == set()


def test_the_suite_runs_on_python_3_10() -> None:
    """ubuntu22.04 has Python 3.10, so newer syntax and modules that came with 3.11 are not allowed."""
    for path in SUITE.rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 10))
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        assert not names & {"tomllib", "distutils"}, path
