"""LockedCell → the same with its base and its tools at hand, or with what now stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.build.prefetch import fetching, unfetched
from torchkiln.matrix.os_tools import packages_of
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Fetcher
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Where base and tools may come from beside the cache and the archive."""

    base_file: Path | None = None
    tools_file: Path | None = None
    locked_only: bool = False  # never others than the locked ones


def at_hand(
    locked: LockedCell,
    store: Store,
    fetcher: Fetcher,
    sources: Sources,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> tuple[LockedCell, tuple[str, ...]]:
    """*locked* on the base and tools that *store* has now; and the packages by which these differ.

    Where one must be built, wheels arrive meanwhile.

    :raises KilnError: as `artefact.ensure` and `tools.ensure` do.
    """
    base_there = sources.base_file or store.has_blob(locked.base.digest, locked.base.size)
    there = base_there and (
        locked.tools is None or sources.tools_file or store.has_blob(locked.tools.digest, locked.tools.size)
    )
    with fetching(() if there else unfetched(locked, store), store, fetcher):
        base, moved = artefact.ensure(
            locked.base,
            store,
            os_name=locked.resolution.cell.os,
            base_file=sources.base_file,
            locked_only=sources.locked_only,
            environ=environ,
            say=say,
        )
        found = replace(locked, base=base, layers=()) if moved else locked
        if locked.tools is None:
            return found, moved
        on_top, changed = tools.ensure(
            locked.tools,
            base,
            store,
            packages=packages_of(locked.tools.name),
            file=sources.tools_file,
            locked_only=sources.locked_only,
            environ=environ,
            say=say,
        )
    return replace(found, tools=on_top), (*moved, *changed)
