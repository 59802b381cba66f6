"""Our layer of a wheel and what real pip writes: the one comparison, and all that may differ."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
from pathlib import Path

from tests.layers import Item, layer_of, pretended_code, tree_of_folder, tree_of_layer
from tests.realpip import RealPip

SITE = "opt/venv/lib/python3.11/site-packages"

# All that may differ, and why. `as_ours` turns pip's tree into ours by these and nothing else.
ALLOWED = {
    "INSTALLER": "tells who installed: torchkiln, not pip",
    "REQUESTED": "pip marks what a user named; in a lock everything is named, so it would tell nothing",
    "*.pyc": "of the image's own Python, in RECORD without a hash; those in the wheel give way",
    "RECORD's ghosts": "pip keeps lines of files that it did not install; ours tells what is there",
    "mtime": "fixed; pip leaves the moment of installation",
}


def as_ours(pips: dict[str, Item]) -> dict[str, Item]:
    """pip's tree with the differences of ALLOWED, and no other."""
    tree = dict(pips)
    sources = [path for path in tree if path.startswith(SITE) and path.endswith(".py")]
    codes = {cached(path): pretended_code(f"/{path}") for path in sources}
    outdated = {path for path in tree if "/__pycache__/" in path and source_of(path) in sources}
    (record,) = (path for path in tree if re.fullmatch(rf"{SITE}/[^/]+\.dist-info/RECORD", path))
    info = record.removesuffix("RECORD")
    rows = {row[0]: row for row in csv.reader(io.StringIO(tree[record].data.decode(), newline=""))}
    for ghost in [path for path in rows if os.path.normpath(f"{SITE}/{path}") not in tree]:
        del rows[ghost]
    for path in (*outdated, f"{info}REQUESTED"):
        del tree[path], rows[os.path.relpath(path, SITE)]
    tree[f"{info}INSTALLER"] = Item(kind="file", mode=0o644, data=b"torchkiln\n")
    installer = os.path.relpath(f"{info}INSTALLER", SITE)
    told = base64.urlsafe_b64encode(hashlib.sha256(b"torchkiln\n").digest()).decode().rstrip("=")
    rows[installer] = [installer, f"sha256={told}", "10"]
    for path, code in codes.items():
        tree[path] = Item(kind="file", mode=0o644, data=code)
        for folder in Path(path).parents:
            if str(folder) != ".":
                tree.setdefault(str(folder), Item(kind="folder", mode=0o755))
        rows[os.path.relpath(path, SITE)] = [os.path.relpath(path, SITE), "", ""]
    out = io.StringIO(newline="")
    csv.writer(out).writerows(sorted(rows.values()))
    tree[record] = Item(kind="file", mode=0o644, data=out.getvalue().encode())
    return tree


def cached(source: str) -> str:
    folder, name = os.path.split(source)
    return f"{folder}/__pycache__/{name[:-3]}.cpython-311.pyc"


def source_of(pyc: str) -> str:
    """As importlib.util.source_from_cache says it, where the source's own name has dots too."""
    folder, name = os.path.split(pyc)
    stem = re.sub(r"(?<=.)\.opt-[^.]+$", "", name.removesuffix(".pyc")) if name.endswith(".pyc") else ""
    return f"{os.path.dirname(folder)}/{stem.rpartition('.')[0] or stem}.py"


def agree(wheel: Path, pip: RealPip, root: Path) -> None:
    """The one comparison: names first, which read better than whole trees."""
    pip.install([wheel], root)
    theirs = as_ours(tree_of_folder(root))
    ours = tree_of_layer(layer_of([wheel], code=pretended_code)[0])

    assert sorted(ours) == sorted(theirs)
    assert {path: item for path, item in ours.items() if theirs[path] != item} == {}
    shutil.rmtree(root)
