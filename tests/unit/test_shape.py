"""Architecture as a test: who may import whom, who prints, what is pure, how long a file is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from torchkiln.places import ROOT

PACKAGE = ROOT / "torchkiln"
SOURCES = sorted(PACKAGE.rglob("*.py"))
ADAPTERS = frozenset({"store", "oci", "index", "base", "wheel", "cuda", "runtimes", "registry"})

# Which modules stand together; a package is named by its folder.
# fmt: off
GROUPS: Mapping[str, frozenset[str]] = {
    "ground": frozenset(
        {
            "__init__", "artefacts", "contents", "cuda_tree", "deb822", "errors", "files", "locks", "nouns",
            "ownership", "pagecache", "parts", "places", "recipe", "released", "retry", "schema", "scratch",
            "shared_cache", "sizes", "snapshot", "stand_in", "strict", "versions", "wanted", "workers",
        }
    ),
    "stages": frozenset(
        {
            "allowed", "arch", "bake", "cache", "claims", "compat_block", "components", "contrast",
            "cuda_redist", "difference", "explain", "facts", "fanout", "gate", "hosts", "layering",
            "located", "lock", "lock_beside", "lockdiff", "lockfile", "matrix", "matrix_edit", "pick",
            "plan", "policy", "program", "proposal", "public_record", "render", "report", "requires",
            "resolve", "reuse", "sentences", "sbom",
             "scanned", "select", "sharing", "sharing_picture", "smoke",
            "standing", "state", "statements", "suite", "suite_source", "tags",
            "tolerated", "toolkit", "tools", "verdict",
            "vulnerabilities",
        }
    ),
    **{adapter: frozenset({adapter}) for adapter in ADAPTERS},
    "engines": frozenset({"engines"}),
    "kiln": frozenset(
        {
            "billing", "bundle", "doctor", "foretold", "housekeeping", "kiln", "machine_key", "overlay",
            "pinned_wheels", "planning", "publishing", "revision", "scanner", "stacks", "survey", "system",
        }
    ),
    "cli": frozenset({"cli", "__main__"}),
}
# fmt: on

# What each group may import, beside itself. Stages and adapters do not know each other: engines join them.
MAY: Mapping[str, frozenset[str]] = {
    "ground": frozenset(),
    "stages": frozenset({"ground"}),
    "store": frozenset({"ground"}),
    "oci": frozenset({"ground", "store"}),
    "index": frozenset({"ground", "store"}),
    "base": frozenset({"ground", "store", "oci"}),
    "wheel": frozenset({"ground", "oci"}),
    "cuda": frozenset({"ground", "oci"}),
    "runtimes": frozenset({"ground", "store", "oci"}),
    "registry": frozenset({"ground", "store", "oci"}),
    "engines": frozenset({"ground", "stages"}) | ADAPTERS,
    "kiln": frozenset({"ground", "stages", "engines"}) | ADAPTERS,
    "cli": frozenset({"ground", "stages", "engines", "kiln"}) | ADAPTERS,
}

# Pure means: a function of what it is given. A path that is given may be read (pathlib).
# fmt: off
OUTSIDE = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "fcntl", "glob", "http", "multiprocessing", "os", "platform",
        "random", "requests", "secrets", "select", "shutil", "signal", "socket", "ssl", "subprocess",
        "sys", "tempfile", "threading", "time", "urllib", "urllib3", "uuid",
    }
)
# fmt: on
PURE_ALL_THE_SAME = frozenset({"uuid.UUID", "uuid.uuid5"})  # names for content
NOT_PURE = {"smoke": "puts the suite into a temporary folder, which its runtime mounts"}

# Who else may write to a stream.
TALKERS = {
    "runtimes/enter.py": "is a program of its own, in the namespaces of the command that it starts",
    "wheel/compile_worker.py": "is a program of its own, under a base's Python; what it writes is its answer",
}


def imports(tree: ast.AST, package: str = "torchkiln") -> Iterator[str]:
    """Every dotted name that is imported, wherever it stands and however it is written."""
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
    """The modules and folders of torchkiln that are imported; `__init__` for its version."""
    found = {name.split(".")[1] for name in imports(tree) if name.startswith("torchkiln.")}
    return {"__init__" if part == "__version__" else part for part in found}


def part_of(file: Path) -> str:
    """The module or folder of *file*."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def group_of(part: str) -> str:
    """Where *part* stands in GROUPS."""
    found = [group for group, parts in GROUPS.items() if part in parts]
    assert len(found) == 1, f"torchkiln/{part} stands in {found or 'no group'}: give it its place in GROUPS"
    return found[0]


def upward(part: str, tree: ast.AST) -> list[str]:
    """The imports of *part* that the table does not allow, as sentences."""
    group = group_of(part)
    allowed = MAY[group] | {group}
    return sorted(
        f"{part} ({group}) imports {other} ({group_of(other)})"
        for other in parts_imported(tree)
        if group_of(other) not in allowed
    )


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_imports_point_down(file: Path) -> None:
    """Each module imports its own group and those below it."""
    assert upward(part_of(file), parsed(file)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torchkiln.oci.tar",
        "import torchkiln.oci.tar as tar",
        "from torchkiln.oci import tar",
        "from torchkiln.oci.tar import header",
        "from torchkiln import oci",
        "from . import oci",
        "from .oci import tar",
        "def f():\n    from torchkiln.oci import tar",
        "if TYPE_CHECKING:\n    from torchkiln.oci import tar",
        "import_module('torchkiln.oci.tar')",
        "importlib.import_module('torchkiln.oci.tar')",
        "__import__('torchkiln.oci')",
    ],
)
def test_an_import_is_seen_however_it_is_written(line: str) -> None:
    """A stage with any of these lines is told; an engine may have them."""
    tree = ast.parse(line)
    assert upward("plan", tree) == ["plan (stages) imports oci (oci)"]
    assert upward("engines", tree) == []


def test_the_table_is_one_way() -> None:
    """Each group is named, and no two may import each other, not even by way of a third."""
    assert GROUPS.keys() == MAY.keys()
    TopologicalSorter(MAY).prepare()


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Nor is there a circle within a group."""
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in SOURCES}
    graph = {
        module: {known for name in imports(parsed(file)) if (known := _module(name, modules))} - {module}
        for module, file in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def _module(name: str, modules: Iterable[str]) -> str | None:
    """The module that *name*, a module or something in one, stands for."""
    return next((found for found in (name, name.rpartition(".")[0]) if found in modules), None)


def impure(tree: ast.AST) -> set[str]:
    """What *tree* imports of the world outside, and clocks that it reads."""
    found = {name.split(".")[0] for name in imports(tree) if name not in PURE_ALL_THE_SAME} & OUTSIDE
    clocks = {"now", "today", "utcnow", "environ", "getenv", "cwd"}
    return found | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in clocks
    }


@pytest.mark.parametrize("part", sorted(GROUPS["stages"] - NOT_PURE.keys()))
def test_stages_are_pure(part: str) -> None:
    """No clock, no network, no process, no environment."""
    files = [file for file in SOURCES if part_of(file) == part]
    assert files != []
    assert {name_of(file): found for file in files if (found := impure(parsed(file)))} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import os", {"os"}),
        ("import os.path as p", {"os"}),
        ("from time import monotonic", {"time"}),
        ("from uuid import UUID, uuid5", set()),
        ("from uuid import uuid4", {"uuid"}),
        ("import uuid", {"uuid"}),
        ("def f():\n    import socket", {"socket"}),
        ("datetime.now()", {"now"}),
        ("Path.cwd()", {"cwd"}),
    ],
)
def test_the_world_outside_is_seen(line: str, found: set[str]) -> None:
    """What the test above would tell."""
    assert impure(ast.parse(line)) == found


def talk(tree: ast.AST) -> set[str]:
    """Calls that print, streams that are named, and libraries for either."""
    found = {top for name in imports(tree) if (top := name.split(".")[0]) in ("click", "rich", "logging")}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=("print" | "input") as called)):
                found.add(called)
            case ast.Attribute(value=ast.Name(id="sys"), attr=("stdout" | "stderr") as stream):
                found.add(f"sys.{stream}")
    return found


@pytest.mark.parametrize(
    "file", [file for file in SOURCES if part_of(file) != "cli" and name_of(file) not in TALKERS], ids=name_of
)
def test_only_the_command_line_prints(file: Path) -> None:
    """What others have to say they return or raise, or tell an observer."""
    assert talk(parsed(file)) == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("print(1)", {"print"}),
        ("sys.stderr.write('x')", {"sys.stderr"}),
        ("import click", {"click"}),
        ("def f():\n    from rich.console import Console", {"rich"}),
        ("process.stdout.read()", set()),
    ],
)
def test_talk_is_seen(line: str, found: set[str]) -> None:
    """What the test above would tell."""
    assert talk(ast.parse(line)) == found


def test_exceptions_are_still_needed() -> None:
    """Whoever is mended leaves the lists above."""
    assert [part for part in NOT_PURE if not impure(parsed(PACKAGE / f"{part}.py"))] == []
    assert [file for file in TALKERS if not talk(parsed(PACKAGE / file))] == []


def test_what_runs_inside_an_image_knows_nothing_of_torchkiln() -> None:
    """The suite and the compile worker run under the image's Python, where torchkiln is not."""
    files = [
        *(ROOT / "smoke_tests").rglob("*.py"),
        PACKAGE / "wheel" / "compile_worker.py",
        PACKAGE / "runtimes" / "enter.py",
    ]
    assert len(files) > 5
    assert {file.name: names for file in files if (names := parts_imported(parsed(file)))} == {}


def test_no_file_is_longer_than_400_lines() -> None:
    """What grows beyond is two things."""
    folders = (PACKAGE, ROOT / "tests", ROOT / "smoke_tests")
    lines = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for folder in folders
        for file in folder.rglob("*.py")
    }
    assert {file: count for file, count in lines.items() if count > 400} == {}
    assert max(lines.values()) > 250  # the files were found
