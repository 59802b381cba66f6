"""The computation of shared layers, compared with sets of digests and of prefixes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.compare.sharing import Level, Part, Stack, Storage, chain_ids, share
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob

# A layer as (content, form): forms are compressions of the same tar. None: a layer that is not recorded.
Drawn = tuple[int, int] | None
LAYERS = st.tuples(st.integers(0, 4), st.integers(0, 1))
KNOWN = st.lists(st.lists(LAYERS, max_size=6), min_size=1, max_size=5)
DRAWN = st.lists(st.lists(st.none() | LAYERS, max_size=6), min_size=1, max_size=5)


def sha256(text: str) -> Digest:
    return Digest("sha256:" + hashlib.sha256(text.encode()).hexdigest())


def compressed(content: int, form: int) -> int:
    """The layer's compressed size, another one for each layer."""
    return 3 ** (2 * content + form)


def unpacked(content: int) -> int:
    return 7 * 2**content


def level(drawn: Drawn) -> Level:
    if drawn is None:
        return Level(title="?", blob=None)
    content, form = drawn
    title = f"layer {content}"
    blob = Blob(
        digest=sha256(f"blob {content} {form}"),
        diff_id=sha256(f"tar {content}"),
        size=compressed(content, form),
        unpacked=unpacked(content),
    )
    return Level(title=title, blob=blob)


def stacks(images: Sequence[Sequence[Drawn]]) -> list[Stack]:
    return [
        Stack(tag=f"image-{number}", levels=tuple(map(level, image)))
        for number, image in enumerate(images, 1)
    ]


def prefixes(image: Sequence[Drawn]) -> list[tuple[int, ...] | None]:
    """For each layer, the contents of this layer and all layers below it; None if one is unknown."""
    found: list[tuple[int, ...] | None] = []
    for end in range(1, len(image) + 1):
        part = [item for item in image[:end] if item is not None]
        found.append(tuple(content for content, _ in part) if len(part) == end else None)
    return found


@given(KNOWN)
def test_sums_are_those_of_sets(images: list[list[tuple[int, int]]]) -> None:
    """A registry stores each blob once; a host stores each sequence of lower layers once."""
    found = share(stacks(images))
    blobs = {layer for image in images for layer in image}
    snapshots = {prefix for image in images for prefix in prefixes(image)}

    assert found.registry.total == sum(compressed(*layer) for image in images for layer in image)
    assert found.registry.unique == sum(compressed(*layer) for layer in blobs)
    assert found.disk.total == sum(unpacked(content) for image in images for content, _ in image)
    assert found.disk.unique == sum(unpacked(prefix[-1]) for prefix in snapshots if prefix)
    for place in (found.registry, found.disk):
        assert place.ratio == (place.unique / place.total if any(images) else None)
        assert place.unknown == 0


@given(DRAWN)
def test_the_number_of_images_that_share_a_layer(images: list[list[Drawn]]) -> None:
    """The test counts the other images for each layer in a simple loop."""
    found = share(stacks(images))
    keys: list[tuple[Storage, list[list[object]]]] = [
        (found.registry, [list(image) for image in images]),
        (found.disk, [list(prefixes(image)) for image in images]),
    ]
    for place, image_keys in keys:
        for at, image in enumerate(images):
            counted: dict[int, list[int]] = {}
            for key, layer in zip(image_keys[at], image, strict=True):
                if key is None or layer is None:
                    continue
                others = sum(
                    key in other_keys for number, other_keys in enumerate(image_keys) if number != at
                )
                size = compressed(*layer) if place is found.registry else unpacked(layer[0])
                if others:
                    counted.setdefault(others, []).append(size)
            assert place.parts_of(at) == tuple(
                Part(others=others, layers=len(sizes), bytes=sum(sizes))
                for others, sizes in sorted(counted.items(), reverse=True)
            )
            assert place.shared_of(at) == sum(map(sum, counted.values()))
            assert place.shared_of(at) <= place.bytes_of(at)


@given(DRAWN)
def test_unknown_layers_are_counted_and_excluded(images: list[list[Drawn]]) -> None:
    """For a host's disk, the layers above an unknown layer are unknown, too."""
    found = share(stacks(images))
    lost = sum(image.count(None) for image in images)
    buried = sum(prefixes(image).count(None) for image in images)

    assert (found.registry.unknown, found.disk.unknown) == (lost, buried)
    assert [list(stack.unrecorded) for stack in found.stacks] == [["?"] * item.count(None) for item in images]
    for place in (found.registry, found.disk):
        assert place.ratio == (place.unique / place.total if place.total else None)
        assert None not in place.stored
    known = {layer for image in images for layer in image if layer is not None}
    assert found.registry.unique == sum(compressed(*layer) for layer in known)


@given(DRAWN)
def test_shared_layers_are_those_that_two_images_have(images: list[list[Drawn]]) -> None:
    """Only the content counts, not compression or position. The result has the order of the images."""
    contents = [[layer[0] for layer in image if layer is not None] for image in images]
    known = dict.fromkeys(content for image in contents for content in image)
    twice = [item for item in known if sum(item in image for image in contents) > 1]

    assert list(share(stacks(images)).shared) == [sha256(f"tar {content}") for content in twice]


@given(st.lists(LAYERS, max_size=6))
def test_chain_ids_are_the_specifications(image: list[tuple[int, int]]) -> None:
    """ChainID(L0) = DiffID(L0), ChainID(L0|...|Ln) = SHA256(ChainID(L0|...|Ln-1) + " " + DiffID(Ln))."""

    def chain_id(diff_ids: list[str]) -> str:
        if len(diff_ids) == 1:
            return diff_ids[0]
        return sha256(chain_id(diff_ids[:-1]) + " " + diff_ids[-1])

    (stack,) = stacks([image])
    diff_ids = [f"sha256:{hashlib.sha256(f'tar {content}'.encode()).hexdigest()}" for content, _ in image]
    assert list(chain_ids(stack)) == [chain_id(diff_ids[:end]) for end in range(1, len(image) + 1)]


def test_the_same_layer_on_another_is_one_blob_and_two_snapshots() -> None:
    found = share(stacks([[(0, 0), (1, 0)], [(0, 0), (2, 0), (1, 0)]]))

    assert [(item.title, item.images) for item in found.registry.stored if item.shared] == [
        ("layer 0", (0, 1)),
        ("layer 1", (0, 1)),
    ]
    assert [(item.title, item.images) for item in found.disk.stored] == [
        ("layer 0", (0, 1)),
        ("layer 1", (0,)),
        ("layer 2", (1,)),
        ("layer 1", (1,)),
    ]


def test_another_compression_is_another_blob_and_the_same_snapshot() -> None:
    found = share(stacks([[(1, 0)], [(1, 1)]]))

    assert [item.images for item in found.registry.stored] == [(0,), (1,)]
    assert [item.images for item in found.disk.stored] == [(0, 1)]


def test_two_sizes_of_one_blob_are_an_error() -> None:
    lower, (upper,) = stacks([[(1, 0)]]), stacks([[(1, 0)]])
    blob = upper.levels[0].blob
    assert blob
    other_keys = Blob(digest=blob.digest, diff_id=blob.diff_id, size=blob.size + 1, unpacked=14)
    with pytest.raises(VerificationFailed, match=r"layer 1 .* conflicting sizes: 9 and 10 bytes"):
        share([*lower, Stack(tag="b", levels=(Level(title="layer 1", blob=other_keys),))])
