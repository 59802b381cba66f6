"""What `run` was asked for, whatever runs it."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.runtimes.rootfs import Bind


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The command line of `run`, read. What is None or empty there is as the image says."""

    command: tuple[str, ...]
    entrypoint: bool  # False: without the image's
    user: str | None
    workdir: str | None
    env: tuple[str, ...]  # NAME=VALUE
    binds: tuple[Bind, ...]
    shm_size: int  # bytes
    ports: tuple[str, ...] = ()
    gpus: str | None = None
