"""Defines which device code an image keeps, and which libraries of its wheels are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from torchkiln.model import fields

#: Open-licensed packages whose libraries have device code. Other packages are not changed.
OPEN = frozenset({"torch", "torchvision", "torchaudio"})
NVIDIA = "nvidia-"  # prefix of the names of NVIDIA's packages
#: The file names of NVIDIA's libraries: libcudart-d0da41ae.so.11.0, libnvrtc.so.12, libnccl.so.2.
NVIDIA_LIBRARY = re.compile(r"lib(?:cu|nv|nccl|npp)[^/]*[.]so(?:[.][^/]*)?")

_SET = {"uniqueItems": True}
Gpus = Annotated[tuple[fields.Capability, ...], Meta(max_length=20, extra_json_schema=_SET)]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """In the libraries of `wheels`, all device code that GPUs of `gpus` never load is zeroed."""

    rule: Annotated[int, Meta(ge=1, le=1000)]  # recipe.DEVICE_CODE_RULE of the version that made the lock
    gpus: Annotated[Gpus, Meta(min_length=1)]  # compute capabilities, ("8.0", "9.0"), ascending
    wheels: Annotated[
        tuple[fields.Name, ...], Meta(min_length=1, max_length=200, extra_json_schema=_SET)
    ]  # sorted
    own_use: bool  # NVIDIA's libraries are cut, too; their licence may allow this for own use only

    def cuts(self, wheel: str, path: str) -> bool:
        """Whether the library *path* of *wheel* is cut if it has device code.

        Other wheels contain copies of NVIDIA's libraries, too: `torchvision.libs/libnvjpeg.so.12`.
        """
        return wheel in self.wheels and (
            self.own_use or not NVIDIA_LIBRARY.fullmatch(path.rpartition("/")[2])
        )


def cut_wheels(names: Iterable[str], *, own_use: bool) -> tuple[str, ...]:
    """The wheels among *names* whose libraries are cut, sorted; *own_use*: NVIDIA's, too."""
    return tuple(sorted(name for name in names if name in OPEN or (own_use and name.startswith(NVIDIA))))
