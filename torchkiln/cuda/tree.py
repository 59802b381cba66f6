"""A member of one of NVIDIA's archives -> where it lies in an installation, or nowhere: it is left out. Pure.

An archive holds one folder, `cuda_nvcc-linux-x86_64-12.1.105-archive`, and in it `bin`, `include`, `lib`,
`nvvm` and the like. NVIDIA's own installer puts the same files to /usr/local/cuda-12.1, headers and libraries
below `targets/x86_64-linux`; `include` and `lib64` are links there (docs/devel.md tells where this was seen).

Left out: what torch's wheels carry (shared libraries), what nobody links by default (static libraries of
hundreds of megabytes), documents and samples, and programs for 32-bit systems.
"""

from __future__ import annotations

from torchkiln.model.platform import LINUX_AMD64

RULE = 1  # raise it when the same archive would give other files
TARGET = f"targets/{LINUX_AMD64.cuda}-linux"

# Whole folders, by where they go.
_FOLDERS = {
    "bin": "bin",
    "include": f"{TARGET}/include",
    "nvvm": "nvvm",
    "compute-sanitizer": "compute-sanitizer",
    "extras": "extras",
    "share": "share",
    "pkg-config": "pkgconfig",
}
# Within them.
_LEFT_OUT = (
    "compute-sanitizer/docs",
    "compute-sanitizer/x86",
    "nvvm/libnvvm-samples",
    "share/doc",
    "share/info",
    "share/man",
)
_ANYWHERE = frozenset({"doc", "docs", "samples", "example", "examples"})  # folders, except among headers
_STATIC = frozenset({"libcudadevrt.a", "libcudart_static.a", "libculibos.a"})  # nvcc links two unasked
_TEXTS = frozenset({"LICENSE", "LICENSE.txt", "EULA.txt", "NOTICE", "NOTICE.txt"})


def place(component: str, path: str) -> str | None:
    """Where *path*, below the archive's one folder, lies below /usr/local/cuda-12.1; None: it is left out."""
    first, _, rest = path.partition("/")
    if not rest:
        return f"licenses/{component}/{first}" if first in _TEXTS else None
    if first in ("lib", "lib64"):
        return f"{TARGET}/lib/{rest}" if _links(rest) else None
    if first not in _FOLDERS:
        return None
    placed = f"{_FOLDERS[first]}/{rest}"
    if any(placed == one or placed.startswith(f"{one}/") for one in _LEFT_OUT):
        return None
    if first != "include" and _ANYWHERE & set(rest.split("/")[:-1]):
        return None
    return placed


def _links(library: str) -> bool:
    """Whether a linker needs *library*, a path below lib/, though the wheels have what runs."""
    folder, _, _name = library.partition("/")
    return library in _STATIC or folder in ("cmake", "stubs")


def moved(path: str) -> str | None:
    """Where the folder *path* lies, if it is in one of those that are taken."""
    first, slash, rest = path.partition("/")
    folder = f"{TARGET}/lib" if first in ("lib", "lib64") else _FOLDERS.get(first)
    return folder and f"{folder}{slash}{rest}"
