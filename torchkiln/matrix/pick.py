"""Driver, GPUs -> Choice: which cells run on a host, best first, and why the others do not.

`resolve` backwards: the cells are resolved first, then each is held against the host. Nothing is looked
up here that `resolve` does not know too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts, GpuClass
from torchkiln.matrix.gpu_archs import how_served
from torchkiln.model.cell import Resolution, Source
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import major_of, nearest, numbers

_BRAND = {"nvidia", "geforce", "tesla"}  # words that drivers put before a name and people leave out


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """A driver version, "535.104.05", or a whole branch of them, "535"."""

    version: str

    @property
    def branch(self) -> int:
        """The branch that it belongs to."""
        return int(major_of(self.version))

    def reaches(self, version: str) -> Literal["yes", "no", "from"]:
        """Whether it is *version* or newer; "from": its branch is, from *version* on."""
        if "." in self.version:
            return "yes" if numbers(self.version) >= numbers(version) else "no"
        other = int(major_of(version))
        return "from" if self.branch == other else "yes" if self.branch > other else "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as it was asked for, and its class."""

    name: str  # "H100", or the capability where only that was told
    kind: GpuClass


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One cell held against the host. *against* is empty where it runs; *minding* says on which terms."""

    resolution: Resolution
    against: tuple[str, ...]
    minding: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The answer: what runs, best first; what does not; what about the host alone forbids everything."""

    runs: tuple[Offer, ...]
    fails: tuple[Offer, ...]
    host: tuple[str, ...]


def parse_driver(text: str) -> Driver:
    """*text*, as nvidia-smi prints it or as a branch ("535", "R535").

    :raises ConfigError: neither.
    """
    bare = text.strip().removeprefix("R").removeprefix("r")
    if not re.fullmatch(r"\d{3}(\.\d+){0,2}", bare):
        raise ConfigError(
            f"--driver {text}: not a driver version", hint='say "535.104.05", or the branch alone: "535"'
        )
    return Driver(version=bare)


def parse_gpus(texts: Iterable[str], facts: Facts) -> tuple[Gpu, ...]:
    """*texts*, each a GPU's name as NVIDIA or nvidia-smi writes it, or a capability ("9.0", "sm_90").

    :raises ConfigError: unknown names, all of them, with the nearest known.
    """
    found, faults = [], []
    for text in texts:
        gpu = _by_capability(text, facts) or _by_name(text, facts)
        if gpu:
            found.append(gpu)
        else:
            near = nearest(text, [name for kind in facts.gpus for name in kind.names])
            faults.append(
                f"--gpu {text}: not a known GPU" + (f"; nearest: {', '.join(near)}" if near else "")
            )
    if faults:
        raise ConfigError.of(faults, hint="a compute capability does as well: --gpu 9.0")
    return tuple(found)


def pick(resolutions: Iterable[Resolution], driver: Driver, gpus: Sequence[Gpu]) -> Choice:
    """Hold each of *resolutions* against a host with *driver* and all of *gpus*.

    Best first: the newest torch; then what the default index has; then what needs no compatibility mode;
    then the newest CUDA.
    """
    host = tuple(fault for gpu in gpus for fault in _host_faults(driver, gpu))
    offers = [_offer(resolution, driver, gpus) for resolution in resolutions]
    runs = [] if host else [offer for offer in offers if not offer.against]
    fails = [offer for offer in offers if offer.against or host]
    runs.sort(key=lambda offer: _worth(offer.resolution, driver), reverse=True)
    fails.sort(key=lambda offer: numbers(offer.resolution.cell.torch), reverse=True)
    return Choice(runs=tuple(runs), fails=tuple(fails), host=host)


def _worth(
    resolution: Resolution, driver: Driver
) -> tuple[tuple[int, ...], bool, bool, tuple[int, ...], bool]:
    cell = resolution.cell
    served_at_home = resolution.build is not None and resolution.build.source is Source.DEFAULT
    full = resolution.full_driver is not None and driver.reaches(resolution.full_driver) != "no"
    return (numbers(cell.torch), served_at_home, full, numbers(cell.cuda), cell.flavor == "runtime")


def _host_faults(driver: Driver, gpu: Gpu) -> Iterable[str]:
    kind = gpu.kind
    if gpu.name in kind.aarch64:
        yield f"{gpu.name} sits beside an aarch64 host; the images are for {LINUX_AMD64.machine}"
    if kind.first_branch and driver.branch < kind.first_branch:
        yield f"driver {driver.version} does not know {_called(gpu)}: the first to do is {kind.first_branch}"
    if kind.last_branch and driver.branch > kind.last_branch:
        yield f"driver {driver.version} has dropped {_called(gpu)}: the last to know it is {kind.last_branch}"


def _offer(resolution: Resolution, driver: Driver, gpus: Sequence[Gpu]) -> Offer:
    build, min_driver, full = resolution.build, resolution.min_driver, resolution.full_driver
    if build is None or min_driver is None or full is None:
        return Offer(resolution=resolution, against=(resolution.why_unavailable,), minding=())
    against: list[str] = []
    minding: list[str] = []
    at_floor, at_full = driver.reaches(min_driver), driver.reaches(full)
    if at_floor == "no":
        against.append(
            f"driver {driver.version} is older than {min_driver}, the floor of CUDA {major_of(build.cuda)}"
        )
    elif at_floor == "from":
        minding.append(f"of branch {driver.version}, {min_driver} or newer")
    if at_floor != "no" and at_full == "no":
        minding.append(f"in CUDA's compatibility mode, as the driver is older than {full}")
    for gpu in gpus:
        how = how_served(build.archs, gpu.kind.capability)
        if how is None:
            against.append(f"{build.version} has no code for {_called(gpu)}; it has {' '.join(build.archs)}")
        elif how == "ptx" and at_full == "no":
            against.append(
                f"{build.version} has only PTX for {_called(gpu)}, which needs driver {full} or newer"
            )
        elif how == "ptx":
            minding.append(f"{_called(gpu)} runs from PTX: the driver compiles it at first use")
    if build.source is not Source.DEFAULT:
        minding.append("needs PyTorch's own index (TORCHKILN_INDEX_PYTORCH)")
    return Offer(resolution=resolution, against=tuple(against), minding=tuple(minding))


def _by_capability(text: str, facts: Facts) -> Gpu | None:
    if sm := re.fullmatch(r"sm_(\d+)(\d)", text.strip()):
        text = f"{sm[1]}.{sm[2]}"
    if not re.fullmatch(r"\d+\.\d", text.strip()):
        return None
    capability = text.strip()
    unknown = GpuClass(capability=capability, names=(), first_branch=None, last_branch=None, aarch64=())
    kind = next((kind for kind in facts.gpus if kind.capability == capability), unknown)
    return Gpu(name=capability, kind=kind)


def _by_name(text: str, facts: Facts) -> Gpu | None:
    """The known GPU whose name begins *text*, the longest: nvidia-smi adds memory and socket behind it."""
    asked = _words(text)
    fitting = [
        (len(words), name, kind)
        for kind in facts.gpus
        for name in kind.names
        if (words := _words(name)) == asked[: len(words)]
    ]
    if not fitting:
        return None
    _, name, kind = max(fitting, key=lambda fit: fit[0])
    return Gpu(name=name, kind=kind)


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _BRAND]


def _called(gpu: Gpu) -> str:
    capability = gpu.kind.capability
    return f"capability {capability}" if gpu.name == capability else f"{gpu.name} (capability {capability})"
