"""`torchkiln smoke --runtime docker`: the suite in a container of the engine that the user means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cli.shared.docker_images import gpus_on, image_on, parse_gpus
from torchkiln.docker.daemon import Engine, find_engine
from torchkiln.recipe import PREFIX
from torchkiln.runtimes.docker import captured
from torchkiln.runtimes.docker_args import Container
from torchkiln.runtimes.driver import killed_for_memory
from torchkiln.runtimes.rootfs import Bind, Exited
from torchkiln.smoke.run import passed_on


@dataclass(frozen=True, kw_only=True, slots=True)
class InContainer:
    """An image in an engine as smoke() wants it; binds are copied in, for the engine may be elsewhere."""

    engine: Engine
    image: str
    gpus: str
    cdi: bool
    shm_size: int
    python: str = f"{PREFIX}/bin/python"

    @property
    def name(self) -> str:
        return self.engine.kind.lower()

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Exited:
        """As root, without the image's entrypoint, with the host's settings of NCCL."""
        container = Container(
            image=self.image,
            command=tuple(argv),
            entrypoint=False,
            env=tuple(f"{name}={value}" for name, value in passed_on(os.environ).items()),
            user="0:0",
            workdir="/",
            gpus=self.gpus,
            cdi=self.cdi,
            shm_size=self.shm_size,
            files=tuple(Bind(source=source.resolve(), target=target) for target, source in binds.items()),
        )
        return captured(container, self.engine, timeout_s=timeout_s)

    def killed_for_memory(self) -> int:
        """By this kernel, if it is the engine's too."""
        return killed_for_memory() if self.engine.host.startswith("unix://") else 0


def in_container(ref: str, output: Path, matrix_file: Path, gpus: str | None, shm_size: int) -> InContainer:
    """The image *ref* of the layout *output*, in the engine: it is loaded if another one or none is there.

    :raises ConfigError: *gpus* is none of what --gpus takes.
    :raises ToolMissing: no engine answers, or it gives no GPUs that were asked for.
    """
    parse_gpus(gpus)
    engine = find_engine(builds=False)
    asked, cdi = gpus_on(engine, gpus)
    name, _ = image_on(engine, ref, output, matrix_file)
    return InContainer(engine=engine, image=name, gpus=asked, cdi=cdi, shm_size=shm_size)
