"""Docker at the command line: `build --engine docker`, and `build --load` of what our own engine built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.cli import console
from torchkiln.cli.desk import Desk, LateIndex

if TYPE_CHECKING:
    from torchkiln.engines.daemon import Engine
    from torchkiln.engines.observer import Observer
    from torchkiln.nouns import BuiltImage, Cell


@dataclass(frozen=True, slots=True)
class OnDocker:
    """The engine that DOCKER_HOST or the client's context names."""

    desk: Desk
    builder: str | None
    cache_from: tuple[str, ...]
    cache_to: tuple[str, ...]

    def build(self, cell: Cell) -> dict[str, Any]:
        """Build, show what came out, give what --json prints."""
        from torchkiln import kiln
        from torchkiln.engines import docker
        from torchkiln.engines.daemon import find_engine

        desk, store = self.desk, self.desk.store()
        reference = desk.base if desk.base and not Path(desk.base).is_file() else None
        engine = find_engine()
        locked = desk.locked(cell)
        with console.progress(quiet=desk.quiet) as observer:
            built = kiln.build_on_docker(
                locked,
                desk.matrix,
                desk.facts,
                store=store,
                engine=engine,
                wheels=LateIndex(store),
                observer=observer,
                options=kiln.Options(sources=desk.sources(none_of_ours=reference is not None)),
                handed_on=docker.Options(
                    builder=self.builder,
                    cache_from=self.cache_from,
                    cache_to=self.cache_to,
                    base=reference,
                ),
                say=desk.say,
            )
        desk.say(f"in {engine.host} ({engine.kind} {engine.version}): {', '.join(built.names)}")
        desk.say("time: " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in built.seconds))
        if built.base_moved:
            desk.say("base newer than the lock: " + "; ".join(built.base_moved))
        return desk.real_or_not(locked) | {
            "tag": built.tag,
            "digest": built.digest,
            "names": list(built.names),
            "engine": {"host": engine.host, "version": engine.version},
            "base": built.base,
            "base_newer_than_lock": list(built.base_moved),
            "seconds": {stage: round(seconds, 3) for stage, seconds in built.seconds},
        }


def engine_to_load_into() -> Engine:
    """The engine that DOCKER_HOST or the client's context names; it need not build."""
    from torchkiln.engines.daemon import find_engine

    return find_engine(builds=False)


def load_into(
    engine: Engine, built: BuiltImage, cell: Cell, desk: Desk, observer: Observer
) -> tuple[str, ...]:
    """Put *built* into *engine* under its tag and aliases, which are given back."""
    from torchkiln.engines.daemon import load
    from torchkiln.oci.layout import open_layout
    from torchkiln.tags import aliases_of

    aliases = aliases_of(desk.locked(cell).resolution, desk.matrix, desk.facts)
    names = tuple(f"{desk.matrix.repository}:{tag}" for tag in (built.tag, *aliases))
    load(open_layout(Path(built.layout)).image(built.ref), names, engine, observer)
    return names
