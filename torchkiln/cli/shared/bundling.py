"""Defines the options for a bundle, and writes the bundle of an image and of the command that checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.shared.console import open_cache, size
from torchkiln.cli.shared.image_names import NamedImage
from torchkiln.cli.shared.options import EXISTING_FILE, Named, gathered, parse_size
from torchkiln.cli.shared.reports import ReportFiles
from torchkiln.cli.shared.runtime_options import RunOn
from torchkiln.cli.shared.terminal import as_typed, echo
from torchkiln.errors import ConfigError
from torchkiln.runtimes.table import RUNTIMES

if TYPE_CHECKING:
    from torchkiln.model.digest import Digest
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.smoke.bundle.held import HeldLayer
    from torchkiln.smoke.suite import Suite

_LEAST_PART = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundling:
    """The options for a bundle. NAME.tar is one file, any other name a folder, maybe with parts of a tar."""

    bundle: Path | None
    part_size: str | None
    have: Path | None  # a list of layers to leave out

    def demand(self, on: RunOn, key_file: Path | None, files: ReportFiles) -> None:
        """:raises ConfigError: an option is invalid, or has no meaning with --bundle or without it."""
        self.part_bytes()
        if self.bundle and (key_file or any(asdict(files).values())):
            raise ConfigError(
                "--bundle runs no checks, so there is no report to write",
                hint="use --key, --report, --junit, --markdown and --json with the bundle's run.py",
            )
        if self.bundle and RUNTIMES[on.runtime].in_engine:
            raise ConfigError(
                f"--runtime {on.runtime}: a bundle does not run in an engine", hint="omit --runtime"
            )

    @staticmethod
    def arguments(on: RunOn, only: Sequence[str], limit: float, nonce: str | None) -> list[str]:
        """The arguments that all commands with checks have."""
        words = ["--limit", str(limit), "--shm-size", str(on.shm_bytes), "--runtime", on.runtime]
        words += [word for name in only for word in ("--only", name)]
        words += ["--nonce", nonce] if nonce else []
        return words + (["--gpus", on.gpus] if on.gpus else [])

    def part_bytes(self) -> int | None:
        """The size of a part; None: no parts.

        :raises ConfigError: it is invalid, or --bundle is missing or no folder.
        """
        if (self.part_size or self.have) and not self.bundle:
            raise ConfigError("--part-size and --have require --bundle", hint="add --bundle FOLDER")
        if self.part_size is None or self.bundle is None:
            return None
        size = parse_size(self.part_size, "--part-size")
        if size < _LEAST_PART:
            raise ConfigError(f"--part-size {size}: too small", hint="use 1m or more")
        if self.bundle.suffix == ".tar":
            raise ConfigError(
                f"--bundle {self.bundle}: --part-size requires a folder, not a tar",
                hint="name it without .tar, or omit --part-size",
            )
        return size


bundle_options = gathered(
    "bundling",
    Bundling,
    click.option(
        "--bundle",
        type=Named(),
        metavar="FOLDER|NAME.tar",
        help="run nothing; write a bundle to run on a GPU host (docs/deploy.md)",
    ),
    click.option(
        "--part-size", metavar="SIZE", help="with --bundle: split the tar into parts of this size, 60m"
    ),
    click.option(
        "--have",
        type=EXISTING_FILE,
        metavar="FILE",
        help="with --bundle: leave out the layers that the GPU host has; FILE is the output of its"
        " run.py --have",
    ),
)


def make_bundle(
    named: NamedImage,
    images: Path,
    matrix: Path,
    suite: Suite,
    arguments: Sequence[str],
    bundling: Bundling,
    project: Mapping[str, bytes],
) -> None:
    """Write the bundle that checks the image *named* with *arguments*; print its path.

    :param project: the files of the project whose checks it runs; none: it runs *suite*.
    :raises KilnError: as the smoke session's `run`; the bundle exists, or cannot be written.
    """
    from torchkiln.smoke.bundle.contents import contents
    from torchkiln.smoke.bundle.held import held_of, read_held
    from torchkiln.smoke.bundle.make import parts_of
    from torchkiln.smoke.bundle.write import TAR, write_folder, write_parts, write_tar
    from torchkiln.smoke.session import image_and_lock

    place, part_bytes = bundling.bundle, bundling.part_bytes()
    assert place is not None
    listed = read_held(bundling.have) if bundling.have else {}
    store = open_cache()
    image, _, locked = image_and_lock(named.ref, named.layout, images, store)
    held = held_of(image, listed)
    with parts_of(
        image, locked, suite, matrix=matrix, arguments=arguments, project=project, store=store
    ) as parts:
        files = contents(parts, held)
        total = size(sum(file.size for file in files))
        echo(
            f"smoke: bundle of {image.ref} ({image.manifest[:19]}), {total}{_left_out(image, held)}", err=True
        )
        if part_bytes is not None:
            write_parts(files, place, part_bytes)
            first = f"cat {place.name}/{TAR}.* | tar --extract --directory FOLDER; python3 FOLDER/run.py"
        elif place.suffix == ".tar":
            write_tar(files, place)
            first = f"tar --extract --file {place.name} --directory FOLDER; python3 FOLDER/run.py"
        else:
            write_folder(files, place)
            first = f"python3 {place.name}/run.py"
    first += " --from EARLIER_BUNDLE" if held else ""
    echo(f"on the GPU host, as root or where user namespaces are allowed:\n  {first}", err=True)
    gate = as_typed(f"torchkiln gate {image.ref} --report report.json")
    echo(f"then copy its report.json back:\n  {gate}", err=True)
    echo(place)


def _left_out(image: ImageOnDisk, held: Mapping[Digest, HeldLayer]) -> str:
    """The part of a message that says which layers of *image* the bundle omits; empty if none."""
    if not held:
        return ""
    total = size(sum(layer.size for layer in held.values()))
    return f"; without {len(held)} of {len(image.layers)} layers, {total}, which the host has"
