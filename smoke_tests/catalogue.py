"""List the checks of a suite folder from their source, without importing them.

A check is a function ``test_<name>`` with ``@pytest.mark.tier(n)``; its id is the name with hyphens.
So the list is the same if torch cannot be imported, and the host knows which checks must run without asking
the image.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_LIMIT = 300.0  # seconds
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Check(NamedTuple):
    """A check, with its file and time limit."""

    id: str
    tier: int
    file: str
    function: str
    limit: float  # seconds
    of_image: bool  # it compares with a lock, so it does not apply to an environment without one


def catalogue(folder: Path) -> tuple[Check, ...]:
    """All checks of the suite in *folder*, sorted by tier and id.

    :raises ValueError: a test function has no tier, or two have the same id.
    """
    found: dict[str, Check] = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            marks = _marks(node)
            if "tier" not in marks:
                raise ValueError(f"{path.name}: {node.name} has no @pytest.mark.tier(n)")
            name = node.name.removeprefix("test_").replace("_", "-")
            if name in found:
                raise ValueError(f"{path.name}: a second check named {name}")
            asks = {argument.arg for argument in node.args.args}
            found[name] = Check(
                id=name,
                tier=int(marks["tier"]),
                file=path.name,
                function=node.name,
                limit=marks.get("limit", DEFAULT_LIMIT),
                of_image="facts" in asks,
            )
    return tuple(sorted(found.values(), key=lambda check: (check.tier, check.id)))


def digest(folder: Path) -> str:
    """The digest of the suite in *folder*, for a run without a host that computes it.

    Over the path of each file, and its bytes; of Python, its syntax tree without docstrings. torchkiln.suite
    computes the same and runs no code of a suite for it.
    """
    seen = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(files):
        data = path.read_bytes()
        if path.suffix == ".py":
            data = _tree(ast.parse(data)).encode()
        seen.update(f"{path.relative_to(folder).as_posix()}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return f"sha256:{seen.hexdigest()}"


def _tree(node: Any) -> str:
    """A syntax tree as text. Empty fields are left out: newer Python versions have more of them."""
    if isinstance(node, list):
        return "[" + ", ".join(_tree(item) for item in node) + "]"
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!a})"
    if not isinstance(node, ast.AST):
        return ascii(node)
    told = []
    for name, field in ast.iter_fields(node):
        if (
            name == "body"
            and isinstance(node, _WITH_DOCSTRING)
            and ast.get_docstring(node, clean=False) is not None
        ):
            field = field[1:]
        if name not in ("kind", "type_comment", "type_ignores") and field is not None and field != []:
            told.append(f"{name}={_tree(field)}")
    return f"{type(node).__name__}({', '.join(told)})"


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
