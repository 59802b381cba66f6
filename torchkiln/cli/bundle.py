"""`smoke --bundle`: the checks and all that they need, to be carried to a GPU host and run there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from torchkiln.cli.shared.console import size, waiting
from torchkiln.errors import ConfigError
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.bundle.contents import contents
from torchkiln.smoke.bundle.make import parts_of
from torchkiln.smoke.bundle.write import TAR, write_folder, write_parts, write_tar
from torchkiln.smoke.session import SmokeRequest, image_and_lock
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

_LEAST_PART = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a bundle goes: NAME.tar is one file, another name a folder.

    With *part_size*, bytes, the tar lies in parts in that folder.
    """

    place: Path
    part_size: int | None

    def __post_init__(self) -> None:
        if self.part_size is not None and self.part_size < _LEAST_PART:
            raise ConfigError(f"--part-size {self.part_size}: a part has 1m at least")
        if self.part_size is not None and self.is_tar:
            raise ConfigError(
                f"--bundle {self.place}: parts lie in a folder",
                hint="name it without .tar, or drop --part-size",
            )

    @property
    def is_tar(self) -> bool:
        return self.place.suffix == ".tar"


def make_bundle(
    ref: str, output: Path, images: Path, matrix_file: Path, request: SmokeRequest, target: Target
) -> None:
    """Write the bundle that runs *request* in the image *ref* of the layout *output*; its place on stdout.

    :raises KilnError: as `Session.run`; *target* is there, or cannot be written.
    """
    if RUNTIMES[request.runtime].in_engine:
        raise ConfigError(
            f"--runtime {request.runtime}: a bundle needs no engine and uses none", hint="leave it out"
        )
    image, tag, locked = image_and_lock(ref, output, images)
    store = Store(cache_root(), on_wait=waiting)
    arguments, suite = _arguments(request), request.checks.suite
    with parts_of(
        image, locked, suite, images=images, matrix=matrix_file, arguments=arguments, store=store
    ) as parts:
        files = contents(parts)
        click.echo(
            f"smoke: bundle of {tag} ({image.manifest[:19]}), {size(sum(one.size for one in files))}",
            err=True,
        )
        if target.part_size is not None:
            write_parts(files, target.place, target.part_size)
        elif target.is_tar:
            write_tar(files, target.place)
        else:
            write_folder(files, target.place)
    name = target.place.name
    if target.part_size is not None:
        first = f"cat {name}/{TAR}.* | tar --extract --directory FOLDER; python3 FOLDER/run.py"
    elif target.is_tar:
        first = f"tar --extract --file {name} --directory FOLDER; python3 FOLDER/run.py"
    else:
        first = f"python3 {name}/run.py"
    click.echo(f"on the GPU host, as root or where users may make namespaces:\n  {first}", err=True)
    click.echo(f"bring its report.json back:\n  torchkiln gate {tag} --report report.json", err=True)
    click.echo(target.place)


def _arguments(request: SmokeRequest) -> list[str]:
    checks = request.checks
    told = ["--tier", str(checks.tier), "--limit", str(checks.limit_s), "--shm-size", str(request.shm_size)]
    told += [word for name in checks.only for word in ("--only", name)]
    told += ["--runtime", request.runtime]
    told += ["--nonce", checks.nonce] if checks.nonce else []
    told += ["--gpus", request.gpus] if request.gpus else []
    return told + ["--force"] * request.force
