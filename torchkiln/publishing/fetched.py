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
_ALL = 32 << 20  # bytes of all statements of one image; a publication has about five million
A = TypeVar("A")
B = TypeVar("B")

#: A referrer with the descriptor of its document, or with the fault of its manifest.
Described = tuple[Referrer, Payload | VerificationFailed]


def read_manifests(
    reading: RepositoryReader, referrers: Sequence[Referrer], image: Digest
) -> list[Described]:
    """Read the manifests of the *referrers* of *image*.

    :raises VerificationFailed: the documents have too many bytes in total.
    :raises RegistryError: a request failed.
    """

    def describe(referrer: Referrer) -> Payload | VerificationFailed:
        try:
            return payload_of(reading, referrer, image, FORMS)
        except VerificationFailed as error:
            return error

    described = list(zip(referrers, _map(reading, describe, referrers), strict=True))
    if (total := sum(map(_size, described))) > _ALL:
        raise VerificationFailed(
            f"{reading.repository}: {image[:19]}: the statements attached to the image have {total} bytes in "
            f"total, more than the limit of {_ALL}; none was read",
            hint="delete the referrers that do not belong to the image",
        )
    return described


def download(
    reading: RepositoryReader, described: Sequence[Described]
) -> Iterator[tuple[Referrer, tuple[bytes, str] | VerificationFailed]]:
    """The documents with their media types, in order; holds at most `LIMIT` bytes at a time.

    :raises RegistryError: a request failed.
    """

    def fetch(entry: Described) -> tuple[bytes, str] | VerificationFailed:
        payload = entry[1]
        if isinstance(payload, VerificationFailed):
            return payload
        try:
            return reading.small(payload.digest, min(payload.size, LIMIT)), payload.media_type
        except VerificationFailed as error:
            return error

    for batch in _batches(described):
        for (referrer, _), document in zip(batch, _map(reading, fetch, batch), strict=True):
            yield referrer, document


def _map(reading: RepositoryReader, function: Callable[[A], B], values: Sequence[A]) -> list[B]:
    with ThreadPoolExecutor(_JOBS, "referrers") as pool:
        try:
            return list(pool.map(function, values))
        except BaseException:  # a failure, or Ctrl-C: stop the requests in the other threads
            reading.registry.stop()
            raise


def _batches(described: Sequence[Described]) -> Iterator[list[Described]]:
    batch: list[Described] = []
    for entry in described:
        if sum(map(_size, (*batch, entry))) > LIMIT or len(batch) == 4 * _JOBS:
            yield batch
            batch = []
        batch.append(entry)
    yield batch


def _size(entry: Described) -> int:
    return 0 if isinstance(entry[1], VerificationFailed) else entry[1].size
