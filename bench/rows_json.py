"""Writes JSON with one line for each outer value, for files that are small and have readable diffs."""

from __future__ import annotations

import json
from typing import Any


def rows_json(value: Any, levels: int = 2) -> bytes:
    """*value* as JSON: containers down to *levels* have a line for each entry, deeper ones are one line."""
    return (_rows(value, levels) + "\n").encode()


def _rows(value: Any, levels: int) -> str:
    if levels and value and isinstance(value, dict):
        entries = (f"{json.dumps(key)}: {_rows(entry, levels - 1)}" for key, entry in value.items())
        return "{\n" + ",\n".join(entries) + "\n}"
    if levels and value and isinstance(value, list):
        return "[\n" + ",\n".join(_rows(entry, levels - 1) for entry in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))
