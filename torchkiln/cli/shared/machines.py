"""Defines the options of builds on several machines, and runs one layer's build, or all jobs on an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torchkiln.cli.shared import console
from torchkiln.cli.shared.context import BuildContext
from torchkiln.cli.shared.options import gathered
from torchkiln.cli.shared.terminal import print_error
from torchkiln.errors import ConfigError, KilnError

if TYPE_CHECKING:
    from torchkiln.engine.shared_layers import Caches
    from torchkiln.jobs.graph import Job
    from torchkiln.jobs.run import Outcome
    from torchkiln.model.cell import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The caches that machines share, the engine that runs jobs, and the only layer to make."""

    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    engine_at: str | None = None
    layer: str | None = None

    def open_caches(self, cell: Cell) -> Caches | None:
        """Its caches for layers of *cell*, or None; those in `cache_to` are prepared.

        :raises KilnError: the name of a cache is wrong, or one in `cache_to` cannot be written or reached.
        """
        if not (self.cache_from or self.cache_to):
            return None
        from torchkiln.engine.shared_layers import Caches  # imported here because it loads slowly
        from torchkiln.vault.places import vault_at

        sources, targets = (
            tuple(vault_at(where, os.environ) for where in names)
            for names in (self.cache_from, self.cache_to)
        )
        if targets and cell.own_use:
            raise ConfigError(
                "--cache-to would copy modified NVIDIA libraries (--own-use) to others",
                hint="build without --cache-to",
            )
        for target in targets:
            target.prepare()
        return Caches(sources=sources, targets=targets)


_PLACE = "FOLDER|oci://REPOSITORY"
_CACHES = (
    click.option(
        "--cache-from",
        metavar=_PLACE,
        multiple=True,
        help="copy layers that the lock records from this cache; repeatable; docker: passed to buildx",
    ),
    click.option(
        "--cache-to",
        metavar=_PLACE,
        multiple=True,
        help="copy layers and images to this cache; repeatable; docker: passed to buildx",
    ),
)
cache_options = gathered("machines", Machines, *_CACHES, without=("engine_at", "layer"))
machine_options = gathered(
    "machines",
    Machines,
    *_CACHES,
    click.option(
        "--on",
        "engine_at",
        metavar="ENGINE",
        help="run a job for each layer and image on processes[:N], dask://HOST:PORT or slurm[:PARTITION]",
    ),
    click.option("--layer", metavar="NAME", help="make only this layer, which `plan --as json` names"),
)


def _one_layer(context: BuildContext, cells: Sequence[Cell], machines: Machines) -> dict[str, Any]:
    """Make the layer of the one cell; returns what --json prints."""
    from torchkiln.engine.cache_keys import layer_name
    from torchkiln.engine.environment import open_environment
    from torchkiln.engine.shared_layers import Caches, make_layer, shared_layers
    from torchkiln.plan.load import plan_locked

    if len(cells) != 1:
        raise ConfigError(f"--layer takes one image, but {len(cells)} are selected", hint="name one TAG")
    plan = plan_locked(context.locked(cells[0]), context.matrix, context.facts)
    layer = next((each for each in shared_layers(plan) if layer_name(each) == machines.layer), None)
    if layer is None:
        raise ConfigError(
            f"{plan.tag} has no layer {machines.layer}",
            hint="the lock or the recipe is not that of the plan: run torchkiln plan --as again, here",
        )
    caches = machines.open_caches(cells[0]) or Caches()
    with console.progress(quiet=context.quiet) as observer:
        environment = open_environment(context.store(), observer=observer, say=context.say)
        blob, how = make_layer(layer, plan, environment, context.sources, caches)
    about = {"layer": machines.layer, "what": layer.title, "how": how}
    return {**about, "digest": blob.digest, "size": blob.size}


def jobs_for(
    ctx: click.Context, context: BuildContext, cells: Sequence[Cell], machines: Machines, *, digests: bool
) -> tuple[tuple[Job, ...], list[KilnError]]:
    """The jobs of *cells*, and the reasons why some of several cells cannot be built.

    :param digests: also predict the digests of images, which takes three times as long.
    """
    from torchkiln.engine.known import predicted_digest
    from torchkiln.jobs.graph import jobs_of
    from torchkiln.locks.folder import LockFolder
    from torchkiln.plan.load import plan_locked
    from torchkiln.plan.plan import plan

    failures: list[KilnError] = []
    plans, folder = [], LockFolder(context.images, context.matrix, context.facts)
    for cell in cells:
        try:
            locked = folder.load(cell)
            if digests:
                whole = plan_locked(locked, context.matrix, context.facts)
                plans.append((whole, predicted_digest(whole)))
            else:  # the layers are the same without rootfs/ and the lock's digest
                plans.append((plan(locked, (), aliases=(), lock_digest=locked.inputs), None))
        except KilnError as error:
            if len(cells) == 1:
                raise
            failures.append(error)
    options = _repeated(ctx, "matrix_file", "images", "cache_from", "cache_to")
    of_images = _repeated(ctx, "output", "layer_format")
    return jobs_of(plans, options, of_images, only_recorded=bool(machines.cache_to)), failures


def _repeated(ctx: click.Context, *names: str) -> tuple[str, ...]:
    """The words of the options *names* that the user wrote."""
    words = []
    for option in ctx.command.params:
        if option.name in names and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            value = ctx.params[option.name]
            for one in value if isinstance(value, tuple) else (value,):
                words += [option.opts[0], str(one)]
    return tuple(words)


def build_jobs(
    ctx: click.Context, context: BuildContext, cells: Sequence[Cell], machines: Machines, *, as_json: bool
) -> None:
    """Make one layer, or all layers and images on an engine; print the digests.

    :raises KilnError: one of them cannot be made; the others are.
    """
    if machines.layer:
        found = _one_layer(context, cells, machines)
        click.echo(json.dumps(found) if as_json else found["digest"])
        return
    from torchkiln.jobs.engines import open_engine
    from torchkiln.jobs.run import Outcome, run

    jobs, failures = jobs_for(ctx, context, cells, machines, digests=True)
    done: dict[str, Outcome] = {}

    def finished(job: Job, outcome: Outcome) -> None:
        done[job.name] = outcome
        how = "failed" if outcome.code else outcome.how or "built"
        context.say(
            f"{job.title}: {how} ({outcome.machine}, {outcome.seconds:.1f} s)\n{outcome.error}".strip()
        )

    with open_engine(machines.engine_at or "") as engine:
        run(jobs, engine, finished)
    for job in jobs:
        outcome = done.get(job.name, Outcome(code=1, error="not built, because a layer of it failed"))
        if not outcome.code and job.is_image:
            found = {"tag": job.name, "digest": outcome.digest, "machine": outcome.machine}
            click.echo(json.dumps(found) if as_json else outcome.digest)
        elif outcome.code:
            failures.append(KilnError(f"{job.title}: {outcome.error}", hint=outcome.hint))
            failures[-1].exit_code = outcome.code  # type: ignore[misc]
    for error in failures:
        print_error(error.message, error.hint)
    if failures:
        raise console.worst(failures, len(jobs), "jobs")
