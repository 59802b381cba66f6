"""YAML text -> Matrix: what may be asked for, or every fault in the file with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

from torchkiln.errors import ConfigError
from torchkiln.matrix import components
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.policy import Policy, policy_of
from torchkiln.model.cell import Cell
from torchkiln.model.digest import Flavor
from torchkiln.util import located_yaml
from torchkiln.util.located_yaml import Located
from torchkiln.util.schema import Path as SchemaPath
from torchkiln.util.schema import shipped, shown
from torchkiln.util.strict_json import read_file, text_of
from torchkiln.util.versions import nearest, numbers

_MOST = 50  # faults of one kind that are told
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")

Prefer = Literal["default-index", "native"]
Pair = tuple[str, str]  # torch, CUDA


@dataclass(frozen=True, kw_only=True, slots=True)
class OsChoice:
    """An operating system and the Python that it ships."""

    name: str  # "debian12"
    python: str  # "3.11"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedIndex:
    """An index beside the default one, bound to the packages that may come from it."""

    name: str  # "pytorch"
    packages: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that holds its address."""
        return f"TORCHKILN_INDEX_{self.name.upper()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Cells that are known to fail. None fits every value."""

    torch: str | None
    cuda: str | None
    flavor: str | None
    os: str | None
    reason: str

    def covers(self, cell: Cell) -> bool:
        """Whether *cell* is one of them."""
        pairs = (
            (self.torch, cell.torch),
            (self.cuda, cell.cuda),
            (self.flavor, cell.flavor),
            (self.os, cell.os),
        )
        return all(wanted is None or wanted == value for wanted, value in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Aliases:
    """Templates of further tags, by the rule that grants them; None: the rule is off."""

    newest_patch: str | None
    newest_cuda: str | None
    newest_torch: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """All of matrix.yaml. Versions are sorted, oldest first."""

    torch: tuple[str, ...]
    cuda: tuple[str, ...]
    beyond: tuple[Pair, ...]  # beside the product of the two
    flavors: tuple[Flavor, ...]
    os: tuple[OsChoice, ...]
    packages: tuple[str, ...]  # PEP 508
    components: tuple[components.Offer, ...]  # by name
    repository: str
    prefer: Prefer
    indexes: tuple[NamedIndex, ...]
    aliases: Aliases
    bounds: tuple[Bound, ...]
    policy: Policy

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every torch with every CUDA, and what lies beyond; by version, each once."""
        return tuple(sorted({*product(self.torch, self.cuda), *self.beyond}, key=_ordered))

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
        raise ConfigError(f"{path}:{line}", hint=f"mend {path}, as UTF-8 text; nothing was done") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}",
            hint="name the file: --matrix FILE; without it ./matrix.yaml or the checkout's is read",
        ) from None
    return load(text, facts, name=str(path))


def load(text: str, facts: Facts, *, name: str = "matrix.yaml") -> Matrix:
    """*text* as a Matrix; *name* stands before the line in messages.

    :raises ConfigError: with every fault: unknown keys, wrong types, versions that the facts do not know.
    """
    try:
        file = located_yaml.parse(text, name=name)
    except ConfigError as error:
        raise ConfigError(error.message, hint=f"mend {name}; nothing was done") from None
    faults = located_yaml.faults(file, shipped("matrix"))
    if isinstance(file.data, dict):
        faults += [file.fault(path, text) for path, text in islice(_meaning_faults(file, facts), _MOST)]
    if faults:
        raise ConfigError.of(sorted(faults, key=_line), hint=f"mend {name}; nothing was done")
    return _matrix(file.data)


def _matrix(data: dict[str, Any]) -> Matrix:
    aliases = data.get("aliases", {})
    return Matrix(
        torch=tuple(sorted(data["torch"], key=numbers)),
        cuda=tuple(sorted(data["cuda"], key=numbers)),
        beyond=tuple(sorted(((one["torch"], one["cuda"]) for one in data.get("beyond", ())), key=_ordered)),
        flavors=tuple(data["flavors"]),
        os=tuple(OsChoice(name=name, python=body["python"]) for name, body in data["os"].items()),
        packages=tuple(data["packages"]),
        components=components.offers_of(data.get("components", {})),
        repository=data["repository"],
        prefer=data.get("prefer", "default-index"),
        indexes=tuple(
            NamedIndex(name=name, packages=tuple(packages))
            for name, packages in data.get("indexes", {}).items()
        ),
        aliases=Aliases(
            newest_patch=aliases.get("newest_patch"),
            newest_cuda=aliases.get("newest_cuda"),
            newest_torch=aliases.get("newest_torch"),
        ),
        bounds=tuple(
            Bound(
                torch=bound.get("torch"),
                cuda=bound.get("cuda"),
                flavor=bound.get("flavor"),
                os=bound.get("os"),
                reason=bound["reason"],
            )
            for bound in data.get("bounds", [])
        ),
        policy=policy_of(data.get("policy", {})),
    )


def _ordered(pair: Pair) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return numbers(pair[0]), numbers(pair[1])


def _meaning_faults(file: Located, facts: Facts) -> Iterator[tuple[SchemaPath, str]]:
    """What no schema can tell: names that must be known elsewhere. Skips what has a wrong shape."""
    data = file.data
    for at, torch in _versions(data, "torch"):
        if _VERSION.fullmatch(torch) and torch not in facts.releases:
            near = ", ".join(nearest(torch, facts.releases))
            yield at, f"nothing is known of torch {torch}; nearest known: {near}"
    for at, cuda in _versions(data, "cuda"):
        if _VERSION.fullmatch(cuda) and cuda not in facts.cuda:
            near = ", ".join(nearest(cuda, facts.cuda))
            yield at, f"nothing is known of CUDA {cuda}; nearest known: {near}"
    for index, requirement in _texts(data.get("packages")):
        package = re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        if package in ("torch", "torchvision", "torchaudio"):
            yield (
                ("packages", index),
                f"{package} comes by itself, in the release that fits the cell's torch",
            )
    always = [text for _, text in _texts(data.get("packages"))]
    yield from components.faults(data.get("components"), always)
    for index, bound in _mappings(data.get("bounds")):
        yield from _cell_faults(data, ("bounds", index), bound)
    policy = data.get("policy")
    if isinstance(policy, dict):
        yield from _policy_faults(data, policy, facts)


def _policy_faults(
    data: dict[str, Any], policy: dict[str, Any], facts: Facts
) -> Iterator[tuple[SchemaPath, str]]:
    known = [kind.capability for kind in facts.gpus]
    for at, demands in ((("policy",), policy), *_exceptions(policy)):
        for index, gpu in _texts(demands.get("gpus")):
            if gpu not in known:
                near = ", ".join(nearest(gpu[:20], known)) or ", ".join(known)
                yield (*at, "gpus", index), f"no GPU of capability {shown(gpu)} is known; nearest: {near}"
    for at, cell in _exceptions(policy):
        yield from _cell_faults(data, at, cell, also=("status",))


def _exceptions(policy: dict[str, Any]) -> Iterator[tuple[SchemaPath, dict[str, Any]]]:
    for index, cell in _mappings(policy.get("cells")):
        yield ("policy", "cells", index), cell


def _cell_faults(
    data: dict[str, Any], at: SchemaPath, bound: dict[str, Any], *, also: tuple[str, ...] = ()
) -> Iterator[tuple[SchemaPath, str]]:
    """Of what is to mean cells of this matrix."""
    lists = {
        "torch": [text for _, text in _versions(data, "torch")],
        "cuda": [text for _, text in _versions(data, "cuda")],
        "flavor": data.get("flavors"),
        "os": data.get("os"),
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
        yield at, f"names no cell: give at least one of {', '.join(names)}"


def _versions(data: dict[str, Any], key: str) -> list[tuple[SchemaPath, str]]:
    """Where versions stand: the list *key* and the pairs beyond."""
    beyond = ((index, pair.get(key)) for index, pair in _mappings(data.get("beyond")))
    return [((key, index), text) for index, text in _texts(data.get(key))] + [
        (("beyond", index, key), text) for index, text in beyond if isinstance(text, str)
    ]


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, dict)]


def _texts(value: Any) -> list[tuple[int, str]]:
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, str)]


def _line(fault: str) -> int:
    found = re.search(r":(\d+): ", fault)
    return int(found[1]) if found else 0
