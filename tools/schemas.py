"""Generate the JSON Schemas in torchkiln/data and the recipes' from the data classes (`make golden`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from tools import recipes_record
from tools.json_schemas import schema_of
from torchkiln.base import archive, effects
from torchkiln.locks import file as lock_file
from torchkiln.model import fields
from torchkiln.model.cell import Source
from torchkiln.model.lock import DebFile, LockedCell
from torchkiln.model.project import ProjectLock
from torchkiln.model.report import SmokeReport
from torchkiln.projects import file as project_file
from torchkiln.projects import settings as project_settings
from torchkiln.smoke import report
from torchkiln.util.places import ROOT
from torchkiln.util.schema import shipped

DATA = ROOT / "torchkiln/data"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockEnvelope:
    """The fields of lock.json that are not in LockedCell."""

    schema: Literal[2]
    digest: fields.Sha256Digest
    indexes: Annotated[tuple[Source, ...], Meta(extra_json_schema={"uniqueItems": True})]
    seal: fields.Sha256Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectEnvelope:
    """The fields of torchkiln.lock.json that are not in ProjectLock."""

    schema: Literal[1]
    seal: Annotated[fields.Sha256Digest, Meta(description="the digest of the other values")]


def lock() -> dict[str, Any]:
    """The schema of lock.json."""
    title = f"images/<tag>/lock.json, schema {lock_file.SCHEMA}: every byte of one image by sha256"
    return _enveloped(title, LockedCell, LockEnvelope, lock_file.ORDER)


def project_lock() -> dict[str, Any]:
    """The schema of torchkiln.lock.json."""
    title = (
        f"{project_file.FILE}, schema {project_file.SCHEMA}: the packages of a project on an image, by sha256"
    )
    return _enveloped(title, ProjectLock, ProjectEnvelope, project_file.ORDER)


def _enveloped(title: str, kind: type, envelope: type, order: tuple[str, ...]) -> dict[str, Any]:
    found, around = schema_of(kind), schema_of(envelope)
    properties = {**found["properties"], **around["properties"]}
    return {
        "$schema": _DRAFT,
        "title": title,
        **found,
        "required": sorted({*found["required"], *around["required"]}, key=order.index),
        "properties": {key: properties[key] for key in order},
    }


def settings() -> dict[str, Any]:
    """The schema of a project's settings."""
    title = f"{project_settings.FILE}, and [{project_settings.TABLE}] in {project_settings.PYPROJECT}"
    return {"$schema": _DRAFT, "title": title, **schema_of(project_settings.ProjectSettings)}


def smoke_report() -> dict[str, Any]:
    """The schema of a report: `SmokeReport` with `findings` renamed to `checks`, and with the host."""
    found, host = schema_of(SmokeReport), dict(shipped("host"))
    definitions = {**found["$defs"], **host.pop("$defs"), "host": host}
    properties = found["properties"]
    checks = properties.pop("findings")
    return {
        "$schema": host.pop("$schema"),
        "title": "What the checks saw inside one image, or in an environment without one",
        **found,
        "required": ["schema", *(key for key in found["required"] if key != "findings"), "checks"],
        "properties": {"schema": {"const": report.SCHEMA}, **properties, "checks": checks},
        "$defs": definitions,
    }


def base_effects() -> dict[str, Any]:
    """The schema of the effects of a base's scripts."""
    found = schema_of(effects.Effects)
    return {
        "$schema": _DRAFT,
        "title": "What a base has beyond the plain extraction of its packages",
        **found,
        "required": ["schema", *found["required"]],
        "properties": {"schema": {"const": effects.SCHEMA}, **found["properties"]},
    }


def debs() -> dict[str, Any]:
    """The schema of debs.json and devel-debs.json."""
    return {
        "$schema": _DRAFT,
        "title": "images/base-<os>/debs.json: the .deb files of a base",
        "type": "object",
        "required": ["schema", "base", "debs"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": archive.SCHEMA},
            "base": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
            "dates": {
                "type": "object",
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9-]{0,60}$"},
                "additionalProperties": {"type": "string", "pattern": "^[0-9]{8}T[0-9]{6}Z$"},
            },
            "debs": {"type": "array", "maxItems": 10_000, "items": schema_of(DebFile)},
        },
    }


SCHEMAS = {
    "lock": lock,
    "project-lock": project_lock,
    "project-settings": settings,
    "smoke-report": smoke_report,
    "effects": base_effects,
    "debs": debs,
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
