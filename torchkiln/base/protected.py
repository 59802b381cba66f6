"""Decides whether packages of the archive change what the tests of an image cover. Pure.

dpkg lets no package replace another's files, but scripts of packages can do anything: the layer that they
left is compared with the lower layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from torchkiln.base import loader_cache
from torchkiln.base.loader_cache import LoaderCache, parse_cache
from torchkiln.errors import BuildFailed
from torchkiln.model.recipe import PREFIX
from torchkiln.oci.tar import parents
from torchkiln.oci.tar_reader import TarReader, pieces_of

_LISTED = 8  # most faults in a message
_LIST = re.compile(r"var/lib/dpkg/info/([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9]+)?\.list")
_LIST_LIMIT = 16 << 20  # bytes of the list of one package's files; the largest have two million
_FORBIDDEN = re.compile(
    rf"({re.escape(PREFIX.lstrip('/'))}|opt/torchkiln|opt/conda|etc/torchkiln|usr/local/cuda[^/]*"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What layers contain: the kind of each path, and the package that it belongs to by dpkg's lists."""

    kinds: Mapping[str, str]
    owners: Mapping[str, str]
    libraries: LoaderCache = field(default_factory=dict)  # empty: the layers have no cache of the loader


def contents_of(streams: Iterable[BinaryIO]) -> Contents:
    """The contents of the layers in the tars *streams*, lowest first.

    :raises ValueError: one is not a tar, or its cache of the loader cannot be read.
    """
    kinds: dict[str, str] = {}
    lists: dict[str, str] = {}
    roots: dict[str, str] = {}
    libraries: LoaderCache = {}
    for stream in streams:
        tar = TarReader(pieces_of(stream))
        for entry in tar:
            kinds[entry.path] = entry.kind
            if entry.kind == "link" and "/" not in entry.path:
                roots[entry.path] = entry.target.strip("/")  # lib -> usr/lib
            if entry.kind != "file":
                continue
            if (found := _LIST.fullmatch(entry.path)) and entry.size <= _LIST_LIMIT:
                lists[found[1]] = b"".join(tar.content()).decode(errors="backslashreplace")
            elif entry.path == loader_cache.PATH and entry.size <= loader_cache.LIMIT:
                libraries = parse_cache(b"".join(tar.content()))
    owners = {
        _merged(path.lstrip("/"), roots): package
        for package, text in lists.items()
        for path in text.splitlines()
    }
    return Contents(kinds=kinds, owners=owners, libraries=libraries)


def demand_harmless(lower: Contents, layer: Contents, *, what: str) -> tuple[str, ...]:
    """Check the *layer* of packages on *lower*; *what* names it.

    :returns: warnings.
    :raises BuildFailed: it changes files of packages of the lower layers, has files that no package may have,
        or libraries that the loader would find in place of theirs.
    """
    faults = [*_faults(lower, layer), *_shadowing(lower, layer)]
    if faults:
        raise refused(faults, what)
    return (*_notes(lower, layer),)


def demand_apart(paths: Iterable[str], own: Collection[str], *, what: str) -> None:
    """Check that none of the *paths* of a layer is one of the image's *own* files.

    :raises BuildFailed: one is.
    """
    if faults := [f"{path} is a file of the image" for path in paths if path in own]:
        raise refused(faults, what)


def refused(faults: list[str], what: str) -> BuildFailed:
    """The error for a layer with *faults*."""
    more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
    return BuildFailed(
        "\n".join((f"{what}: packages of the archive would change the image:", *faults[:_LISTED], *more)),
        hint="remove the package from apt in the project's settings",
    )


def _merged(path: str, roots: Mapping[str, str]) -> str:
    """*path* without a link in the place of its top folder."""
    top, slash, rest = path.partition("/")
    return f"{roots[top]}/{rest}" if slash and top in roots else path


def _faults(lower: Contents, layer: Contents) -> Iterator[str]:
    folders = {folder for path in layer.kinds for folder in parents(path)}
    for path, kind in layer.kinds.items():
        if _FORBIDDEN.fullmatch(path):
            if path not in folders:  # else what is in it is named
                yield f"{_named(path, layer)} is in a folder of the image"
        elif kind == "folder":  # in the layer, as something in it is
            continue
        elif path in lower.kinds and path in lower.owners:
            yield f"{path} of {lower.owners[path]} was changed"
        elif _AT_START.fullmatch(path):
            yield f"{_named(path, layer)} runs at each start of Python"
        elif _KEYS.fullmatch(path):
            yield f"{_named(path, layer)} is a private key, which each machine must make for itself"
        elif _DRIVER.fullmatch(path.rpartition("/")[2]):
            yield f"{_named(path, layer)} is a library of the driver, which the host provides"


def _shadowing(lower: Contents, layer: Contents) -> Iterator[str]:
    """Libraries of the lower layers that the loader would find elsewhere."""
    for name, before in sorted(lower.libraries.items()):
        now = layer.libraries.get(name, ()) if layer.libraries else before
        if not now:
            yield f"{name} would no longer be found"
        elif now != before:
            other = next((path for path in now if path not in before), now[0])
            yield f"{name} would be loaded from {other.lstrip('/')}, not from {before[0].lstrip('/')}"


def _notes(lower: Contents, layer: Contents) -> Iterator[str]:
    for name in sorted(layer.libraries.keys() - lower.libraries.keys()):
        if _OF_WHEELS.fullmatch(name):
            path = layer.libraries[name][0].lstrip("/")
            yield f"{path} has the name of a library in the wheels of torch or NVIDIA"
    for path in sorted(layer.kinds):
        if (found := _PTH.fullmatch(path)) and path not in lower.kinds:
            yield f"Python runs at each start: {found[1]}"


def _named(path: str, layer: Contents) -> str:
    owner = layer.owners.get(path)
    return f"{path} of {owner}" if owner else path
