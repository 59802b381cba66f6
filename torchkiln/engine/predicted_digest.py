"""Predicts the digest of an image whose lock records its layers."""

from __future__ import annotations

from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.plan import ArtefactLayer, ImagePlan, OverlayLayer, PlannedLayer, RemovalLayer
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.image import describe


def predicted_digest(plan: ImagePlan) -> Digest | None:
    """The manifest's digest; None if a layer is not recorded."""
    known = [
        ImageLayer(title=layer.title, blob=blob)
        for layer, blob in zip(plan.layers, predicted_blobs(plan), strict=True)
        if blob
    ]
    return describe(plan, known).manifest_digest if len(known) == len(plan.layers) else None


def predicted_blobs(plan: ImagePlan) -> list[Blob | None]:
    """The blob of each layer, lowest first; None if it is not recorded."""
    return [predicted_blob(layer, plan) for layer in plan.layers]


def predicted_blob(layer: PlannedLayer, plan: ImagePlan) -> Blob | None:
    """The recorded blob, None if there is none; overlays and removals are small, and are encoded here."""
    match layer:
        case ArtefactLayer():
            return layer.blob
        case OverlayLayer() | RemovalLayer():
            return encoded(layer, plan.epoch)[1]
    return next((each.blob for each in plan.locked.layers if each.title == layer.title), None)


def encoded(layer: OverlayLayer | RemovalLayer, epoch: int) -> tuple[bytes, Blob]:
    """The blob of *layer* and its description."""
    links = layer.links if isinstance(layer, OverlayLayer) else ()
    return encode_bytes(tar.archive((*layer.files, *links), mtime=epoch))
