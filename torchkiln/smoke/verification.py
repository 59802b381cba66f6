"""Compares an image's unpacked files with its layers, and the image with its lock, before its checks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchkiln.locks.lock import lock_digest
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ArtefactLayer, ImagePlan, MadeLayer
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.plan.plan import plan
from torchkiln.runtimes.layer_indexes import kept_tree, tree_of
from torchkiln.runtimes.runtime import RuntimeListener
from torchkiln.runtimes.unpacked import image_env
from torchkiln.runtimes.verified_root import layers_of, verified
from torchkiln.smoke.outside import LockedFiles, faults
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The result of the verification."""

    faults: tuple[str, ...]  # how the image differs from its lock
    # when the unpacked files were compared with the layers, in UTC; None: an engine unpacks them
    when: str | None


def verification(
    image: ImageOnDisk, locked: LockedCell, store: Store, listener: RuntimeListener, *, in_engine: bool
) -> Verification:
    """Verify *image*; an unpacked copy that differs from its layers is replaced first.

    :param in_engine: an engine starts the image by the digest of its config; torchkiln does not unpack it.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: it cannot be unpacked.
    """
    tree, when = verified_tree(image, store, listener, in_engine=in_engine)
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    expected = LockedFiles.of(locked, _recorded(planned, store), dict(planned.config.env))
    diff_ids = [layer.diff_id for layer in image.layers]
    return Verification(faults=faults(tree, diff_ids, image_env(image), expected), when=when)


def verified_tree(
    image: ImageOnDisk, store: Store, listener: RuntimeListener, *, in_engine: bool
) -> tuple[Mapping[str, TreeItem], str | None]:
    """The files in the layers of *image*, and `Verification.when`."""
    if not in_engine:
        return verified(image, store, listener)
    layers = layers_of(image)
    tree = kept_tree(store, layers)
    if tree is None:
        listener.say("reading the layers of the image once, to compare its files with the lock")
        tree = tree_of(store, layers)
    return tree, None


def _recorded(planned: ImagePlan, store: Store) -> Sequence[Digest | None]:
    """The diff_id of each layer below the overlay, from the lock, or from the record in *store*; or None."""
    in_lock = {layer.title: layer.blob.diff_id for layer in planned.locked.layers}
    found: list[Digest | None] = []
    for spec in planned.layers:
        if isinstance(spec, ArtefactLayer):
            found.append(spec.blob.diff_id)
        elif isinstance(spec, MadeLayer):
            found.append(in_lock.get(spec.title) or _made(spec, store))
    return found


def _made(spec: MadeLayer, store: Store) -> Digest | None:
    """The diff_id of the layer that this machine built from verified wheels; None: *store* has no record."""
    try:
        from torchkiln.engine.records import record_of
    except ImportError:  # no libdeflate in a bundle: its GPU host builds no layers
        return None
    made = record_of(spec, store)
    return made.blob.diff_id if made and made.verified else None
