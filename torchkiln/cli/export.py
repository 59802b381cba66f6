"""`torchkiln export`: writes images in the forms from which nodes start without unpacking."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from torchkiln.cli.shared.console import echo, open_cache, say, size
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.image_names import named_image, named_images
from torchkiln.cli.shared.options import FOLDER, images_folder, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import name_argument, names_argument
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.locks.file import LIMIT, from_json
from torchkiln.matrix.tags import preferred_name
from torchkiln.model.digest import Digest
from torchkiln.oci.erofs import Unmountable, convert, find_mkfs, images_in, place_of, places
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.squashfs import find_tar2sqfs, write_squashfs
from torchkiln.oci.unpack import LayerBlob
from torchkiln.runtimes.image_root import layers_of
from torchkiln.runtimes.layer_indexes import index_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.store.store import age
from torchkiln.util.files import remove_tree
from torchkiln.util.ownership import require_private
from torchkiln.util.strict_json import read_file

_DAY = 86400.0  # seconds
_FOLDER = click.argument("folder", type=FOLDER, metavar="DIR")


@click.group("export", cls=Group)
def export() -> None:
    """Write images for nodes that start without pulling and unpacking."""


@export.command("erofs")
@_FOLDER
@names_argument
@selection
@layout_option()
def erofs(folder: Path, names: tuple[str, ...], chosen: CellOptions, output: Path) -> None:
    """Write the layers of images to DIR as EROFS images, which containerd 2.4 mounts.

    DIR is a folder for `layer_content_caches` of containerd's EROFS snapshotter: a layer that it contains is
    neither downloaded nor unpacked. It can be on a shared or read-only file system. Each layer is written
    once, under its diff_id; layers that DIR already has are skipped. With --all, all images of the layout
    are written. Needs mkfs.erofs 1.8.2 or newer.
    """
    require_private(folder, "the folder", ("sha256",), hint="name a folder of your own: chmod go-w DIR")
    if chosen.every:
        images = _all_images(output)
    else:
        named = named_images(names, output, chosen)
        if not named:
            raise ConfigError("no image is named", hint="add a TAG, --torch and --cuda, or --all")
        images = tuple(open_layout(one.layout).image(one.ref) for one in named)
    layers = {layer.diff_id: layer for image in images for layer in layers_of(image)}
    missing = [layer for layer in layers.values() if not place_of(folder, layer.diff_id).exists()]
    if missing:
        _convert(missing, folder, find_mkfs())
    bytes_there = sum(place_of(folder, diff_id).stat().st_size for diff_id in layers)
    say(
        f"export: {len(images)} images have {len(layers)} layers, {size(bytes_there)} in {folder}; "
        f"{len(missing)} are new"
    )


@export.command("squashfs")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@name_argument
@selection
@layout_option()
def squashfs(file: Path, name: str | None, chosen: CellOptions, output: Path) -> None:
    """Write the image TAG to FILE as one squashfs, from which pyxis, enroot and Apptainer start.

    The same image gives the same bytes. Enroot reads the image's variables from /etc/environment. The image's
    entrypoint is not in FILE. Needs tar2sqfs (apt-get install squashfs-tools-ng).
    """
    if os.path.lexists(file):
        raise ConfigError(f"{file}: File exists", hint="delete it, or name another file")
    named = named_image(name, output, chosen, command="export squashfs")
    program, store = find_tar2sqfs(), open_cache()
    image = open_layout(named.layout).image(named.ref)
    layers = layers_of(image)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        indexes = tuple(pool.map(lambda layer: index_of(store, layer), layers))
    write_squashfs(layers, indexes, image_env(image), file, program)
    say(f"export: {size(file.stat().st_size)} in {file}")


@export.command("gc")
@_FOLDER
@click.option("--dry-run", is_flag=True, help="only list what would be deleted")
@images_folder
@layout_option("the OCI layout whose images are kept")
def gc(folder: Path, dry_run: bool, images: Path, output: Path) -> None:
    """Delete the EROFS images in DIR that no image of the layout and no lock needs.

    Do not run it while containerd has containers of the deleted layers: it links to the files.
    """
    needed = {layer.diff_id for image in _all_images(output) for layer in image.layers} | _locked(images)
    loose = [(path, diff_id) for path, diff_id in images_in(folder) if diff_id not in needed]
    for path, diff_id in loose:
        echo(f"{diff_id}  {size(path.stat().st_size)}")
        if not dry_run:
            path.unlink(missing_ok=True)
    for path in () if dry_run else places(folder, ".*.erofs.*"):  # of a process that was killed
        if age(path) > _DAY:
            remove_tree(path)
    say(f"export: {len(loose)} layers {'would be' if dry_run else 'were'} deleted from {folder}")


def _all_images(layout: Path) -> tuple[ImageOnDisk, ...]:
    names: dict[Digest, list[str]] = {}
    for ref, digest in (found := open_layout(layout)).refs().items():
        names.setdefault(digest, []).append(ref)
    return tuple(found.image(preferred_name(refs)) for refs in names.values())


def _locked(images: Path) -> set[Digest]:
    """The layers that the locks record.

    :raises ConfigError: a lock is invalid: what it needs is unknown.
    """
    found: set[Digest] = set()
    for path in sorted(images.glob("*/lock.json")):
        locked = from_json(read_file(path, LIMIT), where=str(path))
        found |= {layer.blob.diff_id for layer in locked.layers}
    return found


def _convert(layers: Sequence[LayerBlob], folder: Path, mkfs: str) -> None:
    """Convert *layers*, several side by side.

    :raises BuildFailed: a layer cannot be mounted, or the disk is full.
    """

    def one(layer: LayerBlob) -> None:
        target = place_of(folder, layer.diff_id)
        try:
            convert(layer, target, mkfs)
        except Unmountable as error:
            raise BuildFailed(f"layer {layer.diff_id[:19]} cannot be an EROFS image: {error}") from error
        say(f"export: {layer.diff_id[:19]}, {size(target.stat().st_size)}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, layers))
