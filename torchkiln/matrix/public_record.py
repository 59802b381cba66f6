"""Build -> what is on public record of its wheels on PyTorch's own index: hashes, and for some the whole set.

That index cannot be reached everywhere. Where the hashes of all that a cell takes from it are known, and what
those wheels ask for, the cell can be locked without it: whoever builds from that lock has the index, which
must then give these very bytes. The rest of the cell is on the default index.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.matrix.facts import Facts, Release, Variant
from torchkiln.model.cell import Source, TorchBuild
from torchkiln.model.index import KnownWheel
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import numbers

_CUDA_11 = "cu118"  # of the other variants' wheels the facts do not tell what they ask for
_PLATFORM = LINUX_AMD64.wheel_tag("linux")  # so PyTorch's index names them, before torch 2.7


def recorded(facts: Facts, build: TorchBuild, python: str) -> str | None:
    """Hex sha256 that public record tells of the torch wheel of *build* for *python*; None: nothing is known.

    Of PyTorch's own index only: the default index speaks for itself.
    """
    return _hashes(facts, build, python).get("torch")


def on_record(facts: Facts, build: TorchBuild, python: str) -> tuple[KnownWheel, ...]:
    """torch, torchvision and torchaudio of *build* for *python*; none, unless all of them are on record."""
    known = _hashes(facts, build, python)
    release = facts.releases[build.version.partition("+")[0]]
    if build.variant != _CUDA_11 or not {"torch", "torchvision", "torchaudio"} <= known.keys():
        return ()
    asks = {
        "torch": _asked_by_torch(facts, release, release.variant(build.variant), python),
        "torchvision": (*release.torchvision_requires, f"torch=={release.version}"),
        "torchaudio": (f"torch=={release.version}",),
    }
    versions = {
        "torch": build.version,
        "torchvision": f"{release.torchvision}+{build.variant}",
        "torchaudio": f"{release.torchaudio}+{build.variant}",
    }
    return tuple(_given(name, versions[name], python, known[name], asks[name]) for name in asks)


def told_of_record(names: Sequence[str]) -> str:
    """The sentence for the wheels *names* of a lock, which are not empty: nobody here has seen them."""
    return f"{', '.join(names)} by public record: built elsewhere, not here"


def _hashes(facts: Facts, build: TorchBuild, python: str) -> dict[str, str]:
    if build.source is not Source.PYTORCH:
        return {}
    release, wanted = facts.releases[build.version.partition("+")[0]], (build.variant, _tag(python))
    return {name: sha256 for variant, tag, name, sha256 in release.index_sha256 if (variant, tag) == wanted}


def _asked_by_torch(facts: Facts, release: Release, variant: Variant, python: str) -> tuple[str, ...]:
    """A bundled wheel has CUDA's libraries inside; a small one pins those of the default index."""
    below = release.default.triton_below
    triton = () if below and numbers(python) >= numbers(below) else (f"triton=={release.default.triton}",)
    pins = dict(facts.cu118_pins) | {"nvidia-cudnn-cu11": variant.cudnn, "nvidia-nccl-cu11": variant.nccl}
    libraries = () if variant.bundled else tuple(f"{name}=={version}" for name, version in pins.items())
    return (*release.default.requires, *triton, *libraries)


def _given(name: str, version: str, python: str, sha256: str, requires: tuple[str, ...]) -> KnownWheel:
    filename = f"{name}-{version}-{_tag(python)}-{_tag(python)}-{_PLATFORM}.whl"
    return KnownWheel(name=name, version=version, filename=filename, sha256=sha256, requires=requires)


def _tag(python: str) -> str:
    return "cp" + python.replace(".", "")
