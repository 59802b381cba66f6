"""Locked wheels and archives -> their layers: what shares one, and in which order they stand.

A host shares extracted layers only as prefixes, so what most images have in common comes first: the CUDA
libraries of one toolkit, then NVIDIA's libraries with a version of their own, then what follows torch.
Names never hang on a CUDA suffix: newer wheels drop it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import MadeLayer, ToolkitLayer, WheelLayer
from torchkiln.model.recipe import BIG_WHEEL, MAX_LAYER
from torchkiln.plan.cuda_toolkit import home
from torchkiln.plan.micromamba import program_layer

_OWN_CADENCE = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})  # not versioned with the toolkit
# Python packages and no libraries. torch has them from 2.10 on: among CUDA's libraries they would part that
# image from 2.9's, of which the 2.9 GB of libraries in front are the same.
_BINDINGS = frozenset({"cuda-bindings", "cuda-pathfinder"})
# What only devel has, on top of everything, so that below it is runtime's.
_TOOLKIT = frozenset({"cuda-cccl", "cuda-crt", "cuda-nvcc", "cuda-profiler-api", "nvml-dev", "nvvm"})
# Archives that are taken whole, or nearly so, and are large: a layer each. Of the others it is headers.
_LARGE_ARCHIVES = frozenset({"cuda_gdb", "cuda_nvcc", "cuda_nvdisasm"})
_PACKAGES = frozenset({"torchvision", "torchaudio", "numpy", "pillow", "tqdm"})
_NAMED_IN_TITLE = 5  # a title tells so many wheels by name, more by number


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    title: str
    holds: Callable[[str], bool]


def _is_nvidia(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-")) and name not in _BINDINGS


def _stem(name: str) -> str:
    """`"cudnn"` of `"nvidia-cudnn-cu12"` and of `"nvidia-cudnn"`."""
    return re.sub(r"-cu\d+$", "", name.removeprefix("nvidia-"))


def _is_toolkit(name: str) -> bool:
    return _is_nvidia(name) and _stem(name) in _TOOLKIT


_FAMILIES = (
    _Family(
        title="CUDA libraries",
        holds=lambda name: _is_nvidia(name) and _stem(name) not in _OWN_CADENCE,
    ),
    _Family(title="NVIDIA libraries", holds=_is_nvidia),
    _Family(title="triton", holds=lambda name: name in {"triton", "pytorch-triton"}),
    _Family(title="torch", holds=lambda name: name == "torch"),
    _Family(title="packages", holds=_PACKAGES.__contains__),
    _Family(title="dependencies", holds=lambda _name: True),
)


def made_layers(locked: LockedCell) -> tuple[MadeLayer, ...]:
    """Every layer that a build makes of what *locked* fetches, in order; base, tools and overlay are not."""
    return (*plain_layers(locked), *archive_layers(locked), *component_layers(locked))


def plain_layers(locked: LockedCell) -> tuple[WheelLayer, ...]:
    """The wheels' layers that the cell without components has too.

    :raises BuildFailed: a single wheel is larger than a registry takes.
    """
    above = {name for component in locked.components for name in component.wheels}
    plain = (wheel for wheel in locked.wheels if wheel.name not in above)
    return wheel_layers(plain, python=locked.base.python)


def component_layers(locked: LockedCell) -> tuple[MadeLayer, ...]:
    """What each component adds, by name.

    :raises BuildFailed: a single wheel is larger than a registry takes.
    """
    found: list[MadeLayer] = []
    for component in locked.components:
        wheels = [wheel for wheel in locked.wheels if wheel.name in component.wheels]
        found += _layers(f"with {component.name}", _fitting(wheels), locked.base.python)
        if component.program:
            found.append(program_layer(component.program))
    return tuple(found)


def files_of(locked: LockedCell) -> tuple[LockedWheel, ...]:
    """All that a build of *locked* fetches: its wheels, and its components' programs."""
    programs = (component.program for component in locked.components)
    return (*locked.wheels, *(program for program in programs if program))


def wheel_layers(wheels: Iterable[LockedWheel], *, python: str) -> tuple[WheelLayer, ...]:
    """Every wheel in exactly one layer: the small ones of a family together, each big one alone.

    The order depends on names and sizes only, never on the order of *wheels*.

    :param python: the base's full version.
    :raises BuildFailed: a single wheel is larger than a registry takes.
    """
    families: dict[str, list[LockedWheel]] = {family.title: [] for family in _FAMILIES}
    toolkit: list[LockedWheel] = []
    for wheel in _fitting(wheels):
        if _is_toolkit(wheel.name):
            toolkit.append(wheel)
        else:
            families[next(family.title for family in _FAMILIES if family.holds(wheel.name))].append(wheel)
    runtime = (layer for title, members in families.items() for layer in _layers(title, members, python))
    return (*runtime, *_layers("CUDA toolkit", toolkit, python))


def archive_layers(locked: LockedCell) -> tuple[ToolkitLayer, ...]:
    """Every archive of the toolkit in exactly one layer; the same for all cells with the same archives."""
    toolkit = locked.resolution.toolkit
    if toolkit is None or not locked.archives:
        return ()
    name, place = f"CUDA {toolkit.release}", home(toolkit)
    small = tuple(one for one in locked.archives if one.component not in _LARGE_ARCHIVES)
    large = [one for one in locked.archives if one.component in _LARGE_ARCHIVES]
    shared = ToolkitLayer(title=f"{name}: parts of {len(small)} archives", archives=small, home=place)
    return (
        *([shared] if small else []),
        *(
            ToolkitLayer(title=f"{name}: {one.component} {one.version}", archives=(one,), home=place)
            for one in large
        ),
    )


def _fitting(wheels: Iterable[LockedWheel]) -> list[LockedWheel]:
    """*wheels* by name, each of which fits into a layer."""
    for wheel in (ordered := sorted(wheels, key=lambda wheel: wheel.name)):
        if wheel.size > MAX_LAYER:
            raise BuildFailed(
                f"{wheel.filename} has {wheel.size} bytes; a layer may have {MAX_LAYER}",
                hint="registries refuse such a layer; choose another build of it",
            )
    return ordered


def _layers(family: str, wheels: list[LockedWheel], python: str) -> Iterator[WheelLayer]:
    small = [wheel for wheel in wheels if wheel.size < BIG_WHEEL]
    for group in _portions(small):
        yield WheelLayer(title=_title(family, group), wheels=tuple(group), python=python)
    for wheel in wheels:
        if wheel.size >= BIG_WHEEL:
            yield WheelLayer(title=f"{wheel.name} {wheel.version}", wheels=(wheel,), python=python)


def _portions(wheels: list[LockedWheel]) -> Iterator[list[LockedWheel]]:
    """*wheels* in order, cut before a portion grows over the limit of a layer."""
    portion: list[LockedWheel] = []
    size = 0
    for wheel in wheels:
        if portion and size + wheel.size > MAX_LAYER:
            yield portion
            portion, size = [], 0
        portion.append(wheel)
        size += wheel.size
    if portion:
        yield portion


def _title(family: str, wheels: list[LockedWheel]) -> str:
    if len(wheels) == 1:
        return f"{wheels[0].name} {wheels[0].version}"
    if len(wheels) > _NAMED_IN_TITLE:
        return f"{family} ({len(wheels)} wheels)"
    return f"{family}: " + ", ".join(f"{_stem(wheel.name)} {wheel.version}" for wheel in wheels)
