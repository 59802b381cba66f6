"""Reads `policy` of matrix.yaml: the reports that the gate requires for the image of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.report import ROLES, Role

_REQUIREMENTS = ("tiers", "checks", "gpus", "signed", "report_age", "carry")  # an exception may change them
_CARRY = 180  # days, for `carry: true`


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPattern:
    """Cells by their values; None matches every value."""

    torch: str | None = None
    cuda: str | None = None
    flavor: str | None = None
    os: str | None = None

    def covers(self, cell: Cell) -> bool:
        names = ("torch", "cuda", "flavor", "os")
        return all(getattr(self, name) in (None, getattr(cell, name)) for name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyException(CellPattern):
    """Cells with other requirements."""

    status: str | None = None  # "native", "minor-compat"
    changes: tuple[tuple[str, Any], ...]  # fields of Policy and their values for these cells

    def applies_to(self, resolution: Resolution) -> bool:
        """Whether this exception applies to the cell of *resolution*."""
        return self.covers(resolution.cell) and self.status in (None, resolution.status.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedKey:
    file: str  # PEM, relative to matrix.yaml
    until: str | None  # the last day, in UTC, on which it is trusted, "2027-03-31"
    roles: tuple[Role, ...]  # in which it is trusted


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The reports that are required before an image may be published."""

    tiers: tuple[int, ...] = (0, 1)  # all applicable checks of these tiers are required
    checks: tuple[str, ...] = ("nccl-all-reduce",)  # required in addition
    gpus: tuple[str, ...] = ()  # capabilities, "9.0", each of which must pass the GPU checks; empty: any
    signed: bool = False  # each report needs a trusted signature, even of this machine's own runs
    report_age: int = 0  # days for which a report is valid after its run; 0: no limit
    carry: int = _CARRY  # days for which GPU runs count for other images with the same GPU stack; 0: never
    suites: tuple[Digest, ...] = ()  # other suites whose reports are accepted, besides the present one
    keys: tuple[TrustedKey, ...] = ()
    cells: tuple[PolicyException, ...] = ()
    accept_unsigned: bool = False  # accept reports without a trusted signature, for inspection only
    age: int = 30  # days for which `smoke` reuses a passed run that would be repeated unchanged

    def of(self, resolution: Resolution) -> Policy:
        """The policy for one cell; if several exceptions apply, the last one decides, key by key."""
        found = self
        for exception in self.cells:
            if exception.applies_to(resolution):
                found = replace(found, **dict(exception.changes))
        return replace(found, cells=())


def policy_of(data: Mapping[str, Any]) -> Policy:
    """The policy in *data*, which matches matrix.schema.json."""
    return Policy(
        **dict(_requirements(data)),
        suites=tuple(parse_digest(text) for text in data.get("suites", ())),
        keys=tuple(map(_key, data.get("keys", ()))),
        cells=tuple(map(_exception, data.get("cells", ()))),
        age=data.get("age", 30),
    )


def _key(data: str | Mapping[str, Any]) -> TrustedKey:
    if isinstance(data, str):
        data = dict(zip(("role", "file"), data.split("=", 1), strict=True))
    return TrustedKey(file=data["file"], until=data.get("until"), roles=ROLES[data["role"]])


def _exception(data: Mapping[str, Any]) -> PolicyException:
    cells = {name: data.get(name) for name in ("torch", "cuda", "flavor", "os", "status")}
    return PolicyException(**cells, changes=_requirements(data))


def _requirements(data: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    found = {name: data[name] for name in _REQUIREMENTS if name in data}
    if "tiers" in found:
        found["tiers"] = sorted(found["tiers"])
    if isinstance(found.get("carry"), bool):
        found["carry"] = _CARRY if found["carry"] else 0
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in found.items())
