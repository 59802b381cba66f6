"""Links for the loader to CUDA's libraries; a toolkit from wheels or archives: links, and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from torchkiln.cuda.tree import TARGET
from torchkiln.matrix.os_tools import host_gcc
from torchkiln.model.cell import Toolkit
from torchkiln.model.device_code import NVIDIA
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import EnvironmentSettings, OverlayLink
from torchkiln.util.versions import DOTTED, numbers

HOME = "/usr/local/cuda"
# By the folder of a wheel: the component of NVIDIA's toolkit with the headers of the wheel's libraries.
_COMPONENTS = {
    "cublas": "libcublas",
    "cuda_cupti": "cuda_cupti",
    "cuda_nvrtc": "cuda_nvrtc",
    "cuda_runtime": "cuda_cudart",
    "cufft": "libcufft",
    "curand": "libcurand",
    "cusolver": "libcusolver",
    "cusparse": "libcusparse",
    "nvtx": "cuda_nvtx",
}


def home(toolkit: Toolkit) -> str:
    """The path of *toolkit* relative to /: `usr/local/cuda-12.1`."""
    return f"{HOME}-{toolkit.cuda}".lstrip("/")


def libraries_of(locked: LockedCell) -> tuple[str, ...]:
    """The wheels' libraries that the toolkit links to, as paths below site-packages.

    A wheel's library replaces the archive's only if its version is not older: the archive's headers may
    declare functions that an older library lacks, although all versions of a CUDA major have one soname.
    """
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return ()
    if not toolkit.release:
        return toolkit.libraries
    archives = {archive.component: archive.version for archive in locked.archives}
    wheels = {re.sub(r"-cu\d+$", "", wheel.name): wheel.version for wheel in locked.wheels}

    def fits(library: str) -> bool:
        folder = _folder(library).rpartition("/")[2]
        version = wheels.get("nvidia-" + folder.replace("_", "-"))
        minimum = archives.get(_COMPONENTS.get(folder, ""))
        if minimum is None or version is None:
            return version is not None
        return DOTTED.fullmatch(version) is not None and numbers(version) >= numbers(minimum)

    return tuple(library for library in toolkit.libraries if fits(library))


def library_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """The links by which programs that do not import torch find NVIDIA's libraries by name, sorted by path.

    They are in a folder that the loader searches last, so that the libraries' own paths still come first. All
    libraries have one: for a library found by its link, $ORIGIN is the folder of the link. Other wheels get
    none, whatever the lock says: a link could replace a library of the OS, and these wheels can be outside of
    the GPU stack.
    """
    packages = locked.python.site
    wheels = [wheel for wheel in locked.wheels if wheel.name.startswith(NVIDIA)]
    targets = {PurePosixPath(path).name: path for wheel in wheels for path in wheel.libraries}
    return tuple(
        OverlayLink(path=f"{locked.platform.libraries}/{name}", target=f"{packages}/{target}")
        for name, target in sorted(targets.items())
    )


def toolkit_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """The links that make /usr/local/cuda like NVIDIA's own installation, sorted by path."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return ()
    packages = locked.python.site
    links = _archive_links(toolkit) if toolkit.release else _wheel_links(toolkit, packages)
    found = (*links, *_linker_links(toolkit, libraries_of(locked), packages))
    return tuple(sorted(found, key=lambda link: link.path))


def _wheel_links(toolkit: Toolkit, packages: str) -> Iterator[OverlayLink]:
    place, wheels = home(toolkit), f"{packages}/{toolkit.folder}"
    yield OverlayLink(path=HOME.lstrip("/"), target=PurePosixPath(place).name)
    for name in ("include", "nvvm"):
        yield OverlayLink(path=f"{place}/{name}", target=f"{wheels}/{name}")
    # A link for each program: nvcc looks for lib64 beside the folder from which it is called. If bin/ itself
    # were a link, nvcc would look beside the wheels' bin/, where lib64 is missing.
    for name in toolkit.programs:
        yield OverlayLink(path=f"{place}/bin/{name}", target=f"{wheels}/bin/{name}")


def _archive_links(toolkit: Toolkit) -> Iterator[OverlayLink]:
    """The links that NVIDIA's installer makes."""
    place = home(toolkit)
    yield OverlayLink(path=HOME.lstrip("/"), target=PurePosixPath(place).name)
    yield OverlayLink(path=f"{place}/include", target=f"{TARGET}/include")
    yield OverlayLink(path=f"{place}/lib64", target=f"{TARGET}/lib")
    yield OverlayLink(path=f"{place}/extras/CUPTI/include", target=f"../../{TARGET}/include")
    yield OverlayLink(path=f"{place}/extras/CUPTI/lib64", target=f"../../{TARGET}/lib")


def _linker_links(toolkit: Toolkit, libraries: tuple[str, ...], packages: str) -> Iterator[OverlayLink]:
    """For each library the link that linkers need: libcudart.so to the wheel's libcudart.so.13."""
    folder = f"{TARGET}/lib" if toolkit.release else "lib64"  # with archives, lib64 is itself a link
    for library in libraries:
        name = PurePosixPath(library).name
        name = name if name.endswith(".a") else f"{name.partition('.so.')[0]}.so"
        yield OverlayLink(path=f"{home(toolkit)}/{folder}/{name}", target=f"{packages}/{library}")


def settings(locked: LockedCell) -> EnvironmentSettings:
    """The variables by which shells, compilers and build systems find the toolkit, cuDNN and NCCL."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return EnvironmentSettings()
    packages = locked.python.site
    folders = tuple(dict.fromkeys(map(_folder, libraries_of(locked))))
    # If archives have the headers, those of wheels are not used: their versions may differ.
    headers = [f"{packages}/{path}/include" for path in folders if not toolkit.release or _is_separate(path)]
    stubs = [f"{HOME}/lib64/stubs"] if toolkit.release else []  # for the linker option -lcuda
    return EnvironmentSettings(
        programs=(f"{HOME}/bin",),
        libraries=tuple(f"{packages}/{folder}/lib" for folder in folders),
        env=(
            ("CUDA_HOME", HOME),
            ("CPATH", ":".join([*([f"{HOME}/include"] if toolkit.release else []), *headers])),
            ("LIBRARY_PATH", ":".join([f"{HOME}/lib64", *stubs])),
        ),
    )


def _folder(library: str) -> str:
    """`"nvidia/cublas"` of `"nvidia/cublas/lib/libcublas.so.12"`."""
    return str(PurePosixPath(library).parent.parent)


def _is_separate(folder: str) -> bool:
    """Whether *folder* belongs to a library that is not in the toolkit's archives: cuDNN, NCCL, nvJitLink."""
    return folder.rpartition("/")[2] not in _COMPONENTS


_COMPILERS = {"cc": "gcc", "gcc": "gcc", "c++": "g++", "g++": "g++"}  # name of the link -> program


def compiler_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """Links in nvcc's folder, named gcc, g++, cc and c++, to an older gcc; none if nvcc needs none."""
    gcc = host_gcc(locked.tools.name) if locked.tools else None
    toolkit = locked.resolution.toolkit
    if gcc is None or toolkit is None:
        return ()
    return tuple(
        OverlayLink(path=f"{home(toolkit)}/bin/{name}", target=f"/usr/bin/{program}-{gcc}")
        for name, program in sorted(_COMPILERS.items())
    )
