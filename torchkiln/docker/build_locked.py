"""LockedCell → an image in an engine in one call, for library callers and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.build.build import Options, require_real
from torchkiln.build.cache_claims import build_needs
from torchkiln.build.cuda_layers import unmade
from torchkiln.build.prefetch import measured
from torchkiln.build.prerequisites import at_hand
from torchkiln.index.archives import CudaArchives
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Observer
from torchkiln.plan.load import plan_locked
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.docker import build as docker_build
    from torchkiln.docker.daemon import Engine


def build_on_docker(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    store: Store,
    engine: Engine,
    wheels: docker_build.WheelSource,
    observer: Observer,
    options: Options,
    handed_on: docker_build.Options,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda _: None,
) -> docker_build.EngineImage:
    """Make sure of base and tools unless the user names a base, render, and let *engine* build.

    The Dockerfile is rendered here and now: the committed one could be stale.
    """
    from torchkiln.base.recipe import recipe
    from torchkiln.docker import build as docker_build  # only here, like what it needs: slow to load
    from torchkiln.docker.dockerfile import load_templates, render_folder
    from torchkiln.docker.secrets import apt_secrets
    from torchkiln.index.settings import index_settings
    from torchkiln.util.places import TEMPLATES

    require_real(locked, options)
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
        built = docker_build.build(
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
