"""Reads for which GPUs an image keeps device code, from `--gpus`, matrix.yaml and tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.pick import Gpu, parse_gpus
from torchkiln.model.cell import Cell
from torchkiln.model.device_code import Gpus
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import nearest, numbers

OWN_USE = "ownuse"  # in tags, after the capabilities
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_OPTION = "--gpus"


def kept_gpus(values: Iterable[str], facts: Facts) -> Gpus:
    """The capabilities in *values* of `--gpus`, ascending, each once: "8.0,9.0", "H100", "RTX 4090".

    :raises ConfigError: lists all values that name no GPU of an x86-64 host.
    :raises NothingSelected: there is no value.
    """
    names = [part.strip() for value in values for part in value.split(",") if part.strip()]
    if not names:
        raise NothingSelected(
            f"{_OPTION}: a value is required",
            hint=f"name GPUs or capabilities, for example {_OPTION} 8.0,9.0",
        )
    gpus = parse_gpus(names, facts, option=_OPTION)
    faults = [
        f"{_OPTION} {name}: {fault}"
        for name, gpu in zip(names, gpus, strict=True)
        if (fault := _fault(gpu, facts))
    ]
    if faults:
        raise ConfigError.of(faults, hint=f"name a known GPU, or its compute capability: {_OPTION} 9.0")
    return ascending(gpu.kind.capability for gpu in gpus)


def _fault(gpu: Gpu, facts: Facts) -> str:
    """Why no x86-64 host has *gpu*; empty: such hosts exist."""
    capability = gpu.kind.capability
    if gpu.jetson or gpu.name in gpu.kind.aarch64:
        return f"needs an aarch64 host; the images are for {LINUX_AMD64.machine}"
    return "" if gpu.name != capability else _unknown(capability, facts)


def _unknown(capability: str, facts: Facts) -> str:
    known = [kind.capability for kind in facts.gpus if kind.x86_names]
    if capability in known:
        return ""
    near = ", ".join(nearest(capability[:20], known)) or ", ".join(known)
    return f"no known GPU of an {LINUX_AMD64.machine} host has this capability; nearest: {near}"


def ascending(capabilities: Iterable[str]) -> Gpus:
    """*capabilities* by their numbers, each once."""
    return tuple(sorted(set(capabilities), key=numbers))


# --- matrix.yaml ----------------------------------------------------------------------------------


def axis_of(data: Iterable[str | Sequence[str]]) -> tuple[Gpus, ...]:
    """The entries of `gpus` in matrix.yaml, each "9.0", "8.0,8.6" or a list; *data* matches the schema."""
    return tuple(ascending(_members(entry)) for entry in data)


def faults(data: object, facts: Facts) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Faults in `gpus` that the schema cannot find, by path. Skips values that violate the schema."""
    seen: set[Gpus] = set()
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        valid = isinstance(entry, str) or (isinstance(entry, list) and all(isinstance(x, str) for x in entry))
        members = _members(entry) if valid else []
        if not members or not all(map(_CAPABILITY.fullmatch, members)):
            continue
        for name in members:
            if fault := _unknown(name, facts):
                yield ("gpus", index), f"{name}: {fault}"
        if (found := ascending(members)) in seen:
            yield ("gpus", index), f"duplicate entry {','.join(found)}"
        seen.add(found)


def _members(entry: str | Sequence[str]) -> list[str]:
    texts = [entry] if isinstance(entry, str) else entry
    return [part.strip() for text in texts for part in text.split(",")]


# --- tags -----------------------------------------------------------------------------------------


def suffix_of(cell: Cell) -> str:
    """The part of a tag for the GPUs of *cell*, `-sm80-sm90`; empty if it keeps all device code."""
    names = [f"sm{capability.replace('.', '')}" for capability in cell.gpus]
    return "".join(f"-{name}" for name in (*names, *([OWN_USE] if cell.own_use else [])))


def gpus_in(suffix: str) -> Gpus:
    """The inverse of `suffix_of`, without own use."""
    return tuple(f"{digits[:-1]}.{digits[-1]}" for digits in re.findall(r"sm([0-9]+)", suffix))
