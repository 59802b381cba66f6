"""LockedCell → BuiltImage in one call, for library callers and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.engines import embedded
from torchkiln.engines.measured import measured
from torchkiln.engines.observer import Fetcher, Observer
from torchkiln.engines.toolkits import unmade
from torchkiln.errors import BuildFailed
from torchkiln.facts import Facts
from torchkiln.index.archives import CudaArchives
from torchkiln.matrix import Matrix
from torchkiln.nouns import BuiltLayer, LayerFormat, LockedCell
from torchkiln.planning import plan_locked
from torchkiln.stand_in import resolved_against, stand_ins
from torchkiln.store import Store
from torchkiln.survey import build_needs, remember_image, remember_layout
from torchkiln.system import Sources, at_hand
from torchkiln.tags import tag_of

if TYPE_CHECKING:
    from torchkiln.engines import docker
    from torchkiln.engines.daemon import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build; of these only `layer_format` changes an image's bytes, though not what is in it."""

    sources: Sources = field(default_factory=Sources)  # of base and tools
    refs: tuple[str, ...] = ()  # names in the layout; none: the plan's tag
    layer_format: LayerFormat = "gzip"
    stranger: bool = False  # the lock is not the user's own: nothing of its base runs without a sandbox


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
    """Make sure of base and tools, plan on them, and let the embedded engine build into *layout*.

    A base newer than the lock's gives another image, which says so: the plan is then made on that base.
    What the build needs of the cache is claimed meanwhile, and the layout is known to the cache from then on.
    """
    _require_real(locked, options)
    store.sweep()
    what = f"builds {tag_of(locked.resolution)}"
    archives = CudaArchives(environ)
    with ExitStack() as claims:
        claims.enter_context(store.claim(what, build_needs(locked)))
        archives.require(unmade(locked, store))
        found, moved = at_hand(locked, store, fetcher, options.sources, environ=environ, say=say)
        if moved:
            claims.enter_context(store.claim(what, build_needs(found)))
        remember_layout(store, layout)
        built = embedded.build(
            measured(plan_locked(found, matrix, facts), store, fetcher),
            store,
            layout,
            fetcher=fetcher,
            archives=archives,
            observer=observer,
            refs=options.refs,
            base_moved=moved,
            layer_format=options.layer_format,
            on_layer=on_layer,
            stranger=options.stranger,
            say=say,
        )
        remember_image(store, built.image, found, built.reused)
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
    """Make sure of base and tools unless the user names a base, render, and let *engine* build.

    The Dockerfile is rendered here and now: the committed one could be stale.
    """
    from torchkiln.base.recipe import recipe
    from torchkiln.engines import docker  # only here, like what it needs: slow to load
    from torchkiln.engines.secrets import apt_secrets
    from torchkiln.index.settings import index_settings
    from torchkiln.places import TEMPLATES
    from torchkiln.render import load_templates, render_folder

    _require_real(locked, options)
    store.sweep()
    cell, archives = locked.resolution.cell, CudaArchives(environ)
    with store.claim(f"builds {tag_of(locked.resolution)} on Docker", build_needs(locked)):
        archives.require(unmade(locked, store))
        found = locked
        moved: tuple[str, ...] = ()
        if handed_on.base is None:
            found, moved = at_hand(locked, store, wheels, options.sources, environ=environ, say=say)
        else:  # apt may have to bring what the user's base lacks
            bundle = Path(index_settings(environ).ca_bundle or "")
            secrets = apt_secrets(recipe(cell.os), environ, bundle if bundle.is_file() else None)
            handed_on = replace(handed_on, secrets=secrets)
        plan = plan_locked(found, matrix, facts)
        built = docker.build(
            measured(plan, store, wheels),
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


def _require_real(locked: LockedCell, options: Options) -> None:
    """What is published rests on no stand-in, so neither does what is built with `locked_only`."""
    if options.sources.locked_only and (names := stand_ins(locked)):
        raise BuildFailed(
            f"the lock of {tag_of(locked.resolution)} was {resolved_against(names)}",
            hint="lock it where the real one can be reached; to build it all the same, leave --locked out",
        )
