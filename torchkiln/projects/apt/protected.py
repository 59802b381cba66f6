"""Decides whether packages of the archive change what the tests of an image cover. Pure.

dpkg lets no package replace another package's files, but the scripts of packages can change any file. So the
layer that they made is compared with the lower layers: its paths, and /etc/ld.so.cache, in which the loader
looks up the libraries that a program needs.
"""

from __future__ import annotations

import posixpath
import re
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from torchkiln.elf.sections import BadElf, soname_of
from torchkiln.errors import BuildFailed
from torchkiln.model.plan import WHITEOUT
from torchkiln.model.recipe import PREFIX
from torchkiln.oci.tar import parents
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.projects.effect import module_of

_CACHE = "etc/ld.so.cache"
_CACHE_LIMIT = 16 << 20  # bytes; with a thousand libraries it has 60,000
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII16x4x")  # magic, entries, bytes of strings
_NUMBER = re.compile(r"[0-9]+")
_LONGEST = 4096  # bytes of a path
_ENTRY = struct.Struct("<iIIIQ")  # flags, offsets of name and path, version of the kernel, capabilities

#: Name of a library -> the paths at which the loader would search it, in that order.
LoaderCache = Mapping[str, tuple[str, ...]]
#: dpkg's list of the files of one package.
LIST = re.compile(r"var/lib/dpkg/info/([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9]+)?\.list")
LIST_LIMIT = 16 << 20  # bytes; the largest lists have two million

_FORBIDDEN = re.compile(
    rf"({re.escape(PREFIX.lstrip('/'))}|opt/python|opt/torchkiln|etc/torchkiln|usr/local/cuda[^/]*"
    r"|usr/local/nvidia|app)(/.*)?|etc/ld\.so\.preload"
)
# The files of lower layers that packages may change: dpkg and its helpers keep their state in them.
_STATE = re.compile(
    r"var/lib/dpkg/(status|available|diversions|statoverride|lock.*|triggers/[^/]+|alternatives/[^/]+)"
    r"|var/(cache|log|lib/(apt|systemd|ucf|python|misc))/.+|var/lib/shells\.state|usr/share/(info/dir|mime/[^/]+)"
    r"|etc/((passwd|group|shadow|gshadow|subuid|subgid)-?|\.pwd\.lock|shells|ld\.so\.cache|gitconfig|mailcap)"
    r"|etc/alternatives/(n?awk|editor|ex|pager|pico|rmt|r?view|vi|which|(un)?lz\w+|[^/]+\.gz)"
)
# Of these, files to which only some lines may be added: accounts without a password or the id of root, and
# settings of git-lfs.
_LINED = re.compile(r"etc/(passwd|shadow|group|gshadow|gitconfig)")
_LINE = re.compile(
    r'[^:]+:[x!*]+:(?!0+:).*|\[filter "lfs"\]|\s*(clean = git-lfs clean -- %f|smudge = git-lfs smudge -- %f'
    r"|process = git-lfs filter-process|required = true)|"
)
_PYTHON = re.compile(r"usr/lib/python3[^/]*/.+")
_STANDARD = re.compile(r"usr/lib/(?:python3\.\d+/(?:lib-dynload/)?([^/]+)(/.+)?|python3\d+\.zip)")
# Debian has some of these in packages of their own, or had them with Python 3.11.
_MODULES = sys.stdlib_module_names | {
    *("__pycache__", "test", "distutils", "lib2to3", "asynchat", "asyncore", "imp", "smtpd")
}
_DIST_PACKAGES = r"usr/(?:local/)?lib/python3[^/]*/(?:dist-packages/)?"
# Why no package may have such a path, outside of the image's folders.
_FAULTS = {
    rf"{_DIST_PACKAGES}(site|user)customize(\.py|\.[^/]*\.so|/.*)?": "runs at each start of Python",
    r"etc/ssl/private/.+": "is a private key, which each machine must generate",
    r"(root|home)/.+|etc/(sudoers\.d|ssh)/.+": "gives rights, or belongs to a user",
    r"(.*/)?lib(cuda(debugger)?|nvcuvid|nvoptix|nvidia-[a-z0-9-]+)\.so(\..*)?": "is a library of the driver,"
    " which the host provides",  # an engine mounts it into the container
    r"usr/local/.+": "is in /usr/local, which is not for packages",
}
_PTH = re.compile(_DIST_PACKAGES + r"([^/]+\.pth)")
# Names of libraries in the wheels of torch and NVIDIA, which find each other by their rpath.
_OF_WHEELS = re.compile(
    r"lib(cu(dart|blas|blasLt|dnn\w*|fft|fftw|rand|solver|solverMg|sparse|sparseLt|pti|file\w*)"
    r"|nv(rtc|rtc-builtins|JitLink|ToolsExt|shmem\w*|blas)|nccl|torch\w*|c10\w*|caffe2_nvrtc|shm)\.so.*"
)
_HARDWARE = re.compile(
    "/(glibc-hwcaps|tls|haswell|xeon_phi|avx512_1|x86_64)(/.*)?$"
)  # subfolders of libraries
_LISTED = 8  # maximum number of faults in a message


def parse_cache(data: bytes) -> LoaderCache:
    """The libraries in *data*.

    :raises ValueError: it is not in this format, or is truncated.
    """
    if not data.startswith(_MAGIC) or len(data) < _HEADER.size:
        raise ValueError("invalid ld.so.cache")
    _, count, _ = _HEADER.unpack_from(data)
    if _HEADER.size + count * _ENTRY.size > len(data):
        raise ValueError("ld.so.cache is truncated")
    found: dict[str, list[str]] = {}
    for number in range(count):
        _, name, path, _, _ = _ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size)
        found.setdefault(_text(data, name), []).append(_text(data, path))
    return {name: tuple(paths) for name, paths in found.items()}


def changed_libraries(before: LoaderCache, after: LoaderCache) -> Iterator[str]:
    """A message for each library of *before* that the loader would not find, or would find elsewhere."""
    new = _by_key(after)
    for name, paths in sorted(_by_key(before).items()):
        now = new.get(name, [])
        if not now:
            yield f"{name} would no longer be found"
        elif now != paths:
            other = next((path for path in now if path not in paths), now[0])
            yield f"{name} would be loaded from {other.lstrip('/')}, not from {paths[0].lstrip('/')}"


def name_key(library: str) -> str:
    """*library* in the form in which the loader compares names: libc.so.06 is libc.so.6.

    The loader compares numbers in a name by their value, an integer of 32 bits.
    """
    return _NUMBER.sub(lambda found: str(int(found[0]) & 0xFFFFFFFF), library)


def _by_key(cache: LoaderCache) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, paths in cache.items():
        found.setdefault(name_key(name), []).extend(paths)
    return found


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + _LONGEST)
    if end < 0:
        raise ValueError("ld.so.cache is truncated")
    return data[offset:end].decode(errors="backslashreplace")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of layers: the kind of each path, and the package to which dpkg's lists assign it."""

    kinds: Mapping[str, str]
    owners: Mapping[str, str]
    libraries: LoaderCache = field(default_factory=dict)  # empty: the layers have no ld.so.cache
    lines: Mapping[str, list[str]] = field(default_factory=dict)  # of accounts and settings
    sonames: Mapping[str, str] = field(default_factory=dict)  # of files whose name is that of a library
    links: Mapping[str, str] = field(default_factory=dict)  # links and hard links, with their targets


def contents_of(streams: Iterable[BinaryIO]) -> Contents:
    """The contents of the layers in the tars *streams*, lowest first.

    :raises ValueError: one is not a tar, or its ld.so.cache cannot be read.
    """
    kinds, lists, roots = dict[str, str](), dict[str, str](), dict[str, str]()
    libraries: LoaderCache = {}
    lines: dict[str, list[str]] = {}
    sonames, links = dict[str, str](), dict[str, str]()
    for stream in streams:
        tar = TarReader(pieces_of(stream))
        for entry in tar:
            kinds[entry.path] = entry.kind
            if entry.kind == "link" and "/" not in entry.path:
                roots[entry.path] = entry.target.strip("/")  # lib -> usr/lib
            if entry.target:
                folder = f"/{posixpath.dirname(entry.path)}" if entry.kind == "link" else "/"
                links[entry.path] = posixpath.normpath(posixpath.join(folder, entry.target)).lstrip("/")
            if entry.kind != "file":
                continue
            if (found := LIST.fullmatch(entry.path)) and entry.size <= LIST_LIMIT:
                lists[found[1]] = b"".join(tar.content()).decode(errors="backslashreplace")
            elif entry.path == _CACHE and entry.size <= _CACHE_LIMIT:
                libraries = parse_cache(b"".join(tar.content()))
            elif _LINED.fullmatch(entry.path) and entry.size <= LIST_LIMIT:
                lines[entry.path] = b"".join(tar.content()).decode(errors="backslashreplace").splitlines()
            elif ".so" in entry.path.rpartition("/")[2]:
                with suppress(BadElf):
                    sonames[entry.path] = soname_of(memoryview(b"".join(tar.content())))
    owners = owners_of(lists, roots)
    return Contents(
        kinds=kinds, owners=owners, libraries=libraries, lines=lines, sonames=sonames, links=links
    )


def demand_harmless(lower: Contents, layer: Contents, *, what: str) -> tuple[str, ...]:
    """Check the *layer* of packages on *lower*; *what* names it.

    :returns: warnings.
    :raises BuildFailed: *layer* changes files of packages of the lower layers, has files that no package may
        have, or has libraries that the loader would find instead of those of the lower layers.
    """
    faults = list(_faults(lower, layer))
    if layer.libraries:
        faults += changed_libraries(lower.libraries, layer.libraries)
    if faults:
        raise refused(faults, what)
    return (*_notes(lower, layer),)


def demand_apart(paths: Iterable[str], own: Collection[str], *, what: str) -> None:
    """Check that none of the *paths* of a layer is one of the image's *own* files.

    :raises BuildFailed: a path is one of *own*.
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


def _faults(lower: Contents, layer: Contents) -> Iterator[str]:
    folders = {folder for path in layer.kinds for folder in parents(path)}
    hidden = {
        path: [why] for each in (_hidden_modules, _hidden_libraries) for path, why in each(lower, layer)
    }
    for path, kind in layer.kinds.items():
        if fault := _misplaced(path, kind, lower, layer):
            yield fault
        elif _FORBIDDEN.fullmatch(path):
            if path not in folders:  # the files in a folder are reported, not the folder
                yield f"{_named(path, layer)} is in a folder of the image"
        elif kind == "folder":  # a folder is in the layer because of its files
            continue
        elif path in lower.kinds and (
            path in lower.owners or kind != lower.kinds[path] or not _STATE.fullmatch(path)
        ):
            yield f"{_named(path, lower)} was changed"
        elif _LINED.fullmatch(path):
            yield from _changed_lines(path, lower.lines.get(path, []), layer.lines.get(path, []))
        elif faults := [why for form, why in _FAULTS.items() if re.fullmatch(form, path)] or hidden.get(path):
            yield f"{_named(path, layer)} {faults[0]}"


def _changed_lines(path: str, old: list[str], new: list[str]) -> Iterator[str]:
    """Faults of a file of accounts or settings, to which packages may only add some lines."""
    if path in ("etc/group", "etc/gshadow"):  # accounts may become members
        old, new = ([line[: line.rfind(":")] + ":" for line in lines] for lines in (old, new))
    changed = [line for line in old if line not in new]
    changed += [line for line in new if line not in old and not _LINE.fullmatch(line)]
    yield from (f"{path}: {line[:80]!r} was changed, or may not be added" for line in changed)


def _hidden_libraries(lower: Contents, layer: Contents) -> Iterator[tuple[str, str]]:
    """New paths that ldconfig, which engines run, would take for a library of the image, by its SONAME."""
    known = set(map(name_key, lower.libraries))
    files = (file.lstrip("/") for paths in lower.libraries.values() for file in paths)
    folders = {posixpath.dirname(file).removeprefix("usr/") for file in files}
    anywhere = any(path.startswith("etc/ld.so.conf.d/") for path in layer.kinds)  # it names more folders
    for path in layer.kinds.keys() - lower.kinds.keys():
        if anywhere or _HARDWARE.sub("", posixpath.dirname(path).removeprefix("usr/")) in folders:
            at = path
            for _ in range(8):  # links
                at = layer.links.get(at, at)
            soname = layer.sonames.get(at) or layer.sonames.get(f"usr/{at}", "")
            if soname and name_key(soname) in known:
                yield path, f"has the SONAME of a library of the image: {soname[:80]}"


def _hidden_modules(lower: Contents, layer: Contents) -> Iterator[tuple[str, str]]:
    """Paths that Python would import in place of modules of the image, and why they are refused."""
    modules = {path for path in lower.kinds if _PYTHON.fullmatch(path)}
    there = modules.union(*map(parents, modules))
    stems = set(map(_stem, modules))
    for path in layer.kinds.keys() - modules:
        new = next((one for one in (*parents(path), path) if one not in there), "")
        if _PYTHON.fullmatch(path) and _stem(new) in stems:
            yield path, "would be imported in place of a module of the image"
        elif found := _STANDARD.fullmatch(path):
            module = module_of(found[1] or "", "folder" if found[2] else layer.kinds[path])
            if not found[1] or (module.isidentifier() and module not in _MODULES):
                yield path, "would be imported before modules of the image"


def _stem(path: str) -> str:
    """*path* up to the first dot of its name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _misplaced(path: str, kind: str, lower: Contents, layer: Contents) -> str:
    """Why a layer of packages cannot have *path*: it would delete files, or replace a folder or a link."""
    if any(part.startswith(WHITEOUT) for part in path.split("/")):
        return f"{path} would delete files"
    kinds = [(folder, layer.kinds.get(folder, lower.kinds.get(folder))) for folder in parents(path)]
    if wrong := next((folder for folder, found in kinds if found not in (None, "folder")), None):
        return f"{path} is below {wrong}, which is not a folder"
    if path in lower.kinds and "folder" in (kind, lower.kinds[path]) and kind != lower.kinds[path]:
        return f"{path} would replace a {lower.kinds[path]} by a {kind}"
    return ""


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
