"""Looks up the public record of wheels on PyTorch's own index: hashes, and the requirements of some builds.

Some networks cannot reach that index. If the hashes and requirements of all wheels that a cell takes from
it are known, the cell can be locked without it. A build from that lock downloads them from the index, which
must serve files with these hashes. The other wheels of the cell are on the default index.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.matrix.facts import Facts, Release, Variant
from torchkiln.model.cell import Source, TorchBuild
from torchkiln.model.index import KnownWheel
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import numbers

_CUDA_11 = "cu118"  # of the variants on PyTorch's own index, the facts have only its requirements
_PLATFORM = LINUX_AMD64.wheel_tag("linux")  # in the file names on PyTorch's index before torch 2.7


def recorded(facts: Facts, build: TorchBuild, python: str) -> str | None:
    """Hex sha256 of the torch wheel of *build* for *python* in the public record; None: not recorded.

    The public record has only wheels on PyTorch's own index.
    """
    return _hashes(facts, build, python).get("torch")


def on_record(facts: Facts, build: TorchBuild, python: str) -> tuple[KnownWheel, ...]:
    """torch, torchvision and torchaudio of *build* for *python*; empty unless all of them are on record."""
    known = _hashes(facts, build, python)
    release = facts.releases[build.version.partition("+")[0]]
    if build.variant != _CUDA_11 or not {"torch", "torchvision", "torchaudio"} <= known.keys():
        return ()
    requires = {
        "torch": _torch_requires(facts, release, release.variant(build.variant), python),
        "torchvision": (*release.torchvision_requires, f"torch=={release.version}"),
        "torchaudio": (f"torch=={release.version}",),
    }
    versions = {
        "torch": build.version,
        "torchvision": f"{release.torchvision}+{build.variant}",
        "torchaudio": f"{release.torchaudio}+{build.variant}",
    }
    return tuple(_wheel(name, versions[name], python, known[name], requires[name]) for name in requires)


def record_notice(names: Sequence[str]) -> str:
    """The notice about the wheels *names* of a lock that come from public record."""
    return f"{', '.join(names)} from public record: a build gets them from PyTorch's own index"


def _hashes(facts: Facts, build: TorchBuild, python: str) -> dict[str, str]:
    if build.source is not Source.PYTORCH:
        return {}
    release, key = facts.releases[build.version.partition("+")[0]], (build.variant, _tag(python))
    return {name: sha256 for variant, tag, name, sha256 in release.index_sha256 if (variant, tag) == key}


def _torch_requires(facts: Facts, release: Release, variant: Variant, python: str) -> tuple[str, ...]:
    """The requirements of torch: a wheel that does not bundle CUDA's libraries pins those packages."""
    below = release.default.triton_below
    triton = (
        () if below and numbers(python) >= numbers(below) else (f"triton{release.default.triton_specifier}",)
    )
    pins = dict(facts.cu118_pins) | {"nvidia-cudnn-cu11": variant.cudnn, "nvidia-nccl-cu11": variant.nccl}
    libraries = () if variant.bundled else tuple(f"{name}=={version}" for name, version in pins.items())
    return (*release.default.requires, *triton, *libraries)


def _wheel(name: str, version: str, python: str, sha256: str, requires: tuple[str, ...]) -> KnownWheel:
    filename = f"{name}-{version}-{_tag(python)}-{_tag(python)}-{_PLATFORM}.whl"
    return KnownWheel(name=name, version=version, filename=filename, sha256=sha256, requires=requires)


def _tag(python: str) -> str:
    return "cp" + python.replace(".", "")
