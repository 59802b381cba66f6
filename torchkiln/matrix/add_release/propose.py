"""Release number -> Told: what an index's metadata says of one torch release, in the words of the facts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torchkiln.errors import ConfigError
from torchkiln.matrix.add_release.wheel_requires import Asked, exact
from torchkiln.matrix.facts import DefaultWheel
from torchkiln.model.index import FileAt, WheelMetadata
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import DOTTED, nearest

_READ_FROM = ("cp311", "cp310", "cp312")  # whose METADATA is read; that of all is the same


class Catalogue(Protocol):
    """All that a proposal needs of the default index."""

    def versions(self, project: str) -> tuple[str, ...]:
        """The final releases of *project*, oldest first."""
        ...

    def wheels(self, project: str, version: str) -> tuple[FileAt, ...]:
        """The wheels of one release."""
        ...

    def metadata(self, wheel: FileAt) -> WheelMetadata:
        """What METADATA of *wheel* tells."""
        ...

    def size(self, wheel: FileAt) -> int:
        """Its size in bytes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Companion:
    """The release of torchvision or torchaudio that goes with a torch."""

    version: str | None  # None: none was found
    pins: bool  # it pins that torch; if not, it was taken for its number, or for want of a better one


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What metadata tells of a release of torch. GPU code and other CUDA builds are not in it."""

    version: str
    cuda: str  # of the default wheel, "12.8"
    torchvision: Companion
    torchaudio: Companion
    cudnn_major: int
    default: DefaultWheel
    triton_asks: str  # the requirement as it stands, where it is no exact pin; else ""
    bytes_cp310: int | None


def look_up(version: str, catalogue: Catalogue) -> Told:
    """What *catalogue* tells of torch *version*.

    :raises ConfigError: the index has no such release, or its default wheel is no CUDA build for x86_64.
    :raises Unresolvable: the index has no torch at all.
    :raises BuildFailed: the index gives no lasting answer.
    """
    known = catalogue.versions("torch")
    if version not in known:
        releases = [one for one in known if DOTTED.fullmatch(one)]
        near = nearest(version, releases) if DOTTED.fullmatch(version) else tuple(reversed(releases))[:3]
        raise ConfigError(
            f"torch {version}: the index has no such release; nearest: {', '.join(near) or 'none'}",
            hint="name one exactly: matrix add torch 2.9.1",
        )
    wheels = _by_python(catalogue.wheels("torch", version))
    if not wheels:
        raise ConfigError(
            f"torch {version}: the index has no wheel of it for Linux {LINUX_AMD64.machine}",
            hint="choose another release",
        )
    metadata = catalogue.metadata(_to_read(wheels))
    asked = Asked(metadata.requires)
    cuda = asked.cuda()
    if cuda is None:
        raise ConfigError(
            f"torch {version}: its metadata names no CUDA runtime and no cuda-toolkit",
            hint="it may be a CPU build, or have CUDA inside; such a release is entered by hand",
        )
    cp310 = wheels.get("cp310")
    return Told(
        version=version,
        cuda=cuda,
        torchvision=_companion("torchvision", version, catalogue),
        torchaudio=_companion("torchaudio", version, catalogue),
        cudnn_major=asked.cudnn_major(),
        default=DefaultWheel(
            variant="cu" + cuda.replace(".", ""),
            platform=_platform(_to_read(wheels)),
            requires_python=_specifier(metadata.requires_python, version),
            pythons=tuple(wheels),
            triton=asked.triton,
            triton_below=asked.triton_below,
            pins=tuple(sorted(asked.pins.items())),
            toolkit=asked.toolkit,
            requires=tuple(sorted(asked.others)),
            sha256=tuple((tag, wheel.sha256) for tag, wheel in wheels.items() if not tag.endswith("t")),
        ),
        triton_asks=asked.triton_asks,
        bytes_cp310=catalogue.size(cp310) if cp310 else None,
    )


def _specifier(text: str, version: str) -> str:
    """*text* as METADATA has it, if it is one: it goes into a YAML file."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ConfigError(
            f"torch {version} requires Python {text[:100]!r}, which is no set of versions",
            hint="the index's metadata is at fault",
        ) from error
    return text


def _by_python(wheels: tuple[FileAt, ...]) -> dict[str, FileAt]:
    """Our platform's wheels by CPython tag ("cp313t": free-threaded), oldest first; each the last build."""
    best: dict[tuple[int, str], tuple[int, FileAt]] = {}
    for wheel in wheels:
        _, _, build, tags = parse_wheel_filename(wheel.filename)
        for tag in tags:
            if not (re.fullmatch(r"cp3\d{1,3}", tag.interpreter) and _is_here(tag.platform)):
                continue
            name = tag.abi if tag.abi.endswith("t") else tag.interpreter
            key, number = (int(tag.interpreter[3:]), name), build[0] if build else 0
            if key not in best or best[key][0] < number:
                best[key] = (number, wheel)
    return {name: best[minor, name][1] for minor, name in sorted(best)}


def _is_here(platform: str) -> bool:
    return platform.endswith(LINUX_AMD64.wheel_tag("")) and "linux" in platform


def _platform(wheel: FileAt) -> str:
    return wheel.filename.removesuffix(".whl").rpartition("-")[2]


def _to_read(wheels: dict[str, FileAt]) -> FileAt:
    return next((wheels[tag] for tag in _READ_FROM if tag in wheels), next(iter(wheels.values())))


def _companion(project: str, torch: str, catalogue: Catalogue) -> Companion:
    """The release of *project* that pins *torch*; where newer ones pin none, the one of torch's number."""
    would_do: list[str] = []  # they name no torch, or a range with this one in it
    for version in reversed(catalogue.versions(project)):
        wheels = _by_python(catalogue.wheels(project, version))
        if not wheels:
            continue
        wanted = _torch_of(catalogue.metadata(_to_read(wheels)))
        pinned = exact(wanted) if wanted else None
        if pinned and Version(pinned) < Version(torch):
            break  # older releases pin older ones still
        if wanted is None or wanted.specifier.contains(torch):
            if pinned:
                return Companion(version=version, pins=True)
            would_do.append(version)
    same = torch if torch in would_do else next(iter(would_do), None)
    return Companion(version=same, pins=False)


def _torch_of(metadata: WheelMetadata) -> Requirement | None:
    for text in metadata.requires:
        with suppress(InvalidRequirement):
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == "torch":
                return requirement
    return None
