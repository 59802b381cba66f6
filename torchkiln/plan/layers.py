"""Assigns locked wheels and archives to layers, and orders the layers.

On a host, two images share unpacked layers only up to the first layer that differs. So the layers that most
images have come first: the CUDA libraries of one toolkit, then NVIDIA's libraries with versions of their own,
then torch and the rest. Names of NVIDIA's packages may have a CUDA suffix (nvidia-cudnn-cu12) or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from torchkiln.errors import BuildFailed
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import MadeLayer, ToolkitLayer, WheelLayer
from torchkiln.model.recipe import BIG_WHEEL, MAX_LAYER, ImagePython
from torchkiln.plan.cuda_toolkit import home

_OWN_VERSIONS = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})  # not versioned with the toolkit
# Python packages that torch 2.10 and newer require. They are not in the family "CUDA libraries", because
# images of torch 2.9 and 2.10 share its layers (2.9 GB).
_BINDINGS = frozenset({"cuda-bindings", "cuda-pathfinder"})
# These are only in devel images. They are the top layers, so that the layers below equal those of runtime.
_TOOLKIT = frozenset({"cuda-cccl", "cuda-crt", "cuda-nvcc", "cuda-profiler-api", "nvml-dev", "nvvm"})
# Archives that are installed nearly whole, and have a layer each. Of other archives, only headers are used.
_LARGE_ARCHIVES = frozenset({"cuda_gdb", "cuda_nvcc", "cuda_nvdisasm"})
_PACKAGES = frozenset({"torchvision", "torchaudio", "numpy", "pillow", "tqdm"})
_ANY_PYTHON = re.compile(r"-(py2\.)?py3-none-[^-]+\.whl$")
_NAMED_IN_TITLE = 5  # more wheels are counted in a title, not named


def _is_nvidia(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-")) and name not in _BINDINGS


def _stem(name: str) -> str:
    """`"cudnn"` of `"nvidia-cudnn-cu12"` and of `"nvidia-cudnn"`."""
    return re.sub(r"-cu\d+$", "", name.removeprefix("nvidia-"))


def _is_toolkit(name: str) -> bool:
    return _is_nvidia(name) and _stem(name) in _TOOLKIT


# Title of a family -> whether it includes a wheel; the first that does.
_FAMILIES: Mapping[str, Callable[[str], bool]] = {
    "CUDA libraries": lambda name: _is_nvidia(name) and _stem(name) not in _OWN_VERSIONS,
    "NVIDIA libraries": _is_nvidia,
    "triton": {"triton", "pytorch-triton"}.__contains__,
    "torch": "torch".__eq__,
    "packages": _PACKAGES.__contains__,
    "dependencies": lambda _: True,
}


def made_layers(locked: LockedCell) -> tuple[MadeLayer, ...]:
    """Every layer that a build makes from downloads, in order: all but artefacts and overlay."""
    return (*cell_layers(locked), *archive_layers(locked))


def cell_layers(locked: LockedCell) -> tuple[WheelLayer, ...]:
    """The wheel layers of *locked*.

    :raises BuildFailed: a wheel is larger than the limit of a layer.
    """
    base = ImagePython.of_base(locked.base.python, locked.base.platform)
    layers = wheel_layers(locked.wheels, python=locked.python, base=base)
    return tuple(_cut(layer, locked.device_code) for layer in layers)


def _cut(layer: WheelLayer, device_code: DeviceCode | None) -> WheelLayer:
    """*layer* with the part of *device_code* that concerns its wheels.

    A layer without such wheels does not change, so that it is shared with the image for all GPUs.
    """
    own = {wheel.name for wheel in layer.wheels}
    names = tuple(name for name in device_code.wheels if name in own) if device_code else ()
    if device_code is None or not names:
        return layer
    title = f"{layer.title} for {', '.join(device_code.gpus)}"
    return replace(layer, title=title, device_code=replace(device_code, wheels=names))


def project_layers(wheels: Iterable[LockedWheel], *, python: ImagePython) -> tuple[WheelLayer, ...]:
    """The layers of a project's wheels: the big ones first, because they change less often.

    :raises BuildFailed: a wheel is larger than the limit of a layer.
    """
    ordered = _checked(wheels)
    small = [wheel for wheel in ordered if wheel.size < BIG_WHEEL]
    big = [wheel for wheel in ordered if wheel.size >= BIG_WHEEL]
    return (*_layers("project", big, python), *_layers("project", small, python))


def wheel_layers(
    wheels: Iterable[LockedWheel], *, python: ImagePython, base: ImagePython | None = None
) -> tuple[WheelLayer, ...]:
    """Layers of *wheels*: the small ones of a family share a layer, each big one has its own.

    The result does not depend on the order of *wheels*.

    :param python: the image's Python.
    :param base: the base's Python. Layers of NVIDIA's libraries that fit any Python are made for *base*, so
        that the images of all Pythons on one base share these layers.
    :raises BuildFailed: a wheel is larger than the limit of a layer.
    """
    families: dict[str, list[LockedWheel]] = {title: [] for title in _FAMILIES}
    toolkit: list[LockedWheel] = []
    for wheel in _checked(wheels):
        if _is_toolkit(wheel.name):
            toolkit.append(wheel)
        else:
            families[next(title for title, has in _FAMILIES.items() if has(wheel.name))].append(wheel)
    runtime = (layer for title, members in families.items() for layer in _layers(title, members, python))
    layers = (*runtime, *_layers("CUDA toolkit", toolkit, python))
    return tuple(replace(layer, python=base) if base and _is_shared(layer) else layer for layer in layers)


def _is_shared(layer: WheelLayer) -> bool:
    """Whether all wheels of *layer* are libraries of NVIDIA that fit any Python 3."""
    return all(_is_nvidia(wheel.name) and _ANY_PYTHON.search(wheel.filename) for wheel in layer.wheels)


def archive_layers(locked: LockedCell) -> tuple[ToolkitLayer, ...]:
    """The layers of the toolkit's archives, the same for all cells with these archives."""
    toolkit = locked.resolution.toolkit
    if toolkit is None or not locked.archives:
        return ()
    name, place = f"CUDA {toolkit.release}", home(toolkit)
    small = tuple(archive for archive in locked.archives if archive.component not in _LARGE_ARCHIVES)
    large = [archive for archive in locked.archives if archive.component in _LARGE_ARCHIVES]
    shared = ToolkitLayer(title=f"{name}: parts of {len(small)} archives", archives=small, home=place)
    return (
        *([shared] if small else []),
        *(
            ToolkitLayer(
                title=f"{name}: {archive.component} {archive.version}", archives=(archive,), home=place
            )
            for archive in large
        ),
    )


def _checked(wheels: Iterable[LockedWheel]) -> list[LockedWheel]:
    """*wheels*, sorted by name."""
    for wheel in (ordered := sorted(wheels, key=lambda wheel: wheel.name)):
        if wheel.size > MAX_LAYER:
            raise BuildFailed(
                f"{wheel.filename} has {wheel.size} bytes; the limit of a layer is {MAX_LAYER}",
                hint="registries refuse such a layer; use a smaller build of the package",
            )
    return ordered


def _layers(family: str, wheels: list[LockedWheel], python: ImagePython) -> Iterator[WheelLayer]:
    small = [wheel for wheel in wheels if wheel.size < BIG_WHEEL]
    for group in _portions(small):
        yield WheelLayer(title=_title(family, group), wheels=tuple(group), python=python)
    for wheel in wheels:
        if wheel.size >= BIG_WHEEL:
            yield WheelLayer(title=f"{wheel.name} {wheel.version}", wheels=(wheel,), python=python)


def _portions(wheels: list[LockedWheel]) -> Iterator[list[LockedWheel]]:
    """*wheels* in order, divided into portions of at most `MAX_LAYER` bytes."""
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
