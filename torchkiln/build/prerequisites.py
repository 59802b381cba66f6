"""LockedCell → its plan on the base and the tools that are at hand, or on what now stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.build.cache_claims import build_needs
from torchkiln.build.cuda_layers import unmade
from torchkiln.build.environment import Environment
from torchkiln.build.prefetch import fetching, measured, unfetched
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Where base and tools may come from beside the cache and the archive."""

    base_file: Path | None = None
    tools_file: Path | None = None
    locked_only: bool = False  # never others than the locked ones


@contextmanager
def ready(
    locked: LockedCell,
    planned: Callable[[LockedCell], ImagePlan],
    environment: Environment,
    sources: Sources | None,
    *,
    what: str,
) -> Iterator[tuple[ImagePlan, tuple[str, ...]]]:
    """The plan to build, and the packages by which its base and tools differ from *locked*.

    A base newer than the lock's gives another image, which says so: *planned* is then asked again. What the
    plan needs of the cache is claimed until the context ends; *what* says for which work.

    :param sources: None: base and tools of ours are not wanted.
    :raises KilnError: as *planned* and `at_hand` do; or nobody said where the toolkit's archives are.
    """
    plan, store = planned(locked), environment.store
    moved: tuple[str, ...] = ()
    with ExitStack() as claims:
        claims.enter_context(store.claim(what, build_needs(plan)))
        environment.archives.require(unmade(plan, store))
        if sources is not None:
            found, moved = at_hand(plan, environment, sources)
            if found != locked:
                plan = planned(found)
                claims.enter_context(store.claim(what, build_needs(plan)))
        yield measured(plan, store, environment.fetcher), moved


def at_hand(
    plan: ImagePlan, environment: Environment, sources: Sources
) -> tuple[LockedCell, tuple[str, ...]]:
    """The plan's lock on the base and tools that the cache has now; and the packages by which these differ.

    Where one must be built, wheels arrive meanwhile.

    :raises KilnError: as `artefact.ensure` and `tools.ensure` do.
    """
    locked, store = plan.locked, environment.store
    base_there = sources.base_file or store.has_blob(locked.base.digest, locked.base.size)
    there = base_there and (
        locked.tools is None or sources.tools_file or store.has_blob(locked.tools.digest, locked.tools.size)
    )
    with fetching(() if there else unfetched(plan, store), store, environment.fetcher):
        base, moved = artefact.ensure(
            locked.base,
            store,
            os_name=locked.resolution.cell.os,
            base_file=sources.base_file,
            locked_only=sources.locked_only,
            environ=environment.environ,
            say=environment.say,
        )
        found = replace(locked, base=base, layers=()) if moved else locked
        if locked.tools is None:
            return found, moved
        on_top, changed = tools.ensure(
            locked.tools,
            base,
            store,
            file=sources.tools_file,
            locked_only=sources.locked_only,
            environ=environment.environ,
            say=environment.say,
        )
    return replace(found, tools=on_top), (*moved, *changed)
