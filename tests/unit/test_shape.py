"""The shape of the package: imports point one way, as docs/architecture.md says; no file is too long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from torchkiln.places import ROOT

PACKAGE = ROOT / "torchkiln"
LONGEST = 400  # lines


def _rows() -> dict[str, int]:
    """Room → the row of the table in which it stands, counted from the top."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("\n## ")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name: place for place, row in enumerate(rows) for name in re.findall(r"`([\w/]+)`", row)}


def _room(module: str) -> str:
    """`"oci/"` of "torchkiln.oci.tar", `"nouns"` of "torchkiln.nouns"; empty for torchkiln itself."""
    name = [*module.split("."), ""][1]
    return f"{name}/" if (PACKAGE / name).is_dir() and name else name


def imported(source: str) -> set[str]:
    """The rooms of torchkiln that *source* imports, wherever in the file and in whatever form."""
    tree = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in tree if isinstance(node, ast.ImportFrom)]
    for node in froms:
        assert not node.level, "relative imports hide where they point"
        names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in names if name.split(".")[0] == "torchkiln"}
    return {room for name in ours if (room := _room(name))} - {"__version__"}


def _files() -> list[tuple[Path, str]]:
    """Each file with its room; the package's own door files are in none."""
    files = [file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE or file.stem[:2] != "__"]
    return [(file, _room(".".join(file.relative_to(ROOT).with_suffix("").parts))) for file in files]


def test_every_room_stands_in_the_table() -> None:
    """And the table holds no room that is gone."""
    assert set(_rows()) == {room for _, room in _files()}


def test_imports_point_one_way() -> None:
    rows = _rows()
    wrong = [
        f"{file.relative_to(ROOT)} imports {other}"
        for file, room in _files()
        for other in imported(file.read_text())
        if rows[other] > rows[room]
    ]

    assert wrong == []


def test_every_form_of_import_is_seen() -> None:
    source = (
        "def f():\n  import torchkiln.oci.tar\n  from torchkiln.index import uv\nfrom torchkiln import nouns"
    )

    assert imported(source) == {"oci/", "index/", "nouns"}


def test_no_file_grows_too_long() -> None:
    files = [
        file for folder in ("torchkiln", "smoke_tests", "tools") for file in (ROOT / folder).rglob("*.py")
    ]
    long = {str(file.relative_to(ROOT)): lines for file in files if (lines := _lines(file)) > LONGEST}

    assert long == {}


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())
