"""Writes a bundle of the checks and all that they need, to run on a GPU host, for `smoke run --bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache, size
from torchkiln.cli.shared.image_names import NamedImage
from torchkiln.cli.shared.program import as_typed
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.bundle.contents import contents
from torchkiln.smoke.bundle.held import HeldLayer, held_of, read_held
from torchkiln.smoke.bundle.make import parts_of
from torchkiln.smoke.bundle.write import TAR, write_folder, write_parts, write_tar
from torchkiln.smoke.session import SmokeRequest, image_and_lock

_LEAST_PART = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleTarget:
    """The path of a bundle: NAME.tar is one file, any other name a folder.

    With *part_size*, in bytes, the folder has the parts of a tar. The layers in the list *have* are left out.
    """

    place: Path
    part_size: int | None
    have: Path | None

    def __post_init__(self) -> None:
        if self.part_size is not None and self.part_size < _LEAST_PART:
            raise ConfigError(f"--part-size {self.part_size}: too small", hint="use 1m or more")
        if self.part_size is not None and self.is_tar:
            raise ConfigError(
                f"--bundle {self.place}: --part-size requires a folder, not a tar",
                hint="name it without .tar, or omit --part-size",
            )

    @property
    def is_tar(self) -> bool:
        return self.place.suffix == ".tar"


def make_bundle(
    named: NamedImage, images: Path, matrix_file: Path, request: SmokeRequest, target: BundleTarget
) -> None:
    """Write the bundle that runs *request* in the image *named*; print its path.

    :raises KilnError: as the smoke session's `run`; *target* exists, or cannot be written.
    """
    if RUNTIMES[request.runtime].in_engine:
        raise ConfigError(
            f"--runtime {request.runtime}: a bundle does not run in an engine", hint="omit --runtime"
        )
    listed = read_held(target.have) if target.have else {}
    store = open_cache()
    image, tag, locked = image_and_lock(named.ref, named.layout, images, store)
    held = held_of(image, listed)
    arguments, suite = _arguments(request), request.checks.suite
    with parts_of(image, locked, suite, matrix=matrix_file, arguments=arguments, store=store) as parts:
        files = contents(parts, held)
        total = size(sum(file.size for file in files))
        click.echo(
            f"smoke: bundle of {tag} ({image.manifest[:19]}), {total}{_left_out(image, held)}", err=True
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
    first += " --from EARLIER_BUNDLE" if held else ""
    click.echo(f"on the GPU host, as root or where user namespaces are allowed:\n  {first}", err=True)
    gate = as_typed(f"torchkiln gate {tag} --report report.json")
    click.echo(f"then copy its report.json back:\n  {gate}", err=True)
    click.echo(target.place)


def _left_out(image: ImageOnDisk, held: Mapping[Digest, HeldLayer]) -> str:
    """The part of a message that says which layers of *image* the bundle omits; empty if none."""
    if not held:
        return ""
    total = size(sum(layer.size for layer in held.values()))
    return f"; without {len(held)} of {len(image.layers)} layers, {total}, which the host has"


def _arguments(request: SmokeRequest) -> list[str]:
    checks = request.checks
    words = ["--tier", str(checks.tier), "--limit", str(checks.limit_s), "--shm-size", str(request.shm_size)]
    words += [word for name in checks.only for word in ("--only", name)]
    words += ["--runtime", request.runtime]
    words += ["--nonce", checks.nonce] if checks.nonce else []
    words += ["--gpus", request.gpus] if request.gpus else []
    return words + ["--force"] * request.force
