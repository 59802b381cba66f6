"""ImagePlan -> the digest that a build of it gives, where its lock has recorded the layers."""

from __future__ import annotations

from dataclasses import asdict

from torchkiln.model.digest import Digest
from torchkiln.model.image import BuiltLayer
from torchkiln.model.plan import ArtefactLayer, ImagePlan, OverlayLayer, PlannedLayer
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.image import describe


def predicted_digest(plan: ImagePlan) -> Digest | None:
    """The manifest's digest; None: a layer is not recorded, so only a build can tell."""
    layers = predicted_layers(plan)
    known = [layer for layer in layers if layer is not None]
    return describe(plan, known).manifest_digest if len(known) == len(layers) else None


def predicted_layers(plan: ImagePlan) -> list[BuiltLayer | None]:
    """Each layer, lowest first; None: it is not recorded."""
    return [_layer(spec, plan) for spec in plan.layers]


def _layer(spec: PlannedLayer, plan: ImagePlan) -> BuiltLayer | None:
    """As recorded; our own files are few, and made anew."""
    if isinstance(spec, OverlayLayer):
        blob = tar.archive((*spec.files, *spec.links), mtime=plan.epoch)
        return BuiltLayer(title=spec.title, **asdict(encode_bytes(blob)[1]))
    if isinstance(spec, ArtefactLayer):
        return BuiltLayer.of_artefact(spec.artefact, spec.title)
    return next((BuiltLayer(**asdict(one)) for one in plan.locked.layers if one.title == spec.title), None)
