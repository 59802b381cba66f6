"""Decides which bytes of a library are device code that GPUs of the chosen capabilities never load.

Headers stay, so the driver finds the same entries as in the whole library. It chooses the same entry as
before, and the payload of that entry is unchanged. The number of the rule is `model.recipe.DEVICE_CODE_RULE`.
Its reasons are in docs/adr/0038-device-code-for-chosen-gpus.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torchkiln.device_code.fatbin import Container, Entry, Kind, Span, containers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_VARIANTS = ("", "a", "f")
Capability = tuple[int, int]


def dead_ranges(library: ReadableBuffer, gpus: Sequence[str]) -> tuple[Span, ...]:
    """The spans of *library* to zero for GPUs of the capabilities *gpus* ("9.0"), ascending and disjoint.

    Empty if the library has no device code, or if the GPUs need all of it.

    :raises UnknownDeviceCode: its device code has an unknown format; the library must not be changed.
    """
    wanted = tuple(_capability(gpu) for gpu in gpus)
    with memoryview(library) as view, view.cast("B") as data:
        return tuple(
            entry.payload
            for container in containers(data)
            for entry in _dead(container, wanted)
            if entry.payload.size
        )


def _dead(container: Container, wanted: Iterable[Capability]) -> Iterator[Entry]:
    """The entries that no *wanted* GPU loads; none if the container has no code for the wanted GPUs."""
    needed = {entry for gpu in wanted for entry in _needed(container, gpu)}
    # It is not known how the driver chooses LTO code, so containers with LTO code stay whole.
    if needed and not any(entry.kind == "lto" for entry in container.entries):
        yield from (entry for entry in container.entries if entry not in needed)


def _needed(container: Container, gpu: Capability) -> Iterator[Entry]:
    """The entries from which the driver chooses for *gpu*."""
    code = tuple(_best(container, "cubin", gpu))
    yield from code
    if not any(_compiled_for(entry) == gpu and not entry.variant for entry in code):
        # Without an exact match the driver may prefer PTX (CU_JIT_FALLBACK_STRATEGY).
        yield from _best(container, "ptx", gpu)


def _best(container: Container, kind: Kind, gpu: Capability) -> Iterator[Entry]:
    """For each variant, the entries of the highest architecture that serves *gpu*, as the driver chooses."""
    serving = [entry for entry in container.entries if entry.kind == kind and _serves(entry, gpu)]
    for variant in _VARIANTS:
        alike = [entry for entry in serving if entry.variant == variant]
        highest = max((entry.architecture for entry in alike), default=0)
        yield from (entry for entry in alike if entry.architecture == highest)


def _serves(entry: Entry, gpu: Capability) -> bool:
    """Whether a GPU of the capability *gpu* can load *entry*, or the driver compile it for that GPU."""
    compiled_for = _compiled_for(entry)
    if entry.variant == "a":
        return compiled_for == gpu
    if entry.kind == "ptx" and not entry.variant:
        return compiled_for <= gpu
    return compiled_for[0] == gpu[0] and compiled_for <= gpu


def _compiled_for(entry: Entry) -> Capability:
    return entry.architecture // 10, entry.architecture % 10


def _capability(gpu: str) -> Capability:
    major, minor = gpu.split(".")
    return int(major), int(minor)
