"""Decides which packages of an image a project cannot replace, and checks its requirements of these packages.

torch, its CUDA libraries and the packages that are built for its binary interface (ABI) were tested together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import ConfigError
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.projects.asked import Asked, Ignored, ProjectNeeds

_FAMILY = ("torch", "torchvision", "torchaudio")
_COMPILERS = frozenset({"triton", "pytorch-triton"})
_LIBRARIES = re.compile(r"nvidia-.+-cu[0-9]+")  # for any version of CUDA; nvidia-ml-py does not match
_OF_TORCH = re.compile(  # required by a build of torch
    r"nvidia-(cublas|cuda-(cupti|nvrtc|runtime)|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl"
    r"|nvjitlink|nvshmem|nvtx)(-cu[0-9]+)?"
)


def fixed_wheels(wheels: Iterable[LockedWheel]) -> dict[str, LockedWheel]:
    """The *wheels* of an image that a project cannot replace, by name."""
    return {wheel.name: wheel for wheel in wheels if _is_fixed(wheel)}


def comes_with_torch(name: str) -> bool:
    """Whether an image has the package *name* because of its torch, perhaps in another version."""
    return name in _FAMILY or name in _COMPILERS or _OF_TORCH.fullmatch(name) is not None


def _is_fixed(wheel: LockedWheel) -> bool:
    return wheel.name in _FAMILY or wheel.name in _COMPILERS or wheel.name.startswith(("nvidia-", "cuda-"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The versions of a package that an image allows, "==2.7.1" or "<3"."""

    name: str
    versions: str
    why: str

    @property
    def text(self) -> str:
        """The bound as a sentence."""
        return f"the image fixes {self.name} to {self.versions.removeprefix('==')}"


def bounds_of(cell: LockedCell, reasons: Mapping[str, str] = MappingProxyType({})) -> tuple[Bound, ...]:
    """The bounds of the image of *cell*: its fixed packages, and what its torch and matrix.yaml require.

    :param reasons: of requirements and constraints of the cell that are not from matrix.yaml.
    """
    versions = {wheel.name: wheel.version for wheel in cell.wheels}
    why = "torch and its libraries were tested together"
    found = [Bound(name=name, versions=f"=={versions[name]}", why=why) for name in fixed_wheels(cell.wheels)]
    for text in (*(one.requirement for one in cell.resolution.constraints), *cell.resolution.requirements):
        one, why = Requirement(text), reasons.get(text, "matrix.yaml requires this")
        found.append(Bound(name=canonicalize_name(one.name), versions=str(one.specifier), why=why))
    if "numpy" in versions:
        # Wheels that were built for NumPy 2 also work with NumPy 1; for others there is a constraint.
        major = max(2, Version(versions["numpy"]).major)
        found.append(Bound(name="numpy", versions=f"<{major + 1}", why=f"torch was built for NumPy {major}"))
    # The first of a name counts.
    return tuple({bound.name: bound for bound in reversed(found) if bound.versions}.values())


def explained(message: str, bounds: Iterable[Bound]) -> str:
    """The resolver's *message*, which calls *bounds* of the image requirements of the user, corrected."""
    whys: list[str] = []
    for bound in bounds:
        own, before = re.escape(f"{bound.name}{bound.versions}"), message
        message = re.sub(rf"you require {own} and ", f"{bound.text} and you require ", message)
        message = re.sub(
            rf"(?:(you require \S+ and )|you require ){own}(?=[,.]?(?:\s|$))", rf"\1{bound.text}", message
        )
        if message != before:
            whys.append(f"\n{bound.text}, because {bound.why}")
    return message + "".join(whys)


def movable(
    needs: ProjectNeeds, asked: Sequence[Asked], fixed: Mapping[str, LockedWheel], torches: Mapping[str, str]
) -> tuple[tuple[Asked, ...], tuple[Ignored, ...]]:
    """The requirements in *asked* that no package in *fixed* satisfies, and the pins that were ignored.

    A lock file or `pip freeze` pins what torch brought; someone who pins triton alone may need this triton.

    :param torches: the matrix's releases of torch, best first, with the options that they need; for the hint.
    :raises ConfigError: a requirement excludes the image's version of a fixed package; lists all.
    """
    kept: list[Asked] = []
    ignored: list[Ignored] = []
    faults: list[str] = []
    hints: list[str] = []
    of_torch = any(one.name == "torch" or _OF_TORCH.fullmatch(one.name) for one in asked)
    for one in asked:
        wheel, requirement = fixed.get(one.name), one.requirement
        is_pin = bool(_pin(requirement.specifier)) and (of_torch or one.name not in _COMPILERS)
        if wheel is None:
            brought = one.name not in _FAMILY and comes_with_torch(one.name)
            if (needs.is_lock and _LIBRARIES.fullmatch(one.name)) or (brought and (needs.is_lock or is_pin)):
                ignored.append(Ignored(name=one.name, version=_pin(requirement.specifier), where=one.where))
            else:
                kept.append(one)
            continue
        if one.by_file:
            faults.append(
                f"{one.where}: {one.path or one.text}: the image has {one.name} {wheel.version}, which"
                " a project cannot replace"
            )
            hints.append(f"require {one.name} without a {'repository' if one.repository else 'file'}")
        elif _includes(requirement.specifier, wheel.version):
            if (pin := _pin(requirement.specifier)) and Version(pin) != Version(wheel.version):
                ignored.append(Ignored(name=one.name, version=pin, where=one.where))
            if requirement.extras:  # extras may require packages that the image lacks
                extras = ",".join(sorted(requirement.extras))
                kept.append(Asked(text=f"{one.name}[{extras}]", where=one.where, by_name=one.by_name))
        elif (needs.is_lock or is_pin) and one.name not in _FAMILY:
            ignored.append(Ignored(name=one.name, version=_pin(requirement.specifier), where=one.where))
        else:
            faults.append(
                f"{one.where}: {one.text}: the image has {one.name} {wheel.version}, which a project cannot"
                " replace"
            )
            hints += _hints(one, requirement.specifier, torches)
    if faults:
        raise ConfigError.of(faults, hint="; ".join(dict.fromkeys(hints)))
    return tuple(kept), tuple(ignored)


def _includes(specifier: SpecifierSet, version: str) -> bool:
    """Whether *specifier* includes *version*; the CUDA variant is ignored: 2.7.1+cu118 counts as 2.7.1."""
    public = Version(version).public
    return SpecifierSet(re.sub(r"\+[A-Za-z0-9.]+", "", str(specifier))).contains(public, prereleases=True)


def _pin(specifier: SpecifierSet) -> str:
    """The version that *specifier* pins; "" if it pins none."""
    pins = [one.version for one in specifier if one.operator == "==" and not one.version.endswith(".*")]
    return pins[0] if pins else ""


def _hints(one: Asked, specifier: SpecifierSet, torches: Mapping[str, str]) -> Iterator[str]:
    if one.name == "torch":
        text = SpecifierSet(re.sub(r"\+[A-Za-z0-9.]+", "", str(specifier)))
        if fitting := next(filter(text.contains, torches), None):
            yield f"use --torch {fitting}{torches[fitting]}, or change the requirement"
        else:
            yield "change the requirement: the matrix has no torch with this CUDA that fits it"
    else:
        yield f"require {one.name} without a version: the image has the version that fits its torch"
