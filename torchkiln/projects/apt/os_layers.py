"""Lists the layers of an image that have OS packages, and the files that torchkiln adds above them. Pure."""

from __future__ import annotations

from torchkiln.model.apt import OsLayers
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, OverlayLayer


def layers_of(locked: LockedCell) -> OsLayers:
    """The layers of the image of *locked* that have OS packages."""
    return OsLayers(base=locked.base, tools=locked.tools)


def own_paths(plan: ImagePlan) -> frozenset[str]:
    """The paths of the files and links that torchkiln adds above the OS in the image of *plan*."""
    layers = plan.of(OverlayLayer)
    files = [file.path for layer in layers for file in layer.files]
    links = [link.path for layer in layers for link in layer.links]
    return frozenset({*files, *links})
