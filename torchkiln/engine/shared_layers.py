"""Shares layers and images with other machines by caches, and makes one layer of an image.

A cache is a vault. It is not trusted: a layer comes from it only if the lock records the layer's digest, with
which its bytes are compared while they are copied. Any other layer is made from its locked files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torchkiln.engine.build import check_rule, check_trusted
from torchkiln.engine.cache_keys import key_of, record_of
from torchkiln.engine.environment import Environment
from torchkiln.engine.image import compare_with_lock, make_layers
from torchkiln.engine.known import known_blob, predicted_blob
from torchkiln.engine.prerequisites import BaseSources, ready
from torchkiln.model.layer import Blob, BuiltImage, tag_suffix
from torchkiln.model.plan import ArtefactLayer, ImagePlan, MadeLayer, ToolkitLayer, WheelLayer
from torchkiln.oci.layout import open_layout
from torchkiln.vault.places import Vault
from torchkiln.vault.sources import read_from

SharedLayer = ArtefactLayer | MadeLayer
"""A layer that several images can have."""
_STREAMS = 4
_ABSENT = ": not there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caches:
    """Where layers come from, and where layers and images are copied to."""

    sources: tuple[Vault, ...] = ()
    targets: tuple[Vault, ...] = ()

    def take(self, plan: ImagePlan, environment: Environment) -> None:
        """Copy the recorded layers of *plan* that the store lacks; a lost or lying cache is named."""
        if not self.sources:
            return
        with ThreadPoolExecutor(_STREAMS) as pool:
            found = pool.map(lambda layer: self._take(layer, plan, environment), shared_layers(plan))
            faults = {fault for each in found for fault in each}
        for fault in sorted(faults):
            environment.say(f"warning: {fault}; the layer is made here")

    def _take(self, layer: SharedLayer, plan: ImagePlan, environment: Environment) -> tuple[str, ...]:
        """Copy *layer*; returns the faults of the caches that did not give it."""
        store, blob = environment.store, predicted_blob(layer, plan)
        if blob is None:
            return ()
        if not store.has_blob(blob.digest, blob.size):
            temporary, report = store.temporary("cache"), environment.observer
            report.begin("download", layer.title, blob.size)
            try:
                with store.writable():
                    progress = partial(report.advance, "download", layer.title)
                    reasons = read_from(self.sources, blob.digest, blob.size, temporary, progress)
                    if reasons is not None:
                        return tuple(reason for reason in reasons if not reason.endswith(_ABSENT))
                    store.adopt(temporary, store.blob(blob.digest))
            finally:
                temporary.unlink(missing_ok=True)
                report.end("download", layer.title)
        if not isinstance(layer, ArtefactLayer) and not ((own := record_of(layer, store)) and own.verified):
            store.put_record("layers", key_of(layer), {**asdict(blob), "looked_into": False})
        return ()

    def give(self, image: BuiltImage) -> None:
        """Copy the blobs of *image* to the targets, and its manifest under the tag `unproven-TAG`.

        :raises KilnError: a target cannot be written or reached.
        """
        found = open_layout(Path(image.layout)).image(image.manifest)
        for target in self.targets:
            for layer in found.layers:
                target.put(layer.digest, layer.size, layer.path)
            documents = (found.manifest_path.read_bytes(), found.config_path.read_bytes())
            target.tag(f"unproven-{image.ref}{tag_suffix(found.layer_format)}", *documents)


def shared_layers(plan: ImagePlan) -> tuple[SharedLayer, ...]:
    """The layers of *plan* that other images can have; a layer comes after those that it is made with."""
    return (*plan.of(ArtefactLayer), *plan.made)


def made_with(layer: SharedLayer, plan: ImagePlan) -> tuple[ArtefactLayer, ...]:
    """The layers of *plan* without which *layer* cannot be made: byte-code is compiled by their Python."""
    other = isinstance(layer, WheelLayer) and layer.python.version != plan.locked.base.python
    kinds = () if isinstance(layer, ToolkitLayer) else ("base", "standalone") if other else ("base",)
    return tuple(each for each in plan.of(ArtefactLayer) if each.kind in kinds and each != layer)


def make_layer(
    layer: SharedLayer, plan: ImagePlan, environment: Environment, sources: BaseSources, caches: Caches
) -> tuple[Blob, str]:
    """Make *layer* of *plan* unless the store or a cache has it, and copy it to the caches that lack it.

    :returns: also "made", "reused", or "there" if all caches had it; then it need not be in the store.
    :raises KilnError: as `build.build` does; or a cache cannot be written or reached.
    """
    check_trusted(plan.locked, sources)
    check_rule(plan.locked)
    blob, store = predicted_blob(layer, plan), environment.store
    if blob and caches.targets and all(each.has(blob.digest, blob.size) for each in caches.targets):
        return blob, "there"
    caches.take(replace(plan, layers=(layer,)), environment)
    blob, how = known_blob(layer, plan, store), "reused"
    if blob is None or not store.has_blob(blob.digest, blob.size):
        blob, how = _made(layer, plan, environment, sources, caches)
    for cache in caches.targets:
        cache.put(blob.digest, blob.size, store.blob(blob.digest))
    return blob, how


def _made(
    layer: SharedLayer, plan: ImagePlan, environment: Environment, sources: BaseSources, caches: Caches
) -> tuple[Blob, str]:
    environment.store.sweep()
    only = _reduced(plan, layer)
    caches.take(only, environment)
    provided = None if isinstance(layer, ToolkitLayer) else sources
    with ready(only.locked, lambda _: only, environment, provided, what=f"makes {layer.title}") as (found, _):
        layers, reused, _ = make_layers(found, environment, foreign=False)
    compare_with_lock(layers, plan)
    waited = layer in plan.made and layer.title in reused  # for another process that made it
    return layers[-1].blob, "reused" if waited else "made"


def _reduced(plan: ImagePlan, layer: SharedLayer) -> ImagePlan:
    """*plan* with only *layer* and those that it is made with, also in its lock."""
    layers = (*made_with(layer, plan), layer)
    artefacts = [each.artefact for each in layers if isinstance(each, ArtefactLayer)]
    tools = plan.locked.tools if plan.locked.tools in artefacts else None
    standalone = plan.locked.standalone if plan.locked.standalone in artefacts else None
    return replace(plan, locked=replace(plan.locked, tools=tools, standalone=standalone), layers=layers)
