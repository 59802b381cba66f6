"""LockedCell -> what makes a CUDA toolkit of its wheels: links where compilers look, and the variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchkiln.nouns import LockedCell, OverlayLink, Toolkit
from torchkiln.recipe import site

HOME = "/usr/local/cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What an image with a toolkit sets."""

    programs: tuple[str, ...]  # folders on PATH
    libraries: tuple[
        str, ...
    ]  # folders on LD_LIBRARY_PATH: what is linked here starts here, without an rpath
    env: tuple[tuple[str, str], ...]


def toolkit_links(locked: LockedCell) -> tuple[OverlayLink, ...]:
    """/usr/local/cuda as NVIDIA's own installation has it, by path; nothing of it lies among the packages."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return ()
    return tuple(sorted(_links(toolkit, site(locked.base.python)), key=lambda link: link.path))


def _links(toolkit: Toolkit, packages: str) -> Iterator[OverlayLink]:
    home, wheels = f"{HOME}-{toolkit.cuda}".lstrip("/"), f"{packages}/{toolkit.folder}"
    yield OverlayLink(path=HOME.lstrip("/"), target=PurePosixPath(home).name)
    for name in ("include", "nvvm"):
        yield OverlayLink(path=f"{home}/{name}", target=f"{wheels}/{name}")
    # One by one: nvcc takes what lies beside the folder that it was called from, and a folder that is a link
    # itself would lead it to the wheels, which have no lib64.
    for name in toolkit.programs:
        yield OverlayLink(path=f"{home}/bin/{name}", target=f"{wheels}/bin/{name}")
    for library in toolkit.libraries:  # a wheel has libcudart.so.13 alone, and a linker asks for libcudart.so
        name = PurePosixPath(library).name
        name = name if name.endswith(".a") else f"{name.partition('.so.')[0]}.so"
        yield OverlayLink(path=f"{home}/lib64/{name}", target=f"{packages}/{library}")


def settings(locked: LockedCell) -> Settings:
    """Where shells, compilers and build systems find it, also what lies beside it (cuDNN, NCCL)."""
    toolkit = locked.resolution.toolkit
    if toolkit is None:
        return Settings(programs=(), libraries=(), env=())
    packages = site(locked.base.python)
    folders = dict.fromkeys(str(PurePosixPath(one).parent.parent) for one in toolkit.libraries)
    return Settings(
        programs=(f"{HOME}/bin",),
        libraries=tuple(f"{packages}/{folder}/lib" for folder in folders),
        env=(
            ("CUDA_HOME", HOME),
            ("CPATH", ":".join(f"{packages}/{folder}/include" for folder in folders)),
            ("LIBRARY_PATH", f"{HOME}/lib64"),
        ),
    )
