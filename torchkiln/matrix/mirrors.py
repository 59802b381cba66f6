"""Reads mirrors.yaml: the settings that `--mirror NAME` uses, by the name of a mirror.

A preset has the addresses of the default package index and of the archives of Linux distributions. Its keys
are the environment variables that a user would set. A variable that the user sets overrides the preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from torchkiln.errors import ConfigError
from torchkiln.util import located_yaml
from torchkiln.util.schema import shipped
from torchkiln.util.strict_json import read_file, text_of

NAME = "TORCHKILN_MIRROR"  # the name of the preset, which `--mirror` sets
FILE = "TORCHKILN_MIRRORS"  # the path of a file that replaces mirrors.yaml
INDEX = "UV_DEFAULT_INDEX"
_LIMIT = 100_000  # bytes; the file has 3,000

#: Address by variable.
Preset = Mapping[str, str]


@cache
def load() -> Mapping[str, Preset]:
    """The presets that are part of torchkiln, by name."""
    return parse(files("torchkiln").joinpath("data/mirrors.yaml").read_bytes(), name="mirrors.yaml")


def read(path: Path) -> Mapping[str, Preset]:
    """The presets of the user's file *path*.

    :raises ConfigError: the file cannot be read, or is invalid.
    """
    try:
        return parse(read_file(path, _LIMIT), name=str(path))
    except OSError as error:
        raise ConfigError(
            f"{FILE}: {path}: {error.strerror}",
            hint=f"set {FILE} to a file in the format of torchkiln/data/mirrors.yaml, or unset it",
        ) from None


def parse(data: bytes, *, name: str) -> Mapping[str, Preset]:
    """Parse *data*, the bytes of a mirrors.yaml; messages begin with *name*.

    :raises ConfigError: every fault, with its line.
    """
    try:
        located = located_yaml.parse(text_of(data), name=name)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if wrong := located_yaml.faults(located, shipped("mirrors")):
        raise ConfigError.of(wrong)
    return MappingProxyType(
        {mirror: MappingProxyType(preset) for mirror, preset in located.data["mirrors"].items()}
    )


def preset_of(environ: Mapping[str, str]) -> Preset:
    """The preset that TORCHKILN_MIRROR names in *environ*; empty if it names none.

    :raises ConfigError: there is no such preset, or the file in TORCHKILN_MIRRORS is invalid.
    """
    name = environ.get(NAME)
    return find(name, environ) if name else MappingProxyType({})


def find(name: str, environ: Mapping[str, str]) -> Preset:
    """The preset *name*, of the file in TORCHKILN_MIRRORS if *environ* sets it.

    :raises ConfigError: there is no such preset, or the file is invalid.
    """
    presets = read(Path(file)) if (file := environ.get(FILE)) else load()
    if name not in presets:
        raise ConfigError(f"mirror {name[:80]!r} not found", hint=f"use one of {', '.join(presets)}")
    return presets[name]
