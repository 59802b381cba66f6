"""Makes the bill of an image of a layout from its lock, its layers, and the record of its base's files."""

from __future__ import annotations

from pathlib import Path

from torchkiln import __version__
from torchkiln.base.archive import files_of
from torchkiln.locks.lock import lock_digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Observer
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.plan.plan import plan
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.read_image import made_of, read_evidence
from torchkiln.store.store import Store


def bill_of_image(
    image: ImageOnDisk,
    locked: LockedCell,
    images: Path,
    store: Store,
    *,
    name: str,
    observer: Observer | None = None,
) -> Bill:
    """The bill of *image*, built from *locked*; layers whose metadata is in *store* are not read.

    :param images: the folder of locks.
    :param name: of the repository, "pytorch-cuda".
    :raises VerificationFailed: a layer is damaged, or the image does not match the lock.
    :raises ConfigError: the committed record of the base's files is invalid.
    """
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    return bill_of(
        locked,
        image.manifest,
        read_evidence(image, store, made_of=made_of(planned, store), observer=observer),
        files=files_of(images, locked, store),
        name=name,
        tool=__version__,
    )
