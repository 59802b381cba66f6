"""Picks the cells that run on a host with a given driver and GPUs, and says why other cells do not.

The cells are resolved first, then each is checked against the host. For which GPUs an image keeps device code
is read from `--gpus`, matrix.yaml and tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix.facts import Facts, GpuClass
from torchkiln.matrix.gpu_archs import how_served, is_kept_for
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.device_code import Gpus
from torchkiln.model.platform import LINUX_AMD64, PLATFORMS, Platform
from torchkiln.util.versions import major_of, nearest, numbers

# The obstacles and conditions, and how they name a GPU; the pages of `ls --site` use them, too.
SENTENCES = {
    "jetson": "{gpu} is not supported: Jetsons are aarch64; the images are for {machine}",
    "aarch64": "{gpu} needs an aarch64 host; the images are for {machine}",
    "too-early": "driver {driver} does not support {gpu}; the first branch that does is {branch}",
    "too-late": "driver {driver} does not support {gpu} any more; the last branch that does is {branch}",
    "below-minimum": "driver {driver} is older than {minimum}, the minimum for CUDA {cuda}",
    "part-of-branch": "needs driver {minimum} or newer of branch {driver}",
    "compatibility": "in CUDA's compatibility mode, because the driver is older than {full}",
    "not-kept": "its device code is for {kept} only, not for {gpu}",
    "no-code": "{build} has no code for {gpu}, only for {archs}",
    "ptx-driver": "{build} has only PTX for {gpu}, which needs driver {full} or newer",
    "ptx": "{gpu} runs from PTX: the driver compiles it at first use",
    "kept": "has device code for {kept} only",
    "gpu": "{gpu} (capability {capability})",
    "gpu-of-capability": "capability {capability}",
    "other-index": "needs PyTorch's own index (TORCHKILN_INDEX_PYTORCH)",
}

_TEGRA = {  # not on the pages, which have only images for x86-64
    "tegra": "{gpu} is not supported: CUDA for {machine} is built for ARM servers (sbsa), not for Tegra"
}
_UNKNOWN = GpuClass(capability="", names=(), first_branch=None, last_branch=None, aarch64=(), tegra=())
_BRAND = {"nvidia", "geforce", "tesla", "grid", "sff"}  # optional words in the names of GPUs
_SERIES = {"rtx", "gtx", "quadro"}  # optional: "3090", "A6000"
_WHOLE = {"rtx", "titan"}  # not optional before these: "RTX 6000" is not "Quadro RTX 6000"
_CODE = re.compile(r"(?:sm|compute)[ _-]?(\d+)(\d)[af]?")  # of a capability
_JETSON = {"jetson", "orin", "xavier", "thor", "tegra"}  # words in the names of NVIDIA's ARM modules


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverVersion:
    """A driver version, "535.104.05", or a branch of versions, "535"."""

    version: str

    @property
    def branch(self) -> int:
        return int(major_of(self.version))

    def reaches(self, version: str) -> Literal["yes", "no", "from"]:
        """Whether the driver is *version* or newer; "from": only later drivers of this branch are."""
        if "." in self.version:
            return "yes" if numbers(self.version) >= numbers(version) else "no"
        other = int(major_of(version))
        return "from" if self.branch == other else "yes" if self.branch > other else "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU of the host, and its class."""

    name: str  # "H100", or the capability if no name was given
    kind: GpuClass
    jetson: bool = False  # an ARM module with a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One cell checked against the host."""

    resolution: Resolution
    obstacles: tuple[str, ...]  # why it does not run; empty: it runs
    conditions: tuple[str, ...]  # under which it runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    runs: tuple[Candidate, ...]  # best first
    fails: tuple[Candidate, ...]
    host: tuple[str, ...]  # why no cell runs on this host, such as a GPU that its driver does not support


def parse_driver(text: str) -> DriverVersion:
    """*text*, a version as nvidia-smi prints it, or a branch ("535", "R535").

    :raises ConfigError: it is neither.
    """
    bare = text.strip().removeprefix("R").removeprefix("r")
    if not re.fullmatch(r"\d{3}(\.\d+){0,2}", bare):
        raise ConfigError(
            f"--driver {text}: not a driver version", hint="write 535.104.05, or only the branch: 535"
        )
    return DriverVersion(version=bare)


def parse_gpus(texts: Iterable[str], facts: Facts, *, option: str = "--gpu") -> tuple[Gpu, ...]:
    """*texts*, each a GPU's name ("NVIDIA GeForce RTX 3090", "3090"), or a capability ("9.0", "compute_90").

    :param option: the option with these values, for the error.
    :raises ConfigError: lists all unknown names, each with the nearest known ones.
    """
    found, faults = [], []
    for text in texts:
        gpu = _by_capability(text, facts) or _by_name(text, facts) or _jetson(text)
        if gpu:
            found.append(gpu)
        else:
            near = nearest(text, [name for kind in facts.gpus for name in kind.names])
            faults.append(f"{option} {text}: unknown GPU" + (f"; nearest: {', '.join(near)}" if near else ""))
    if faults:
        raise ConfigError.of(faults, hint=f"name a known GPU, or its compute capability: {option} 9.0")
    return tuple(found)


def pick(resolutions: Iterable[Resolution], driver: DriverVersion, gpus: Sequence[Gpu]) -> Picked:
    """Check each of *resolutions* against a host with *driver* and all of *gpus*.

    Best first: the newest torch; then builds of the default index; then those that need no compatibility
    mode; then the newest CUDA; then runtime; then images for all GPUs.
    """
    found = tuple(resolutions)
    platforms = tuple(PLATFORMS[name] for name in sorted({each.cell.platform for each in found}))
    host = tuple(fault for gpu in gpus for fault in _host_faults(driver, gpu, platforms))
    candidates = [_candidate(resolution, driver, gpus, elsewhere=not host) for resolution in found]
    runs = [] if host else [candidate for candidate in candidates if not candidate.obstacles]
    fails = [candidate for candidate in candidates if candidate.obstacles or host]
    runs.sort(key=lambda candidate: _rank(candidate.resolution, driver), reverse=True)
    fails.sort(key=lambda candidate: numbers(candidate.resolution.cell.torch), reverse=True)
    return Picked(runs=tuple(runs), fails=tuple(fails), host=host)


def _rank(
    resolution: Resolution, driver: DriverVersion
) -> tuple[tuple[int, ...], bool, bool, tuple[int, ...], bool, bool]:
    cell = resolution.cell
    on_default_index = resolution.build is not None and resolution.build.source is Source.DEFAULT
    full = resolution.full_driver is not None and driver.reaches(resolution.full_driver) != "no"
    runtime = cell.flavor == "runtime"
    return (numbers(cell.torch), on_default_index, full, numbers(cell.cuda), runtime, not cell.gpus)


def _host_faults(driver: DriverVersion, gpu: Gpu, platforms: Sequence[Platform]) -> Iterable[str]:
    first, last = gpu.kind.first_branch, gpu.kind.last_branch
    refusals = [(refused(gpu, platform), platform.machine) for platform in platforms]
    if refusals and all(refusal for refusal, _ in refusals):
        refusal, machine = refusals[-1]
        yield _say(refusal, gpu=gpu.name, machine=machine)
    if first and driver.branch < first:
        yield _say("too-early", driver=driver.version, gpu=_called(gpu), branch=first)
    if last and driver.branch > last:
        yield _say("too-late", driver=driver.version, gpu=_called(gpu), branch=last)


def refused(gpu: Gpu, platform: Platform = LINUX_AMD64) -> Literal["jetson", "tegra", "aarch64", ""]:
    """Why no image for *platform* runs on a host with *gpu*, as a key of the sentences; "": some may."""
    if platform != LINUX_AMD64:
        return "tegra" if gpu.jetson and gpu.name not in gpu.kind.names_on(platform.name) else ""
    of_arm = gpu.name in (*gpu.kind.aarch64, gpu.kind.capability if not gpu.kind.names_on() else "")
    return "jetson" if gpu.jetson else "aarch64" if of_arm and gpu.kind.names else ""


def _say(sentence: str, **values: object) -> str:
    return (SENTENCES | _TEGRA)[sentence].format(**values)


def _candidate(
    resolution: Resolution, driver: DriverVersion, gpus: Sequence[Gpu], *, elsewhere: bool
) -> Candidate:
    """*resolution* on the host; *elsewhere*: images for another platform may run on it."""
    build, minimum, full = resolution.build, resolution.min_driver, resolution.full_driver
    if build is None or minimum is None or full is None:
        return Candidate(resolution=resolution, obstacles=(resolution.why_unavailable,), conditions=())
    obstacles: list[str] = []
    conditions: list[str] = []
    version, kept = driver.version, ", ".join(resolution.cell.gpus)
    at_min, at_full = driver.reaches(minimum), driver.reaches(full)
    if at_min == "no":
        obstacles.append(_say("below-minimum", driver=version, minimum=minimum, cuda=major_of(build.cuda)))
    elif at_min == "from":
        conditions.append(_say("part-of-branch", minimum=minimum, driver=version))
    if at_min != "no" and at_full == "no":
        conditions.append(_say("compatibility", full=full))
    platform = PLATFORMS[resolution.cell.platform]
    for gpu in gpus:
        if refusal := refused(gpu, platform):
            obstacles += [_say(refusal, gpu=gpu.name, machine=platform.machine)] if elsewhere else []
            continue
        how, name = how_served(build.archs, gpu.kind.capability), _called(gpu)
        if not is_kept_for(gpu.kind.capability, resolution.cell.gpus):
            obstacles.append(_say("not-kept", kept=kept, gpu=name))
        elif how is None:
            obstacles.append(_say("no-code", build=build.version, gpu=name, archs=" ".join(build.archs)))
        elif how == "ptx" and at_full == "no":
            obstacles.append(_say("ptx-driver", build=build.version, gpu=name, full=full))
        elif how == "ptx":
            conditions.append(_say("ptx", gpu=name))
    if kept:
        conditions.append(_say("kept", kept=kept))
    if build.source is not Source.DEFAULT:
        conditions.append(_say("other-index"))
    return Candidate(resolution=resolution, obstacles=tuple(obstacles), conditions=tuple(conditions))


def _by_capability(text: str, facts: Facts) -> Gpu | None:
    code = _CODE.fullmatch(text.strip().lower())
    capability = f"{code[1]}.{code[2]}" if code else text.strip()
    if not re.fullmatch(r"\d+\.\d", capability):
        return None
    unknown = replace(_UNKNOWN, capability=capability)
    kind = next((kind for kind in facts.gpus if kind.capability == capability), unknown)
    return Gpu(name=capability, kind=kind)


def _by_name(text: str, facts: Facts) -> Gpu | None:
    """The GPU with the longest name that *text* begins with: nvidia-smi appends memory and socket."""
    wanted = _words(text)
    matches = [
        (len(words), name, kind)
        for kind in facts.gpus
        for name in kind.names
        for words in _spellings(name)
        if words == wanted[: len(words)]
    ]
    if not matches:
        return None
    _, name, kind = max(matches, key=lambda match: match[0])
    return Gpu(name=name, kind=kind, jetson=bool(_JETSON & set(_words(name))))


def _jetson(text: str) -> Gpu | None:
    """A Jetson module that the facts do not have, or None. Its capability does not matter."""
    if not _JETSON & set(_words(text)):
        return None
    return Gpu(name=text.strip(), kind=_UNKNOWN, jetson=True)


def _spellings(name: str) -> list[list[str]]:
    """The words of *name*; for "RTX 3090" also those of "3090"."""
    words = _words(name)
    return [words, words[1:]] if words[0] in _SERIES and words[1] not in _WHOLE else [words]


def _words(name: str) -> list[str]:
    """Words and numbers, which may be written together: "RTX 2080Ti" and "rtx2080 ti" are the same."""
    return [word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in _BRAND]


def _called(gpu: Gpu) -> str:
    """*gpu* with its capability, as sentences name it."""
    capability = gpu.kind.capability
    return _say("gpu-of-capability" if gpu.name == capability else "gpu", gpu=gpu.name, capability=capability)


OWN_USE = "ownuse"  # in tags, after the capabilities
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_OPTION = "--gpus"


def kept_gpus(values: Iterable[str], facts: Facts) -> Gpus:
    """The capabilities in *values* of `--gpus`, ascending, each once: "8.0,9.0", "H100", "RTX 4090".

    :raises ConfigError: lists all values that name no GPU of an x86-64 host.
    :raises NothingSelected: there is no value.
    """
    names = [part.strip() for value in values for part in value.split(",") if part.strip()]
    if not names:
        raise NothingSelected(
            f"{_OPTION}: a value is required",
            hint=f"name GPUs or capabilities, for example {_OPTION} 8.0,9.0",
        )
    gpus = parse_gpus(names, facts, option=_OPTION)
    faults = [
        f"{_OPTION} {name}: {fault}"
        for name, gpu in zip(names, gpus, strict=True)
        if (fault := _fault(gpu, facts))
    ]
    if faults:
        raise ConfigError.of(faults, hint=f"name a known GPU, or its compute capability: {_OPTION} 9.0")
    return ascending(gpu.kind.capability for gpu in gpus)


def _fault(gpu: Gpu, facts: Facts) -> str:
    """Why no x86-64 host has *gpu*; empty: such hosts exist."""
    capability = gpu.kind.capability
    if gpu.jetson or gpu.name in gpu.kind.aarch64:
        return f"needs an aarch64 host; the images are for {LINUX_AMD64.machine}"
    return "" if gpu.name != capability else _unknown(capability, facts)


def _unknown(capability: str, facts: Facts) -> str:
    known = [kind.capability for kind in facts.gpus if kind.names_on()]
    if capability in known:
        return ""
    near = ", ".join(nearest(capability[:20], known)) or ", ".join(known)
    return f"no known GPU of an {LINUX_AMD64.machine} host has this capability; nearest: {near}"


def ascending(capabilities: Iterable[str]) -> Gpus:
    """*capabilities* by their numbers, each once."""
    return tuple(sorted(set(capabilities), key=numbers))


# --- matrix.yaml ----------------------------------------------------------------------------------


def axis_of(data: Iterable[str | Sequence[str]]) -> tuple[Gpus, ...]:
    """The entries of `gpus` in matrix.yaml, each "9.0", "8.0,8.6" or a list; *data* matches the schema."""
    return tuple(ascending(_members(entry)) for entry in data)


def thin_faults(data: object, facts: Facts) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Faults in `gpus` that the schema cannot find, by path. Skips values that violate the schema."""
    seen: set[Gpus] = set()
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        valid = isinstance(entry, str) or (isinstance(entry, list) and all(isinstance(x, str) for x in entry))
        members = _members(entry) if valid else []
        if not members or not all(map(_CAPABILITY.fullmatch, members)):
            continue
        for name in members:
            if fault := _unknown(name, facts):
                yield ("gpus", index), f"{name}: {fault}"
        if (found := ascending(members)) in seen:
            yield ("gpus", index), f"duplicate entry {','.join(found)}"
        seen.add(found)


def _members(entry: str | Sequence[str]) -> list[str]:
    texts = [entry] if isinstance(entry, str) else entry
    return [part.strip() for text in texts for part in text.split(",")]


# --- tags -----------------------------------------------------------------------------------------


def suffix_of(cell: Cell) -> str:
    """The part of a tag for the GPUs of *cell*, `-sm80-sm90`; empty if it keeps all device code."""
    names = [f"sm{capability.replace('.', '')}" for capability in cell.gpus]
    return "".join(f"-{name}" for name in (*names, *([OWN_USE] if cell.own_use else [])))


def gpus_in(suffix: str) -> Gpus:
    """The inverse of `suffix_of`, without own use."""
    return tuple(f"{digits[:-1]}.{digits[-1]}" for digits in re.findall(r"sm([0-9]+)", suffix))
