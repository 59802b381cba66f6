"""List the checks of a suite folder from their source, without importing them.

A check is a function ``test_<name>`` with ``@pytest.mark.tier(n)``; its id is the name with hyphens. The
literal VALUES declares its values by id (values.py). The list is the same if torch cannot be imported, and
the host gets the checks and their values without running the image.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_LIMIT = 300.0  # seconds
_RULES = {"equals", "expected", "at_least", "at_most", "type"}
DRIVER_PROBE = "probes/driver.py"
_DRIVER_PROBE_OF_IMAGES = "rootfs/opt/torchkiln/workplace/driver_probe.py"
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Check(NamedTuple):
    """A check, with its file and time limit."""

    id: str
    tier: int
    file: str
    function: str
    limit: float  # seconds
    of_image: bool  # compares with a lock, so it does not apply to an environment without a lock
    values: dict[str, dict[str, Any]]  # by name, as declared in VALUES


def catalogue(folder: Path) -> tuple[Check, ...]:
    """All checks of the suite in *folder*, sorted by tier and id.

    :raises ValueError: a test function has no tier or no VALUES, or two functions have the same id.
    """
    found: dict[str, Check] = {}
    for path in sorted(folder.glob("test_*.py")):
        body = ast.parse(path.read_text("utf-8")).body
        values = _declared(body, path.name)
        for node in body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            marks = _marks(node)
            if "tier" not in marks:
                raise ValueError(f"{path.name}: {node.name} has no @pytest.mark.tier(n)")
            name = node.name.removeprefix("test_").replace("_", "-")
            if name in found:
                raise ValueError(f"{path.name}: a second check named {name}")
            if not values.get(name):
                raise ValueError(f"{path.name}: VALUES declares no values of {name}")
            fixtures = {argument.arg for argument in node.args.args}
            found[name] = Check(
                id=name,
                tier=int(marks["tier"]),
                file=path.name,
                function=node.name,
                limit=marks.get("limit", DEFAULT_LIMIT),
                of_image="facts" in fixtures,
                values=values[name],
            )
    return tuple(sorted(found.values(), key=lambda check: (check.tier, check.id)))


def digest(folder: Path) -> str:
    """The digest of the suite in *folder*, for a run without a host that computes it.

    It covers the path of each file, and its bytes, or of Python its syntax tree without docstrings.
    torchkiln.smoke.suite computes the same without running code of the suite.
    """
    result = hashlib.sha256()
    files = {
        path.relative_to(folder): path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[Path(DRIVER_PROBE)] = driver_probe(folder)
    for name, path in sorted(files.items()):
        data = path.read_bytes()
        if path.suffix == ".py":
            data = _tree(ast.parse(data)).encode()
        result.update(f"{name.as_posix()}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return f"sha256:{result.hexdigest()}"


def driver_probe(folder: Path) -> Path:
    """The script that queries the driver. A copy of the suite made by torchkiln contains it; in a checkout it
    is in rootfs/, as images contain it."""
    own = folder / DRIVER_PROBE
    return own if own.exists() else folder.parent / _DRIVER_PROBE_OF_IMAGES


def missing(folder: Path) -> str | None:
    """A sentence if *folder* was copied without the script of `driver_probe`; None: the suite is complete."""
    path = driver_probe(folder)
    return None if path.is_file() else f"{path}: no such file: copy rootfs/ of torchkiln beside smoke_tests/"


def _tree(node: Any) -> str:
    """A syntax tree as text, without empty fields, because newer Python versions add empty fields."""
    if isinstance(node, list):
        return "[" + ", ".join(_tree(item) for item in node) + "]"
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!a})"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = []
    for name, field in ast.iter_fields(node):
        if (
            name == "body"
            and isinstance(node, _WITH_DOCSTRING)
            and ast.get_docstring(node, clean=False) is not None
        ):
            field = field[1:]
        if name not in ("kind", "type_comment", "type_ignores") and field is not None and field != []:
            fields.append(f"{name}={_tree(field)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _declared(body: list[ast.stmt], file: str) -> dict[str, dict[str, dict[str, Any]]]:
    """VALUES of a file, by check and name.

    :raises ValueError: VALUES is missing or no literal, or a declaration is not valid by values.py.
    """
    literals = [
        node.value
        for node in body
        if isinstance(node, ast.Assign)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["VALUES"]
    ]
    if len(literals) != 1:
        raise ValueError(f"{file}: VALUES must be assigned once")
    try:
        values = ast.literal_eval(literals[0])
    except ValueError:
        raise ValueError(f"{file}: VALUES must be a literal") from None
    for check, rules in values.items():
        if not any(set(rule) - {"type"} for rule in rules.values()):
            raise ValueError(f"{file}: VALUES[{check!r}] has no bound, so the check cannot fail")
        for name, rule in rules.items():
            if not rule or not set(rule) <= _RULES or {"equals", "expected"} <= set(rule):
                raise ValueError(f"{file}: VALUES[{check!r}][{name!r}]: invalid declaration {rule!r}")
    return values


def _marks(function: ast.FunctionDef) -> dict[str, float]:
    """`@pytest.mark.NAME(number)` of *function* as {NAME: number}."""
    return {
        item.func.attr: float(item.args[0].value)
        for item in function.decorator_list
        if isinstance(item, ast.Call)
        and isinstance(item.func, ast.Attribute)
        and item.args
        and isinstance(item.args[0], ast.Constant)
        and isinstance(item.args[0].value, (int, float))
    }
