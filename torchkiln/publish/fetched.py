"""Downloads the statements attached to an image, in parallel, with limits on their number and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torchkiln.attest.signers import FORMS, LIMIT
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.artifact import Referrer
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.referrers import Payload, payload_of

_JOBS = 4
_ALL = 32 << 20  # bytes of all statements of one image; those of a publication have five million
A = TypeVar("A")
B = TypeVar("B")

#: A referrer with what it brings, or with what is wrong with it.
Looked = tuple[Referrer, Payload | VerificationFailed]


def looked(reading: RepositoryReader, wanted: Sequence[Referrer], image: Digest) -> list[Looked]:
    """What each of *wanted* brings to *image*, by its manifest.

    :raises VerificationFailed: all together are more than anybody publishes.
    :raises RegistryError: the registry refuses, or cannot be reached.
    """

    def look(one: Referrer) -> Payload | VerificationFailed:
        try:
            return payload_of(reading, one, image, FORMS)
        except VerificationFailed as error:
            return error

    found = list(zip(wanted, _each(reading, look, wanted), strict=True))
    if (total := sum(map(_size, found))) > _ALL:
        raise VerificationFailed(
            f"{reading.repository}: {image[:19]}: the statements that are listed with this image have "
            f"{total} bytes together, and at most {_ALL} are read, so none was",
            hint="somebody has filled the repository: delete what does not belong there",
        )
    return found


def fetched(
    reading: RepositoryReader, found: Sequence[Looked]
) -> Iterator[tuple[Referrer, tuple[bytes, str] | VerificationFailed]]:
    """The documents with their media types, in order. At no time are more bytes held than one may have.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """

    def fetch(one: Looked) -> tuple[bytes, str] | VerificationFailed:
        brings = one[1]
        if isinstance(brings, VerificationFailed):
            return brings
        try:
            return reading.small(brings.digest, min(brings.size, LIMIT)), brings.media_type
        except VerificationFailed as error:
            return error

    for some in _batches(found):
        for (referrer, _), got in zip(some, _each(reading, fetch, some), strict=True):
            yield referrer, got


def _each(reading: RepositoryReader, step: Callable[[A], B], of: Sequence[A]) -> list[B]:
    with ThreadPoolExecutor(_JOBS, "referrers") as pool:
        try:
            return list(pool.map(step, of))
        except BaseException:  # a failure, or Ctrl-C: the other threads would wait for their time-outs
            reading.registry.stop()
            raise


def _batches(found: Sequence[Looked]) -> Iterator[list[Looked]]:
    batch: list[Looked] = []
    for one in found:
        if sum(map(_size, (*batch, one))) > LIMIT or len(batch) == 4 * _JOBS:
            yield batch
            batch = []
        batch.append(one)
    yield batch


def _size(one: Looked) -> int:
    return 0 if isinstance(one[1], VerificationFailed) else one[1].size
