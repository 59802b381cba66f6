"""Defines the options of builds on several machines, and runs one layer's build, or all jobs on an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
class Shared:
    """The caches that several machines share."""

    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()

    def open_caches(self, cell: Cell) -> Caches | None:
        """Its caches for layers of *cell*, or None; those in `cache_to` are prepared.

        :raises ConfigError: a name is neither a folder nor a repository, or a folder cannot be created.
        :raises RegistryError: a registry in `cache_to` does not answer.
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

    def arguments(self) -> tuple[str, ...]:
        """The words that repeat these options."""
        named = (("--cache-from", self.cache_from), ("--cache-to", self.cache_to))
        return tuple(word for option, values in named for value in values for word in (option, value))


_PLACE = "FOLDER|oci://REPOSITORY"
_CACHES = (
    click.option(
        "--cache-from",
        metavar=_PLACE,
        multiple=True,
        help="copy layers that the lock records from this cache of other machines; repeatable; with --engine"
        " docker: passed to buildx",
    ),
    click.option(
        "--cache-to",
        metavar=_PLACE,
        multiple=True,
        help="copy layers and images to this cache; repeatable; with --engine docker: passed to buildx",
    ),
)
cache_options = gathered("shared", Shared, *_CACHES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Many(Shared):
    """The caches, the engine that runs the jobs, and the only layer to make."""

    engine_at: str | None
    layer: str | None


many_options = gathered(
    "many",
    Many,
    *_CACHES,
    click.option(
        "--on",
        "engine_at",
        metavar="ENGINE",
        help="run a job for each layer and image on processes[:N] of this machine, dask://HOST:PORT or slurm",
    ),
    click.option("--layer", metavar="NAME", help="make only this layer, which `plan --as json` names"),
)


def make_one_layer(context: BuildContext, cells: Sequence[Cell], many: Many, *, as_json: bool) -> None:
    """Make the layer of the one cell, and print its digest.

    :raises KilnError: it cannot be made.
    """
    from torchkiln.engine.environment import open_environment
    from torchkiln.engine.shared_layers import Caches, layer_named, make_layer
    from torchkiln.plan.load import plan_locked

    if len(cells) != 1:
        raise ConfigError(f"--layer takes one image, but {len(cells)} are selected", hint="name one TAG")
    plan = plan_locked(context.locked(cells[0]), context.matrix, context.facts)
    layer, caches = layer_named(many.layer or "", plan), many.open_caches(cells[0]) or Caches()
    with console.progress(quiet=context.quiet) as observer:
        environment = open_environment(context.store(), observer=observer, say=context.say)
        blob, how = make_layer(layer, plan, environment, context.sources, caches)
    found = {"layer": many.layer, "what": layer.title, "how": how, "digest": blob.digest, "size": blob.size}
    click.echo(json.dumps(found) if as_json else blob.digest)


def _given(ctx: click.Context, **names: str) -> tuple[str, ...]:
    """The words that repeat the options *names* (name -> option), if the user wrote them."""
    values = {"matrix_file": ctx.params["chosen"].matrix_file if "chosen" in ctx.params else "", **ctx.params}
    written = (
        (option, str(values[name]))
        for name, option in names.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    return tuple(word for pair in written for word in pair)


def jobs_for(
    ctx: click.Context, context: BuildContext, cells: Sequence[Cell], shared: Shared
) -> tuple[tuple[Job, ...], list[KilnError]]:
    """The jobs of *cells*, and the reasons why some of several cannot be built.

    :raises KilnError: the only cell cannot be built.
    """
    from torchkiln.jobs.graph import jobs_of
    from torchkiln.plan.load import plan_cell

    plans, failures = [], []
    for cell in cells:
        try:
            plans.append(plan_cell(cell, context.matrix, context.facts, images=context.images))
        except KilnError as error:
            if len(cells) == 1:
                raise
            failures.append(error)
    options = (*_given(ctx, matrix_file="--matrix", images="--images"), *shared.arguments())
    of_images = _given(ctx, output="--output", layer_format="--layer-format")
    return jobs_of(plans, options, of_images, only_recorded=bool(shared.cache_to)), failures


def build_on_engine(
    ctx: click.Context, context: BuildContext, cells: Sequence[Cell], many: Many, *, as_json: bool
) -> None:
    """Run the jobs of *cells* on an engine, and print the digest of each image.

    :raises KilnError: an image was not built; the others are.
    """
    from torchkiln.jobs.engines import open_engine
    from torchkiln.jobs.run import run

    jobs, failures = jobs_for(ctx, context, cells, many)
    done: dict[str, Outcome] = {}

    def finished(job: Job, outcome: Outcome) -> None:
        done[job.name] = outcome
        how = f"failed: {outcome.error}" if outcome.code else outcome.how or "built"
        context.say(f"{job.title}: {how} ({outcome.machine}, {outcome.seconds:.1f} s)")

    with open_engine(many.engine_at or "") as engine:
        run(jobs, engine, finished)
    for job in jobs:
        outcome = done.get(job.name)
        if outcome and outcome.code:
            failures.append(_failure(job, outcome))
        elif outcome and job.is_image:
            found = {"tag": job.name, "digest": outcome.digest, "machine": outcome.machine}
            click.echo(json.dumps(found) if as_json else outcome.digest)
        elif job.is_image:
            print_error(f"{job.name}: not built, because a layer of it failed")
    for error in failures:
        print_error(error.message, error.hint)
    if failures:
        raise console.worst(failures, len(jobs), "jobs")


def _failure(job: Job, outcome: Outcome) -> KilnError:
    error = KilnError(f"{job.title}: {outcome.error}", hint=outcome.hint)
    error.exit_code = outcome.code  # type: ignore[misc]
    return error
