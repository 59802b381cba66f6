"""Rules of architecture: imports, purity and lengths of files; each skipped test has a reason."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.needs import give_up, tool
from tools import layout
from torchkiln.util.places import ROOT

PACKAGE = ROOT / "torchkiln"
SOURCES = sorted(PACKAGE.rglob("*.py"))

RANK = layout.by_folder()
TOGETHER = (frozenset({"__init__", "errors"}), frozenset({"cli", "__main__"}))

# Exceptions from the order of layers: (importing file, imported file) -> the reason.
UPWARD: Mapping[tuple[str, str], str] = {
    ("base/confined.py", "runtimes/sandbox.py"): "a base's Python compiles in the sandbox of the runtimes",
    ("__init__.py", "api.py"): "the public functions are those of the package",
}

# A pure function depends only on its arguments; it may read files whose paths are arguments. These folders
# and files are pure, except for those in IMPURE. A pure module imports only pure modules and foundations
# (without the store).
# fmt: off
PURE_FOLDERS = frozenset(
    {"attest", "device_code", "elf", "gate", "locks", "matrix", "plan", "projects/gate", "sbom", "site"}
)
PURE_FILES = frozenset(
    {
        "compare/layers.py",
        "cuda/tree.py", "docker/dockerfile.py",
        "projects/asked.py", "projects/choice.py", "projects/fixed.py",
        "projects/pyproject.py", "publishing/warnings.py",
        "smoke/attestation.py", "smoke/declared.py", "smoke/expected.py", "smoke/hosts.py",
        "smoke/report.py",
        "smoke/reuse.py", "smoke/run.py", "smoke/snapshot.py", "smoke/suite.py",
        "smoke/verdict.py",
        "projects/symbols/fit.py", "projects/variables.py",
        "util/located_yaml.py",
    }
)
# fmt: on
IMPURE: Mapping[str, str] = {
    "attest/keyless.py": "asks Sigstore and the CI's environment",
    "attest/keys.py": "reads the files of keys",
    "attest/machine_key.py": "reads and makes the key in the cache",
    "attest/signers.py": "asks for keys and signs with them",
    "gate/inputs.py": "reads reports and this machine's own runs, at this moment",
    "projects/gate/read.py": "reads reports and layers, at this moment",
    "projects/gate/rules.py": "decides about the entries of a tar, which oci reads",
    "locks/folder.py": "reads the locks of bases and tools",
    "locks/session.py": "asks the indexes",
    "locks/systems.py": "builds bases and tools",
    "plan/load.py": "reads the checkout's own files",
    "site/folder.py": "writes the folder of the site",
    "site/images.py": "reads the locks, and plans their images",
    "projects/bill.py": "reads the layers of an image",
    "sbom/read_image.py": "reads the layers of an image",
}
BELOW_PURE = frozenset({"__init__", "errors", "util", "model"})
DISK = {
    "smoke/run.py": "puts the suite into a temporary folder, which its runtime mounts",
    "smoke/snapshot.py": "reads a folder once, and copies it into a temporary folder",
}

# fmt: off
OUTSIDE = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "fcntl", "glob", "http", "multiprocessing", "os", "platform",
        "random", "requests", "secrets", "select", "shutil", "signal", "socket", "ssl", "subprocess",
        "sys", "tempfile", "threading", "time", "urllib", "urllib3", "uuid",
    }
)
# fmt: on
ALLOWED_IN_PURE = frozenset({"uuid.UUID", "uuid.uuid5"})  # they only compute a name from content

# Other modules that may write to a stream.
MAY_PRINT = {
    "runtimes/enter.py": "is a separate program, in the namespaces of the command that it starts",
    "wheel/compile_worker.py": "is a program under a base's Python, which writes its result to stdout",
    "projects/smoke/linkage_probe.py": "is a program in an image, which writes its result to stdout",
}


@cache
def imports(tree: ast.AST) -> tuple[str, ...]:
    """All dotted names that the module imports, in any form of import."""
    return tuple(_imports(tree))


def _imports(tree: ast.AST, package: str = "torchkiln") -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, (package if node.level else "", node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def parts_imported(tree: ast.AST) -> set[str]:
    """The modules and folders of torchkiln that *tree* imports; an import of the version is `__init__`."""
    found = {name.split(".")[1] for name in imports(tree) if name.startswith("torchkiln.")}
    return {"__init__" if part == "__version__" else part for part in found}


def part_of(file: Path) -> str:
    """The folder of torchkiln that *file* is in, or its module if it is in none."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def file_of(name: str) -> str:
    """The file of the module *name*, or of the module that contains *name*."""
    parts = name.split(".")[1:]
    for count in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[:count])
        if place.with_suffix(".py").is_file():
            return name_of(place.with_suffix(".py"))
        if place.is_dir():
            return name_of(place / "__init__.py")
    return "__init__.py"


def upward(file: str, tree: ast.AST) -> list[str]:
    """The imports of *file* that violate the order of layers, one sentence each."""
    part = file.split("/")[0].removesuffix(".py")
    names = {name for name in imports(tree) if name.startswith("torchkiln.") or name == "torchkiln"}
    return sorted(
        {
            f"{file} imports {other}"
            for other in map(file_of, names)
            if not _allowed(part, other.split("/")[0].removesuffix(".py")) and (file, other) not in UPWARD
        }
    )


def _allowed(part: str, other: str) -> bool:
    unknown = {part, other} - RANK.keys()
    assert unknown == set(), f"torchkiln/ has a folder without a place in ORDER: {unknown}"
    return part == other or RANK[other] < RANK[part] or any({part, other} <= ones for ones in TOGETHER)


def is_pure(file: str) -> bool:
    return file in PURE_FILES or (file.rpartition("/")[0] in PURE_FOLDERS and file not in IMPURE)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_imports_follow_the_order_of_layers() -> None:
    """A module may import its own folder and the folders below it."""
    assert [fault for file in SOURCES for fault in upward(name_of(file), parsed(file))] == []


def test_the_order_names_every_folder_once() -> None:
    """Every folder of torchkiln, and no other name, is in the order."""
    named = [name for _, names in layout.ORDER for name in names]
    assert sorted(named) == sorted({part_of(file) for file in SOURCES})


def test_there_are_no_import_cycles() -> None:
    """This holds for folders, and for modules."""
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in SOURCES}
    graph = {
        module: {known for name in imports(parsed(file)) if (known := _module(name, modules))} - {module}
        for module, file in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def _module(name: str, modules: Iterable[str]) -> str | None:
    """The module *name*, or the module that contains *name*."""
    return next((found for found in (name, name.rpartition(".")[0]) if found in modules), None)


def impure(tree: ast.AST) -> set[str]:
    """The impure imports in *tree*, and its uses of clock, environment and current folder."""
    found = {name.split(".")[0] for name in imports(tree) if name not in ALLOWED_IN_PURE} & OUTSIDE
    clocks = {"now", "today", "utcnow", "environ", "getenv", "cwd"}
    return found | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in clocks
    }


def test_pure_modules_have_no_side_effects() -> None:
    """They use no clock, network, process or environment, and import no module that does."""
    for file in SOURCES:
        if not is_pure(name_of(file)):
            continue
        tree = parsed(file)
        assert name_of(file) in DISK or impure(tree) == set(), name_of(file)
        others = {file_of(name) for name in imports(tree) if name.startswith("torchkiln.")}
        assert [
            other
            for other in sorted(others)
            if not (is_pure(other) or other.split("/")[0].removesuffix(".py") in BELOW_PURE)
        ] == [], name_of(file)


def prints(tree: ast.AST) -> set[str]:
    """The uses of print, standard streams, and libraries for output in *tree*."""
    found = {top for name in imports(tree) if (top := name.split(".")[0]) in ("click", "rich", "logging")}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=("print" | "input") as called)):
                found.add(called)
            case ast.Attribute(value=ast.Name(id="sys"), attr=("stdout" | "stderr") as stream):
                found.add(f"sys.{stream}")
    return found


def test_only_the_command_line_prints() -> None:
    """Other modules return or raise messages, or pass them to an observer."""
    checked = [file for file in SOURCES if part_of(file) != "cli" and name_of(file) not in MAY_PRINT]
    assert {name_of(file): found for file in checked if (found := prints(parsed(file)))} == {}


def test_exceptions_are_still_needed() -> None:
    """If this fails, remove the name that is no exception any more from its list above."""
    assert [file for file in DISK if not impure(parsed(PACKAGE / file))] == []
    assert [file for file in (*IMPURE, *PURE_FILES) if not (PACKAGE / file).is_file()] == []
    for importer, imported in UPWARD:
        assert imported in {file_of(name) for name in imports(parsed(PACKAGE / importer))}, importer
    assert [file for file in MAY_PRINT if not prints(parsed(PACKAGE / file))] == []


def test_code_that_runs_in_an_image_does_not_import_torchkiln() -> None:
    """The image's Python runs this code, and the image does not contain torchkiln."""
    files = [
        *(ROOT / "smoke_tests").rglob("*.py"),
        PACKAGE / "wheel" / "compile_worker.py",
        PACKAGE / "runtimes" / "enter.py",
        PACKAGE / "projects" / "sources" / "sdist_driver.py",
        PACKAGE / "projects" / "smoke" / "linkage_probe.py",
    ]
    assert len(files) > 5
    assert {file.name: names for file in files if (names := parts_imported(parsed(file)))} == {}


def parameters(tree: ast.AST) -> Mapping[str, int]:
    return {
        node.name: sum(
            item.arg not in ("self", "cls")
            for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("folder", ["plan", "engine", "docker", "base"])
def test_no_function_has_over_seven_parameters(folder: str) -> None:
    """Related parameters belong in one data class."""
    assert parameters(ast.parse("def f(self, a, /, b, *, c): ...")) == {"f": 3}
    found = {
        f"{name_of(file)}: {name}": count
        for file in (PACKAGE / folder).glob("*.py")
        for name, count in parameters(parsed(file)).items()
    }
    assert {name: count for name, count in found.items() if count > 7} == {}
    assert len(found) > 20


def test_no_command_has_over_fifteen_parameters() -> None:
    """Related options belong in one data class, see `gathered`."""
    counts = {
        f"{name_of(file)}: {name}": count
        for file in (PACKAGE / "cli").rglob("*.py")
        for name, count in parameters(parsed(file)).items()
    }
    assert {name: count for name, count in counts.items() if count > 15} == {}
    assert len(counts) > 200


def test_a_build_from_the_cache_loads_no_client_of_indexes() -> None:
    """Importing it would take longer than the whole build of an unchanged image."""
    slow = ("bs4", "pydantic", "pypi_simple", "requests", "urllib3", "multiprocessing", "jinja2")
    modules = "torchkiln.engine.build, torchkiln.cli.shared.project_build"
    program = f"import sys, {modules}; print([one for one in {slow} if one in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True) == "[]\n"


def test_no_file_is_longer_than_400_lines() -> None:
    folders = (PACKAGE, ROOT / "tests", ROOT / "smoke_tests")
    lines = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for folder in folders
        for file in folder.rglob("*.py")
    }
    assert {file: count for file, count in lines.items() if count > 400} == {}
    assert max(lines.values()) > 250  # otherwise the files were not found


def lines_by_folder(top: Path) -> Counter[str]:
    """Lines of Python below *top* by folder; "" are the files beside the folders."""
    found: Counter[str] = Counter()
    for file in top.rglob("*.py"):
        folder, slash, _ = str(file.relative_to(top)).partition("/")
        found[folder if slash else ""] += len(file.read_text().splitlines())
    return found


@pytest.mark.parametrize("top", ["torchkiln", "tests"])
def test_no_folder_grows(top: str) -> None:
    """tests/lines.json may only fall, except by what an issue says that it adds. To lower it:
    python -m tests.unit.test_shape > tests/lines.json"""
    most = json.loads((ROOT / "tests/lines.json").read_bytes())[top]
    assert {name: count for name, count in lines_by_folder(ROOT / top).items() if count > most[name]} == {}


REQUIRED = {"skipif": {"reason"}, "importorskip": {"reason"}, "xfail": {"reason", "strict"}}


def unexplained(source: str) -> Iterator[int]:
    """The lines of *source* that skip a test without a reason, or accept failure as well as success."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for call in calls:
        keywords, kind = {keyword.arg for keyword in call.keywords}, call.func.attr
        if REQUIRED.get(kind, set()) - keywords or (
            kind == "skip" and not call.args and "reason" not in keywords
        ):
            yield call.lineno
    called = {id(call.func) for call in calls}
    for node in nodes:
        bare = isinstance(node, ast.Attribute) and node.attr in ("skip", "xfail") and id(node) not in called
        if bare and isinstance(node.value, ast.Attribute):  # `pytest.mark.skip`, but not `pytest.skip`
            yield node.lineno


def test_skips_have_a_reason() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for text in [file.read_text("utf-8")]
        if re.search("skip|xfail", text)
        for line in unexplained(text)
    ]

    assert found == []


def test_tests_fail_without_an_engine_if_one_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHKILN_NEEDS_ENGINE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no dockerd"):
        give_up("no dockerd")
    monkeypatch.setenv("TORCHKILN_NEEDS_ENGINE", "1")
    with pytest.raises(pytest.fail.Exception, match="no dockerd"):
        give_up("no dockerd")


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="apt-get install skopeo"):
        tool("skopeo")


if __name__ == "__main__":
    json.dump({top: lines_by_folder(ROOT / top) for top in ("torchkiln", "tests")}, sys.stdout, indent=1)
