"""Maps a path in an NVIDIA archive to its installed path, if it is installed. Pure.

An archive has one folder, `cuda_nvcc-linux-x86_64-12.1.105-archive`, with `bin`, `include`, `lib`, `nvvm` and
other folders. NVIDIA's installer writes the same files to /usr/local/cuda-12.1, headers and libraries below
`targets/x86_64-linux`; `include` and `lib64` are links (docs/devel.md has the sources).

Not installed are shared libraries, because torch's wheels contain them; static libraries of hundreds of
megabytes; documents and samples; programs for 32-bit systems.
"""

from __future__ import annotations

from torchkiln.model.platform import LINUX_AMD64

RULE = 1  # increase it when other files of the same archive are installed
TARGET = f"targets/{LINUX_AMD64.cuda}-linux"

# Folders → where they are installed.
_FOLDERS = {
    "bin": "bin",
    "include": f"{TARGET}/include",
    "nvvm": "nvvm",
    "compute-sanitizer": "compute-sanitizer",
    "extras": "extras",
    "share": "share",
    "pkg-config": "pkgconfig",
}
# Not installed.
_LEFT_OUT = (
    "compute-sanitizer/docs",
    "compute-sanitizer/x86",
    "nvvm/libnvvm-samples",
    "share/doc",
    "share/info",
    "share/man",
)
# Folders of these names are not installed at any depth, except in include.
_ANYWHERE = frozenset({"doc", "docs", "samples", "example", "examples"})
_STATIC = frozenset({"libcudadevrt.a", "libcudart_static.a", "libculibos.a"})  # nvcc links two by default
_TEXTS = frozenset({"LICENSE", "LICENSE.txt", "EULA.txt", "NOTICE", "NOTICE.txt"})


def place(component: str, path: str) -> str | None:
    """The path below /usr/local/cuda-12.1 of *path* in the archive; None: it is not installed."""
    first, _, rest = path.partition("/")
    if not rest:
        return f"licenses/{component}/{first}" if first in _TEXTS else None
    if first in ("lib", "lib64"):
        return f"{TARGET}/lib/{rest}" if _is_linked(rest) else None
    if first not in _FOLDERS:
        return None
    placed = f"{_FOLDERS[first]}/{rest}"
    if any(f"{placed}/".startswith(f"{folder}/") for folder in _LEFT_OUT):
        return None
    if first != "include" and _ANYWHERE & set(rest.split("/")[:-1]):
        return None
    return placed


def _is_linked(library: str) -> bool:
    """Whether nvcc or a linker needs *library*, a path below lib/. Wheels have the shared libraries."""
    folder, _, _name = library.partition("/")
    return library in _STATIC or folder in ("cmake", "stubs")


def folder_of(path: str) -> str | None:
    """The installed path of the folder *path*; None if it is not installed."""
    first, slash, rest = path.partition("/")
    folder = f"{TARGET}/lib" if first in ("lib", "lib64") else _FOLDERS.get(first)
    return folder and f"{folder}{slash}{rest}"
