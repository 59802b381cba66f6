"""Makes the data of the picker: the inputs and the sentences of `pick`, for a script in a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchkiln.matrix.facts import Facts
from torchkiln.matrix.gpu_archs import how_served, is_kept_for
from torchkiln.matrix.pick import SENTENCES, parse_gpus, refused
from torchkiln.model.cell import Source
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.site.catalogue import ListedImage
from torchkiln.util.versions import major_of, numbers


def picker_data(images: Sequence[ListedImage], facts: Facts) -> dict[str, Any]:
    """The GPUs, and for each of *images* its drivers and how it serves each capability.

    `pick` in site.js applies the rules of `matrix.pick` to this data; a test compares both.
    """
    return {
        "machine": LINUX_AMD64.machine,
        "sentences": SENTENCES,
        "torch": list(dict.fromkeys(image.resolution.cell.torch for image in images)),
        "gpus": list(_gpus(facts)),
        "images": [_image(image, images, facts) for image in images],
    }


def _gpus(facts: Facts) -> Iterator[dict[str, Any]]:
    for kind in facts.gpus:
        for name in (*kind.names, kind.capability):
            [gpu] = parse_gpus([name], facts)
            yield {
                "name": gpu.name,
                "capability": kind.capability,
                "first": kind.first_branch,
                "last": kind.last_branch,
                "refused": refused(gpu),
            }


def _image(image: ListedImage, images: Sequence[ListedImage], facts: Facts) -> dict[str, Any]:
    resolution = image.resolution
    cell, build = resolution.cell, resolution.build
    assert build is not None  # each image of the catalogue has a build of torch
    return {
        "tag": image.tag,
        "torch": cell.torch,
        "cuda": cell.cuda,
        "minimum": resolution.min_driver,
        "full": resolution.full_driver,
        "major": major_of(build.cuda),
        "build": build.version,
        "archs": " ".join(build.archs),
        "kept": ", ".join(cell.gpus),
        "default_index": build.source is Source.DEFAULT,
        "runtime": cell.flavor == "runtime",
        "torch_rank": _rank(cell.torch, [other.resolution.cell.torch for other in images]),
        "cuda_rank": _rank(cell.cuda, [other.resolution.cell.cuda for other in images]),
        "code": {kind.capability: _code(build.archs, kind.capability, cell.gpus) for kind in facts.gpus},
    }


def _code(archs: Sequence[str], capability: str, kept: Sequence[str]) -> str:
    """How the image supports *capability*: "cubin", "ptx", "none", or "cut" (thin image without its code)."""
    if not is_kept_for(capability, kept):
        return "cut"
    return how_served(archs, capability) or "none"


def _rank(version: str, versions: Sequence[str]) -> int:
    """The position of *version* among all, the oldest first."""
    return sorted(set(versions), key=numbers).index(version)
