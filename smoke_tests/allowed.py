"""Read allowed_unresolved.json: the (file, soname) pairs that may stay unresolved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("allowed_unresolved.json")


def allowed_unresolved(
    wheels: Iterable[Mapping[str, Any]], python: str, listed: Path = LIST
) -> list[list[str]]:
    """Sorted pairs; an entry applies if one of its versions of its distribution is installed."""
    installed = {wheel["name"]: wheel["version"].split("+")[0] for wheel in wheels}
    site = f"lib/python{'.'.join(python.split('.')[:2])}/site-packages"
    return sorted(
        [f"{site}/{file}", soname]
        for entry in json.loads(listed.read_bytes())["entries"]
        if installed.get(entry["distribution"]) in entry["versions"]
        for file, needed in entry["files"].items()
        for soname in needed
    )
