"""Builds an image from a lock in one call, for library callers and the command line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchkiln.engine import image as image_build
from torchkiln.engine.cache_claims import remember_image, remember_layout
from torchkiln.engine.environment import Environment
from torchkiln.engine.image_lock import remember_lock
from torchkiln.engine.prefetch import all_missing
from torchkiln.engine.prerequisites import BaseSources, ready
from torchkiln.errors import BuildFailed, NotListed
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.layer import DEFAULT_FORMAT, LayerFormat
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import DEVICE_CODE_RULE
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.plan.load import plan_locked


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """How to build. `layer_format` changes the bytes of the layers, but no file in them."""

    sources: BaseSources = field(default_factory=BaseSources)  # files of base and tools, see `BaseSources`
    refs: tuple[str, ...] = ()  # names in the layout; default: the plan's tag and aliases
    layer_format: LayerFormat = DEFAULT_FORMAT
    foreign: bool = False  # the lock is not the user's own: programs of its base run only in a sandbox


def build(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    layout: Path,
    environment: Environment,
    *,
    options: BuildOptions,
) -> image_build.BuildResult:
    """Plan, provide base and tools, and build into *layout* with the embedded engine.

    The base that was used may be newer than that of *locked*. The cache records the path of *layout*: see
    `cache_claims.remember_layout`.

    :raises BuildFailed: the lock is untrusted and *options* do not allow that, or it was made with another
        rule for cutting device code; or a step failed.
    """
    check_trusted(locked, options.sources)
    check_rule(locked)
    started, store = time.monotonic(), environment.store
    store.sweep()
    try:
        with ready(
            locked,
            lambda cell: plan_locked(cell, matrix, facts),
            environment,
            replace(options.sources, locate=matrix.locate),
            what=f"builds {tag_of(locked.resolution)}",
        ) as (plan, moved):
            prepared = time.monotonic() - started
            remember_layout(store, layout)
            remember_lock(plan.locked, store)
            built = image_build.build(
                plan,
                layout,
                environment,
                refs=options.refs or (plan.tag, *plan.aliases),
                layer_format=options.layer_format,
                foreign=options.foreign,
            )
            remember_image(store, built.image, plan, built.reused)
    except NotListed as error:
        raise all_missing(plan_locked(locked, matrix, facts), store, environment.fetcher, error) from error
    image = replace(built.image, base_moved=moved)
    return replace(built, image=image, seconds=after(prepared, built.seconds))


def after(prepared: float, stages: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """*stages* of a build after the stage "prepare", which took *prepared* seconds; the last is the total."""
    *steps, (total, seconds) = stages
    return (("prepare", prepared), *steps, (total, prepared + seconds))


def check_trusted(locked: LockedCell, sources: BaseSources) -> None:
    """With `sources.locked_only`, refuse an untrusted lock: its image could not be published."""
    if sources.locked_only and is_untrusted(locked):
        raise BuildFailed(
            f"the lock of {tag_of(locked.resolution)} {USES}",
            hint="lock it again with sources that you trust, or build without --locked",
        )


def check_rule(locked: LockedCell) -> None:
    """Refuse a thin image whose lock was made with another rule: the image would have other bytes."""
    if locked.device_code and locked.device_code.rule != DEVICE_CODE_RULE:
        raise BuildFailed(
            f"the lock of {tag_of(locked.resolution)} was made with rule {locked.device_code.rule} for"
            f" cutting device code, but this torchkiln uses rule {DEVICE_CODE_RULE}",
            hint="lock the cell again, or build it with the torchkiln that made the lock",
        )
