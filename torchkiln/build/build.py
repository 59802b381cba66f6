"""LockedCell → BuiltImage in one call, for library callers and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.build import image as image_build
from torchkiln.build.cache_claims import build_needs, remember_image, remember_layout
from torchkiln.build.cuda_layers import unmade
from torchkiln.build.prefetch import measured
from torchkiln.build.prerequisites import Sources, at_hand
from torchkiln.errors import BuildFailed
from torchkiln.index.archives import CudaArchives
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.image import BuiltLayer
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Fetcher, Observer
from torchkiln.model.stand_in import resolved_against, stand_ins
from torchkiln.plan.load import plan_locked
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build; of these only `layer_format` changes an image's bytes, though not what is in it."""

    sources: Sources = field(default_factory=Sources)  # of base and tools
    refs: tuple[str, ...] = ()  # names in the layout; none: the plan's tag
    layer_format: LayerFormat = DEFAULT_FORMAT
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
) -> image_build.Build:
    """Make sure of base and tools, plan on them, and let the embedded engine build into *layout*.

    A base newer than the lock's gives another image, which says so: the plan is then made on that base.
    What the build needs of the cache is claimed meanwhile, and the layout is known to the cache from then on.
    """
    require_real(locked, options)
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
        built = image_build.build(
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


def require_real(locked: LockedCell, options: Options) -> None:
    """What is published rests on no stand-in, so neither does what is built with `locked_only`."""
    if options.sources.locked_only and (names := stand_ins(locked)):
        raise BuildFailed(
            f"the lock of {tag_of(locked.resolution)} was {resolved_against(names)}",
            hint="lock it where the real one can be reached; to build it all the same, leave --locked out",
        )
