"""Reads matrix.yaml, or reports every fault in it with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.pick import axis_of, thin_faults
from torchkiln.matrix.policy import CellPattern, Policy, policy_of
from torchkiln.model.cell import PythonArchive
from torchkiln.model.device_code import Gpus
from torchkiln.model.digest import Flavor
from torchkiln.model.operating_system import SYSTEMS, with_python
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.util import located_yaml
from torchkiln.util.places import INSTALLED
from torchkiln.util.schema import Path as SchemaPath
from torchkiln.util.schema import shipped, shown
from torchkiln.util.strict_json import read_file, text_of
from torchkiln.util.versions import nearest, numbers

_MAX_FAULTS = 50  # reported faults of each kind
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PYTHON = re.compile(r"3\.[0-9]{1,4}")
_OLDEST = 10  # the oldest minor version of Python that torchkiln's byte-code compiler supports
_URL = re.compile(r"https?://[^/?#\s]+/[^?#\s]+")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,240}\.(tar\.gz|tgz)")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")

Prefer = Literal["default-index", "native"]
Pair = tuple[str, str]  # torch, CUDA


@dataclass(frozen=True, kw_only=True, slots=True)
class OsChoice:
    """An operating system and its Python: the one that it ships, or a standalone build."""

    name: str  # "debian12", "python312-debian12"
    python: str  # "3.11"
    standalone: PythonArchive | None = None
    location: str = ""  # of the archive: a path relative to the matrix, or a URL


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedIndex:
    """An index in addition to the default one, bound to the packages that may come from it."""

    name: str  # "pytorch"
    packages: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that holds its address."""
        return f"TORCHKILN_INDEX_{self.name.upper()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound(CellPattern):
    """Cells that are known to fail."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Aliases:
    """Templates of additional tags, by rule; None: the rule is off."""

    newest_patch: str | None = None
    newest_cuda: str | None = None
    newest_torch: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """The contents of matrix.yaml. Versions are sorted, oldest first."""

    torch: tuple[str, ...]
    cuda: tuple[str, ...]
    beyond: tuple[Pair, ...]  # in addition to all combinations of `torch` and `cuda`
    flavors: tuple[Flavor, ...]
    os: tuple[OsChoice, ...]
    packages: tuple[str, ...]  # PEP 508
    gpus: tuple[Gpus, ...]  # of thin images, in addition to the image of each cell for all GPUs
    repository: str
    prefer: Prefer
    indexes: tuple[NamedIndex, ...]
    aliases: Aliases
    bounds: tuple[Bound, ...]
    policy: Policy
    platforms: tuple[str, ...] = (DEFAULT_PLATFORM,)
    # The folder of the file, which may also have rootfs/ and templates/; None: not read from a file.
    folder: Path | None = field(default=None, compare=False)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every torch with every CUDA, and the pairs of `beyond`; by version, each once."""
        return _pairs(self.torch, self.cuda, self.beyond)

    def standalone(self, os: str) -> PythonArchive | None:
        """The archive of the standalone Python of the system *os*; None: the system's own Python is used."""
        return next((choice.standalone for choice in self.os if choice.name == os), None)

    def locate(self, archive: PythonArchive) -> str:
        """The path or the URL of *archive*; empty: this matrix does not name it."""
        found = (
            choice for choice in self.os if choice.standalone and choice.standalone.sha256 == archive.sha256
        )
        location = next((choice.location for choice in found), "")
        if not location or "://" in location or self.folder is None:
            return location
        return str(self.folder / location)

    @property
    def releases(self) -> tuple[str, ...]:
        """Every torch of `pairs`, oldest first."""
        return tuple(dict.fromkeys(torch for torch, _ in self.pairs))

    @property
    def cudas(self) -> tuple[str, ...]:
        """Every CUDA of `pairs`, oldest first."""
        return tuple(sorted({cuda for _, cuda in self.pairs}, key=numbers))


def read(path: Path, facts: Facts) -> Matrix:
    """The matrix in the file *path*.

    :raises ConfigError: no such file, not UTF-8, or any fault that `load` finds.
    """
    try:
        text = text_of(read_file(path, 4 * located_yaml.MAX_TEXT))  # UTF-8 has up to four bytes a character
    except ValueError as error:
        line = str(error).removeprefix("line ")
        raise ConfigError(f"{path}:{line}", hint=f"correct {path} and save it as UTF-8") from None
    except OSError as error:
        hint = "pass --matrix FILE; the default is ./matrix.yaml"
        if not INSTALLED:
            hint += ", or else matrix.yaml in torchkiln's checkout"
        elif isinstance(error, FileNotFoundError):
            hint = "write one: torchkiln init; or pass --matrix FILE"
        raise ConfigError(f"{path}: {error.strerror or error}", hint=hint) from None
    return replace(load(text, facts, name=str(path)), folder=path.parent)


def load(text: str, facts: Facts, *, name: str = "matrix.yaml") -> Matrix:
    """Parse *text*; messages begin with *name* and the line.

    :raises ConfigError: every fault: unknown keys, wrong types, versions that are not in the facts.
    """
    try:
        file = located_yaml.parse(text, name=name)
    except ConfigError as error:
        raise ConfigError(error.message, hint=f"correct {name}") from None
    faults = located_yaml.faults(file, shipped("matrix"))
    if isinstance(file.data, dict):
        found = islice(_semantic_faults(file.data, facts), _MAX_FAULTS)
        faults += [file.fault(path, text) for path, text in found]
    if faults:
        raise ConfigError.of(sorted(faults, key=_line), hint=f"correct {name}")
    return _matrix(file.data)


def _matrix(data: dict[str, Any]) -> Matrix:
    return Matrix(
        torch=tuple(sorted(data["torch"], key=numbers)),
        cuda=tuple(sorted(data["cuda"], key=numbers)),
        beyond=tuple(sorted(((pair["torch"], pair["cuda"]) for pair in data.get("beyond", ())), key=ordered)),
        flavors=tuple(data["flavors"]),
        os=(
            *(OsChoice(name=name, python=body["python"]) for name, body in data["os"].items()),
            *_choices(data.get("pythons", ())),
        ),
        packages=tuple(data["packages"]),
        gpus=axis_of(data.get("gpus", ())),
        repository=data["repository"],
        prefer=data.get("prefer", "default-index"),
        indexes=tuple(
            NamedIndex(name=name, packages=tuple(packages))
            for name, packages in data.get("indexes", {}).items()
        ),
        aliases=Aliases(**data.get("aliases", {})),
        bounds=tuple(Bound(**bound) for bound in data.get("bounds", ())),
        policy=policy_of(data.get("policy", {})),
        platforms=tuple(data.get("platforms", (DEFAULT_PLATFORM,))),
    )


@lru_cache(maxsize=16)  # a cell that is unavailable is compared with every pair
def _pairs(torch: tuple[str, ...], cuda: tuple[str, ...], beyond: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(sorted({*product(torch, cuda), *beyond}, key=ordered))


def ordered(pair: Pair) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The key to sort pairs by version."""
    return numbers(pair[0]), numbers(pair[1])


def _semantic_faults(data: dict[str, Any], facts: Facts) -> Iterator[tuple[SchemaPath, str]]:
    """Faults that the schema cannot find, such as unknown versions. Skips values that violate the schema."""
    for key, name, known in (("torch", "torch", facts.releases), ("cuda", "CUDA", facts.cuda)):
        for at, version in _versions(data, key):
            if _VERSION.fullmatch(version) and version not in known:
                near = ", ".join(nearest(version, known))
                yield at, f"{name} {version} is not in compat.yaml; nearest: {near}"
    for index, requirement in _texts(data.get("packages")):
        package = re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        if package in ("torch", "torchvision", "torchaudio"):
            yield ("packages", index), f"every image has the {package} of its cell; remove it here"
    yield from _python_faults(data.get("os"))
    yield from _standalone_faults(data.get("pythons"))
    yield from thin_faults(data.get("gpus"), facts)
    for index, bound in _mappings(data.get("bounds")):
        yield from _cell_faults(data, ("bounds", index), bound)
    policy = data.get("policy")
    if isinstance(policy, dict):
        yield from _policy_faults(data, policy, facts)


def _python_faults(systems: Any) -> Iterator[tuple[SchemaPath, str]]:
    """Each system in `os` with a Python that it does not ship, and that its base therefore cannot have."""
    for name, body in systems.items() if isinstance(systems, dict) else ():
        shipped_python = SYSTEMS[name].python if name in SYSTEMS else None
        python = body.get("python") if isinstance(body, dict) else None
        if (
            shipped_python
            and isinstance(python, str)
            and _PYTHON.fullmatch(python)
            and python != shipped_python
        ):
            yield ("os", name, "python"), f"{name} has Python {shipped_python}, not {python}"


def _choices(data: Iterable[Mapping[str, str]]) -> Iterator[OsChoice]:
    """The systems of *data*, which has no `faults`."""
    for entry in data:
        location = entry["archive"]
        archive = PythonArchive(filename=_filename(location), sha256=entry["sha256"])
        name = with_python(entry["os"], entry["python"])
        yield OsChoice(name=name, python=entry["python"], standalone=archive, location=location)


def _python_names(data: object) -> list[str]:
    """The names of the systems in *data*, which may be invalid."""
    return [with_python(os, python) for _, os, python in _entries(data)]


def _standalone_faults(data: object) -> Iterator[tuple[SchemaPath, str]]:
    """Faults that the schema cannot find, by path. Skips values that violate the schema."""
    seen: set[str] = set()
    for index, os, python in _entries(data):
        at = ("pythons", index)
        if os in SYSTEMS and python == SYSTEMS[os].python:
            yield (*at, "python"), f"{os} has Python {python} already; remove this entry"
        elif int(python.partition(".")[2]) < _OLDEST:
            yield (*at, "python"), f"Python {python} is not supported; the oldest is 3.{_OLDEST}"
        if (name := with_python(os, python)) in seen:
            yield at, f"duplicate entry: Python {python} of {os}"
        seen.add(name)
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        location = entry.get("archive") if isinstance(entry, dict) else None
        if isinstance(location, str) and (fault := _location_fault(location)):
            yield ("pythons", index, "archive"), fault


def _entries(data: object) -> Iterator[tuple[int, str, str]]:
    """Index, os and python of each entry that has both."""
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        values: dict[str, Any] = entry if isinstance(entry, dict) else {}
        os, python = values.get("os"), values.get("python")
        if isinstance(os, str) and isinstance(python, str) and _PYTHON.fullmatch(python):
            yield index, os, python


def _location_fault(location: str) -> str:
    """Why *location* cannot be the location of an archive; empty: it can be."""
    if "://" in location and not _URL.fullmatch(location):
        # The URL is not shown: it may contain a password or a token.
        return "must be a path, or an http(s) URL without a query"
    if not _FILE.fullmatch(_filename(location)):
        return f"{shown(_filename(location))} is not the name of a .tar.gz file"
    return ""


def _filename(location: str) -> str:
    name = location.rpartition("/")[2]
    # GitHub writes the + in the names of such archives as %2B.
    return re.sub(r"%2[bB]", "+", name) if "://" in location else name


def _policy_faults(
    data: dict[str, Any], policy: dict[str, Any], facts: Facts
) -> Iterator[tuple[SchemaPath, str]]:
    known = [kind.capability for kind in facts.gpus]
    for at, demands in ((("policy",), policy), *_exceptions(policy)):
        for index, gpu in _texts(demands.get("gpus")):
            if gpu not in known:
                near = ", ".join(nearest(gpu[:20], known)) or ", ".join(known)
                yield (*at, "gpus", index), f"unknown GPU capability {shown(gpu)}; nearest: {near}"
    for at, cell in _exceptions(policy):
        yield from _cell_faults(data, at, cell, also=("status",))
    for index, key in _mappings(policy.get("keys")):
        until = key.get("until")
        if isinstance(until, str) and _DATE.fullmatch(until) and not _is_date(until):
            yield ("policy", "keys", index, "until"), f"{until!r} is not a valid date; example: 2027-03-31"


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _exceptions(policy: dict[str, Any]) -> Iterator[tuple[SchemaPath, dict[str, Any]]]:
    for index, cell in _mappings(policy.get("cells")):
        yield ("policy", "cells", index), cell


def _cell_faults(
    data: dict[str, Any], at: SchemaPath, bound: dict[str, Any], *, also: tuple[str, ...] = ()
) -> Iterator[tuple[SchemaPath, str]]:
    """Faults of *bound*, which must match cells of this matrix."""
    lists = {
        "torch": [text for _, text in _versions(data, "torch")],
        "cuda": [text for _, text in _versions(data, "cuda")],
        "flavor": data.get("flavors"),
        "os": [*_names(data.get("os")), *_python_names(data.get("pythons"))],
    }
    for key, listed in lists.items():
        value = bound.get(key)
        valid = (
            [text for text in listed or () if isinstance(text, str)]
            if isinstance(listed, (list, dict))
            else []
        )
        if isinstance(value, str) and valid and value not in valid:
            near = ", ".join(nearest(value[:20], valid)) or ", ".join(valid)
            yield (*at, key), f"{shown(value)} is not in this matrix; nearest: {near}"
    names = (*lists, *also)
    if not any(key in bound for key in names):
        yield at, f"matches every cell; set at least one of {', '.join(names)}"


def _versions(data: dict[str, Any], key: str) -> list[tuple[SchemaPath, str]]:
    """The versions in the list *key* and in the pairs of `beyond`, with their paths."""
    beyond = ((index, pair.get(key)) for index, pair in _mappings(data.get("beyond")))
    return [((key, index), text) for index, text in _texts(data.get(key))] + [
        (("beyond", index, key), text) for index, text in beyond if isinstance(text, str)
    ]


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, dict) else []


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, dict)]


def _texts(value: Any) -> list[tuple[int, str]]:
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, str)]


def _line(fault: str) -> int:
    found = re.search(r":(\d+): ", fault)
    return int(found[1]) if found else 0
