"""Decides by names whether a program would use a file of OS packages, not one of the parent image. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchkiln.projects.apt.loader_cache import name_key
from torchkiln.projects.apt.package_paths import is_of_wheels, path_fault, pth_file
from torchkiln.projects.gate.entries import Below
from torchkiln.projects.gate.names import distribution_of, loaded_groups, module_of, starts

_PROGRAM = re.compile(r"(usr/(?:bin|sbin|games))/([^/]+)")
# Programs of CUDA and the driver; torch and triton look for some of them on PATH.
_OF_CUDA = re.compile(r"nvcc|ptxas|nvlink|nvdisasm|cuobjdump|fatbinary|cicc|nvidia-.*|cuda-.*")
_COMPLETION = re.compile(r"usr/share/bash-completion/completions/_?([^/]+?)(\.bash)?")
# Files that compilers and perl search in several folders: they use the first one.
_FOUND_FIRST = (
    re.compile(r"usr/(include)/(?:[a-z0-9_]+-linux-gnu/)?(?:c\+\+/[^/]+/)?(.+)"),
    re.compile(r"usr/(?:share|lib/[^/]+)/(perl)(?:5|-base)?(?:/[0-9.]+)?/(.+)"),
)
_MODULES = "usr/lib/python3/dist-packages/"
_PYC = re.compile(r"__pycache__/([^/.]+)\.[^/]*pyc")
_LIBRARY = re.compile(r"[^/]+\.(so(\..*)?|a|o|la)")
# Where the loader and linkers search. In other folders only names that begin with lib or ld- matter.
_SEARCHED = re.compile(r"(usr/lib/([a-z0-9_]+-linux-gnu/)?[^/]+)|(.*/)?(lib|ld-)[^/]*")
# Libraries that no wheel of torch or NVIDIA contains, but that are loaded if they exist: by torch and the
# libraries of NVIDIA (found in the strings of libnccl, libcufile, libcupti and libtriton), by libc to look up
# hosts and users, and libraries of the driver that protected.py does not list.
_OPENED = re.compile(
    r"lib(nccl-.*|cufile.*|gdrapi|ibverbs|rdmacm|mlx[45]|nvperf_.*|cask_.*|amdhip64|hsa-runtime64|roctracer64"
    r"|(GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia|nss_.*)\.(so(\..*)?|a)"
    r"|.*libcuda\.(so|a).*"  # triton searches the output of ldconfig for this text
)
# Ubuntu's sitecustomize imports this module if it exists.
_IMPORTED_AT_START = frozenset({"apport_python_hook"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemNames:
    """Names of the parent image's files outside of the virtual environment."""

    libraries: Mapping[str, str]  # name, as the loader compares it -> path
    first: Mapping[tuple[str, str], str]  # (kind, path below a search folder) -> path, see `_FOUND_FIRST`
    modules: frozenset[str]  # top-level modules of the system's Python
    programs: frozenset[str]  # names of programs in any folder of PATH

    @classmethod
    def of(cls, below: Below) -> SystemNames:
        """The names in the parent image *below*."""
        paths = [path for path in below.tree if not path.startswith(f"{below.prefix}/")]
        inside = (path[len(_MODULES) :] for path in paths if path.startswith(_MODULES))
        folders = {*below.folders, below.scripts}
        return cls(
            libraries={
                name_key(name): path for path in paths if _LIBRARY.fullmatch(name := posixpath.basename(path))
            },
            first={key: path for path in paths if (key := _found_first(path))},
            modules=frozenset(filter(None, map(module_of, inside))),
            programs=frozenset(
                posixpath.basename(path) for path in below.tree if posixpath.dirname(path) in folders
            ),
        )


def name_faults(path: str, kind: str, entry_points: str, below: Below, names: SystemNames) -> Iterator[str]:
    """Why no package may have a file or link at *path*: a program would use it in place of an existing one.

    :param entry_points: the text of the file, if it is an entry_points.txt.
    """
    name = posixpath.basename(path)
    if fault := path_fault(path):
        yield fault
    elif pth_file(path) or path.endswith(".egg-link"):
        yield "Python runs it at each start"
    elif path.startswith(_MODULES):
        yield from _module(path[len(_MODULES) :], kind, entry_points, below, names)
    elif _LIBRARY.fullmatch(name) and _SEARCHED.fullmatch(path):
        yield from filter(None, [library_fault(name, below, names)])
    if found := _PROGRAM.fullmatch(path):
        yield from _program(found[1], found[2], below)
    elif (found := _COMPLETION.fullmatch(path)) and found[1] in names.programs:
        yield f"bash runs it to complete {found[1]}, a program of the parent image"
    elif (key := _found_first(path)) and key in names.first:
        yield f"could be found in place of /{names.first[key]}"


def library_fault(name: str, below: Below, names: SystemNames) -> str:
    """Why a package must not have a library with the file name or SONAME *name*; empty if it may have one."""
    name, written = name_key(name), name
    if path_fault(name):
        return path_fault(name)
    if package := below.libraries.get(name) or below.libraries.get(written):
        return f"could be loaded in place of {name} of {package}"
    if is_of_wheels(name):
        return f"{name} is the name of a library in the wheels of torch or NVIDIA"
    if name in names.libraries:
        return f"could be loaded in place of /{names.libraries[name]}"
    if _OPENED.fullmatch(name):
        return f"torch, NVIDIA's libraries or libc load {name} if it exists"
    return ""


def _found_first(path: str) -> tuple[str, str] | None:
    """The kind of *path*, include or perl, and its part below the search folder; None: another kind."""
    for pattern in _FOUND_FIRST:
        if found := pattern.fullmatch(path):
            return found[1], found[2]
    return None


def _program(folder: str, name: str, below: Below) -> Iterator[str]:
    if _OF_CUDA.fullmatch(name):
        yield f"{name} is a program of CUDA or the driver"
    later = below.folders[below.folders.index(folder) + 1 :] if folder in below.folders else ()
    hidden = next((f"{other}/{name}" for other in later if f"{other}/{name}" in below.tree), "")
    if hidden:
        yield f"would be started in place of /{hidden}"


def _module(inside: str, kind: str, entry_points: str, below: Below, names: SystemNames) -> Iterator[str]:
    """Faults of *inside*, a path in dist-packages: the environment's Python can import it, too."""
    compiled = _PYC.fullmatch(inside)
    module = compiled[1] if compiled else module_of(inside, kind)
    package = distribution_of(inside)
    if starts(inside, kind) or module in _IMPORTED_AT_START:
        yield "Python runs it at each start"
    elif module and module in below.modules:
        yield f"could be imported in place of {module}"
    elif module and module in names.modules:
        yield f"{module} is a module of the parent image"
    if package and kind != "file":
        yield f"a {kind} to metadata of a package"
    if package in below.fixed:
        yield f"metadata of {package}, which is fixed"
    if package and (groups := loaded_groups(entry_points)):
        yield f"entry points that torch or triton load at import: {', '.join(groups)}"
