"""Provides base, tools and standalone Python of a lock, or their rebuilds, and plans the image on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.base.interpreter import interpreter
from torchkiln.base.remake import learn
from torchkiln.engine.cache_claims import build_needs
from torchkiln.engine.cuda_layers import missing_archives
from torchkiln.engine.environment import Environment
from torchkiln.engine.prefetch import demand_reachable, demand_space, fetching, measured, missing_wheels
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.locks.lock import on_base
from torchkiln.model.cell import PythonArchive
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools
from torchkiln.model.plan import ImagePlan
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.model.progress import Reporting


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSources:
    """Where base, tools and standalone Python come from, in addition to the cache, vaults and the archive."""

    images: Path | None = None  # the folder of locks, which has the packages and effects of the base
    locked_only: bool = False  # refuse rebuilds that differ from the lock
    locate: Callable[[PythonArchive], str] = lambda _: ""  # the path or URL of a standalone Python's archive


@contextmanager
def ready(
    locked: LockedCell,
    planned: Callable[[LockedCell], ImagePlan],
    environment: Environment,
    sources: BaseSources | None,
    *,
    what: str,
) -> Iterator[tuple[ImagePlan, tuple[str, ...]]]:
    """The plan to build, and the package differences of its base and tools from *locked*.

    If the base or the tools are not the locked ones, *planned* is called again. Until the context
    ends, `cache prune` keeps the files that the plan needs; *what* is the name of the work in its messages.

    :param sources: None: base and tools are not needed.
    :raises KilnError: as *planned* and `provide` do, or the address of the toolkit's archives is not set.
    """
    plan, store = planned(locked), environment.store
    changes: tuple[str, ...] = ()
    with ExitStack() as claims:
        claims.enter_context(store.claim(what, build_needs(plan)))
        environment.archives.require(missing_archives(plan, store))
        if sources is not None:
            found, changes = provide(plan, environment, sources)
            if found != locked:
                plan = planned(found)
                claims.enter_context(store.claim(what, build_needs(plan)))
        yield measured(plan, store, environment.fetcher), changes


def provide(
    plan: ImagePlan, environment: Environment, sources: BaseSources
) -> tuple[LockedCell, tuple[str, ...]]:
    """The lock with the base and tools that are in the cache afterwards, and their package differences.

    Wheels are downloaded while base or tools are built. Before that, one file is requested from each index.

    :raises KilnError: as `artefact.ensure` and `tools.ensure` do, or an index cannot be reached.
    """
    locked, store = plan.locked, environment.store
    report = Reporting(say=environment.say, observer=environment.observer)
    system: list[LockedBase | LockedTools] = [locked.base, *([locked.tools] if locked.tools else [])]
    demand_space(plan, store)
    complete = all(_have(each, environment) for each in system)
    wheels = () if complete else missing_wheels(plan, store)
    if not complete:
        for each in system:
            learn(sources.images, each, store)
        demand_reachable(plan, store, environment.fetcher)
        environment.archives.demand_reachable(missing_archives(plan, store))
    with fetching(wheels, store, environment.fetcher):
        if locked.base.platform != DEFAULT_PLATFORM:
            native = artefact.native_base(sources.images, locked.base.os)
            learn(sources.images, native, store)
            artefact.ensure(native, store, locked_only=True, environ=environment.environ, report=report)
            interpreter(locked.base, store, native=native)
        base, changes = artefact.ensure(
            locked.base, store, locked_only=sources.locked_only, environ=environment.environ, report=report
        )
        if locked.standalone is not None:
            pythons = StandalonePythons(store=store, environ=environment.environ, locate=sources.locate)
            pythons.ensure(locked.standalone, base, report=report)
        if locked.tools is None:
            return on_base(locked, base, None), changes
        found_tools, tool_changes = tools.ensure(
            locked.tools,
            base,
            store,
            locked_only=sources.locked_only,
            environ=environment.environ,
            report=report,
        )
    return on_base(locked, base, found_tools), (*changes, *tool_changes)


def _have(found: LockedBase | LockedTools, environment: Environment) -> bool:
    """Whether the cache or a vault has the blob of *found*: then nothing is downloaded while it is made."""
    if environment.store.has_blob(found.digest, found.size):
        return True
    from torchkiln.vault.places import vaults_of  # imported here: they load slowly
    from torchkiln.vault.sources import take

    store = environment.store
    return take(vaults_of(environment.environ), found.digest, found.size, store.blob(found.digest), store)
