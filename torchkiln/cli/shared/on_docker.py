"""Builds in a Docker engine, for `build --engine docker`, and loads images into it, for `build --load`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.cli.shared import console
from torchkiln.cli.shared.context import BuildContext
from torchkiln.docker.build import BuildxOptions
from torchkiln.docker.build_locked import build_on_docker
from torchkiln.docker.daemon import Engine, find_engine, load
from torchkiln.docker.dockerfile import demand_full
from torchkiln.engine.environment import open_environment
from torchkiln.matrix.tags import aliases_of
from torchkiln.model.cell import Cell
from torchkiln.model.layer import BuiltImage
from torchkiln.model.progress import Observer
from torchkiln.oci.layout import open_layout


@dataclass(frozen=True, slots=True)
class DockerBuilder:
    """Builds in the engine that DOCKER_HOST or the current Docker context names."""

    context: BuildContext
    options: BuildxOptions

    def build(self, cell: Cell) -> dict[str, Any]:
        """Build, print the result, and return what --json prints."""
        context, store = self.context, self.context.store()
        if cell.gpus or cell.system != cell.os:
            demand_full(context.locked(cell))  # first, so that the error comes even without an engine
        engine = find_engine()
        locked = context.locked(cell)
        with console.progress(quiet=context.quiet) as observer:
            built = build_on_docker(
                locked,
                context.matrix,
                context.facts,
                open_environment(store, observer=observer, say=context.say),
                sources=context.sources,
                options=self.options,
            )
        context.say(f"built in {engine.host} ({engine.kind} {engine.version}): {', '.join(built.names)}")
        context.say("time: " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in built.seconds))
        if built.base_moved:
            context.say(console.moved(built.base_moved))
        return context.trust_of(locked) | {
            "tag": built.tag,
            "digest": built.digest,
            "names": list(built.names),
            "engine": {"host": engine.host, "version": engine.version},
            "base": built.base,
            "base_newer_than_lock": list(built.base_moved),
            "seconds": {stage: round(seconds, 3) for stage, seconds in built.seconds},
        }


def load_into(
    engine: Engine, built: BuiltImage, cell: Cell, context: BuildContext, observer: Observer
) -> tuple[str, ...]:
    """Load *built* into *engine* under its tag and aliases; return its names in the engine."""
    aliases = aliases_of(context.locked(cell).resolution, context.matrix, context.facts)
    names = tuple(f"{context.matrix.repository}:{tag}" for tag in (built.tag, *aliases))
    load(open_layout(Path(built.layout)).image(built.ref), names, engine, observer)
    return names
