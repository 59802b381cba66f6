"""A stand-in for PyTorch's own index, and for the default index beside it: small wheels with the real pins.

What the wheels require is what the facts know of the real ones' metadata; the pages are laid out as
PyTorch's: a folder a CUDA build, the variant as a local version, escaped, a hash in the fragment, METADATA
beside the wheel.
"""

from __future__ import annotations

import re

from tests.cells import noise
from tests.standin.index_server import IndexServer
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix.facts import Facts, Release
from torchkiln.util.versions import numbers

DEFAULT, OLD = "simple", "2020-01-01T00:00:00Z"
_OLD_ENOUGH = {"numpy": "1.26.4", "setuptools": "69.5.1"}  # for the traps of the oldest releases
_CODE = b"__version__ = 'a stand-in'\n"


def pytorch(variant: str) -> str:
    """The path of the index of *variant*."""
    return f"whl/{variant}"


def fill(server: IndexServer, torch: str, variant: str, python: str, companions: tuple[str, ...]) -> None:
    """Put up all that the cell of *torch* and *variant* asks for, and things that it must not take."""
    facts = facts_of.load()
    release, cpython = facts.releases[torch], "cp" + python.replace(".", "")
    server.metadata = server.etags = True
    here, local = pytorch(variant), f"+{variant}"
    # So that index names its wheels before torch 2.7.
    platform = release.default.platform if numbers(torch) >= (2, 7) else "linux_x86_64"
    built = {"tag": f"{cpython}-{cpython}-{platform}", "python": ">=3.8", "date": OLD}
    pins = _pins(facts, release, variant)
    requires = [f'{name}=={version}; platform_system == "Linux"' for name, version in pins.items()]
    requires += [*release.default.requires, f"triton=={release.default.triton}"]
    big = {"payload": _CODE + b"# " + noise(torch + variant, 50_000).hex().encode()}
    server.add(here, "torch", torch + local, requires=requires, **built, **big)
    server.add(here, "torch", torch + local, requires=["not-this-python"], **built | {"tag": "cp38-cp38-any"})
    wants = [f"torch=={torch}"]
    vision = [*(release.torchvision_requires or ["numpy"]), *wants]
    server.add(here, "torchvision", release.torchvision + local, requires=vision, **built)
    server.add(here, "torchaudio", release.torchaudio + local, requires=wants, **built)
    server.add(here, "triton", release.default.triton, payload=_CODE, **built)
    # The index has the rest too, as PyTorch's does; it is not asked, for it is bound to its own packages.
    server.add(here, "numpy", "99.0")
    server.add(DEFAULT, "torch", torch, requires=["from-the-wrong-index"], date=OLD)
    server.add(DEFAULT, "triton", release.default.triton, payload=b"another", date=OLD)
    for name, version in pins.items():
        server.add(DEFAULT, name, version, tag="py3-none-manylinux1_x86_64", date=OLD, payload=_CODE)
    names = (text.partition(">")[0].partition(";")[0] for text in release.default.requires)
    for name in {*companions, *names, *(re.split("[^a-z-]", text)[0] for text in vision)} - {"torch"}:
        server.add(DEFAULT, name, _OLD_ENOUGH.get(name, "99.0"), date=OLD, payload=_CODE)


def _pins(facts: Facts, release: Release, variant: str) -> dict[str, str]:
    """NVIDIA's packages, as the real wheel's METADATA pins them; of CUDA 11.8 one set serves all releases but
    the first, whose wheels have the libraries inside."""
    assert variant == "cu118", variant
    told = release.variant(variant)
    if told.bundled:
        return {}
    assert told.cudnn
    assert told.nccl
    return dict(facts.cu118_pins) | {"nvidia-cudnn-cu11": told.cudnn, "nvidia-nccl-cu11": told.nccl}
