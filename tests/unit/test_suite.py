"""The suite: its digest covers every file that Python could load, and only files under the digest run."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.smoke_suites import DRIVER_PROBE, FACTS, SUITE, check_file, suite_with
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.projects.smoke.checks import project_suite
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Exited
from torchkiln.smoke import snapshot
from torchkiln.smoke.run import Checks, SmokeSubject, smoke
from torchkiln.smoke.suite import load_suite, suite_digest

CHECK = {"test_one.py": "@pytest.mark.tier(0)\ndef test_one():\n    assert False, 'the real check ran'\n"}
IMAGE = SmokeSubject(image=Digest("sha256:" + "1" * 64), tag="t", facts=FACTS)


def test_the_committed_suite_has_the_digest_that_reports_name() -> None:
    """Existing reports contain the digest, so other code to read the suite must not change it."""
    assert suite_digest(SUITE) == "sha256:e4652f0d1bf98d7f5399482871f72543e0739dbc5f6fbd6cd08b7f8c3841db13"


def test_the_suite_of_projects_has_the_digest_that_reports_name() -> None:
    assert project_suite().digest == "sha256:f63e689d66f62ee08d6d1f689538c2c927276bffaef286e8efe97d91fcb7b1cb"


def digest_inside(suite: Path) -> str:
    """The digest that the runner inside an image computes by catalogue.py."""
    code = (
        "import runpy, sys, pathlib; print(runpy.run_path(sys.argv[1])['digest'](pathlib.Path(sys.argv[2])))"
    )
    argv = [sys.executable, "-I", "-B", "-c", code, str(suite / "catalogue.py"), str(suite)]
    return subprocess.check_output(argv, text=True).strip()


def test_the_runner_inside_computes_the_same() -> None:
    assert digest_inside(SUITE) == suite_digest(SUITE)


def test_the_probe_of_the_driver_is_part_of_a_suite_without_one(tmp_path: Path) -> None:
    """The file in rootfs/ is used: it is under the digest and in the copy that runs."""
    images = DRIVER_PROBE.read_bytes()
    assert not (SUITE / "probes/driver.py").exists()
    assert load_suite(SUITE).files["probes/driver.py"] == images
    assert b"cuInit" in load_suite(SUITE).runnable()["probes/driver.py"]

    suite = suite_with(tmp_path / "suite", CHECK)
    (suite / "probes/driver.py").unlink()
    without = load_suite(suite)
    (suite / "probes/driver.py").write_bytes(images)
    assert (without.files, without.digest) == (load_suite(suite).files, load_suite(suite).digest)


def test_a_suite_may_have_a_probe_of_the_driver_of_its_own(tmp_path: Path) -> None:
    suite = suite_with(tmp_path / "suite", CHECK)
    before = suite_digest(suite)
    (suite / "probes/driver.py").write_text("print('{}')\n")

    assert load_suite(suite).files["probes/driver.py"] == b"print('{}')\n"
    assert digest_inside(suite) == suite_digest(suite) != before


@pytest.mark.parametrize("command", [["runner.py"], ["-m", "pytest", "-q"]])
def test_a_copied_folder_without_rootfs_is_incomplete(tmp_path: Path, command: list[str]) -> None:
    """The runner and plain pytest print the same message, which has the path."""
    suite = suite_with(tmp_path / "suite", CHECK)
    (suite / "probes/driver.py").unlink()
    argv = [sys.executable, "-B", *command]
    done = subprocess.run(argv, cwd=suite, capture_output=True, text=True, check=False)
    path = tmp_path / "rootfs/opt/torchkiln/workplace/driver_probe.py"

    assert done.returncode != 0
    assert f"{path}: no such file: copy rootfs/ of torchkiln beside smoke_tests/" in done.stderr
    assert "Traceback" not in done.stderr


def _link(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


def _deep(path: Path) -> None:
    path.joinpath(*"abcdefghijklmnopqrst").mkdir(parents=True)


def _many(path: Path) -> None:
    path.mkdir()
    for number in range(5001):
        (path / str(number)).touch()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(9 << 20)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder_link(path: Path) -> None:
    (path.parent.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent.parent / "elsewhere", target_is_directory=True)


def _write(path: Path) -> None:
    path.write_bytes(b"x")


def test_a_file_that_becomes_a_link_before_it_is_read(tmp_path: Path) -> None:
    """It was a regular file when the folder was listed. The link that replaced it is not followed."""
    (tmp_path / "other.py").write_bytes(b"secret")
    (tmp_path / "test_one.py").symlink_to(tmp_path / "other.py")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(ValueError, match=r"'a/test_one\.py': a symbolic link"):
            snapshot._content(folder, "test_one.py", "a/test_one.py")
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("torch_api.so", _write),
        ("measure.cpython-311-x86_64-linux-gnu.so", _write),
        ("pytest.pyc", _write),
        ("json.PYC", _write),
        ("probes/hidden.pyo", _write),
        ("site.pth", _write),
        ("plugins.zip", _write),
        ("plugins.egg", _write),
        ("pytest-9-py3-none-any.whl", _write),
        ("closeness2.py", _link("closeness.py")),
        ("outside.py", _link("/etc/passwd")),
        ("dangling.py", _link("nowhere")),
        ("package", _folder_link),
        ("__pycache__", _folder_link),
        ("__pycache__", _write),
        ("waits.py", _pipe),
        ("line\nbreak.py", _write),
        ("escape\x1b[2J.py", _write),
        (os.fsdecode(b"latin-\xe9.py"), _write),
        ("deep", _deep),
        ("many", _many),
        ("large.json", _large),
    ],
    ids=lambda value: value.encode("utf-8", "replace").decode() if isinstance(value, str) else "",
)
def test_files_that_the_digest_cannot_cover_are_refused_by_name(
    tmp_path: Path, name: str, plant: Callable[[Path], None]
) -> None:
    suite = suite_with(tmp_path / "suite", CHECK)
    plant(suite / name)
    for use in (suite_digest, load_suite):
        with pytest.raises(ConfigError, match="not a folder of smoke tests") as refused:
            use(suite)
        assert name.split("/")[-1].split("\n")[0].split("\x1b")[0].split("\udce9")[0] in refused.value.message


@pytest.mark.parametrize(
    "name",
    ["sitecustomize.py", "probes/__init__.py", "pytest.py", "tox.ini", "pyproject.toml", ".hidden/x.py"],
)
def test_each_further_file_is_another_suite(tmp_path: Path, name: str) -> None:
    """pytest or Python would load each of these files because of its name."""
    suite = suite_with(tmp_path / "suite", CHECK)
    before = suite_digest(suite)
    (suite / name).parent.mkdir(exist_ok=True)
    (suite / name).write_text("raise SystemExit\n")
    assert suite_digest(suite) != before


def _byte_code(suite: Path, module: str, source: str) -> None:
    """Write a .pyc file that Python loads without checking its source; the digest does not cover it."""
    evil = suite.parent / "evil.py"
    evil.write_text(source)
    for tag in ("cpython-311", sys.implementation.cache_tag):
        target = suite / "__pycache__" / f"{module}.{tag}.pyc"
        py_compile.compile(
            str(evil), str(target), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )


def test_planted_byte_code_is_not_loaded_on_the_host(tmp_path: Path) -> None:
    """torchkiln loads the catalogue and the rules from their sources, and not from __pycache__."""
    suite = suite_with(tmp_path / "suite", CHECK)
    marker = tmp_path / "ran"
    source = f"open({str(marker)!r}, 'w')\ndef catalogue(folder): return ()\n"
    _byte_code(suite, "catalogue", source)
    _byte_code(suite, "applicable", source + "def not_applicable(*_): return 'nothing applies'\n")
    found = load_suite(suite)
    assert [check.id for check in found.checks] == ["one"]
    assert found.not_applicable("one", FACTS, None) is None
    assert not marker.exists()


@dataclass
class Here:
    """A runtime that runs the suite from the mounted folder, with this Python."""

    before: Callable[[], object] = lambda: None
    seen: list[str] = field(default_factory=list)
    name: str = "here"
    python: str = sys.executable

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        self.before()
        copy = binds["/opt/torchkiln/smoke_tests"]
        self.seen += sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*"))
        modes = {path.stat().st_mode & 0o222 for path in copy.rglob("*") if path.is_file()}
        assert modes == {0}
        assert copy.parent.stat().st_mode & 0o777 == 0o700
        for at, path in binds.items():
            argv = [word.replace(at, str(path), 1) if word.startswith(at) else word for word in argv]
        done = subprocess.run(argv, capture_output=True, check=False)
        for line in done.stdout.splitlines():
            on_line(line)
        return Exited(code=done.returncode, stdout=done.stdout, stderr=done.stderr, timed_out=False)

    def killed_for_memory(self) -> int:
        return 0


def run(suite: Path, tmp_path: Path, between: Callable[[], object] = lambda: None) -> tuple[str, Here]:
    """The check's message, and the runtime. *between* runs after the digest is computed."""
    inside = Here(before=between)
    report = smoke(
        IMAGE, inside, Checks(suite=load_suite(suite)), wheels=tmp_path, when="2026-11-23T19:00:00Z"
    )
    return report.findings[0].message, inside


def test_planted_byte_code_is_not_loaded_inside_the_image(tmp_path: Path) -> None:
    """The suite's copy, which the runner and pytest read, does not contain it."""
    suite = suite_with(tmp_path / "suite", CHECK)
    for module in ("measure", "conftest", "test_one", "test_one.cpython-311-pytest-8.4.2", "host"):
        _byte_code(suite, module, "import os\nos._exit(0)\n")
    message, inside = run(suite, tmp_path)
    assert "the real check ran" in message
    assert not [path for path in inside.seen if "pycache" in path or path.endswith(".pyc")]


@pytest.mark.parametrize("way", ["changed", "replaced", "linked"])
def test_a_change_after_the_digest_has_no_effect(tmp_path: Path, way: str) -> None:
    """Another user with access to the folder changes a file between the digest and the run."""
    suite = suite_with(tmp_path / "suite", CHECK)
    passing = check_file("@pytest.mark.tier(0)\ndef test_one():\n    pass\n")

    def between() -> None:
        match way:
            case "changed":
                (suite / "test_one.py").write_text(passing)
                (suite / "measure").mkdir()
                (suite / "measure" / "__init__.py").write_text("import os\nos._exit(0)\n")
                _byte_code(suite, "measure", "import os\nos._exit(0)\n")
            case "replaced":
                shutil.rmtree(suite)
                suite_with(suite, {"test_one.py": passing})
            case "linked":
                (suite / "test_one.py").unlink()
                (tmp_path / "evil_one.py").write_text(passing)
                (suite / "test_one.py").symlink_to(tmp_path / "evil_one.py")

    message, _ = run(suite, tmp_path, between)
    assert "the real check ran" in message


def test_a_run_leaves_nothing_in_the_suite(tmp_path: Path) -> None:
    suite = suite_with(tmp_path / "suite", CHECK)
    before = sorted(suite.rglob("*"))
    run(suite, tmp_path)
    assert sorted(suite.rglob("*")) == before


@pytest.mark.parametrize(
    "source",
    ["1/0", "def catalogue(folder): return [1]", "catalogue = None", "import nothing_of_that_name", "\0"],
)
def test_a_broken_catalogue_is_reported_without_a_traceback(tmp_path: Path, source: str) -> None:
    suite = suite_with(tmp_path / "suite", CHECK)
    (suite / "catalogue.py").write_text(source)
    with pytest.raises(ConfigError, match="not a folder of smoke tests"):
        load_suite(suite)


def test_a_suite_without_requirements_is_reported(tmp_path: Path) -> None:
    suite = suite_with(tmp_path / "suite", CHECK)
    (suite / "requirements.txt").unlink()
    with pytest.raises(ConfigError, match=r"requirements\.txt not found"):
        _ = load_suite(suite).requirements


def test_the_requirements_are_those_that_were_digested(tmp_path: Path) -> None:
    """pytest is installed from the requirements under the digest, even if the file changed since."""
    suite = suite_with(tmp_path / "suite", CHECK)
    found = load_suite(suite)
    (suite / "requirements.txt").write_text("evil==1\n")
    assert found.requirements == (SUITE / "requirements.txt").read_bytes()
    assert json.dumps(sorted(found.files)) == json.dumps(
        sorted(load_suite(SUITE).files.keys() & found.files.keys() | {"test_one.py"})
    )
