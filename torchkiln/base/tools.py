"""A base → LockedTools: packages of its own archive on top of it, as a layer; and that layer at hand.

apt installs into the unpacked base, whose own packages it may not touch. The layer is what the trees differ
in, and holds dpkg's whole status, so it fits this one base. Its lock is ``images/base-<os>/<name>.json``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torchkiln.base import keeping
from torchkiln.base.archive import note_files, read_lists
from torchkiln.base.complaint import Unsolvable
from torchkiln.base.contents import inspect
from torchkiln.base.mmdebstrap import Onto, Scratch, command, dev_folder, running, scratch
from torchkiln.base.recipe import BaseRecipe, recipe
from torchkiln.base.sources import sources_of, variables
from torchkiln.errors import BuildFailed
from torchkiln.matrix.os_tools import packages_of
from torchkiln.model.layer import Blob
from torchkiln.model.lock import BaseFiles, LockedBase, LockedTools, OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.oci.upper import write_upper
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic

_ABOVE_ALL = 1001  # a pin's priority: apt then keeps to that version even where a newer one is wanted
_MOVED_ON = "the archive has moved on: make a new base of it, with: torchkiln lock --upgrade-base"


def lock_path(images: Path, os_name: str, name: str) -> Path:
    """Where under *images* the lock of the tools *name* stands."""
    return images / f"base-{os_name}" / f"{name}.json"


def read_lock(images: Path, os_name: str, name: str) -> LockedTools | None:
    """The committed lock of the tools *name*; None when there is none yet.

    :raises ConfigError: it is unsound.
    """
    return keeping.read_lock(LockedTools, lock_path(images, os_name, name))


def write_lock(images: Path, tools: LockedTools) -> Path:
    """Make *tools* the lock of their name."""
    path = lock_path(images, tools.os, tools.name)
    write_atomic(path, keeping.to_json(tools))
    return path


def ensure(
    locked: LockedTools,
    base: LockedBase,
    store: Store,
    *,
    file: Path | None = None,
    locked_only: bool = False,
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[LockedTools, tuple[str, ...]]:
    """The tools on *base*, and in what they differ from *locked*: see `keeping.ensure`.

    On another base than the locked one they are other tools, made for it.
    """
    way = _way(
        locked.name, packages_of(locked.name), base, store, os.environ if environ is None else environ, say
    )
    fits = locked.base == base.digest
    return keeping.ensure(way, locked, store, file=file, locked_only=locked_only, fits=fits, say=say)


def rebuild(
    name: str,
    base: LockedBase,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedTools | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> LockedTools:
    """Ask the archive now, whatever the cache holds; from here on the result stands in for *locked*."""
    way = _way(name, packages_of(name), base, store, environ, say)
    return keeping.rebuild(way, store, locked=locked)


def adopt(
    file: Path, name: str, base: LockedBase, store: Store, *, locked: LockedTools | None = None
) -> LockedTools:
    """Take the tools *name* on *base* from *file*, a layer blob or its bare tar, into the store.

    :raises BuildFailed: they are not the *locked* ones, or no tools on that base; nothing is kept.
    """
    return keeping.adopt(_way(name, (), base, store, {}, lambda _: None), file, store, locked=locked)


def build(
    name: str,
    packages: Iterable[str],
    base: LockedBase,
    store: Store,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> LockedTools:
    """Install *packages* on *base*, whose blob is in *store*, from the archive; keep the layer.

    Takes half a minute, and two gigabytes under $TMPDIR while it runs.

    :raises ToolMissing: mmdebstrap or the archive's keyring is not here.
    :raises ConfigError: a mirror is not an address.
    :raises BuildFailed: the archive no longer has what goes with this base; mmdebstrap failed otherwise, or
        its result is no layer on that base.
    """
    wanted = recipe(base.os)
    temporary = store.temporary(f"tools-{base.os}")
    try:
        with scratch(wanted, environ) as place:
            layer = Path(place.env["TMPDIR"], "layer.tar")
            try:
                whole = _installed(tuple(packages), base, store, wanted, environ, place, say)
                with (
                    GZIP.open(store.blob(base.digest)) as lower,
                    whole.open("rb") as upper,
                    layer.open("wb") as out,
                ):
                    write_upper(lower, upper, out, mtime=wanted.epoch)
            except OSError as error:
                raise BuildFailed(
                    f"the tools cannot be made in {Path(place.env['TMPDIR']).parent}: {error.strerror}",
                    hint="make room there (it takes 2 GB), or set TMPDIR to another folder",
                ) from error
            with store.writable():
                encoded = encode(layer, temporary)
            tools = _read(temporary, encoded, name, base, called=f"the layer of {name}")
            debs = read_lists(place.lists, tools.packages)
        with store.writable():
            store.adopt(temporary, store.blob(encoded.digest))
            note_files(store, BaseFiles(base=encoded.digest, debs=debs))
    finally:
        temporary.unlink(missing_ok=True)
    return replace(tools, untrusted=sources_of(wanted, environ).untrusted)


def pins(packages: Iterable[OsPackage]) -> str:
    """Preferences by which apt keeps *packages* at their versions, or installs nothing."""
    return "\n".join(
        f"Package: {one.name}\nPin: version {one.version}\nPin-Priority: {_ABOVE_ALL}\n" for one in packages
    )


def _installed(
    packages: tuple[str, ...],
    base: LockedBase,
    store: Store,
    wanted: BaseRecipe,
    environ: Mapping[str, str],
    place: Scratch,
    say: Callable[[str], None],
) -> Path:
    """The tar of the whole system, base and *packages*."""
    folder = Path(place.env["TMPDIR"])
    onto = Onto(base=folder / "base.tar.gz", pins=folder / "pins", packages=packages)
    # Copies: in a user namespace the root of which is none here, the cache cannot be read.
    shutil.copyfile(store.blob(base.digest), onto.base)
    onto.pins.write_text(pins(base.packages))
    argv = command(wanted, environ, unprivileged=os.geteuid() != 0, place=place, onto=onto)
    whole = folder / "whole.tar"
    try:
        with running(argv, place.env, wanted, say) as tar, whole.open("wb") as out:
            out.write(dev_folder(wanted.epoch))
            shutil.copyfileobj(tar, out, 1 << 20)
    except Unsolvable as error:
        raise BuildFailed(
            f"the archive's packages no longer go with those of the base {base.digest[:19]}:\n"
            + error.message.partition("\n")[2],
            hint=_MOVED_ON,
        ) from error
    return whole


def _read(blob: Path, encoded: Blob, name: str, base: LockedBase, *, called: str) -> LockedTools:
    """What a lock says of these tools, by their own account.

    :raises BuildFailed: the layer is none of tools, or changes packages of *base*.
    """
    told = {package.name: package for package in inspect(blob, name=called).packages}
    below = {package.name: package for package in base.packages}
    if changes := keeping.moved(base.packages, tuple(told[one] for one in below if one in told)):
        raise BuildFailed(
            f"{called} has other packages of the base than {base.digest[:19]} itself:\n"
            + "\n".join(f"  {change}" for change in changes),
            hint=f"it was made on another base; make one on this: torchkiln base build --tools {name}",
        )
    return LockedTools(
        os=base.os,
        name=name,
        base=base.digest,
        **asdict(encoded),
        encoder=ENCODER,
        packages=tuple(package for name, package in sorted(told.items()) if name not in below),
    )


def _way(
    name: str,
    packages: Iterable[str],
    base: LockedBase,
    store: Store,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> keeping.Way[LockedTools]:
    wanted = recipe(base.os)
    asked_for = tuple(packages)

    def key(locked: LockedTools) -> str:
        """On another base, or by another mirror, something else may be had."""
        mirrors = tuple(environ.get(variable, "") for variable in variables(wanted))
        asked = (wanted.key(), *asked_for, base.digest, locked.digest, *mirrors)
        return hashlib.sha256("\n".join(asked).encode()).hexdigest()

    return keeping.Way(
        what=f"layer of tools {name} of {wanted.os}",
        noun=f"layer of tools {name}",
        lock=f"tools-{wanted.os}-{name}",
        option="--tools FILE",
        export=f"torchkiln base export --tools {name}",
        kind=LockedTools,
        make=lambda: build(name, asked_for, base, store, environ=environ, say=say),
        read=lambda blob, encoded, called: _read(blob, encoded, name, base, called=called),
        key=key,
    )
