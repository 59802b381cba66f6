"""Finds the layers that images share, in a registry and on a host's disk.

A registry stores a blob once, by its digest, at any position in an image. An engine stores a layer relative
to the layers below, so a host shares a layer only if all layers below are the same: by its chain id, as in
the OCI image specification (config.md, Layer ChainID).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One layer of a stack. `blob` is None if no lock records it."""

    title: str
    blob: Blob | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """The layers of an image, lowest first."""

    tag: str
    levels: tuple[Level, ...]

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """The titles of the layers that no lock records."""
        return tuple(level.title for level in self.levels if level.blob is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredLayer:
    """A layer that is stored once for all images that have it."""

    key: Digest  # a blob's digest, or a chain id
    diff_id: Digest
    title: str
    bytes: int
    images: tuple[int, ...]  # positions in Sharing.stacks, ascending

    @property
    def shared(self) -> bool:
        """Whether several images have the layer."""
        return len(self.images) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The number and the total size of an image's layers that exactly `others` other images share."""

    others: int
    layers: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """A registry or a disk: the layers of each image, lowest first; None for unrecorded layers.

    Sums count recorded layers only.
    """

    images: tuple[tuple[StoredLayer | None, ...], ...]

    @property
    def stored(self) -> tuple[StoredLayer, ...]:
        """Each stored layer once, in the order of the images."""
        return tuple(dict.fromkeys(layer for image in self.images for layer in image if layer is not None))

    @property
    def unknown(self) -> int:
        """The number of unrecorded layers; if there are any, all sums are incomplete."""
        return sum(image.count(None) for image in self.images)

    @property
    def total(self) -> int:
        """The bytes of all images, as if they shared nothing."""
        return sum(self.bytes_of(image) for image in range(len(self.images)))

    @property
    def unique(self) -> int:
        """The bytes that are stored."""
        return sum(layer.bytes for layer in self.stored)

    @property
    def ratio(self) -> float | None:
        """`unique` divided by `total`; None if `total` is 0."""
        return self.unique / self.total if self.total else None

    def bytes_of(self, image: int) -> int:
        """The bytes of the image at position *image*."""
        return sum(layer.bytes for layer in self.images[image] if layer is not None)

    def parts_of(self, image: int) -> tuple[Part, ...]:
        """The shared layers of the image, by the number of other images that have them, largest first."""
        bytes_by_count: dict[int, list[int]] = {}
        for layer in self.images[image]:
            if layer is not None and layer.shared:
                bytes_by_count.setdefault(len(layer.images), []).append(layer.bytes)
        return tuple(
            Part(others=count - 1, layers=len(sizes), bytes=sum(sizes))
            for count, sizes in sorted(bytes_by_count.items(), reverse=True)
        )

    def shared_of(self, image: int) -> int:
        """The bytes of the image's layers that other images have, too."""
        return sum(part.bytes for part in self.parts_of(image))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """Images, and how they are stored: compressed blobs in a registry, unpacked layers on a disk."""

    stacks: tuple[Stack, ...]
    registry: Storage
    disk: Storage

    @property
    def shared(self) -> tuple[Digest, ...]:
        """The diff_ids of layers that more than one image has, at any position, in the images' order."""
        users: dict[Digest, set[int]] = {}
        for image, stack in enumerate(self.stacks):
            for level in stack.levels:
                if level.blob is not None:
                    users.setdefault(level.blob.diff_id, set()).add(image)
        return tuple(diff_id for diff_id, images in users.items() if len(images) > 1)


def share(stacks: Sequence[Stack]) -> Sharing:
    """Find the layers that *stacks* share, in a registry and on a disk.

    :raises VerificationFailed: two locks record different sizes for one blob.
    """
    blobs = [[level.blob.digest if level.blob else None for level in stack.levels] for stack in stacks]
    chains = [list(chain_ids(stack)) for stack in stacks]
    return Sharing(
        stacks=tuple(stacks),
        registry=_storage(stacks, blobs, unpacked=False),
        disk=_storage(stacks, chains, unpacked=True),
    )


def chain_ids(stack: Stack) -> Iterator[Digest | None]:
    """The chain id of each layer, lowest first; None from the first unrecorded layer on."""
    return accumulate((level.blob.diff_id if level.blob else None for level in stack.levels), _chain_id)


def _chain_id(below: Digest | None, diff_id: Digest | None) -> Digest | None:
    if below is None or diff_id is None:
        return None
    return Digest(f"sha256:{hashlib.sha256(f'{below} {diff_id}'.encode()).hexdigest()}")


def _storage(stacks: Sequence[Stack], keys: Sequence[Sequence[Digest | None]], *, unpacked: bool) -> Storage:
    users: dict[Digest, tuple[int, ...]] = {}
    for image, image_keys in enumerate(keys):
        for key in dict.fromkeys(image_keys):
            if key is not None:
                users[key] = (*users.get(key, ()), image)
    layers: dict[Digest, StoredLayer] = {}

    def stored(level: Level, key: Digest | None) -> StoredLayer | None:
        if key is None or level.blob is None:
            return None
        count = level.blob.unpacked if unpacked else level.blob.size
        layer = layers.setdefault(
            key,
            StoredLayer(
                key=key, diff_id=level.blob.diff_id, title=level.title, bytes=count, images=users[key]
            ),
        )
        if layer.bytes != count:
            raise VerificationFailed(
                f"{level.title} ({level.blob.digest}): conflicting sizes: {layer.bytes} and {count} bytes",
                hint="one of the locks is invalid; list stale locks with `torchkiln lock --check`",
            )
        return layer

    return Storage(
        images=tuple(
            tuple(stored(level, key) for level, key in zip(stack.levels, image_keys, strict=True))
            for stack, image_keys in zip(stacks, keys, strict=True)
        )
    )
