"""Stacks -> Sharing: which layers which images share, in a registry and on a host's disk; pure.

A registry keeps a blob once, by its digest, wherever the blob stands in an image. An engine keeps a layer as
what it adds to those below it, so a host shares a layer only where all below it are the same: by its chain
id, as the OCI image specification has it (config.md, Layer ChainID).
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
    """One layer of a stack. `blob` is None where nobody has recorded what it is."""

    title: str
    blob: Blob | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """An image by its layers, lowest first."""

    tag: str
    levels: tuple[Level, ...]

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Titles of the layers that nobody has recorded."""
        return tuple(level.title for level in self.levels if level.blob is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a place keeps once for all images that have it."""

    key: Digest  # a blob's digest, or a chain id
    diff_id: Digest
    title: str
    bytes: int
    images: tuple[int, ...]  # places in Sharing.stacks, ascending

    @property
    def shared(self) -> bool:
        """Whether several images have it."""
        return len(self.images) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What an image shares with a number of others: so many layers and bytes."""

    others: int
    layers: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A registry or a disk: for each image its layers, lowest first; None: not known what is kept of it."""

    images: tuple[tuple[Kept | None, ...], ...]

    @property
    def kept(self) -> tuple[Kept, ...]:
        """Each once, as the images have them from the first on."""
        return tuple(dict.fromkeys(one for image in self.images for one in image if one is not None))

    @property
    def unknown(self) -> int:
        """Layers of images of which it is not known what is kept; with one, no sum is whole."""
        return sum(image.count(None) for image in self.images)

    @property
    def total(self) -> int:
        """Bytes of all images, each as if it were alone; of what is known."""
        return sum(self.bytes_of(image) for image in range(len(self.images)))

    @property
    def unique(self) -> int:
        """Bytes that are kept; of what is known."""
        return sum(one.bytes for one in self.kept)

    @property
    def ratio(self) -> float | None:
        """What is kept of what the images come to, of what is known; None: of nothing."""
        return self.unique / self.total if self.total else None

    def bytes_of(self, image: int) -> int:
        """Bytes of the image at that place; of what is known."""
        return sum(one.bytes for one in self.images[image] if one is not None)

    def parts_of(self, image: int) -> tuple[Part, ...]:
        """What it shares, that with most others first; what it has alone is not among them."""
        shared = [one for one in self.images[image] if one is not None and one.shared]
        counts = sorted({len(one.images) for one in shared}, reverse=True)
        alike = ([one for one in shared if len(one.images) == count] for count in counts)
        return tuple(
            Part(others=len(same[0].images) - 1, layers=len(same), bytes=sum(one.bytes for one in same))
            for same in alike
        )

    def shared_of(self, image: int) -> int:
        """Bytes of it that other images have, too."""
        return sum(part.bytes for part in self.parts_of(image))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """Images, and what both kinds of place keep of them: compressed blobs, and unpacked layers."""

    stacks: tuple[Stack, ...]
    registry: Place
    disk: Place

    @property
    def shared(self) -> tuple[Digest, ...]:
        """The diff_ids of layers that several images have, in the images' order, wherever they stand."""
        having: dict[Digest, set[int]] = {}
        for image, stack in enumerate(self.stacks):
            for level in stack.levels:
                if level.blob is not None:
                    having.setdefault(level.blob.diff_id, set()).add(image)
        return tuple(diff_id for diff_id, images in having.items() if len(images) > 1)


def share(stacks: Sequence[Stack]) -> Sharing:
    """What *stacks* share.

    :raises VerificationFailed: something is told to have two sizes.
    """
    blobs = [[level.blob.digest if level.blob else None for level in stack.levels] for stack in stacks]
    chains = [list(chain_ids(stack)) for stack in stacks]
    return Sharing(
        stacks=tuple(stacks),
        registry=_place(stacks, blobs, unpacked=False),
        disk=_place(stacks, chains, unpacked=True),
    )


def chain_ids(stack: Stack) -> Iterator[Digest | None]:
    """Of each layer, lowest first. From the first on that nobody has recorded, none is known."""
    return accumulate((level.blob.diff_id if level.blob else None for level in stack.levels), _on)


def _on(below: Digest | None, diff_id: Digest | None) -> Digest | None:
    if below is None or diff_id is None:
        return None
    return Digest(f"sha256:{hashlib.sha256(f'{below} {diff_id}'.encode()).hexdigest()}")


def _place(stacks: Sequence[Stack], keys: Sequence[Sequence[Digest | None]], *, unpacked: bool) -> Place:
    having: dict[Digest, tuple[int, ...]] = {}
    for image, of_image in enumerate(keys):
        for key in dict.fromkeys(of_image):
            if key is not None:
                having[key] = (*having.get(key, ()), image)
    kept: dict[Digest, Kept] = {}

    def keep(level: Level, key: Digest | None) -> Kept | None:
        if key is None or level.blob is None:
            return None
        count = level.blob.unpacked if unpacked else level.blob.size
        one = kept.setdefault(
            key,
            Kept(
                key=key,
                diff_id=level.blob.diff_id,
                title=level.title,
                bytes=count,
                images=having[key],
            ),
        )
        if one.bytes != count:
            raise VerificationFailed(
                f"{level.title} ({level.blob.digest}) is told to have {one.bytes} bytes, and {count}",
                hint="one of the locks is wrong; `lock --check` tells of those that are stale",
            )
        return one

    return Place(
        images=tuple(
            tuple(keep(level, key) for level, key in zip(stack.levels, of_image, strict=True))
            for stack, of_image in zip(stacks, keys, strict=True)
        )
    )
