"""Builds a locked cell in a Docker engine, in one call."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.engine.build import after, check_trusted
from torchkiln.engine.environment import Environment
from torchkiln.engine.prerequisites import BaseSources, ready
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedCell
from torchkiln.plan.load import plan_locked

if TYPE_CHECKING:
    from torchkiln.docker import build as docker_build
    from torchkiln.docker.daemon import Engine


def build_on_docker(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    engine: Engine,
    environment: Environment,
    *,
    sources: BaseSources,
    options: docker_build.BuildxOptions,
) -> docker_build.EngineImage:
    """Provide base and tools (unless the user names a base), render the Dockerfile, and build it on *engine*.

    The Dockerfile is rendered again, because the committed one can be stale.
    """
    from torchkiln.base.recipe import recipe
    from torchkiln.docker import build as docker_build  # imported here because it is slow to import
    from torchkiln.docker.dockerfile import load_templates, render_folder
    from torchkiln.docker.secrets import apt_secrets
    from torchkiln.index.settings import index_settings
    from torchkiln.util.places import TEMPLATES

    started = time.monotonic()
    check_trusted(locked, sources)
    environment.store.sweep()
    base_recipe = recipe(locked.resolution.cell.os)
    if options.base is not None:  # apt may have to install packages that the user's base lacks
        bundle = Path(index_settings(environment.environ).ca_bundle or "")
        secrets = apt_secrets(base_recipe, environment.environ, bundle if bundle.is_file() else None)
        options = replace(options, secrets=secrets)
    with ready(
        locked,
        lambda cell: plan_locked(cell, matrix, facts),
        environment,
        sources if options.base is None else None,
        what=f"builds {tag_of(locked.resolution)} on Docker",
    ) as (plan, moved):
        prepared = time.monotonic() - started
        built = docker_build.build(
            plan,
            render_folder(plan, load_templates(TEMPLATES, matrix.folder), base_recipe.packages),
            engine,
            environment,
            repository=matrix.repository,
            options=options,
        )
    return replace(built, base_moved=moved, seconds=after(prepared, built.seconds))
