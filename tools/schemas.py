"""Generate the JSON Schemas in torchkiln/data and the recipes' from the data classes (`make golden`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools import recipes_record
from torchkiln.locks import file as lock_file
from torchkiln.projects import file as project_file
from torchkiln.projects import settings as project_settings
from torchkiln.smoke import report
from torchkiln.util.places import ROOT

DATA = ROOT / "torchkiln/data"
SCHEMAS = {
    "lock": lock_file.schema,
    "project-lock": project_file.schema,
    "project-settings": project_settings.schema,
    "smoke-report": report.schema,
    "recipes": recipes_record.schema,
}
ELSEWHERE = {
    "recipes": ROOT / "rootfs/opt/torchkiln/examples/recipes/record.schema.json"
}  # torchkiln does not read it


def text(schema: dict[str, Any]) -> str:
    """*schema* as JSON, with one property per line."""

    def block(value: dict[str, Any], depth: int) -> str:
        pad = "  " * (depth + 1)
        lines = (f"{pad}{json.dumps(key)}: {field(key, inner, depth + 1)}" for key, inner in value.items())
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"

    def field(key: str, value: Any, depth: int) -> str:
        nested = key in ("properties", "$defs") or (isinstance(value, dict) and "properties" in value)
        return block(value, depth) if nested else json.dumps(value)

    return block(schema, 0) + "\n"


def path(name: str) -> Path:
    """The file of schema *name*."""
    return ELSEWHERE.get(name, DATA / f"{name}.schema.json")


if __name__ == "__main__":
    for name, schema in SCHEMAS.items():
        path(name).write_text(text(schema()))
