"""compat.yaml -> Facts: what is known about builds, drivers and GPUs, each with its sources.

The file ships with the package: its schema and its truth are checked by tests, not at each run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from types import MappingProxyType
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.matrix import cuda_redist
from torchkiln.matrix.cuda_redist import Redist
from torchkiln.model.cell import Toolkit
from torchkiln.model.digest import Digest
from torchkiln.util.schema import dotted, shipped
from torchkiln.util.strict_json import text_of

_LIMIT = 1 << 20  # bytes; the file has thirty thousand
_HINT = "restore it: git checkout -- torchkiln/data/compat.yaml"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultWheel:
    """The wheel that the default index serves as plain ``torch==X``."""

    variant: str  # "cu126"
    platform: str  # "manylinux_2_28_x86_64"
    requires_python: str
    pythons: tuple[str, ...]  # CPython tags, "cp311"
    triton: str
    triton_below: str | None  # no triton from this Python on
    pins: Pairs  # (distribution, exact version): the nvidia-* and cuda-* requirements
    toolkit: tuple[str, ...]  # the parts (extras) of cuda-toolkit that it requires; none before torch 2.11
    requires: tuple[str, ...]  # the other requirements, PEP 508
    sha256: Pairs  # (CPython tag, hex)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One CUDA build of a release, wherever it is served."""

    name: str  # "cu118"
    cuda: str  # "11.8"
    archs: tuple[str, ...]
    bundled: bool  # CUDA's libraries lie inside the wheel
    cudnn: str | None
    nccl: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release of torch. *home* is the release whose block tells of it: its own, or its newest patch's."""

    version: str
    home: str
    torchvision: str
    torchaudio: str
    cudnn_major: str
    default: DefaultWheel
    variants: tuple[Variant, ...]  # by CUDA version, ascending
    index_sha256: tuple[
        tuple[str, str, str, str], ...
    ]  # (variant, CPython tag, project, hex): PyTorch's index
    torchvision_requires: tuple[
        str, ...
    ]  # beside its torch, PEP 508; told where index_sha256 has torchvision

    def variant(self, name: str) -> Variant:
        """The variant called *name*; KeyError if the release has none."""
        return {variant.name: variant for variant in self.variants}[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trap:
    """Something that breaks a naive lock. One of `constrain`, `require`, `limit` answers it."""

    id: str
    releases: tuple[str, ...]  # minors; empty: all
    variants: tuple[str, ...]  # of the chosen build; empty: all
    python_from: str | None
    constrain: str | None  # PEP 508
    require: str | None  # PEP 508
    limit: str | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drivers:
    """The drivers of one CUDA version."""

    ga: str  # came with its first release
    full: str  # came with its last update


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownToolkit:
    """A CUDA toolkit, and how it comes."""

    requires: str  # the wheels, PEP 508; torch pins their version; empty: NVIDIA's archives bring it
    toolkit: Toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The oldest driver of a CUDA major."""

    driver: str
    reports: str  # the CUDA version that this driver reports


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuClass:
    """All GPUs of one compute capability."""

    capability: str  # "9.0"
    names: tuple[str, ...]
    first_branch: int | None  # of drivers; None: older than anything here
    last_branch: int | None  # None: still supported
    aarch64: tuple[str, ...]  # those of `names` that only exist beside an ARM host

    @property
    def x86_names(self) -> tuple[str, ...]:
        """Those that a linux/amd64 image can meet."""
        return tuple(name for name in self.names if name not in self.aarch64)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceInfo:
    """Where facts come from, and how far to trust it."""

    id: str
    trust: str  # measured, official, third-party, inference, unverified
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All of compat.yaml."""

    digest: Digest  # of the file's bytes
    as_of: str  # ISO date
    releases: Mapping[str, Release] = field(hash=False)
    cu118_pins: Pairs
    traps: tuple[Trap, ...]
    limit_texts: Mapping[str, str] = field(hash=False)  # "rules.no-ptx" -> the words of a limit
    checks: Mapping[str, str] = field(hash=False)  # id -> why a smoke check does not apply
    toolkits: Mapping[str, KnownToolkit] = field(hash=False)  # by CUDA version
    redist: Redist  # cuda_redist.yaml
    host_gcc: Mapping[str, int] = field(hash=False)  # by CUDA version: the newest that its nvcc takes
    cuda: Mapping[str, Drivers] = field(hash=False)
    floors: Mapping[str, Floor] = field(hash=False)  # by CUDA major
    gpus: tuple[GpuClass, ...]  # by capability, ascending
    sources: Mapping[str, SourceInfo] = field(hash=False)
    citations: Mapping[str, tuple[str, ...]] = field(hash=False)  # fact id -> source ids

    def reasons(self) -> Mapping[str, str]:
        """The words of each fact for which a smoke check may not apply, by its id."""
        traps = {trap.id.removeprefix("traps."): trap.limit for trap in self.traps if trap.limit}
        return traps | dict(self.checks)

    def cite(self, fact: str) -> tuple[SourceInfo, ...]:
        """The sources of the fact called *fact* (as in `Note.fact`); KeyError if there is no such fact."""
        return tuple(self.sources[name] for name in self.citations[fact])


@cache
def load() -> Facts:
    """The facts that ship with torchkiln. Read once a process."""
    return parse(files("torchkiln").joinpath("data").joinpath("compat.yaml").read_bytes())


def parse(data: bytes, *, name: str = "compat.yaml") -> Facts:
    """*data*, the bytes of a facts file of schema 1, as Facts; *name* stands before messages.

    :raises ConfigError: it is none; what the schema has to say to it.
    """
    import yaml

    from torchkiln.util.located_yaml import reject_aliases

    try:
        if len(data) > _LIMIT:
            raise ValueError(f"longer than {_LIMIT} bytes")
        text = text_of(data)
        reject_aliases(text, name)
        raw = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: {error}", hint=_HINT) from error
    try:
        return _facts(data, raw)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError.of(_faults(raw, name) or [f"{name}: {error!r}"], hint=_HINT) from error


def _faults(raw: Any, name: str) -> list[str]:
    """What the schema says to *raw*. Here only, for jsonschema takes 0.3 s to import."""
    import jsonschema

    found = jsonschema.Draft202012Validator(shipped("compat")).iter_errors(raw)
    return [
        f"{name}: {dotted(tuple(error.absolute_path))}: {error.message[:200]}" for error in islice(found, 20)
    ]


def _facts(data: bytes, raw: dict[str, Any]) -> Facts:
    releases = {release.version: release for release in _releases(raw["releases"])}
    return Facts(
        digest=Digest("sha256:" + hashlib.sha256(data).hexdigest()),
        as_of=raw["as_of"],
        releases=MappingProxyType(releases),
        cu118_pins=_pairs(raw["cu118_pins"]),
        traps=tuple(_trap(name, body) for name, body in raw["traps"].items()),
        limit_texts=_limit_texts(raw),
        checks=_limits(raw["checks"]),
        toolkits=MappingProxyType({cuda: _toolkit(cuda, body) for cuda, body in raw["toolkits"].items()}),
        host_gcc=MappingProxyType({cuda: body["newest"] for cuda, body in raw["host_gcc"].items()}),
        redist=cuda_redist.load(),
        cuda=MappingProxyType({name: Drivers(**body) for name, body in raw["cuda"].items()}),
        floors=MappingProxyType(
            {
                name: Floor(driver=body["driver"], reports=body["reports"])
                for name, body in raw["floors"].items()
            }
        ),
        gpus=tuple(_gpu_class(capability, body) for capability, body in raw["gpus"].items()),
        sources=MappingProxyType(
            {
                name: SourceInfo(id=name, trust=body["trust"], what=body["what"])
                for name, body in raw["sources"].items()
            }
        ),
        citations=MappingProxyType(_citations(raw, releases)),
    )


def cuda_of(variant: str) -> str:
    """`"cu126"` as `"12.6"`: the last digit is the minor."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def _limits(raw: Mapping[str, Any]) -> Mapping[str, str]:
    return MappingProxyType({name: body["limit"] for name, body in raw.items()})


def _limit_texts(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """The words of every limit that a cell can have. `{}` in them stands for the limit's values."""
    return MappingProxyType(
        {
            f"{table}.{name}": body["limit"]
            for table in ("traps", "rules")
            for name, body in raw[table].items()
            if "limit" in body
        }
    )


def _releases(raw: Mapping[str, Any]) -> list[Release]:
    found = []
    for version, body in raw.items():
        newest = _release(version, body)
        found.append(newest)
        found += [_earlier(newest, patch, differs) for patch, differs in body.get("earlier", {}).items()]
    return found


def _release(version: str, body: Mapping[str, Any]) -> Release:
    default = body["default"]
    pins = default["pins"]
    wheel = DefaultWheel(
        variant=default["variant"],
        platform=default["platform"],
        requires_python=default["requires_python"],
        pythons=tuple(default["pythons"]),
        triton=default["triton"],
        triton_below=default.get("triton_below"),
        pins=_pairs(pins),
        toolkit=tuple(default.get("toolkit", ())),
        requires=tuple(default["requires"]),
        sha256=_pairs(default["sha256"]),
    )
    variants = []
    for name, told in body["variants"].items():
        # The default wheel's own pins tell its cuDNN and NCCL; the names' ending changes with the CUDA major.
        known = {key.split("-")[1]: value for key, value in pins.items()} if name == wheel.variant else told
        variants.append(
            Variant(
                name=name,
                cuda=cuda_of(name),
                archs=tuple(told["archs"]),
                bundled=told.get("bundled", False),
                cudnn=known.get("cudnn"),
                nccl=known.get("nccl"),
            )
        )
    return Release(
        version=version,
        home=version,
        **body["companions"],
        cudnn_major=str(body["cudnn_major"]),
        default=wheel,
        variants=tuple(variants),
        index_sha256=tuple(_of_index(body)),
        torchvision_requires=tuple(body.get("torchvision_requires", ())),
    )


def _of_index(body: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for variant, by_tag in body["index_sha256"].items():
        for tag, sha256 in by_tag.items():
            yield variant, tag, "torch", sha256
    for variant, by_tag in body.get("index_companions", {}).items():
        for tag, companions in by_tag.items():
            yield from ((variant, tag, project, sha256) for project, sha256 in companions.items())


def _earlier(newest: Release, version: str, differs: Mapping[str, Any]) -> Release:
    """An older patch of *newest*'s minor: the same but for what *differs*, and no hash is inherited."""
    wheel = newest.default
    return replace(
        newest,
        version=version,
        **differs["companions"],
        default=replace(
            wheel,
            triton=differs.get("triton", wheel.triton),
            triton_below=differs.get("triton_below", wheel.triton_below),
            sha256=_pairs(differs["sha256"]),
        ),
        index_sha256=(),
        torchvision_requires=(),
    )


def _trap(name: str, body: Mapping[str, Any]) -> Trap:
    when = body["when"]
    return Trap(
        id=f"traps.{name}",
        releases=tuple(when.get("releases", ())),
        variants=tuple(when.get("variants", ())),
        python_from=when.get("python_from"),
        constrain=body.get("constrain"),
        require=body.get("require"),
        limit=body.get("limit"),
        why=body.get("why", ""),
    )


def _toolkit(cuda: str, body: Mapping[str, Any]) -> KnownToolkit:
    toolkit = Toolkit(
        cuda=cuda,
        libraries=tuple(body["libraries"]),
        folder=body.get("folder", ""),
        programs=tuple(body.get("programs", ())),
        release=body.get("release", ""),
    )
    return KnownToolkit(requires=body.get("requires", ""), toolkit=toolkit)


def _gpu_class(capability: str, body: Mapping[str, Any]) -> GpuClass:
    return GpuClass(
        capability=capability,
        names=tuple(body["names"]),
        first_branch=body.get("from"),
        last_branch=body.get("to"),
        aarch64=tuple(body.get("aarch64", ())),
    )


def _pairs(mapping: Mapping[str, str]) -> Pairs:
    return tuple(mapping.items())


def _citations(raw: Mapping[str, Any], releases: Mapping[str, Release]) -> dict[str, tuple[str, ...]]:
    """Every fact id that a note may bear, with its source ids."""
    general = {name: tuple(ids) for name, ids in raw["provenance"].items()}
    of_index = ("index_sha256", "index_companions")
    cited: dict[str, tuple[str, ...]] = {"cuda": ("cudarn",), **{name: general[name] for name in of_index}}
    for table in ("traps", "rules", "checks", "toolkits", "host_gcc", "floors", "gpus"):
        cited |= {f"{table}.{name}": tuple(body["source"]) for name, body in raw[table].items()}
    for version, release in releases.items():
        at = f"releases.{version}"
        extra = () if release.home == version else general["earlier"]
        cited[f"{at}.default"] = tuple(dict.fromkeys(general["default"] + extra))
        cited[f"{at}.companions"] = general["companions"]
        cited[f"{at}.cudnn_major"] = general["cudnn_major"]
        for name, told in raw["releases"][release.home]["variants"].items():
            assumed = () if release.home == version else ("memory",)
            cited[f"{at}.variants.{name}"] = general["variants"] + assumed
            cited[f"{at}.archs.{name}"] = (told["source"], *assumed)
    return cited
