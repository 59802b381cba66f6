"""LockedCell → BuiltImage in one call, for library callers and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.base import artefact
from torchkiln.engines import embedded
from torchkiln.engines.observer import Fetcher, Observer
from torchkiln.engines.prefetch import fetching, unfetched
from torchkiln.engines.toolkits import unmade
from torchkiln.facts import Facts
from torchkiln.index.archives import CudaArchives
from torchkiln.matrix import Matrix
from torchkiln.nouns import BuiltLayer, LayerFormat, LockedBase, LockedCell
from torchkiln.planning import plan_locked
from torchkiln.store import Store
from torchkiln.survey import build_needs, remember_image, remember_layout
from torchkiln.tags import tag_of

if TYPE_CHECKING:
    from torchkiln.engines import docker
    from torchkiln.engines.daemon import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build; of these only `layer_format` changes an image's bytes, though not what is in it."""

    base_file: Path | None = None  # take the base from there
    locked_only: bool = False  # never build on another base than the locked one
    refs: tuple[str, ...] = ()  # names in the layout; none: the plan's tag
    layer_format: LayerFormat = "gzip"


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
    on_layer: Callable[[BuiltLayer], None] = lambda _: None,
) -> embedded.Build:
    """Make sure of the base, plan on it, and let the embedded engine build into *layout*.

    A base newer than the lock's gives another image, which says so: the plan is then made on that base.
    What the build needs of the cache is claimed meanwhile, and the layout is known to the cache from then on.
    """
    store.sweep()
    what = f"builds {tag_of(locked.resolution)}"
    archives = CudaArchives(environ)
    with ExitStack() as claims:
        claims.enter_context(store.claim(what, build_needs(locked)))
        archives.require(unmade(locked, store))
        base, moved = _base(locked, store, fetcher, options, environ, say)
        at_hand = replace(locked, base=base, layers=()) if moved else locked
        if moved:
            claims.enter_context(store.claim(what, build_needs(at_hand)))
        remember_layout(store, layout)
        built = embedded.build(
            plan_locked(at_hand, matrix, facts),
            store,
            layout,
            fetcher=fetcher,
            archives=archives,
            observer=observer,
            refs=options.refs,
            base_moved=moved,
            layer_format=options.layer_format,
            on_layer=on_layer,
        )
        remember_image(store, built.image, at_hand, built.reused)
    return built


def build_on_docker(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    store: Store,
    engine: Engine,
    wheels: docker.WheelSource,
    observer: Observer,
    options: Options,
    handed_on: docker.Options,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda _: None,
) -> docker.EngineImage:
    """Make sure of the base unless the user names one, render, and let *engine* build.

    The Dockerfile is rendered here and now: the committed one could be stale.
    """
    from torchkiln.base.recipe import recipe
    from torchkiln.engines import docker  # only here, like what it needs: slow to load
    from torchkiln.engines.secrets import apt_secrets
    from torchkiln.index.settings import index_settings
    from torchkiln.places import TEMPLATES
    from torchkiln.render import load_templates, render_folder

    store.sweep()
    cell, archives = locked.resolution.cell, CudaArchives(environ)
    with store.claim(f"builds {tag_of(locked.resolution)} on Docker", build_needs(locked)):
        archives.require(unmade(locked, store))
        at_hand = locked
        moved: tuple[str, ...] = ()
        if handed_on.base is None:
            base, moved = _base(locked, store, wheels, options, environ, say)
            at_hand = replace(locked, base=base, layers=()) if moved else locked
        else:  # apt may have to bring what the user's base lacks
            bundle = Path(index_settings(environ).ca_bundle or "")
            secrets = apt_secrets(recipe(cell.os), environ, bundle if bundle.is_file() else None)
            handed_on = replace(handed_on, secrets=secrets)
        plan = plan_locked(at_hand, matrix, facts)
        built = docker.build(
            plan,
            store,
            render_folder(plan, load_templates(TEMPLATES), recipe(cell.os).packages),
            engine=engine,
            repository=matrix.repository,
            wheels=wheels,
            archives=archives,
            observer=observer,
            options=handed_on,
            environ=environ,
        )
    return replace(built, base_moved=moved)


def _base(
    locked: LockedCell,
    store: Store,
    fetcher: Fetcher,
    options: Options,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> tuple[LockedBase, tuple[str, ...]]:
    """The base, and in what it differs from the lock's. Where it must be built, wheels arrive meanwhile."""
    there = options.base_file or store.has_blob(locked.base.digest, locked.base.size)
    with fetching(() if there else unfetched(locked, store), store, fetcher):
        return artefact.ensure(
            locked.base,
            store,
            os_name=locked.resolution.cell.os,
            base_file=options.base_file,
            locked_only=options.locked_only,
            environ=environ,
            say=say,
        )
