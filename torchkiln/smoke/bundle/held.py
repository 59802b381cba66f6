"""Reads and writes the list of the layers that a GPU host has.

A bundle's `run.py --have` writes the list; `torchkiln smoke run --bundle FOLDER --have FILE` reads it.

Each line has a digest and, if known, the tag of an image with that layer. Lines that start with # are
comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.util.schema import shown
from torchkiln.util.strict_json import read_given

LIMIT = 1 << 20  # bytes; a line has about 110 bytes, and an image has at most 22 layers
_TAG = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_LINE = re.compile(rf"(sha256:[0-9a-f]{{64}})(?:[ \t]+({_TAG}))?")
_NAMED = 5  # maximum number of faults in a message
_HINT = "write it on the GPU host, with the run.py of a bundle there: python3 run.py --have > have.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLayer:
    """A layer that a bundle leaves out, because the host has it; *tag*: of an image that has it, or empty."""

    digest: Digest
    size: int  # bytes
    tag: str


def held_of(image: ImageOnDisk, held: Mapping[Digest, str]) -> dict[Digest, HeldLayer]:
    """The layers of *image* that are in the list *held*."""
    return {
        layer.digest: HeldLayer(digest=layer.digest, size=layer.size, tag=held[layer.digest])
        for layer in image.layers
        if layer.digest in held
    }


def held_to_json(layers: Iterable[HeldLayer]) -> dict[str, Any]:
    """*layers* as the value of `held` in bundle.json."""
    return {layer.digest: {"size": layer.size, "tag": layer.tag} for layer in layers}


def held_from_json(value: Mapping[str, Any]) -> tuple[HeldLayer, ...]:
    """The inverse of `held_to_json`.

    :raises ValueError: a key is not a digest, so that it could name a file outside of the layout.
    """
    return tuple(
        HeldLayer(digest=parse_digest(digest), size=layer["size"], tag=layer["tag"])
        for digest, layer in value.items()
    )


def read_held(path: Path) -> dict[Digest, str]:
    """The layers in the list *path*, each with its tag or "".

    :raises ConfigError: the list cannot be read, is too long, or has a malformed line.
    """
    data = read_given(path, LIMIT, hint=_HINT)
    try:
        return parse_held(data)
    except ValueError as error:
        raise ConfigError.of((f"{path}: {line}" for line in str(error).splitlines()), hint=_HINT) from None


def parse_held(data: bytes) -> dict[Digest, str]:
    """The layers in *data*, each with its tag or "". If a digest is listed twice, the first line counts.

    :raises ValueError: a line is malformed; the message has a line for each.
    """
    held: dict[Digest, str] = {}
    faults = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        line = raw.decode("ascii", "backslashreplace").strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if found := _LINE.fullmatch(line):
            held.setdefault(Digest(found[1]), found[2] or "")
        else:
            faults.append(f"line {number}: not a sha256 digest: {shown(line)}")
    if faults:
        more = [f"and {len(faults) - _NAMED} more lines"] if len(faults) > _NAMED else []
        raise ValueError("\n".join([*faults[:_NAMED], *more]))
    return held


def held_lines(held: Mapping[Digest, str]) -> Iterator[str]:
    """*held* as lines that `parse_held` can read; a tag that it would refuse is left out."""
    yield "# layers on this host, for: torchkiln smoke run --bundle FOLDER --have FILE"
    for digest, tag in held.items():
        yield f"{digest} {tag}" if re.fullmatch(_TAG, tag) else digest
