"""Reads the facts of a torch release from its wheel on an index, and inserts the release into matrix.yaml.

Only requirements for Linux x86_64 count. Names of NVIDIA's packages may have a CUDA suffix
(nvidia-cudnn-cu12) or none. PyYAML only finds the position of a list in the matrix, so that comments, order
and blank lines are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import cuda_of
from torchkiln.model.index import FileAt, WheelMetadata
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import DOTTED, minor_of, nearest
from torchkiln.util.wheel_names import parse_wheel_filename

TODO = "TODO"  # in the place of a fact that the index lacks; the schema of the facts refuses it
_READ_FROM = ("cp311", "cp310", "cp312")  # read METADATA from these; it is the same in all
_LIBRARY = "torch/lib/libtorch_python.so"  # contains the text of torch.cuda.get_arch_list()
_LIBRARY_BYTES = 128 << 20  # limit; the library of torch 2.11 has 32 MB
_AUDIO_VERSION = "torchaudio/version.py"
_AUDIO_VERSION_BYTES = 4096
_AUDIO_CUDA = re.compile(rb"__version__ *= *['\"][0-9.]+\+(cu[0-9]{3})['\"]")
_ARCHS = re.compile(rb"\0((?:sm|compute)_[0-9]{2,3}[a-z]?(?: (?:sm|compute)_[0-9]{2,3}[a-z]?)*)(?=\0)")
_PYTHONS = tuple(f"3.{minor}" for minor in range(6, 40))


class Catalogue(Protocol):
    def versions(self, project: str) -> tuple[str, ...]:
        """The final releases of *project*, oldest first."""
        ...

    def wheels(self, project: str, version: str) -> tuple[FileAt, ...]: ...

    def metadata(self, wheel: FileAt) -> WheelMetadata: ...

    def file(self, wheel: FileAt, path: str, limit: int) -> bytes | None:
        """The file at *path* in *wheel*, of at most *limit* bytes; None: there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """What a new torch release adds to matrix.yaml and to the facts."""

    version: str
    cuda: str  # of the default wheel, "12.8"
    entry: Mapping[str, Any]  # the facts, in the form of `releases`; TODO for those that the index lacks
    notes: tuple[str, ...]  # what a person should check


def look_up(version: str, catalogue: Catalogue) -> Proposal:
    """The facts of torch *version* from its metadata in *catalogue*.

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
    requires = _Requirements(metadata.requires)
    cuda = requires.cuda()
    if cuda is None:
        raise ConfigError(
            f"torch {version}: its metadata requires neither a CUDA runtime nor cuda-toolkit",
            hint="it may be a CPU build, or bundle CUDA; add such a release to facts.yaml yourself",
        )
    notes: list[str] = []
    companions = {
        "torchvision": _companion("torchvision", version, cuda, catalogue, notes),
        "torchaudio": _companion("torchaudio", version, cuda, catalogue, notes),
    }
    archs = _archs(catalogue.file(_to_read(wheels), _LIBRARY, _LIBRARY_BYTES) or b"")
    variant = "cu" + cuda.replace(".", "")
    default: dict[str, Any] = {
        "variant": variant,
        "platform": _to_read(wheels).filename.removesuffix(".whl").rpartition("-")[2],
        "requires_python": _specifier(metadata.requires_python, version) or TODO,
        "pythons": list(wheels),
        "triton": requires.triton or TODO,
        **({"triton_below": requires.triton_below} if requires.triton_below else {}),
        "pins": dict(sorted(requires.pins.items())),
        **({"toolkit": list(requires.toolkit)} if requires.toolkit else {}),
        "requires": sorted(requires.others),
        "sha256": {tag: wheel.sha256 for tag, wheel in wheels.items() if not tag.endswith("t")},
    }
    entry = {
        "companions": {name: companion for name, companion in companions.items() if companion},
        "cudnn_major": requires.cudnn_major() or TODO,
        "default": default,
        "variants": {variant: {"archs": list(archs) or [TODO], "source": "wheel"}},
        "index_sha256": {},
    }
    return Proposal(version=version, cuda=cuda, entry=entry, notes=tuple(notes))


def _archs(library: bytes) -> tuple[str, ...]:
    """The GPU architectures of torch, from a string in its *library*; (): not found, or not unique."""
    found = {text[1].decode() for text in _ARCHS.finditer(library) if b" " in text[1]}
    return tuple(found.pop().split()) if len(found) == 1 else ()


def _specifier(text: str, version: str) -> str:
    """*text*, checked because it is written to a YAML file."""
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
            of_linux = re.fullmatch(rf".*linux.*_{LINUX_AMD64.machine}", tag.platform)
            if not (of_linux and re.fullmatch(r"cp3\d{1,3}", tag.interpreter)):
                continue
            name = tag.abi if tag.abi.endswith("t") else tag.interpreter
            key, number = (int(tag.interpreter[3:]), name), build[0] if build else 0
            if key not in best or best[key][0] < number:
                best[key] = (number, wheel)
    return {name: best[minor, name][1] for minor, name in sorted(best)}


def _to_read(wheels: dict[str, FileAt]) -> FileAt:
    return next((wheels[tag] for tag in _READ_FROM if tag in wheels), next(iter(wheels.values())))


def _companion(project: str, torch: str, cuda: str, catalogue: Catalogue, notes: list[str]) -> str:
    """The release of *project* that pins *torch*; else that of the same version, or the newest that fits.

    Empty: it is built for another CUDA than *cuda*, so that its import fails.
    """
    fitting: list[str] = []  # releases that require no torch, or a range that includes this one
    for version in reversed(catalogue.versions(project)):
        wheels = _by_python(catalogue.wheels(project, version))
        if not wheels:
            continue
        required = _torch_of(catalogue.metadata(_to_read(wheels)))
        pinned = _exact(required) if required else None
        if pinned and Version(pinned) < Version(torch):
            break  # older releases pin even older ones
        if required is None or required.specifier.contains(torch):
            if pinned:
                return version
            fitting.append(version)
    if not fitting:
        notes.append(f"no {project} allows torch {torch}")
        return TODO
    chosen = torch if torch in fitting else fitting[0]
    if project == "torchaudio" and (other := _cuda_of_audio(chosen, catalogue)) not in ("", cuda):
        of = f"torchaudio {chosen} is built for CUDA {other}"
        notes.append(f"{of}: its import fails with torch for CUDA {cuda}")
        return ""
    notes.append(
        f"{project} {chosen} does not pin torch: it was chosen by its version number"
        if chosen == torch
        else f"no {project} pins torch {torch}; {chosen} is the newest that allows it"
    )
    return chosen


def _cuda_of_audio(version: str, catalogue: Catalogue) -> str:
    """The CUDA version of the build of torchaudio *version*; "": not known."""
    wheel = _to_read(_by_python(catalogue.wheels("torchaudio", version)))
    found = _AUDIO_CUDA.search(catalogue.file(wheel, _AUDIO_VERSION, _AUDIO_VERSION_BYTES) or b"")
    return cuda_of(found[1].decode()) if found else ""


def _torch_of(metadata: WheelMetadata) -> Requirement | None:
    for text in metadata.requires:
        with suppress(InvalidRequirement):
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == "torch":
                return requirement
    return None


class _Requirements:
    """The requirements of one torch release, sorted.

    :raises ConfigError: a requirement is invalid.
    """

    def __init__(self, requires: tuple[str, ...]) -> None:
        self.pins: dict[str, str] = {}
        self.toolkit: tuple[str, ...] = ()
        self.others: list[str] = []
        self.triton = ""  # the exact version, or a specifier, "~=3.9.0"
        self.triton_below: str | None = None
        for text in requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise ConfigError(
                    f"torch has the invalid requirement {text[:100]!r}",
                    hint="the metadata on the index is invalid; try another index",
                ) from error
            pythons = [python for python in _PYTHONS if _holds(requirement.marker, python)]
            if pythons:
                self._sort(requirement, pythons)

    def _sort(self, requirement: Requirement, pythons: list[str]) -> None:
        name, pinned = canonicalize_name(requirement.name), _exact(requirement)
        if name == "triton":
            self.triton = pinned or str(requirement.specifier)
            self.triton_below = None if pythons[-1] == _PYTHONS[-1] else _after(pythons[-1])
        elif pinned and name.startswith(("nvidia-", "cuda-")):
            self.pins[name] = pinned
            if name == "cuda-toolkit":
                self.toolkit = tuple(sorted(requirement.extras))
        else:
            self.others.append(str(requirement))

    def cuda(self) -> str | None:
        """The CUDA minor of the build, from the pinned cuda-toolkit or the runtime library; None: neither."""
        stems = ("cuda-toolkit", "nvidia-cuda-runtime")
        found = (value for stem in stems for name, value in self.pins.items() if _stem(name) == stem)
        return next(map(minor_of, found), None)

    def cudnn_major(self) -> int:
        """The major version of the pinned cuDNN; 0: none."""
        found = (value for name, value in self.pins.items() if _stem(name) == "nvidia-cudnn")
        return int(next(found, "0").split(".")[0])


def _stem(name: str) -> str:
    """`"nvidia-cudnn"` of `"nvidia-cudnn-cu12"` and of the newer name `"nvidia-cudnn"`."""
    return re.sub(r"-cu\d+$", "", name)


def _exact(requirement: Requirement) -> str | None:
    """The version of ``==X``; None for every other requirement, including ``==X.*``."""
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        return None
    return specifiers[0].version


def _holds(marker: Marker | None, python: str) -> bool:
    return marker is None or marker.evaluate(LINUX_AMD64.markers(python))


def _after(python: str) -> str:
    major, minor = python.split(".")
    return f"{major}.{int(minor) + 1}"


def with_item(text: str, key: str, item: str, *, name: str) -> str:
    """The valid matrix *text* with *item* at the end of the list *key*, in the layout of the item before it.

    The list `beyond` is added if there is none.

    :param item: YAML in one line.
    :param name: of the file, for messages.
    :raises ConfigError: the layout of the list is not supported.
    """
    node, new_line = _list(text, key), "\r\n" if "\r\n" in text else "\n"
    if node is None and key == "beyond":
        return f"{text.rstrip()}{new_line}{new_line}beyond:{new_line}  - {item}{new_line}"
    if node is None or not node.value:
        raise _unsupported(name, key, item)
    begin, end = node.value[-1].start_mark.index, node.value[-1].end_mark.index
    if node.flow_style:
        return f"{text[:end]}, {item}{text[end:]}"
    lead = text[text.rfind("\n", 0, begin) + 1 : begin]
    if not re.fullmatch(r"[ \t]*-[ \t]+", lead) or "\n" in text[begin:end]:
        raise _unsupported(name, key, item)
    new = f"{lead}{item}{new_line}"
    if (after := text.find("\n", end) + 1) == 0:  # the last line has no newline
        return f"{text}\n{new}"
    return text[:after] + new + text[after:]


def _list(text: str, key: str) -> yaml.SequenceNode | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # libyaml's marks may count bytes
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    found = (node for name, node in pairs if name.value == key)
    return next((node for node in found if isinstance(node, yaml.SequenceNode)), None)


def _unsupported(name: str, key: str, item: str) -> ConfigError:
    return ConfigError(
        f"{name}: cannot insert a line into the list {key}: its layout is not supported",
        hint=f"add the line yourself, under {key}:  - {item}",
    )
