"""LockedCell -> what makes a CUDA toolkit of wheels or archives: links where compilers look, variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from torchkiln.cuda.tree import TARGET
from torchkiln.matrix.os_tools import host_gcc
from torchkiln.model.cell import Toolkit
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import EnvironmentSettings, OverlayLink
from torchkiln.model.recipe import site
from torchkiln.util.versions import DOTTED, numbers

HOME = "/usr/local/cuda"
# Which component of NVIDIA's has the headers of a wheel's libraries, by the wheel's folder.
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
    """Where it lies, from the root: `usr/local/cuda-12.1`."""
    return f"{HOME}-{toolkit.cuda}".lstrip("/")


def libraries_of(locked: LockedCell) -> tuple[str, ...]:
    """Those of the wheels that the toolkit links to, paths below site-packages.

    An archive's headers may name what an older library lacks: its soname is the same for a whole major. So a
    wheel takes the place of the archive's library only from the archive's version on.
    """
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return ()
    if not toolkit.release:
        return toolkit.libraries
    archives = {one.component: one.version for one in locked.archives}
    wheels = {re.sub(r"-cu\d+$", "", one.name): one.version for one in locked.wheels}

    def fits(library: str) -> bool:
        folder = _folder(library).rpartition("/")[2]
        version = wheels.get("nvidia-" + folder.replace("_", "-"))
        wanted = archives.get(_COMPONENTS.get(folder, ""))
        if wanted is None or version is None:
            return version is not None
        return DOTTED.fullmatch(version) is not None and numbers(version) >= numbers(wanted)

    return tuple(one for one in toolkit.libraries if fits(one))


def toolkit_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """/usr/local/cuda as NVIDIA's own installation has it, by path; nothing of it lies among the packages."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return ()
    of_its_kind = _of_archives(toolkit) if toolkit.release else _of_wheels(toolkit, site(locked.base.python))
    found = (*of_its_kind, *_of_libraries(toolkit, libraries_of(locked), site(locked.base.python)))
    return tuple(sorted(found, key=lambda link: link.path))


def _of_wheels(toolkit: Toolkit, packages: str) -> Iterator[OverlayLink]:
    place, wheels = home(toolkit), f"{packages}/{toolkit.folder}"
    yield OverlayLink(path=HOME.lstrip("/"), target=PurePosixPath(place).name)
    for name in ("include", "nvvm"):
        yield OverlayLink(path=f"{place}/{name}", target=f"{wheels}/{name}")
    # One by one: nvcc takes what lies beside the folder that it was called from, and a folder that is a link
    # itself would lead it to the wheels, which have no lib64.
    for name in toolkit.programs:
        yield OverlayLink(path=f"{place}/bin/{name}", target=f"{wheels}/bin/{name}")


def _of_archives(toolkit: Toolkit) -> Iterator[OverlayLink]:
    """The tree is there; the links are those that NVIDIA's installer makes."""
    place = home(toolkit)
    yield OverlayLink(path=HOME.lstrip("/"), target=PurePosixPath(place).name)
    yield OverlayLink(path=f"{place}/include", target=f"{TARGET}/include")
    yield OverlayLink(path=f"{place}/lib64", target=f"{TARGET}/lib")
    yield OverlayLink(path=f"{place}/extras/CUPTI/include", target=f"../../{TARGET}/include")
    yield OverlayLink(path=f"{place}/extras/CUPTI/lib64", target=f"../../{TARGET}/lib")


def _of_libraries(toolkit: Toolkit, libraries: tuple[str, ...], packages: str) -> Iterator[OverlayLink]:
    """A wheel has libcudart.so.13 alone, and a linker asks for libcudart.so."""
    folder = f"{TARGET}/lib" if toolkit.release else "lib64"  # that is a link itself where there is a tree
    for library in libraries:
        name = PurePosixPath(library).name
        name = name if name.endswith(".a") else f"{name.partition('.so.')[0]}.so"
        yield OverlayLink(path=f"{home(toolkit)}/{folder}/{name}", target=f"{packages}/{library}")


def settings(locked: LockedCell) -> EnvironmentSettings:
    """Where shells, compilers and build systems find it, also what lies beside it (cuDNN, NCCL)."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return EnvironmentSettings()
    packages = site(locked.base.python)
    folders = tuple(dict.fromkeys(_folder(one) for one in libraries_of(locked)))
    # Of what the archives have headers for, the wheels' own would be another version's.
    headers = [f"{packages}/{one}/include" for one in folders if not toolkit.release or _is_beside(one)]
    stubs = [f"{HOME}/lib64/stubs"] if toolkit.release else []  # -lcuda; behind the libraries themselves
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


def _is_beside(folder: str) -> bool:
    """Whether what lies there is no part of NVIDIA's toolkit archives here: cuDNN, NCCL, nvJitLink."""
    return folder.rpartition("/")[2] not in _COMPONENTS


_DRIVERS = {"cc": "gcc", "gcc": "gcc", "c++": "g++", "g++": "g++"}  # what is looked for -> what it is


def compiler_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """The older gcc beside nvcc, under the names that are looked for."""
    gcc = host_gcc(locked.tools.name) if locked.tools else None
    toolkit = locked.resolution.toolkit
    if gcc is None or toolkit is None:
        return ()
    return tuple(
        OverlayLink(path=f"{home(toolkit)}/bin/{name}", target=f"/usr/bin/{driver}-{gcc}")
        for name, driver in sorted(_DRIVERS.items())
    )
