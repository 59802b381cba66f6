"""Reads the records that `python -m recipes.measure` writes, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from tools.json_schemas import schema_of
from torchkiln.model.report import Tag, Time
from torchkiln.util import codec
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

Text = Annotated[str, Meta(max_length=2000)]
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]
Group = Literal["alone", "together", "images", "gpus"]
Outcome = Literal["measured", "out of memory", "unavailable", "failed", "no time"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Device and software of a record; the last five fields are None on a CPU."""

    torch: Text
    python: Text
    device: Text
    cores: Count
    memory: Count | None = None
    capability: tuple[Count, ...] | None = None
    cuda: Text | None = None
    cudnn: Count | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run. The figures are None unless the outcome is "measured"; figures of memory are None on a CPU."""

    name: Text
    group: Group
    gpus: Annotated[int, Meta(ge=1)]
    command: Text
    outcome: Outcome
    message: Text
    seconds: Amount
    samples_per_s: Amount | None
    timed_steps: Count | None
    peak_bytes: Count | None
    reserved_bytes: Count | None
    scale: Amount | None  # the GradScaler's scale after the last step
    losses: tuple[float, ...]  # the loss of each step, up to the first loss that is not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """All rows of a run of measure.py, and where it ran."""

    schema: Literal[1]
    when: Time
    image: Tag | None  # None: not in an image of torchkiln
    size: Literal["tiny", "base"]
    steps: Annotated[int, Meta(ge=1)]
    driver: Text | None
    environment: Environment
    # The row of each group that the others are compared with. msgspec 0.23 describes its keys, 0.22 does not.
    first: Mapping[Group, Text] = field(
        metadata={
            codec.SCHEMA: {
                "type": "object",
                "additionalProperties": {"type": "string", "maxLength": 2000},
            }
        }
    )
    waterfall: tuple[Text, ...]
    seconds: Amount
    rows: Annotated[tuple[Row, ...], Meta(max_length=200)]


def schema() -> dict[str, Any]:
    """The JSON Schema of a record."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the training recipes measured on one machine",
        **schema_of(Record),
    }


def from_json(data: bytes, where: str) -> Record:
    """The record in *data*.

    :raises ValueError: it is not valid; the message gives the location of each fault.
    """
    document = json_of(data)
    if faults := sentences(document, schema(), where):
        raise ValueError("\n".join(faults))
    return codec.typed(Record, document)


def records(folder: Path) -> dict[str, Record]:
    """The records in *folder* by name, those of one GPU first."""
    found = {path.stem: from_json(path.read_bytes(), path.name) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(found.items(), key=lambda item: max((row.gpus for row in item[1].rows), default=0)))
