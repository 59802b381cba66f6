"""The checks of a project's image, run in a virtual environment of this host instead of in an image."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pip
import pytest

from tests.needs import needs_gcc
from tests.projects import SITE, bench
from tests.smoke_mutants.test_linkage import library
from torchkiln.errors import ConfigError
from torchkiln.model.report import Finding
from torchkiln.projects.asked import Asked, ProjectNeeds
from torchkiln.projects.smoke.checks import (
    DRIVER,
    ProjectSubject,
    check_imports,
    check_linkage,
    check_pip,
    modules_of,
)
from torchkiln.projects.smoke.session import ProjectChecks, probe_folder, subject_of
from torchkiln.projects.source import LockedFolder
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Exited
from torchkiln.util.places import SMOKE_TESTS


@dataclass(frozen=True)
class Host:
    """A virtual environment at `prefix` instead of /opt/venv, and a folder instead of /app."""

    prefix: Path
    app: Path
    name: str = "host"

    @property
    def python(self) -> str:
        return str(self.prefix / "bin/python")

    def write(self, path: str, text: str) -> None:
        """Write a file in site-packages."""
        place = self.prefix / SITE.removeprefix("opt/venv/") / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        words = list(argv)
        for target, source in binds.items():
            words = [word.replace(target, str(source)) for word in words]
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.app)}
        try:
            done = subprocess.run(
                words, cwd=self.app, env=env, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Exited(code=137, stdout=b"", stderr=b"", timed_out=True)
        for line in done.stdout.splitlines():
            on_line(line)
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Exited(code=code, stdout=b"", stderr=done.stderr, timed_out=False)

    def killed_for_memory(self) -> int:
        return 0


@dataclass(frozen=True)
class Says(Host):
    """A host on which each command only prints `line`."""

    line: str = ""

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        on_line(self.line.encode())
        return Exited(code=0, stdout=b"", stderr=b"", timed_out=False)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.mktemp("host")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (folder / "app").mkdir()
    found = Host(folder / "venv", folder / "app")
    (found.prefix / SITE.removeprefix("opt/venv/") / "pip").symlink_to(Path(pip.__file__).parent)
    return found


@pytest.fixture
def host(environment: Host, tmp_path: Path) -> Host:
    """A host with an empty folder for the project's code."""
    return replace(environment, app=tmp_path)


def subject(named: str, *paths: str) -> ProjectSubject:
    """A project that requires and adds one package, which has *paths* in site-packages."""
    installed = {named: tuple(f"{SITE}/{path}" for path in paths)}
    return ProjectSubject(named=(named,), added=(named,), installed=installed, site=SITE)


def measured(finding: Finding) -> dict[str, object]:
    values: dict[str, object] = json.loads(finding.measured)
    return values


@pytest.mark.parametrize(
    ("paths", "modules"),
    [
        (("a/__init__.py", "a/b/__init__.py", "a/c.py"), ("a",)),
        (("six.py", "six-1.dist-info/RECORD", "__pycache__/six.cpython-311.pyc"), ("six",)),
        (("google/protobuf/__init__.py", "google/_upb/_m.abi3.so"), ("google.protobuf",)),
        (("flash/__init__.py", "flash_cuda.cpython-311-x86_64-linux-gnu.so"), ("flash",)),
        (("ujson.cpython-311-x86_64-linux-gnu.so",), ("ujson",)),
        (("fast/__init__.abi3.so",), ("fast",)),
        (("_private/__init__.py", "public.py"), ("public",)),
        (("_only/__init__.py",), ("_only",)),
        (("space/one.py",), ("space.one",)),
        (("a/__init__.py", "tests/test_a.py", "two words.py", "class.py"), ("a",)),
        (("types-stubs/__init__.pyi", "../../../bin/tool"), ()),
    ],
)
def test_modules_of_a_distribution(paths: tuple[str, ...], modules: tuple[str, ...]) -> None:
    assert modules_of((f"{SITE}/{path}" for path in paths), SITE) == modules


def test_each_module_is_imported(host: Host) -> None:
    host.write("one/__init__.py", "print('one says hello')\n")
    host.write("two.py", "import sys\nassert 'one' not in sys.modules, 'the same process'\n")
    found = check_imports(subject("one", "one/__init__.py", "two.py"), host, 60)
    assert (found.outcome, found.message) == ("passed", "")
    assert measured(found) == {"packages": 1, "modules": 2, "failed": [], "without_modules": []}


def test_an_import_that_raises_has_failed(host: Host) -> None:
    """The message is the first line of the exception's text."""
    host.write(
        "broken/__init__.py", "try:\n  1/0\nexcept Exception:\n  raise ImportError('no GPU\\nsee docs')\n"
    )
    host.write("fine.py", "")
    found = check_imports(subject("pkg", "broken/__init__.py", "fine.py"), host, 60)
    assert found.outcome == "failed"
    assert found.message == "broken of pkg: ImportError: no GPU"
    assert measured(found)["failed"] == ["broken"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(0)", "ends: it ended Python"),
        ("import os; os.abort()", "ends: was killed by SIGABRT"),
        ("import time; time.sleep(60)", "ends: killed: the limit of this check, 1 s, was reached (--limit)"),
        ("print('{\"from\": ['); import os, sys; sys.stdout.flush(); os._exit(0)", "ends: no result: "),
    ],
)
def test_an_import_that_ends_the_process_has_failed(host: Host, code: str, message: str) -> None:
    host.write("ends.py", code)
    found = check_imports(subject("ends", "ends.py"), host, 1 if "sleep" in code else 60)
    assert found.outcome == "failed"
    assert found.message.startswith(message)


def test_modules_after_the_limit_are_not_started(host: Host) -> None:
    host.write("a_slow.py", "import time; time.sleep(60)")
    host.write("b_quick.py", "")
    found = check_imports(subject("two", "a_slow.py", "b_quick.py"), host, 1)
    assert measured(found)["failed"] == ["a_slow", "b_quick"]
    assert "\nb_quick of two: not started: the limit of this check, 1 s, was reached" in found.message


def test_code_of_the_project_does_not_count_as_the_package(host: Host) -> None:
    host.write("hidden.py", "")

    @dataclass(frozen=True)
    class InApp(Host):
        def run(
            self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
        ) -> Exited:
            def as_in_image(line: bytes) -> None:
                on_line(line.replace(str(self.app).encode(), b"/app"))

            return super().run(argv, binds=binds, timeout_s=timeout_s, on_line=as_in_image)

    (host.app / "hidden.py").write_text("")
    found = check_imports(subject("hidden", "hidden.py"), InApp(host.prefix, host.app), 60)
    assert found.outcome == "failed"
    assert found.message == "hidden: /app/hidden.py, a file of the project, is imported instead: rename it"


def test_a_package_that_is_not_there_has_failed(host: Host) -> None:
    found = check_imports(replace(subject("gone"), installed={}), host, 60)
    assert (found.outcome, found.message) == ("failed", "gone: not installed in the image")


def test_pip_check_lists_what_is_broken(host: Host) -> None:
    sound = check_pip(subject("pip"), host, 60)
    metadata = "Metadata-Version: 2.1\nName: needy\nVersion: 1\nRequires-Dist: torchkiln-has-no-such>2\n"
    host.write("needy-1.dist-info/METADATA", metadata)
    found = check_pip(subject("pip"), host, 60)
    assert (sound.outcome, sound.message) == ("passed", "")
    assert found.outcome == "failed"
    assert found.message == "needy 1 requires torchkiln-has-no-such, which is not installed."


def test_pip_check_without_pip(host: Host, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    found = check_pip(subject("pip"), replace(host, prefix=tmp_path / "bare"), 60)
    assert found.outcome == "failed"
    assert "No module named pip" in found.message


@needs_gcc
def test_a_library_that_needs_a_missing_one(tmp_path: Path) -> None:
    """`import torch` loads some of the needed libraries. Libraries of other packages are not checked."""
    prefix = tmp_path / "venv"
    venv.create(prefix, with_pip=False, symlinks=True)
    bare = Host(prefix, tmp_path)
    made, site = tmp_path / "made", prefix / SITE.removeprefix("opt/venv/")
    for name, *needs in (("t",), ("gone",), ("good", "t"), ("bad", "gone")):
        library(made, name, *needs)
    for package, name in (("torch", "t"), ("pkg", "good"), ("pkg", "bad"), ("other", "bad")):
        (site / package).mkdir(exist_ok=True)
        shutil.copy(made / f"lib{name}.so.1", site / package)
    loads = f"import ctypes; ctypes.CDLL({str(site / 'torch/libt.so.1')!r})\n"
    bare.write("torch/__init__.py", loads)
    paths = ("pkg/libgood.so.1", "pkg/libbad.so.1")
    with probe_folder(needed=True) as suite:
        known = replace(subject("pkg", *paths), suite=suite)
        found = check_linkage(known, bare, 60)
        allowed = [
            check_linkage(replace(known, may_lack=(name,)), bare, 60) for name in ("libgone.so.1", "pkg")
        ]
        bare.write("torch/__init__.py", "raise ImportError('no torch')\n")
        without = check_linkage(known, bare, 60)
    assert found.message == f"pkg needs libgone.so.1, which is missing: /{SITE}/pkg/libbad.so.1"
    assert found.outcome == "failed"
    assert measured(found)["libraries"] == 2
    assert [(each.outcome, each.message) for each in allowed] == [("passed", "")] * 2
    assert f"pkg needs libt.so.1, which is missing: /{SITE}/pkg/libgood.so.1" in without.message
    assert "ImportError: no torch" in without.message


def test_a_library_that_several_need_is_named_once(host: Host) -> None:
    folder = SITE.removeprefix("opt/venv/")
    missing = [[f"{folder}/pkg/{name}.so", "libx.so.1"] for name in "abc"]
    missing.append([f"{folder}/other/d.so", "liby.so.1"])
    line = json.dumps({"missing": missing, "loaded": [], "versions": [], "import_torch": ""})
    paths = [f"pkg/{name}.so" for name in "abc"]
    found = check_linkage(subject("pkg", *paths), Says(host.prefix, host.app, line=line), 60)
    assert found.message == f"pkg needs libx.so.1, which is missing: /{SITE}/pkg/a.so and 2 more"
    assert measured(found)["missing"] == [["pkg", "libx.so.1"]]


def test_the_os_package_of_a_missing_library_is_named(host: Host) -> None:
    missing = [
        [f"{SITE.removeprefix('opt/venv/')}/pkg/a.so", name] for name in ("libGL.so.1", "libgio-2.0.so.0")
    ]
    line = json.dumps({"missing": missing, "loaded": [], "versions": [], "import_torch": ""})
    says = Says(host.prefix, host.app, line=line)
    for os, glib in (("debian12", "libglib2.0-0"), ("python312-debian13", "libglib2.0-0t64")):
        found = check_linkage(replace(subject("pkg", "pkg/a.so"), system=(os, ("git-lfs",))), says, 60)
        assert found.message.endswith(
            f'\nfor pkg: set in torchkiln.toml: apt = ["git-lfs", "libgl1", "{glib}"]'
        )


def test_linkage_without_libraries_runs_nothing(host: Host) -> None:
    found = check_linkage(subject("pkg", "pkg/__init__.py"), replace(host, prefix=Path("/nowhere")), 60)
    assert found.outcome == "passed"
    assert measured(found) == {"libraries": 0, "missing": [], "versions": []}


@pytest.mark.parametrize("line", ["[]", "hello", '{"missing": [1]}', '{"missing": [["a", "b", "c"]]}'])
def test_linkage_with_another_output_has_failed(line: str, host: Host) -> None:
    found = check_linkage(subject("pkg", "pkg/a.so"), Says(host.prefix, host.app, line=line), 60)
    assert (found.outcome, found.message) == ("failed", f"no result: {line}")


def test_the_driver_is_that_of_the_suite() -> None:
    text = (SMOKE_TESTS / "test_linkage.py").read_text()
    found = re.search(r"^DRIVER = (.*)$", text, re.MULTILINE)
    assert found
    assert ast.literal_eval(found[1]) == DRIVER


def test_only_what_the_project_names_is_imported(tmp_path: Path) -> None:
    """Packages that a lock file only pins, or that are for other systems, are not imported."""
    texts = (("Datasets[audio]>=2", True), ("fsspec==1", False), ("winreg; sys_platform == 'win32'", True))
    asked = tuple(Asked(text=text, where="", by_name=by_name) for text, by_name in texts)
    small = bench(tmp_path)
    lock = small.lock(small.wheel("datasets", "3", "datasets/__init__.py"))
    needs = ProjectNeeds(name="p", source="uv.lock", requirements=asked)
    folder = LockedFolder(folder=tmp_path, needs=needs, lock=lock, cell=small.cell)
    records = {
        f"{SITE}/datasets-3.dist-info/RECORD": "datasets/__init__.py,,\n../../../bin/tool,,\n",
        "usr/lib/python3/dist-packages/x-1.dist-info/RECORD": "x.py,,\n",
    }
    found = subject_of(folder, records)
    assert (found.named, found.added) == (("datasets",), ("datasets",))
    assert found.installed == {"datasets": (f"{SITE}/datasets/__init__.py", "opt/venv/bin/tool")}


def test_only_known_checks() -> None:
    assert ProjectChecks(only=("linkage", "import")).selected() == ("import", "linkage")
    with pytest.raises(ConfigError, match="no check of a project named archs"):
        ProjectChecks(only=("archs",))
