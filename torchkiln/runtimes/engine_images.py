"""Prepares an engine for a container: loads the image, and chooses how the container gets GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.docker.daemon import Engine, gpu_support, image_in, load
from torchkiln.errors import ConfigError
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener

DOCKER = "docker:"
"""The prefix of an image's name that means: the image is in the engine, and need not be in a layout."""


def image_on(engine: Engine, source: ImageSource, listener: RuntimeListener) -> tuple[str, Mapping[str, Any]]:
    """Load the image of *source* into *engine* if it is missing; return its name there and its config."""
    if source.ref is not None and source.ref.startswith(DOCKER):
        name = source.ref.removeprefix(DOCKER)
        present = image_in(engine, name)
        if present is None:
            raise ConfigError(
                f"{name}: no such image in the engine at {engine.host}", hint="see `docker image ls`"
            )
        return name, present.get("Config") or {}
    repository = source.repository()
    try:
        image = source.read()
    except ConfigError:
        present = image_in(engine, f"{repository}:{source.ref}") if source.ref else None
        if present is None:
            raise
        return f"{repository}:{source.ref}", present.get("Config") or {}  # built in the engine
    # A digest is not a valid tag, so an image without a tag gets the first characters of its digest.
    name = f"{repository}:{image.ref.removeprefix('sha256:')[:12] if ':' in image.ref else image.ref}"
    present = image_in(engine, name)
    if present is None or present["Id"] not in (image.manifest, image.config_digest):
        replaced = "" if present is None else f", replacing {present['Id'][:19]}"
        listener.say(f"loading {image.ref} into {engine.host} as {name}{replaced}")
        with listener.progress() as observer:
            load(image, (name,), engine, observer)
    return name, image.config.get("config") or {}


def parse_gpus(text: str | None) -> str | None:
    """Check *text*: `all`, `none`, `2` or `device=0,GPU-3f…`; returned unchanged.

    :raises ConfigError: *text* is invalid.
    """
    if text is not None and not re.fullmatch(r"all|none|\d{1,4}|device=[\w.:-]+(,[\w.:-]+)*", text):
        raise ConfigError(f"--gpus {text}: must be all, none, a number or device=ID,ID")
    return text


def gpus_on(engine: Engine, requested: str | None, listener: RuntimeListener) -> tuple[str, bool]:
    """`gpus` and `cdi` of a `Container`. If *requested* is None: all GPUs, if *engine* supports them."""
    local = engine.host.startswith("unix:")
    if requested in ("none", "0"):
        return "", False
    if requested is None and local and not Path("/dev/nvidiactl").exists():
        return "", False
    support = gpu_support(engine)
    if requested is not None or support:
        return requested or "all", support == "cdi" or engine.kind == "Podman"
    if local:
        listener.say(
            "this host has GPUs, but the engine does not support them: install nvidia-container-toolkit,"
            " or create a CDI specification"
        )
    return "", False
