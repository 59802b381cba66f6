"""What the command line wants of an engine before a container starts: the image in it, and GPUs."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import DOCKER
from torchkiln.docker.daemon import Engine, image_in, load, way_to_gpus
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import open_layout


def image_on(
    engine: Engine, tag: str | None, output: Path, matrix_file: Path
) -> tuple[str, Mapping[str, Any]]:
    """What the engine calls the image, and its configuration; the image is in the engine then."""
    if tag is not None and tag.startswith(DOCKER):
        name = tag.removeprefix(DOCKER)
        told = image_in(engine, name)
        if told is None:
            raise ConfigError(f"{name}: no such image in the engine at {engine.host}", hint="docker image ls")
        return name, told.get("Config") or {}
    repository = _repository(matrix_file)
    try:
        image = open_layout(output).image(tag)
    except ConfigError:
        told = image_in(engine, f"{repository}:{tag}") if tag else None
        if told is None:
            raise
        return f"{repository}:{tag}", told.get("Config") or {}  # built there, and never in a layout
    # A digest is no name, so an image that has none in the layout gets its digest's first characters.
    name = f"{repository}:{image.ref.removeprefix('sha256:')[:12] if ':' in image.ref else image.ref}"
    there = image_in(engine, name)
    if there is None or there["Id"] not in (image.manifest, image.config_digest):
        was = "" if there is None else f", which was {there['Id'][:19]}"
        console.say(f"loading {image.ref} into {engine.host} as {name}{was}")
        with console.progress(quiet=not sys.stderr.isatty()) as observer:
            load(image, (name,), engine, observer)
    return name, image.config.get("config") or {}


def _repository(matrix_file: Path) -> str:
    from torchkiln.matrix import facts, matrix

    return matrix.read(matrix_file, facts.load()).repository


def parse_gpus(text: str | None) -> str | None:
    """`all`, `none`, `2` or `device=0,GPU-3f…`, as it is.

    :raises ConfigError: it is none of these.
    """
    if text is not None and not re.fullmatch(r"all|none|\d{1,4}|device=[\w.:-]+(,[\w.:-]+)*", text):
        raise ConfigError(f"--gpus {text}: not all, none, a number or device=ID,ID")
    return text


def gpus_on(engine: Engine, asked: str | None) -> tuple[str, bool]:
    """A container's `gpus` and `cdi`; where nothing was asked all, if there are some that it hands on."""
    if asked in ("none", "0"):
        return "", False
    if asked is None and engine.host.startswith("unix:") and not Path("/dev/nvidiactl").exists():
        return "", False
    way = way_to_gpus(engine)
    if asked is not None or way:
        return asked or "all", way == "cdi" or engine.kind == "Podman"
    if engine.host.startswith("unix:"):
        console.say(
            "this host has GPUs, but the engine hands on none: it lacks nvidia-container-toolkit,"
            " or a CDI specification"
        )
    return "", False
