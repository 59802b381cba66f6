"""Runs the commands of checks in a prepared image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.model.recipe import PREFIX
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Bind, Command, Exited
from torchkiln.runtimes.runtime import RunnableImage


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideImage:
    """Implements `run.Inside` for an image that a runtime has prepared; skips the image's entrypoint."""

    ready: RunnableImage
    user: str | None = None  # UID:GID; None: the user of the image's config
    workdir: str | None = None  # None: that of the image's config
    python: str = f"{PREFIX}/bin/python"

    @property
    def name(self) -> str:
        return self.ready.runtime

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        bound = tuple(Bind(source=source.resolve(), target=target) for target, source in binds.items())
        command = Command(
            argv=tuple(argv), entrypoint=False, user=self.user, workdir=self.workdir, binds=bound
        )
        return self.ready.captured(command, timeout_s=timeout_s, on_line=on_line)

    def killed_for_memory(self) -> int:
        return self.ready.killed_for_memory()
