"""A library with device code for several GPUs, and the same library cut for capability 9.0."""

from __future__ import annotations

from collections.abc import Iterable

from tests.cells import noise
from tests.fatbins import Made, container, entry, library


def code(name: str, size: int) -> Made:
    """The entry *name*, such as "sm_90", with *size* incompressible bytes."""
    return entry(name, noise(name, size))


def with_code(*containers: Iterable[Made], text: int = 0) -> bytes:
    """A library: its fatbin containers have the entries *containers*, its host code has *text* bytes."""
    fatbin = b"".join(container(*entries) for entries in containers)
    return library({".text": noise("text", text), ".nv_fatbin": fatbin})


SM_80 = code("sm_80", 6_000_000)  # so large that a layer stores it in more than one gzip member
SM_90 = code("sm_90", 1_200_004)
PTX_90 = code("compute_90", 80_000)
LIBRARY = with_code([SM_80, SM_90, PTX_90], [code("sm_80", 640)], text=300_000)
UNKNOWN = library({".nv_fatbin": container(SM_80, SM_90, version=2)})


def expected() -> bytes:
    """LIBRARY with zeros in place of the code that a GPU of capability 9.0 does not load."""
    data = LIBRARY
    for made in (SM_80, PTX_90):
        payload = made.data[made.header :]
        assert data.count(payload) == 1
        data = data.replace(payload, bytes(len(payload)))
    return data


def same(one: bytes, other: bytes) -> bool:
    """Whether both are equal; for `assert one == other`, pytest would compute a diff for minutes."""
    return one == other
