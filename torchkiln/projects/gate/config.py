"""Decides what the configuration of a project's image may change in that of the parent image. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import printable
from torchkiln.model.project import APP, LABEL, PARENT_LABEL

_OWN = ("Env", "Cmd", "WorkingDir", "Labels")  # these have rules of their own; the other fields must be equal
_NAMED = ("org.opencontainers.image.title", "org.opencontainers.image.version", LABEL)
_UNTRUSTED = "torchkiln.untrusted"
# Variables that name programs, libraries or code that torch, CUDA, NCCL, triton or libc load. A project may
# set them, but then the gate refuses its image.
_LOADS = re.compile(
    r"CUDA_(INJECTION.*|HOME|PATH|ROOT)|NVBIT_.*|NCCL_(NET|TUNER|PROFILER|PLUGIN).*|NVSHMEM_.*PLUGIN.*"
    r"|(CC|CXX|CUDAHOSTCXX)|TRITON_(.*_PATH|PLUGIN.*)|TORCH_DEVICE_BACKEND_AUTOLOAD"
    r"|TORCHINDUCTOR_(?!CACHE_DIR$).*"
    r"|GCONV_PATH|LOCPATH|OPENSSL_.*|MALLOC_.*"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRules:
    """The required values of the configuration, and the variables that it must not have."""

    name: str  # of the project
    parent: str  # TAG@DIGEST of the parent image
    has_source: bool  # the image has files in /app/src
    is_protected: Callable[[str], bool]  # whether projects cannot set the variable of this name

    @property
    def path(self) -> str:
        """The required value of PYTHONPATH."""
        return f"/{APP}:/{APP}/src" if self.has_source else f"/{APP}"


def config_faults(config: Mapping[str, Any], below: Mapping[str, Any], rules: ConfigRules) -> Iterator[str]:
    """How *config* breaks the rules; *below* is the parent image's. Both are the whole JSON document."""
    for key in sorted((config.keys() | below.keys()) - {"config", "rootfs", "history"}):
        if config.get(key) != below.get(key):
            yield f"{key} is {_shown(config.get(key))}, not {_shown(below.get(key))}"
    own, theirs = config.get("config") or {}, below.get("config") or {}
    for key in sorted((own.keys() | theirs.keys()) - set(_OWN)):
        if own.get(key) != theirs.get(key):
            yield f"{key} is {_shown(own.get(key))}; the parent image has {_shown(theirs.get(key))}"
    if own.get("WorkingDir") != f"/{APP}":
        yield f"WorkingDir is {_shown(own.get('WorkingDir'))}, not /{APP}"
    yield from _labels(own.get("Labels") or {}, theirs.get("Labels") or {}, rules)
    yield from _env(own.get("Env") or [], theirs.get("Env") or [], rules)


def added_variables(config: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the variables that *config* adds to *below*, except PYTHONPATH (all projects set it)."""
    own, theirs = ((each.get("config") or {}).get("Env") or [] for each in (config, below))
    names = (line.partition("=")[0] for line in own if line not in theirs)
    return tuple(printable(name) for name in names if name != "PYTHONPATH")


def _labels(own: Mapping[str, str], theirs: Mapping[str, str], rules: ConfigRules) -> Iterator[str]:
    expected = {**theirs, **dict.fromkeys(_NAMED, rules.name), PARENT_LABEL: rules.parent}
    for name in sorted(own.keys() | expected.keys()):
        if own.get(name) == expected.get(name):
            continue
        if name == _UNTRUSTED and own.get(name) == "true":
            yield f"the label {name}: an index that the project's lock used is untrusted"
        else:
            yield f"the label {name} is {_shown(own.get(name))}, not {_shown(expected.get(name))}"


def _env(own: list[str], theirs: list[str], rules: ConfigRules) -> Iterator[str]:
    values, below = ([line.partition("=")[::2] for line in lines] for lines in (own, theirs))
    there, seen = dict(below), set[str]()
    for name, value in values:
        if name in seen:
            yield f"Env has {name} twice"
        seen.add(name)
        if name == "PYTHONPATH":
            if value != rules.path:
                yield f"PYTHONPATH is {_shown(value)}, not {rules.path}"
        elif name in there:
            if value != there[name]:
                yield f"{name} is {_shown(value)}; the parent image has {_shown(there[name])}"
        elif rules.is_protected(name):
            yield f"Env has {name}, which no project can set"
        elif _LOADS.fullmatch(name):
            yield f"Env has {name}, which selects programs or libraries that torch loads"
    yield from (f"Env lacks {name}" for name in [*there, "PYTHONPATH"] if name not in seen)


def _shown(value: Any) -> str:
    return "absent" if value is None else printable(repr(value))[:200]
