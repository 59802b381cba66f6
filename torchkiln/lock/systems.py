"""Locks bases and tools, each once in a run of `lock`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torchkiln.base import archive, artefact, tools
from torchkiln.base.recipe import recipe
from torchkiln.lock.request import System
from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedBase, LockedTools
from torchkiln.store.store import Store


class Systems:
    """The locked bases in *images*; missing ones are built, with *upgrade* all are rebuilt."""

    def __init__(
        self,
        images: Path,
        store: Store,
        *,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        upgrade: bool = False,
    ) -> None:
        self._images, self._store, self._environ, self._say = images, store, environ, say
        self._upgrade = upgrade
        self._bases: dict[str, LockedBase] = {}
        self._tools: dict[tuple[str, str], LockedTools] = {}

    def of(self, resolution: Resolution, facts: Facts) -> System:
        """The base, tools and archives of *resolution*."""
        base, toolkit = self._base(resolution.cell.os), resolution.toolkit
        return System(
            base=base,
            tools=self._tools_on(base, resolution.tools) if resolution.tools else None,
            archives=facts.redist.releases.get(toolkit.release, ()) if toolkit else (),
        )

    def _base(self, os_name: str) -> LockedBase:
        if os_name not in self._bases:
            base = artefact.read_lock(self._images, os_name)
            if base is None or self._upgrade:
                base = artefact.rebuild(
                    recipe(os_name), self._store, environ=self._environ, locked=base, say=self._say
                )
                artefact.write_lock(self._images, base)
                archive.commit_files(self._images, base, self._store)
            self._bases[os_name] = base
        return self._bases[os_name]

    def _tools_on(self, base: LockedBase, name: str) -> LockedTools:
        """The locked tools *name* on *base*; built if they are missing or made for another base."""
        if (base.os, name) not in self._tools:
            found = tools.read_lock(self._images, base.os, name)
            if found is None or found.base != base.digest:
                artefact.ensure(base, self._store, os_name=base.os, locked_only=True, say=self._say)
                found = tools.rebuild(
                    name, base, self._store, environ=self._environ, locked=found, say=self._say
                )
                tools.write_lock(self._images, found)
                archive.commit_files(self._images, found, self._store)
            self._tools[base.os, name] = found
        return self._tools[base.os, name]
