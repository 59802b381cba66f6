"""Reads compat.yaml: facts about builds, drivers and GPUs, each with its sources.

Tests check the file's schema and contents. A run checks the schema only if parsing fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.matrix import cuda_redist
from torchkiln.matrix.cuda_redist import Redist
from torchkiln.model.cell import Toolkit
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.util.places import how_to_restore
from torchkiln.util.schema import dotted, shipped
from torchkiln.util.strict_json import read_file, text_of

_LIMIT = 1 << 20  # bytes; the file has 50,000
_HINT = how_to_restore("torchkiln/data/compat.yaml")
_OWN = files("torchkiln").joinpath("data/compat.yaml")
EXTENSION = "facts.yaml"

Pairs = tuple[tuple[str, str], ...]
IndexHash = tuple[str, str, str, str]  # of PyTorch's index: variant, CPython tag, project, hex sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultWheel:
    """The wheel that the default index serves as ``torch==X``."""

    variant: str  # "cu126"
    platform: str  # "manylinux_2_28_x86_64"
    requires_python: str
    pythons: tuple[str, ...]  # CPython tags, "cp311"
    triton: str  # "3.7.1", or a specifier, "~=3.9.0"
    triton_below: str | None = None  # the first Python for which it requires no triton
    pins: Pairs  # (distribution, exact version): the nvidia-* and cuda-* requirements
    toolkit: tuple[str, ...] = ()  # the extras of cuda-toolkit that it requires; empty before torch 2.11
    requires: tuple[str, ...]  # the other requirements, PEP 508
    sha256: Pairs  # (CPython tag, hex)

    @property
    def triton_specifier(self) -> str:
        """The specifier of triton: `"==3.7.1"`, or a range."""
        return f"=={self.triton}" if self.triton[0].isdigit() else self.triton


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One CUDA build of a release, on any index."""

    name: str  # "cu118"
    cuda: str  # "11.8"
    archs: tuple[str, ...]
    aarch64: tuple[str, ...]  # those of the wheel for linux/arm64; empty: none, or not known
    bundled: bool  # CUDA's libraries are inside the wheel
    cudnn: str | None
    nccl: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release of torch. `home`: the newest patch of its minor version, whose block describes it, too."""

    version: str
    home: str
    torchvision: str
    torchaudio: str  # "": no torchaudio can be imported with this torch
    cudnn_major: str
    default: DefaultWheel
    variants: tuple[Variant, ...]  # by CUDA version, ascending
    index_sha256: tuple[IndexHash, ...]
    torchvision_requires: tuple[str, ...]  # PEP 508, without torch; () unless index_sha256 has torchvision

    def variant(self, name: str) -> Variant:
        """The variant called *name*; raises KeyError if there is none."""
        return {variant.name: variant for variant in self.variants}[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trap:
    """A problem of some builds, handled by one of `constrain`, `require` and `limit`."""

    id: str
    releases: tuple[str, ...] = ()  # minor versions, "2.7"; empty: all
    variants: tuple[str, ...] = ()  # of the chosen build; empty: all
    python_from: str | None = None
    constrain: str | None = None  # PEP 508
    require: str | None = None  # PEP 508
    limit: str | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drivers:
    ga: str  # released with its first version
    full: str  # released with its last update


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownToolkit:
    """A CUDA toolkit and its source."""

    requires: str  # PEP 508: its wheels; torch pins their version; empty: it comes from NVIDIA's archives
    toolkit: Toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimumDriver:
    """The oldest driver of a CUDA major."""

    driver: str
    reports: str  # the CUDA version that this driver reports


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuClass:
    """All GPUs of one compute capability."""

    capability: str  # "9.0"
    names: tuple[str, ...]
    first_branch: int | None  # of drivers that support it; None: older than all in the facts
    last_branch: int | None  # None: still supported
    aarch64: tuple[str, ...]  # names of GPUs that exist only with an ARM host
    tegra: tuple[str, ...]  # those of them on which no image runs

    def names_on(self, platform: str = DEFAULT_PLATFORM) -> tuple[str, ...]:
        """The names of the GPUs on which an image for *platform* can run."""
        without = self.aarch64 if platform == DEFAULT_PLATFORM else self.tegra
        return tuple(name for name in self.names if name not in without)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceInfo:
    """A source of facts, and how far it can be trusted."""

    id: str
    trust: str  # measured, official, third-party, inference, unverified
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    as_of: str  # ISO date
    releases: Mapping[str, Release] = field(hash=False)
    cu118_pins: Pairs
    traps: tuple[Trap, ...]
    limit_texts: Mapping[str, str] = field(hash=False)  # "rules.no-ptx" -> the sentence of a limit
    checks: Mapping[str, str] = field(hash=False)  # id -> why a smoke check does not apply
    toolkits: Mapping[str, KnownToolkit] = field(hash=False)  # by CUDA version
    redist: Redist  # cuda_redist.yaml
    host_gcc: Mapping[str, int] = field(hash=False)  # by CUDA version: the newest gcc that its nvcc accepts
    cuda: Mapping[str, Drivers] = field(hash=False)
    floors: Mapping[str, MinimumDriver] = field(hash=False)  # by CUDA major
    gpus: tuple[GpuClass, ...]  # by capability, ascending
    sources: Mapping[str, SourceInfo] = field(hash=False)
    citations: Mapping[str, tuple[str, ...]] = field(hash=False)  # fact id -> source ids

    def reasons(self) -> Mapping[str, str]:
        """The reasons why a smoke check does not apply, by the id of their fact."""
        traps = {trap.id.removeprefix("traps."): trap.limit for trap in self.traps if trap.limit}
        return traps | dict(self.checks)


def load(matrix: Path | None = None) -> Facts:
    """torchkiln's own facts, with the releases and versions of CUDA in `facts.yaml` beside *matrix*, if any.

    :raises ConfigError: facts.yaml cannot be read, or is invalid.
    """
    if matrix is None:
        return own()
    path = matrix.parent / EXTENSION
    try:
        return extended(read_file(path, _LIMIT), name=str(path))
    except (FileNotFoundError, NotADirectoryError):
        return own()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", hint="correct or delete it") from error


@cache
def own() -> Facts:
    """torchkiln's own facts, read once per process."""
    return parse(_OWN.read_bytes())


@cache
def extended(data: bytes, *, name: str = EXTENSION) -> Facts:
    """torchkiln's own facts with the `releases` and `cuda` of *data* that these lack.

    :raises ConfigError: *data* is invalid; lists the violations of the schema.
    :raises ValueError: *data* is not UTF-8.
    """
    from torchkiln.util import located_yaml

    hint = f"correct {name}; `torchkiln matrix add torch VERSION` prints valid facts"
    more = located_yaml.parse(text_of(data), name=name).data
    if not isinstance(more, dict) or not more.keys() <= {"releases", "cuda"}:
        raise ConfigError(f"{name}: only `releases` and `cuda` can be added", hint=hint)
    raw = _yaml(_OWN.read_bytes(), "compat.yaml")
    if faults := _faults({**raw, **more}, name):
        raise ConfigError.of(faults, hint=hint)
    return _facts({**raw, **{key: {**raw[key], **entries, **raw[key]} for key, entries in more.items()}})


def parse(data: bytes, *, name: str = "compat.yaml") -> Facts:
    """Parse *data*, the bytes of a facts file; messages begin with *name*.

    :raises ConfigError: *data* is invalid; lists the violations of its schema.
    """
    raw = _yaml(data, name)
    try:
        return _facts(raw)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError.of(_faults(raw, name) or [f"{name}: {error!r}"], hint=_HINT) from error


def _yaml(data: bytes, name: str) -> Any:
    import yaml

    from torchkiln.util.located_yaml import reject_aliases

    try:
        if len(data) > _LIMIT:
            raise ValueError(f"longer than {_LIMIT} bytes")
        text = text_of(data)
        reject_aliases(text, name)
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: {error}", hint=_HINT) from error


def _faults(raw: Any, name: str) -> list[str]:
    """The violations of the schema in *raw*. jsonschema is imported here, because that takes 0.3 s."""
    import jsonschema

    found = jsonschema.Draft202012Validator(shipped("compat")).iter_errors(raw)
    return [
        f"{name}: {dotted(tuple(error.absolute_path))}: {error.message[:200]}" for error in islice(found, 20)
    ]


def _facts(raw: dict[str, Any]) -> Facts:
    releases = {release.version: release for release in _releases(raw["releases"])}
    limits = {f"{table}.{name}": body for table in ("traps", "rules") for name, body in raw[table].items()}
    frozen = MappingProxyType
    return Facts(
        as_of=raw["as_of"],
        releases=frozen(releases),
        cu118_pins=tuple(raw["cu118_pins"].items()),
        traps=tuple(_trap(name, body) for name, body in raw["traps"].items()),
        limit_texts=frozen({name: body["limit"] for name, body in limits.items() if "limit" in body}),
        checks=frozen({name: body["limit"] for name, body in raw["checks"].items()}),
        toolkits=frozen({cuda: _toolkit(cuda, body) for cuda, body in raw["toolkits"].items()}),
        host_gcc=frozen({cuda: body["newest"] for cuda, body in raw["host_gcc"].items()}),
        redist=cuda_redist.load(),
        cuda=frozen({name: Drivers(**_without_source(body)) for name, body in raw["cuda"].items()}),
        floors=frozen({name: MinimumDriver(**_without_source(body)) for name, body in raw["floors"].items()}),
        gpus=tuple(_gpu_class(capability, body) for capability, body in raw["gpus"].items()),
        sources=frozen({name: SourceInfo(id=name, **body) for name, body in raw["sources"].items()}),
        citations=frozen(_citations(raw, releases)),
    )


def cuda_of(variant: str) -> str:
    """`"cu126"` as `"12.6"`: the last digit is the minor."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def _releases(raw: Mapping[str, Any]) -> list[Release]:
    found = []
    for version, body in raw.items():
        newest = _release(version, body)
        found.append(newest)
        found += [_earlier(newest, patch, differs) for patch, differs in body.get("earlier", {}).items()]
    return found


def _release(version: str, body: Mapping[str, Any]) -> Release:
    pins = body["default"]["pins"]
    values = {key: value for key, value in body["default"].items() if key != "bytes_cp310"}
    values |= {"pins": tuple(pins.items()), "sha256": tuple(values["sha256"].items())}
    wheel = DefaultWheel(**_frozen(values))
    variants = []
    for name, variant in body["variants"].items():
        # The default wheel pins cuDNN and NCCL itself, under names whose suffix depends on the CUDA major.
        pinned = {key.split("-")[1]: value for key, value in pins.items()}
        known = pinned if name == wheel.variant else variant
        variants.append(
            Variant(
                name=name,
                cuda=cuda_of(name),
                archs=tuple(variant["archs"]),
                aarch64=tuple(variant.get("aarch64", ())),
                bundled=variant.get("bundled", False),
                cudnn=known.get("cudnn"),
                nccl=known.get("nccl"),
            )
        )
    return Release(
        version=version,
        home=version,
        torchvision=body["companions"]["torchvision"],
        torchaudio=body["companions"].get("torchaudio", ""),
        cudnn_major=str(body["cudnn_major"]),
        default=wheel,
        variants=tuple(variants),
        index_sha256=tuple(_index_hashes(body)),
        torchvision_requires=tuple(body.get("torchvision_requires", ())),
    )


def _index_hashes(body: Mapping[str, Any]) -> Iterator[IndexHash]:
    for variant, by_tag in body["index_sha256"].items():
        for tag, sha256 in by_tag.items():
            yield variant, tag, "torch", sha256
    for variant, by_tag in body.get("index_companions", {}).items():
        for tag, companions in by_tag.items():
            yield from ((variant, tag, project, sha256) for project, sha256 in companions.items())


def _earlier(newest: Release, version: str, differs: Mapping[str, Any]) -> Release:
    """An older patch of the minor version of *newest*: equal except for *differs*, and without hashes."""
    wheel = newest.default
    return replace(
        newest,
        version=version,
        torchvision=differs["companions"]["torchvision"],
        torchaudio=differs["companions"].get("torchaudio", ""),
        default=replace(
            wheel,
            triton=differs.get("triton", wheel.triton),
            triton_below=differs.get("triton_below", wheel.triton_below),
            sha256=tuple(differs["sha256"].items()),
        ),
        index_sha256=(),
        torchvision_requires=(),
    )


def _trap(name: str, body: Mapping[str, Any]) -> Trap:
    values = _without_source(body)
    return Trap(id=f"traps.{name}", **values.pop("when"), **values)


def _toolkit(cuda: str, body: Mapping[str, Any]) -> KnownToolkit:
    values = {"requires": "", **_without_source(body)}
    return KnownToolkit(requires=values.pop("requires"), toolkit=Toolkit(cuda=cuda, **values))


def _without_source(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a data class in *body*, with tuples for lists."""
    return {key: _frozen(value) for key, value in body.items() if key != "source"}


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return {key: _frozen(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _gpu_class(capability: str, body: Mapping[str, Any]) -> GpuClass:
    return GpuClass(
        capability=capability,
        names=tuple(body["names"]),
        first_branch=body.get("from"),
        last_branch=body.get("to"),
        aarch64=tuple(body.get("aarch64", ())),
        tegra=tuple(body.get("tegra", ())),
    )


def _citations(raw: Mapping[str, Any], releases: Mapping[str, Release]) -> dict[str, tuple[str, ...]]:
    """The source ids of each fact, by the fact's id."""
    general = {name: tuple(ids) for name, ids in raw["provenance"].items()}
    cited: dict[str, tuple[str, ...]] = {"cuda": ("cudarn",)}
    cited |= {name: general[name] for name in ("index_sha256", "index_companions")}
    cited |= {f"cuda.{name}": tuple(body["source"]) for name, body in raw["cuda"].items() if "source" in body}
    for table in ("traps", "rules", "checks", "toolkits", "host_gcc", "floors", "gpus"):
        cited |= {f"{table}.{name}": tuple(body["source"]) for name, body in raw[table].items()}
    for version, release in releases.items():
        at = f"releases.{version}"
        extra = () if release.home == version else general["earlier"]
        cited[f"{at}.default"] = tuple(dict.fromkeys(general["default"] + extra))
        cited[f"{at}.companions"] = general["companions"]
        cited[f"{at}.cudnn_major"] = general["cudnn_major"]
        for name, variant in raw["releases"][release.home]["variants"].items():
            assumed = () if release.home == version else ("memory",)
            cited[f"{at}.variants.{name}"] = general["variants"] + assumed
            cited[f"{at}.archs.{name}"] = (variant["source"], *assumed)
    return cited
