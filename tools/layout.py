"""List the folders of torchkiln in import order, and write a table of them from docstrings."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "torchkiln"

# The folders of torchkiln and its top-level modules, lowest first. A module imports from its own folder and
# from those in the lines above; folders in the same line do not import each other.
ORDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("foundations", ("__init__", "errors")),
    ("", ("util",)),
    ("", ("model",)),
    ("", ("store",)),
    ("pipeline", ("matrix",)),
    ("adapters", ("elf",)),
    ("", ("oci", "device_code")),
    ("", ("index", "wheel")),
    ("", ("registry",)),
    ("", ("vault",)),
    ("", ("base", "cuda")),
    ("pipeline", ("locks",)),
    ("", ("plan",)),
    ("", ("engine",)),
    ("beside the pipeline", ("docker", "cache", "attest", "jobs")),
    ("", ("runtimes",)),
    ("", ("compare",)),
    ("pipeline", ("smoke",)),
    ("", ("gate",)),
    ("beside the pipeline", ("sbom",)),
    ("pipeline", ("publishing",)),
    ("beside the pipeline", ("site",)),
    ("projects", ("projects",)),
    ("top", ("api",)),
    ("", ("cli", "__main__")),
)


def folders() -> str:
    """A table of the folders in import order, with the first line of their docstrings."""
    lines = ["| group | folder | |", "| --- | --- | --- |"]
    for group, names in ORDER:
        for name in names:
            path = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
            if name[:2] != "__":
                shown = f"`{name}/`" if path.name == "__init__.py" else f"`{name}.py`"
                lines.append(f"| {group} | {shown} | {summary(path)} |")
                group = ""
    return "\n".join((*lines, ""))


def summary(path: Path) -> str:
    """The first line of the docstring of the module *path*."""
    return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0].replace("|", "\\|")


def by_folder() -> Mapping[str, int]:
    """The rank of each folder and top-level module."""
    return {name: rank for rank, (_, names) in enumerate(ORDER) for name in names}
