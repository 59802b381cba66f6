"""The engine `dask://HOST:PORT`: a scheduler of dask.distributed. The workers need torchkiln, locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from torchkiln.errors import BuildFailed
from torchkiln.jobs.run import Engine


@contextmanager
def dask(rest: str) -> Iterator[Engine]:
    """The scheduler at *rest*, "//HOST:PORT".

    :raises BuildFailed: it does not answer.
    """
    address = f"tcp:{rest}"
    try:
        client = Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BuildFailed(
            f"--on dask:{rest}: {error}", hint="start it: dask scheduler; then workers: dask worker ADDRESS"
        ) from error
    with client:
        yield client.get_executor(pure=False)
