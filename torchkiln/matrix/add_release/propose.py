"""Reads the facts of one torch release from the metadata on the default index."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torchkiln.errors import ConfigError
from torchkiln.matrix.add_release.wheel_requires import TorchRequirements, exact
from torchkiln.matrix.facts import DefaultWheel, cuda_of
from torchkiln.model.index import FileAt, WheelMetadata
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import DOTTED, nearest

_READ_FROM = ("cp311", "cp310", "cp312")  # read METADATA from these; it is the same in all
_LIBRARY = "torch/lib/libtorch_python.so"  # contains the text of torch.cuda.get_arch_list()
_LIBRARY_BYTES = 128 << 20  # limit; the library of torch 2.11 has 32 MB
_AUDIO_VERSION = "torchaudio/version.py"
_AUDIO_VERSION_BYTES = 4096
_AUDIO_CUDA = re.compile(rb"__version__ *= *['\"][0-9.]+\+(cu[0-9]{3})['\"]")
_ARCHS = re.compile(rb"\0((?:sm|compute)_[0-9]{2,3}[a-z]?(?: (?:sm|compute)_[0-9]{2,3}[a-z]?)*)(?=\0)")


class Catalogue(Protocol):
    """The default index."""

    def versions(self, project: str) -> tuple[str, ...]:
        """The final releases of *project*, oldest first."""
        ...

    def wheels(self, project: str, version: str) -> tuple[FileAt, ...]:
        """The wheels of one release."""
        ...

    def metadata(self, wheel: FileAt) -> WheelMetadata:
        """The METADATA of *wheel*."""
        ...

    def size(self, wheel: FileAt) -> int:
        """The size of *wheel* in bytes."""
        ...

    def file(self, wheel: FileAt, path: str, limit: int) -> bytes | None:
        """The file at *path* in *wheel*, of at most *limit* bytes; None: there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Companion:
    """The release of torchvision or torchaudio for a torch release."""

    version: str | None  # None: none was found
    pins: bool  # it pins that torch; else it has the version of that torch, or is the newest that allows it
    other_cuda: str = ""  # the CUDA of its build, if an import with that torch fails; "": it works


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseMetadata:
    """The facts of a torch release that its default wheel contains, without those of other CUDA builds."""

    version: str
    cuda: str  # of the default wheel, "12.8"
    torchvision: Companion
    torchaudio: Companion
    cudnn_major: int
    default: DefaultWheel
    archs: tuple[str, ...]  # "sm_90", in the wheel's order; (): not found
    bytes_cp310: int | None

    @property
    def is_complete(self) -> bool:
        """Whether it has every value that the facts need; its block has a TODO for each that is missing."""
        versions = (self.torchvision.version, self.torchaudio.version)
        return bool(self.cudnn_major and self.default.triton and self.archs and all(versions))


def look_up(version: str, catalogue: Catalogue) -> ReleaseMetadata:
    """The metadata of torch *version* in *catalogue*.

    :raises ConfigError: the index has no such release, or its default wheel is not a CUDA build for x86_64.
    :raises Unresolvable: the index has no torch.
    :raises BuildFailed: the index cannot be read.
    """
    known = catalogue.versions("torch")
    if version not in known:
        releases = [release for release in known if DOTTED.fullmatch(release)]
        near = nearest(version, releases) if DOTTED.fullmatch(version) else tuple(reversed(releases))[:3]
        raise ConfigError(
            f"torch {version}: not found on the index; nearest: {', '.join(near) or 'none'}",
            hint="name an exact release: matrix add torch 2.9.1",
        )
    wheels = _by_python(catalogue.wheels("torch", version))
    if not wheels:
        raise ConfigError(
            f"torch {version}: no wheel for Linux {LINUX_AMD64.machine} on the index",
            hint="choose another release",
        )
    metadata = catalogue.metadata(_to_read(wheels))
    requires = TorchRequirements(metadata.requires)
    cuda = requires.cuda()
    if cuda is None:
        raise ConfigError(
            f"torch {version}: its metadata requires neither a CUDA runtime nor cuda-toolkit",
            hint="it may be a CPU build, or bundle CUDA; add such a release to compat.yaml yourself",
        )
    cp310 = wheels.get("cp310")
    return ReleaseMetadata(
        version=version,
        cuda=cuda,
        torchvision=_companion("torchvision", version, catalogue),
        torchaudio=_of_cuda(_companion("torchaudio", version, catalogue), cuda, catalogue),
        cudnn_major=requires.cudnn_major(),
        default=DefaultWheel(
            variant="cu" + cuda.replace(".", ""),
            platform=_platform(_to_read(wheels)),
            requires_python=_specifier(metadata.requires_python, version),
            pythons=tuple(wheels),
            triton=requires.triton,
            triton_below=requires.triton_below,
            pins=tuple(sorted(requires.pins.items())),
            toolkit=requires.toolkit,
            requires=tuple(sorted(requires.others)),
            sha256=tuple((tag, wheel.sha256) for tag, wheel in wheels.items() if not tag.endswith("t")),
        ),
        archs=_archs(catalogue.file(_to_read(wheels), _LIBRARY, _LIBRARY_BYTES) or b""),
        bytes_cp310=catalogue.size(cp310) if cp310 else None,
    )


def _archs(library: bytes) -> tuple[str, ...]:
    """The GPU architectures of torch, from a string in its *library*; (): not found, or not unique."""
    found = {text[1].decode() for text in _ARCHS.finditer(library) if b" " in text[1]}
    return tuple(found.pop().split()) if len(found) == 1 else ()


def _specifier(text: str, version: str) -> str:
    """*text*, checked because it is written to a YAML file.

    :raises ConfigError: it is not a valid specifier.
    """
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ConfigError(
            f"torch {version}: invalid Requires-Python {text[:100]!r}",
            hint="the metadata on the index is invalid; try another index",
        ) from error
    return text


def _by_python(wheels: tuple[FileAt, ...]) -> dict[str, FileAt]:
    """The x86_64 wheels by CPython tag ("cp313t": free-threaded), oldest first; the last build of each."""
    best: dict[tuple[int, str], tuple[int, FileAt]] = {}
    for wheel in wheels:
        _, _, build, tags = parse_wheel_filename(wheel.filename)
        for tag in tags:
            if not (re.fullmatch(r"cp3\d{1,3}", tag.interpreter) and _is_linux_amd64(tag.platform)):
                continue
            name = tag.abi if tag.abi.endswith("t") else tag.interpreter
            key, number = (int(tag.interpreter[3:]), name), build[0] if build else 0
            if key not in best or best[key][0] < number:
                best[key] = (number, wheel)
    return {name: best[minor, name][1] for minor, name in sorted(best)}


def _is_linux_amd64(platform: str) -> bool:
    return platform.endswith(LINUX_AMD64.wheel_tag("")) and "linux" in platform


def _platform(wheel: FileAt) -> str:
    return wheel.filename.removesuffix(".whl").rpartition("-")[2]


def _to_read(wheels: dict[str, FileAt]) -> FileAt:
    return next((wheels[tag] for tag in _READ_FROM if tag in wheels), next(iter(wheels.values())))


def _companion(project: str, torch: str, catalogue: Catalogue) -> Companion:
    """The release of *project* that pins *torch*; else that of the same version, or the newest that fits."""
    fitting: list[str] = []  # releases that require no torch, or a range that includes this one
    for version in reversed(catalogue.versions(project)):
        wheels = _by_python(catalogue.wheels(project, version))
        if not wheels:
            continue
        required = _torch_of(catalogue.metadata(_to_read(wheels)))
        pinned = exact(required) if required else None
        if pinned and Version(pinned) < Version(torch):
            break  # older releases pin even older ones
        if required is None or required.specifier.contains(torch):
            if pinned:
                return Companion(version=version, pins=True)
            fitting.append(version)
    same = torch if torch in fitting else next(iter(fitting), None)
    return Companion(version=same, pins=False)


def _of_cuda(torchaudio: Companion, cuda: str, catalogue: Catalogue) -> Companion:
    """*torchaudio*, with `other_cuda` if it is not built for *cuda*: then its import fails."""
    if torchaudio.pins or torchaudio.version is None:
        return torchaudio
    wheels = _by_python(catalogue.wheels("torchaudio", torchaudio.version))
    text = catalogue.file(_to_read(wheels), _AUDIO_VERSION, _AUDIO_VERSION_BYTES) or b""
    found = _AUDIO_CUDA.search(text)
    other = cuda_of(found[1].decode()) if found else cuda
    return replace(torchaudio, other_cuda=other if other != cuda else "")


def _torch_of(metadata: WheelMetadata) -> Requirement | None:
    for text in metadata.requires:
        with suppress(InvalidRequirement):
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == "torch":
                return requirement
    return None
