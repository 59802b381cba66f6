"""`torchkiln base`: builds and shows the base of an OS, or the devel tools on top of it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from torchkiln.base import artefact, tools
from torchkiln.base.recipe import recipe
from torchkiln.base.remake import learn
from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.console import open_cache, progress
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import images_folder, mirror_option
from torchkiln.cli.shared.tables import beside
from torchkiln.errors import ConfigError
from torchkiln.locks.systems import keep
from torchkiln.matrix.os_tools import is_tools
from torchkiln.model.lock import LockedBase, LockedTools, package_changes
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store

_os = click.option(
    "--os",
    "os_name",
    type=click.Choice(list(SYSTEMS)),
    default=DEFAULT_OS,
    show_default=True,
    help="the operating system",
)
_tools = click.option(
    "--tools",
    "name",
    metavar="NAME",
    help="instead of the base, the tools layer of devel images: devel, devel-gcc11",
)


_say = partial(terminal.say, of="base")


@click.group("base", cls=Group)
def base() -> None:
    """Manage the base of an OS: the layer of distribution packages that all its images share.

    With --tools: the layer on top of the base in devel images, with cmake, ninja, gdb and so on.
    """


@base.command("build")
@_os
@_tools
@mirror_option
@images_folder
@click.option("--lock", "relock", is_flag=True, help="lock the result")
def build(os_name: str, name: str | None, images: Path, relock: bool) -> None:
    """Build the base from the distribution's current packages; print its digest.

    The first base of an OS is locked. A later one is compared with the lock, and replaces it with --lock.
    """
    store = open_cache()
    with progress(quiet=False) as observer:
        report = Reporting(say=_say, observer=observer)
        locked, built = _rebuilt(images, os_name, name, store, report)
    if built.untrusted:
        _say(f"warning: built from an untrusted archive of {os_name}; the lock records it")
    if locked is None or (relock and built != locked):
        _say(f"locked in {keep(images, built, store)}")
    if locked is not None and built.digest != locked.digest:
        _say(f"differs from the lock ({locked.digest})")
        for change in package_changes(locked.packages, built.packages):
            _say(f"  {change}")
    terminal.echo(built.digest)


@base.command("show")
@_os
@_tools
@images_folder
@click.option("--json", "as_json", is_flag=True, help="print the whole lock as JSON")
def show(os_name: str, name: str | None, images: Path, as_json: bool) -> None:
    """Show the locked base and whether it is in the cache."""
    locked = _locked(images, os_name, name)
    if as_json:
        click.echo(artefact.to_json(locked), nl=False)
        return
    store = open_cache()
    cached = store.has_blob(locked.digest, locked.size)
    own = ("python", locked.python) if isinstance(locked, LockedBase) else ("base", locked.base)
    for key, value in (
        ("os", locked.os),
        ("digest", locked.digest),
        ("diff_id", locked.diff_id),
        ("size", f"{locked.size:,} bytes, unpacked {locked.unpacked:,}"),
        own,
        ("encoder", locked.encoder),
        ("packages", str(len(locked.packages))),
        *([("archive", "untrusted")] if locked.untrusted else []),
        ("cache", str(store.blob(locked.digest)) if cached else "not in the cache"),
    ):
        terminal.echo(beside(f"{key:<9} ", value, terminal.columns(err=False)))


# --- the base, or the tools -------------------------------------------------------------------------

_Either = LockedBase | LockedTools


def _rebuilt(
    images: Path, os_name: str, name: str | None, store: Store, report: Reporting
) -> tuple[_Either | None, _Either]:
    """The locked base or tools layer, if any, and the one built from the current packages."""
    if name is None:
        base = artefact.read_lock(images, os_name)
        return base, artefact.rebuild(recipe(os_name), store, environ=os.environ, locked=base, report=report)
    _check(name)
    below, locked = _locked_base(images, os_name), tools.read_lock(images, os_name, name)
    learn(images, below, store)
    artefact.ensure(below, store, locked_only=True, report=report)
    return locked, tools.rebuild(name, below, store, environ=os.environ, locked=locked, report=report)


def _locked(images: Path, os_name: str, name: str | None) -> _Either:
    if name is None:
        return _locked_base(images, os_name)
    _check(name)
    locked = tools.read_lock(images, os_name, name)
    if locked is None:
        raise ConfigError(
            f"the tools layer {name} of {os_name} is not locked: "
            f"{artefact.lock_path(images, os_name, name)}: no such file",
            hint=f"run: torchkiln base build --os {os_name} --tools {name}",
        )
    return locked


def _locked_base(images: Path, os_name: str) -> LockedBase:
    locked = artefact.read_lock(images, os_name)
    if locked is None:
        raise ConfigError(
            f"the base of {os_name} is not locked: {artefact.lock_path(images, os_name)}: no such file",
            hint=f"run: torchkiln base build --os {os_name}",
        )
    return locked


def _check(name: str) -> None:
    if not is_tools(name):
        raise ConfigError(f"--tools {name}: no such tools layer", hint="use devel or devel-gcc11")
