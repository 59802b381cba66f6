"""The engine `dask://HOST:PORT`: a scheduler of dask.distributed. Workers need torchkiln and the locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from distributed import Client

from torchkiln.errors import BuildFailed
from torchkiln.jobs.run import Engine

_LOOK = 0.5  # seconds
_LOST = "the scheduler does not answer"


class DaskEngine:
    """The executor of a client; its futures fail if the scheduler is lost. dask lets them wait for ever."""

    def __init__(self, client: Client) -> None:
        self._client, self._executor = client, client.get_executor(pure=False)
        self._pending: set[Future[Any]] = set()
        Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        if self._client.status == "closed":
            raise BuildFailed(f"--on dask: {_LOST}", hint="start it again; what was made is kept")
        future: Future[Any] = self._executor.submit(function, *arguments)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _watch(self) -> None:
        while self._client.status != "closed":
            time.sleep(_LOOK)
        for future in tuple(self._pending):
            with suppress(InvalidStateError):
                future.set_exception(ConnectionError(_LOST))


@contextmanager
def dask(rest: str) -> Iterator[Engine]:
    """The scheduler at *rest*, "//HOST:PORT".

    :raises BuildFailed: it does not answer.
    """
    try:
        client = Client(f"tcp:{rest}", set_as_default=False)
    except (OSError, ValueError) as error:
        raise BuildFailed(
            f"--on dask:{rest}: {error}", hint="start it: dask scheduler; then workers: dask worker ADDRESS"
        ) from error
    with client:
        yield DaskEngine(client)
