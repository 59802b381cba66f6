"""Finds engines, also those of other packages by their entry points, and provides `processes`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.jobs.run import Engine

GROUP = "torchkiln.engines"  # entry points of other engines
_OWN = {
    "processes": "torchkiln.jobs.engines:processes",
    "dask": "torchkiln.jobs.on_dask:dask",
    "slurm": "torchkiln.jobs.on_slurm:slurm",
}


def open_engine(address: str) -> AbstractContextManager[Engine]:
    """The engine at *address*: its name, and behind a colon what its entry point makes of the rest.

    :raises ConfigError: there is no such engine, or the rest is wrong.
    :raises ToolMissing: its extra is not installed.
    """
    name, _, rest = address.partition(":")
    own = (EntryPoint(name, value, GROUP) for name, value in _OWN.items())
    found = {point.name: point for point in (*own, *entry_points(group=GROUP))}
    if name not in found:
        raise ConfigError(f"--on {address}: no such engine", hint=f"one of: {', '.join(sorted(found))}")
    try:
        opened = found[name].load()
    except ImportError as error:
        raise ToolMissing(
            f"--on {address}: {error}", hint=f"install the extra: pip install 'torchkiln[{name}]'"
        ) from error
    return cast(AbstractContextManager[Engine], opened(rest))


def processes(count: str) -> AbstractContextManager[Engine]:
    """*count* jobs at a time on this machine, by default one for each two cores."""
    if count and not (count.isascii() and count.isdigit() and int(count)):
        raise ConfigError(f"--on processes:{count}: not a number", hint="for example: --on processes:4")
    return ThreadPoolExecutor(int(count or max(2, (os.cpu_count() or 2) // 2)))
