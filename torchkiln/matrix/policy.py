"""`policy` in matrix.yaml, Resolution -> Policy: what the gate demands of the reports on one cell's image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchkiln.model.cell import Resolution
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.roles import ROLES, Role

_DEMANDS = ("tiers", "checks", "gpus", "signed", "report_age")  # what an exception may change


@dataclass(frozen=True, kw_only=True, slots=True)
class Exceptional:
    """Cells of which something else is demanded. None fits every value."""

    torch: str | None = None
    cuda: str | None = None
    flavor: str | None = None
    os: str | None = None
    status: str | None = None  # "native", "minor-compat"
    demands: tuple[tuple[str, Any], ...]  # fields of Policy with their other values

    def covers(self, resolution: Resolution) -> bool:
        """Whether the cell is one of them."""
        cell = resolution.cell
        pairs = (
            (self.torch, cell.torch),
            (self.cuda, cell.cuda),
            (self.flavor, cell.flavor),
            (self.os, cell.os),
            (self.status, resolution.status.value),
        )
        return all(wanted is None or wanted == value for wanted, value in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedKey:
    """A public key that the policy names."""

    file: str  # PEM, beside matrix.yaml
    until: str | None = None  # the last day, in UTC, on which its signatures count, "2027-03-31"
    roles: tuple[Role, ...] = ROLES  # in which its signatures count


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What must have been seen before an image may be published."""

    tiers: tuple[int, ...] = (0, 1)  # every check of these that applies
    checks: tuple[str, ...] = ("nccl-all-reduce",)  # and these
    gpus: tuple[str, ...] = ()  # capabilities, "9.0": the GPUs' checks on each of them; none: on any
    signed: bool = False  # each report by a trusted key, also of this machine's own runs
    report_age: int = 0  # days after a run for which its report proves something; 0: for ever
    suites: tuple[Digest, ...] = ()  # whose reports count beside those by the suite that is here
    keys: tuple[TrustedKey, ...] = ()  # whose signatures count
    cells: tuple[Exceptional, ...] = ()
    strangers: bool = False  # reports that nobody signed whom we trust: for who only wants to look
    age: int = 30  # days for which `smoke` takes a run that passed for one that would be the same

    def of(self, resolution: Resolution) -> Policy:
        """As it is for one cell: of the exceptions that cover it the last one decides, key by key."""
        found = self
        for one in self.cells:
            if one.covers(resolution):
                found = replace(found, **dict(one.demands))
        return replace(found, cells=())


def policy_of(data: Mapping[str, Any]) -> Policy:
    """The mapping in matrix.yaml, which fits matrix.schema.json."""
    default = Policy()
    return Policy(
        **dict(_demands(data)),
        suites=tuple(parse_digest(text) for text in data.get("suites", ())),
        keys=tuple(
            TrustedKey(file=one) if isinstance(one, str) else _key(one) for one in data.get("keys", ())
        ),
        cells=tuple(_exceptional(cell) for cell in data.get("cells", ())),
        age=data.get("age", default.age),
    )


def _key(data: Mapping[str, Any]) -> TrustedKey:
    roles = (data["role"],) if "role" in data else ROLES
    return TrustedKey(file=data["file"], until=data.get("until"), roles=roles)


def _exceptional(data: Mapping[str, Any]) -> Exceptional:
    cells = {name: data.get(name) for name in ("torch", "cuda", "flavor", "os", "status")}
    return Exceptional(**cells, demands=_demands(data))


def _demands(data: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    found = {name: data[name] for name in _DEMANDS if name in data}
    if "tiers" in found:
        found["tiers"] = sorted(found["tiers"])
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in found.items())
