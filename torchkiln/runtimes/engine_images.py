"""What an engine needs before a container starts: the image in it, and GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.docker.daemon import Engine, image_in, load, way_to_gpus
from torchkiln.errors import ConfigError
from torchkiln.runtimes.runtime import Listener, Source

DOCKER = "docker:"
"""Before the name of an image that is in an engine, and perhaps in no layout."""


def image_on(engine: Engine, source: Source, listener: Listener) -> tuple[str, Mapping[str, Any]]:
    """What the engine calls the image, and its configuration; the image is in the engine then."""
    if source.ref is not None and source.ref.startswith(DOCKER):
        name = source.ref.removeprefix(DOCKER)
        told = image_in(engine, name)
        if told is None:
            raise ConfigError(f"{name}: no such image in the engine at {engine.host}", hint="docker image ls")
        return name, told.get("Config") or {}
    repository = source.repository()
    try:
        image = source.read()
    except ConfigError:
        told = image_in(engine, f"{repository}:{source.ref}") if source.ref else None
        if told is None:
            raise
        return f"{repository}:{source.ref}", told.get("Config") or {}  # built there, and never in a layout
    # A digest is no name, so an image that has none in the layout gets its digest's first characters.
    name = f"{repository}:{image.ref.removeprefix('sha256:')[:12] if ':' in image.ref else image.ref}"
    there = image_in(engine, name)
    if there is None or there["Id"] not in (image.manifest, image.config_digest):
        was = "" if there is None else f", which was {there['Id'][:19]}"
        listener.say(f"loading {image.ref} into {engine.host} as {name}{was}")
        with listener.progress() as observer:
            load(image, (name,), engine, observer)
    return name, image.config.get("config") or {}


def parse_gpus(text: str | None) -> str | None:
    """`all`, `none`, `2` or `device=0,GPU-3f…`, as it is.

    :raises ConfigError: it is none of these.
    """
    if text is not None and not re.fullmatch(r"all|none|\d{1,4}|device=[\w.:-]+(,[\w.:-]+)*", text):
        raise ConfigError(f"--gpus {text}: not all, none, a number or device=ID,ID")
    return text


def gpus_on(engine: Engine, asked: str | None, listener: Listener) -> tuple[str, bool]:
    """A container's `gpus` and `cdi`; where nothing was asked all, if there are some that it hands on."""
    if asked in ("none", "0"):
        return "", False
    if asked is None and engine.host.startswith("unix:") and not Path("/dev/nvidiactl").exists():
        return "", False
    way = way_to_gpus(engine)
    if asked is not None or way:
        return asked or "all", way == "cdi" or engine.kind == "Podman"
    if engine.host.startswith("unix:"):
        listener.say(
            "this host has GPUs, but the engine hands on none: it lacks nvidia-container-toolkit,"
            " or a CDI specification"
        )
    return "", False
