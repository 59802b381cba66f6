"""Decides by a file's path whether packages of the archive may install it, and which package has it. Pure."""

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
    """Whether *path* is, or is in, a folder that torchkiln manages, or is /etc/ld.so.preload."""
    return _FORBIDDEN.fullmatch(path) is not None


def path_fault(path: str) -> str:
    """Why no package may have a file at *path*, which `is_of_image` does not cover; empty if packages may."""
    if _AT_START.fullmatch(path):
        return "runs at each start of Python"
    if _KEYS.fullmatch(path):
        return "is a private key, which each machine must generate"
    if is_of_driver(path.rpartition("/")[2]):
        return "is a library of the driver, which the host provides"
    return ""


def is_of_driver(library: str) -> bool:
    """Whether *library* is the name of a library of NVIDIA's driver."""
    return _DRIVER.fullmatch(library) is not None


def is_of_wheels(library: str) -> bool:
    """Whether *library* is the name of a library in the wheels of torch or NVIDIA."""
    return _OF_WHEELS.fullmatch(library) is not None


def pth_file(path: str) -> str:
    """The name of the .pth file *path*, which Python runs at each start; empty: it is another file."""
    found = _PTH.fullmatch(path)
    return found[1] if found else ""


def owners_of(lists: Mapping[str, str], roots: Mapping[str, str]) -> dict[str, str]:
    """The package of each path in *lists*, the contents of dpkg's .list files by package.

    :param roots: top-level folders that are links, with their targets: lib -> usr/lib.
    """
    return {
        _merged(path.lstrip("/"), roots): package
        for package, text in lists.items()
        for path in text.splitlines()
    }


def _merged(path: str, roots: Mapping[str, str]) -> str:
    """*path* with its top-level folder replaced by the target, if that folder is a link."""
    top, slash, rest = path.partition("/")
    return f"{roots[top]}/{rest}" if slash and top in roots else path
