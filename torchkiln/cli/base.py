"""`torchkiln base`: build, show, export and import the base of an OS."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from torchkiln.cli.console import waiting
from torchkiln.cli.options import cache_root, images_folder
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.nouns import LockedBase
from torchkiln.store import Store

_os = click.option("--os", "os_name", default="debian12", show_default=True, help="debian12, ubuntu22.04")


def _say(line: str) -> None:
    click.echo(f"base: {line}", err=True)


@click.group("base")
def base() -> None:
    """The base of an OS: one layer, made from the distribution's packages, shared by all its images."""


@base.command("build")
@_os
@images_folder
@click.option("--lock", "relock", is_flag=True, help="make the result the lock's base")
def build(os_name: str, images: Path, relock: bool) -> None:
    """Build the base from the archive's present state; print its digest.

    The first base of an OS becomes its lock. Later ones are only compared, unless --lock is given.
    """
    from torchkiln.base import artefact
    from torchkiln.base.recipe import recipe

    locked = artefact.read_lock(images, os_name)
    store = Store(cache_root(), on_wait=waiting)
    built = artefact.rebuild(recipe(os_name), store, environ=os.environ, locked=locked, say=_say)
    if locked is None or (relock and built != locked):
        _say(f"locked in {artefact.write_lock(images, built)}")
        note_beside(images, built, store)
    if locked is not None and built.digest != locked.digest:
        _say(f"differs from the lock ({locked.digest})")
        for change in artefact.moved(locked.packages, built.packages):
            _say(f"  {change}")
    click.echo(built.digest)


@base.command("files")
@_os
@images_folder
def files(os_name: str, images: Path) -> None:
    """Note of which .deb files the locked base was made, for SBOMs; print where.

    The archive is asked as it is now: what it has no more, and what was not noted before, stays without a
    hash. A base that is built here is noted by itself.
    """
    from torchkiln.base import archive
    from torchkiln.base.mmdebstrap import ask_archive
    from torchkiln.base.recipe import recipe

    locked = _locked(images, os_name)
    noted = archive.read_files(images, locked, Store(cache_root(), on_wait=waiting))
    found = archive.together(noted, ask_archive(recipe(os_name), locked, environ=os.environ, say=_say))
    for package in archive.without_file(locked, found):
        _say(f"the archive no longer has {package}: no hash of it")
    path = archive.write_files(images, os_name, found)
    _say(f"{len(found.debs)} of {len(locked.packages)} packages")
    click.echo(path)


def note_beside(images: Path, locked: LockedBase, store: Store) -> None:
    """What was noted of the files of *locked* when it was built, beside its lock."""
    from torchkiln.base import archive

    if noted := archive.read_files(images, locked, store):
        archive.write_files(images, locked.os, noted)


@base.command("show")
@_os
@images_folder
@click.option("--json", "as_json", is_flag=True, help="the whole lock")
def show(os_name: str, images: Path, as_json: bool) -> None:
    """Show the locked base and whether it is in the cache."""
    from torchkiln.base import artefact

    locked = _locked(images, os_name)
    if as_json:
        click.echo(artefact.to_json(locked), nl=False)
        return
    store = Store(cache_root(), on_wait=waiting)
    at_hand = store.has_blob(locked.digest, locked.size)
    for name, value in (
        ("os", locked.os),
        ("digest", locked.digest),
        ("diff_id", locked.diff_id),
        ("size", f"{locked.size:,} bytes, unpacked {locked.unpacked:,}"),
        ("python", locked.python),
        ("encoder", locked.encoder),
        ("packages", str(len(locked.packages))),
        ("cache", str(store.blob(locked.digest)) if at_hand else "not there"),
    ):
        click.echo(f"{name:<9} {value}")


@base.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_os
@images_folder
def export(file: Path, os_name: str, images: Path) -> None:
    """Write the locked base to FILE, a gzipped tar that `base import` and --base take."""
    locked, store = _locked(images, os_name), Store(cache_root(), on_wait=waiting)
    if not store.has_blob(locked.digest, locked.size):
        raise BuildFailed(
            f"the locked base of {os_name} is not in the cache", hint="build it: torchkiln base build"
        )
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        shutil.copyfile(store.blob(locked.digest), temporary)
        temporary.replace(file)
    except OSError as error:
        raise BuildFailed(
            f"{file} cannot be written: {error.strerror}", hint="name another place, or make room there"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    click.echo(locked.digest)


@base.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@_os
@images_folder
def import_(file: Path, os_name: str, images: Path) -> None:
    """Take the locked base from FILE into the cache; without a lock, FILE becomes the lock's base."""
    from torchkiln.base import artefact

    locked = artefact.read_lock(images, os_name)
    taken = artefact.adopt(file, Store(cache_root(), on_wait=waiting), os_name=os_name, locked=locked)
    if locked is None:
        _say(f"locked in {artefact.write_lock(images, taken)}")
    click.echo(taken.digest)


def _locked(images: Path, os_name: str) -> LockedBase:
    from torchkiln.base import artefact

    locked = artefact.read_lock(images, os_name)
    if locked is None:
        raise ConfigError(
            f"no base of {os_name} is locked: {artefact.lock_path(images, os_name)} is not there",
            hint="build one: torchkiln base build",
        )
    return locked
