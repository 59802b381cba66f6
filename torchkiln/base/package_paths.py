"""Decides by its path what no package of the archive may install, and which package has a file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchkiln.model.recipe import PREFIX

#: dpkg's list of the files of one package.
LIST = re.compile(r"var/lib/dpkg/info/([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9]+)?\.list")
LIST_LIMIT = 16 << 20  # bytes; the largest lists have two million

_FORBIDDEN = re.compile(
    rf"({re.escape(PREFIX.lstrip('/'))}|opt/python|opt/torchkiln|etc/torchkiln|usr/local/cuda[^/]*"
    r"|usr/local/nvidia|app)(/.*)?|etc/ld\.so\.preload"
)
# The driver's libraries are those of the host: an engine mounts them into the container.
_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9-]+)\.so(\..*)?")
_KEYS = re.compile(r"etc/ssl/private/.+")
_DIST_PACKAGES = r"usr/(?:local/)?lib/python3[^/]*/(?:dist-packages/)?"
_AT_START = re.compile(_DIST_PACKAGES + r"(site|user)customize(\.py|\.[^/]*\.so|/.*)?")
_PTH = re.compile(_DIST_PACKAGES + r"([^/]+\.pth)")
# Names of libraries in the wheels of torch and NVIDIA, which find each other by their rpath.
_OF_WHEELS = re.compile(
    r"lib(cu(dart|blas|blasLt|dnn\w*|fft|fftw|rand|solver|solverMg|sparse|sparseLt|pti|file\w*)"
    r"|nv(rtc|rtc-builtins|JitLink|ToolsExt|shmem\w*|blas)|nccl|torch\w*|c10\w*|caffe2_nvrtc|shm)\.so.*"
)


def is_of_image(path: str) -> bool:
    """Whether *path* is a folder that torchkiln manages, is in one, or is the loader's list of preloads."""
    return _FORBIDDEN.fullmatch(path) is not None


def path_fault(path: str) -> str:
    """Why no package may have a file at *path*, outside of the image's folders; empty if one may."""
    if _AT_START.fullmatch(path):
        return "runs at each start of Python"
    if _KEYS.fullmatch(path):
        return "is a private key, which each machine must make for itself"
    if is_of_driver(path.rpartition("/")[2]):
        return "is a library of the driver, which the host provides"
    return ""


def is_of_driver(library: str) -> bool:
    """Whether *library* is the name of a library of NVIDIA's driver."""
    return _DRIVER.fullmatch(library) is not None


def is_of_wheels(library: str) -> bool:
    """Whether *library* is the name of one in the wheels of torch or NVIDIA."""
    return _OF_WHEELS.fullmatch(library) is not None


def pth_file(path: str) -> str:
    """The name of the .pth file *path*, which Python runs at each start; empty: it is another file."""
    found = _PTH.fullmatch(path)
    return found[1] if found else ""


def owners_of(lists: Mapping[str, str], roots: Mapping[str, str]) -> dict[str, str]:
    """The package of each path in *lists*, dpkg's, by package.

    :param roots: links in the place of top folders, with their targets: lib -> usr/lib.
    """
    return {
        _merged(path.lstrip("/"), roots): package
        for package, text in lists.items()
        for path in text.splitlines()
    }


def _merged(path: str, roots: Mapping[str, str]) -> str:
    """*path* without a link in the place of its top folder."""
    top, slash, rest = path.partition("/")
    return f"{roots[top]}/{rest}" if slash and top in roots else path
