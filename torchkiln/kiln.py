"""LockedCell → BuiltImage in one call, for library callers and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.base import artefact
from torchkiln.engines import embedded
from torchkiln.engines.observer import Fetcher, Observer
from torchkiln.facts import Facts
from torchkiln.matrix import Matrix
from torchkiln.nouns import LockedCell
from torchkiln.planning import plan_locked
from torchkiln.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build; nothing here changes an image's bytes."""

    base_file: Path | None = None  # take the base from there
    locked_only: bool = False  # never build on another base than the locked one
    refs: tuple[str, ...] = ()  # names in the layout; none: the plan's tag


def build(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    store: Store,
    layout: Path,
    fetcher: Fetcher,
    observer: Observer,
    options: Options,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda _: None,
) -> embedded.Build:
    """Make sure of the base, plan on it, and let the embedded engine build into *layout*.

    A base newer than the lock's gives another image, which says so: the plan is then made on that base.
    """
    store.sweep()
    base, moved = artefact.ensure(
        locked.base,
        store,
        os_name=locked.resolution.cell.os,
        base_file=options.base_file,
        locked_only=options.locked_only,
        environ=environ,
        say=say,
    )
    at_hand = replace(locked, base=base, layers=()) if moved else locked
    return embedded.build(
        plan_locked(at_hand, matrix, facts),
        store,
        layout,
        fetcher=fetcher,
        observer=observer,
        refs=options.refs,
        base_moved=moved,
    )
