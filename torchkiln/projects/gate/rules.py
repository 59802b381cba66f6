"""Decides which entries the code of a project and its packages must not have. Pure.

The layers of packages are those that a build made from a lock (ADR 58), so of these only what torch would
load without being asked is refused. The code is anyone's: each of its entries is checked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from packaging.utils import canonicalize_name

from torchkiln.model.project import APP, PROJECT_JSON
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.projects.effect import MODULE_FILE, SUFFIX, module_of, starts

_ROOTS = ("", "src/")  # the folders of PYTHONPATH, relative to /app
_FOLDERS = frozenset({APP, "etc", "etc/torchkiln"})
_NAMESPACE = "nvidia"  # other packages may have folders of their own in it
_OF_DRIVER = re.compile(r"nvidia-.+")
LIBRARY = re.compile(r".*\.so(\.[0-9.]+)?")
_PACKAGE = re.compile(rf"([^./]+)/__init__{SUFFIX}")
# importlib.metadata ignores case.
_METADATA = re.compile(r"([^/]+?)(-[^/]*)?\.(dist-info|egg-info|egg)(/.*)?", re.IGNORECASE)
# Groups of entry points that torch and triton load when they are imported.
_LOADED = frozenset({"torch.backends", "triton.backends"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Below:
    """What the files of a project must not replace or hide in the parent image."""

    fixed: frozenset[str]  # packages that a project must not change
    modules: frozenset[str]  # names by which the fixed packages are imported
    others: Mapping[str, str]  # other modules that torch imports -> "the standard library", "sympy"
    libraries: Mapping[str, str]  # name of a shared library -> the fixed package that has it
    path: Sequence[str]  # the folders of PATH, relative to /
    programs: Mapping[str, str]  # name -> path: the first program on PATH
    unowned: Collection[str] = field(repr=False)  # files of the environment that belong to no package
    site: str  # site-packages, relative to /
    scripts: str  # the environment's folder bin, relative to /


def code_faults(entry: TarEntry, entry_points: str, below: Below) -> Iterator[str]:
    """Why the layer of a project's code must not contain *entry*.

    :param entry_points: the content of *entry*, if it is an entry_points.txt.
    """
    path, inside = entry.path, entry.path.removeprefix(f"{APP}/")
    if fault := _form(entry):
        yield f"{path}: {fault}"
    elif path in _FOLDERS or path == PROJECT_JSON:
        if (entry.kind, entry.mode) != (("folder", 0o755) if path in _FOLDERS else ("file", 0o644)):
            yield f"{path}: is a {entry.kind} with the mode {entry.mode:04o}"
    elif inside == path:
        yield f"{path}: outside of /{APP}"
    elif entry.kind == "link" and not _stays(inside, entry.target):
        yield f"{path}: a symbolic link that leads out of /{APP}"
    elif entry.kind != "folder":
        for root in _ROOTS:
            if inside.startswith(root):
                yield from _hides(entry, inside.removeprefix(root), entry_points, below)


def package_faults(entry: TarEntry, entry_points: str, below: Below) -> Iterator[str]:
    """Why a layer of packages must not contain *entry*, although a build made the layer from a lock.

    :param entry_points: as in `code_faults`.
    """
    path, name = entry.path, posixpath.basename(entry.path)
    inside = path.removeprefix(f"{below.site}/")
    module = module_of(inside, entry.kind)
    if entry.kind == "file" and (entry.mode & 0o6000 or entry.xattrs):
        yield f"{path}: a privileged program: it has the mode {entry.mode:04o}, or capabilities"
    elif path in below.unowned:
        yield f"{path}: replaces a file of the parent image that belongs to no package"
    elif entry.kind != "folder" and (other := _started(posixpath.dirname(path), name, below)):
        yield f"{path}: would be started in place of /{other}"
    elif inside != path and module in below.modules and not _in_namespace(inside, entry.kind):
        yield f"{path}: would be imported in place of {module}, or as a part of it"
    elif inside != path and module == _NAMESPACE and LIBRARY.fullmatch(name) and name in below.libraries:
        yield f"{path}: could be loaded in place of {name} of {below.libraries[name]}"
    elif inside != path:
        yield from _metadata(entry, inside, entry_points, below)


def _started(folder: str, name: str, below: Below) -> str:
    """The program in place of which *name* in *folder* would be started; an engine mounts the driver's."""
    first = below.programs.get(name, f"usr/bin/{name}" if _OF_DRIVER.fullmatch(name) else "")
    later = below.path[below.path.index(folder) :] if folder in below.path else ()
    return first if posixpath.dirname(first) in later and f"{folder}/{name}" != first else ""


def _in_namespace(inside: str, kind: str) -> bool:
    """Whether *inside*, relative to site-packages, is a folder in NVIDIA's namespace, or in one."""
    top, _, rest = inside.partition("/")
    return top == _NAMESPACE and (kind == "folder" or "/" in rest)


def _form(entry: TarEntry) -> str:
    """Why *entry* is refused at any path: its kind, mode, owner, attributes or name; empty if it is not."""
    if entry.kind not in ("file", "folder", "link"):
        return f"a {entry.kind}{f' to /{entry.target}' if entry.target else ''} is not allowed"
    if any(part.startswith(".wh.") for part in entry.path.split("/")):
        return "a whiteout: code cannot remove files of the image"
    if entry.xattrs:
        return "has extended attributes"
    if entry.kind != "link" and entry.mode & ~0o755:
        return f"has the mode {entry.mode:04o}"
    if entry.uid or entry.gid:
        return f"belongs to {entry.uid}:{entry.gid}, not to root"
    return "" if entry.path.isprintable() else "has control characters in its name"


def _stays(inside: str, target: str) -> bool:
    """Whether the link *inside* /app to *target* leads to a place in /app; `..` after a name may leave it."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(inside), target))
    leaves = target.startswith("/") or place == ".." or place.startswith("../")
    return not leaves and ".." not in dropwhile("..".__eq__, target.split("/"))


def _hides(entry: TarEntry, name: str, entry_points: str, below: Below) -> Iterator[str]:
    """Faults of the file or link *name*, relative to a folder that Python searches before the image's."""
    path = entry.path
    if starts(name, entry.kind):
        yield f"{path}: Python runs it at each start"
    elif (module := module_of(name, entry.kind)) in below.modules:
        yield f"{path}: would be imported in place of {module}"
    elif (module := regular_module_of(name, entry.kind)) in below.others:
        yield f"{path}: would be imported in place of {module} of {below.others[module]}"
    else:
        yield from _metadata(entry, name, entry_points, below)


def _metadata(entry: TarEntry, name: str, entry_points: str, below: Below) -> Iterator[str]:
    """Faults of metadata of a package; *name* is relative to a folder on sys.path."""
    path, package = entry.path, distribution_of(name)
    if package and entry.kind == "link":
        yield f"{path}: a link to metadata of a package"
    if package in below.fixed:
        yield f"{path}: metadata of {package}, which is fixed"
    if package and (groups := loaded_groups(entry_points)):
        yield f"{path}: entry points that torch or triton load at import: {', '.join(groups)}"


def regular_module_of(path: str, kind: str = "file") -> str:
    """As `module_of`, but empty for a namespace package: any regular module hides it."""
    found = MODULE_FILE.fullmatch(path) or _PACKAGE.fullmatch(path)
    return found[1] if found else path if kind == "link" and "/" not in path else ""


def distribution_of(path: str) -> str:
    """The normalized name of the package if *path* is its metadata folder or in it; otherwise empty."""
    found = _METADATA.fullmatch(path)
    return canonicalize_name(found[1]) if found else ""


def loaded_groups(entry_points: str) -> tuple[str, ...]:
    """The groups in an entry_points.txt that torch or triton load when they are imported.

    Lines are read as importlib.metadata reads them: "[[a]]" is the group a, too.
    """
    lines = map(str.strip, entry_points.splitlines())
    groups = (line.strip("[]").strip() for line in lines if line[:1] == "[" and line[-1:] == "]")
    return tuple(sorted(_LOADED.intersection(groups)))
