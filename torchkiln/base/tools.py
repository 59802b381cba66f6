"""Builds and provides the tools layer: more packages of the archive on top of a base.

apt installs into the unpacked base and must not change its packages. The layer is the difference of the
trees; it includes dpkg's status, so it fits only this base. Its lock is ``images/base-<os>/<name>.json``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torchkiln.base import artefact
from torchkiln.base.archive import record_packages
from torchkiln.base.artefact import ArtefactSpec
from torchkiln.base.contents import inspect
from torchkiln.base.mmdebstrap import scratch
from torchkiln.base.on_top import Addition, layer_tar
from torchkiln.base.recipe import key_of, recipe, sources_of
from torchkiln.base.remake import record_effects, remade
from torchkiln.errors import BuildFailed
from torchkiln.matrix.os_tools import packages_of
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedBase, LockedTools, package_changes
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.store.store import Store

_UPGRADE = "the archive has newer packages; build a new base: torchkiln lock TAG --upgrade-base"


def read_lock(images: Path, os_name: str, name: str) -> LockedTools | None:
    """The committed lock of the tools *name*; None if there is none.

    :raises ConfigError: the lock is invalid.
    """
    return artefact.read(artefact.lock_path(images, os_name, name), LockedTools)


def ensure(
    locked: LockedTools,
    base: LockedBase,
    store: Store,
    *,
    locked_only: bool = False,
    environ: Mapping[str, str] | None = None,
    report: Reporting = UNREPORTED,
) -> tuple[LockedTools, tuple[str, ...]]:
    """The tools on *base*, and their differences from *locked*: see `ArtefactSpec.ensure`.

    If *base* is not the base of the lock, the tools are built again.
    """
    spec = _spec(locked.name, base, store, os.environ if environ is None else environ, report)
    return spec.ensure(locked, store, report.say, locked_only=locked_only, fits=locked.base == base.digest)


def rebuild(
    name: str,
    base: LockedBase,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedTools | None = None,
    report: Reporting = UNREPORTED,
) -> LockedTools:
    """Build the tools from the archive now; the result replaces *locked* on this machine."""
    return _spec(name, base, store, environ, report).rebuild(locked, store)


def build(
    name: str,
    packages: Iterable[str],
    base: LockedBase,
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting = UNREPORTED,
) -> LockedTools:
    """Install *packages* on *base*, whose blob is in *store*, from the archive; put the layer into *store*.

    Takes half a minute and temporarily two gigabytes in $TMPDIR.

    :raises ToolMissing: mmdebstrap or the archive's keyring is not installed.
    :raises ConfigError: a mirror is not a URL.
    :raises BuildFailed: the archive no longer has packages for this base, mmdebstrap failed, or its result is
        not a valid layer.
    """
    wanted = recipe(base.os)
    temporary = store.temporary(f"tools-{base.os}")
    addition = Addition(
        what="the tools",
        packages=tuple(packages),
        lower=(base,),
        misfit="the archive's packages no longer fit",
        hint=_UPGRADE,
    )
    try:
        with scratch(wanted, environ, report) as place:
            layer = layer_tar(addition, place, store)
            with store.writable():
                encoded = encode(layer, temporary)
            tools = _read(temporary, encoded, name, base, called=f"the layer of {name}")
            debs = record_packages(tools.packages, encoded.digest, place.lists, place.debs, store)
        with store.writable():
            store.adopt(temporary, store.blob(encoded.digest))
    finally:
        temporary.unlink(missing_ok=True)
    tools = replace(tools, untrusted=sources_of(wanted, environ).untrusted)
    record_effects(tools, base, debs, store, report.say)
    return tools


def _read(blob: Path, encoded: Blob, name: str, base: LockedBase, *, called: str) -> LockedTools:
    """The lock of these tools, from the dpkg status in the layer.

    :raises BuildFailed: *blob* is not a layer of tools, or changes packages of *base*.
    """
    installed = {package.name: package for package in inspect(blob, name=called).packages}
    below = {package.name: package for package in base.packages}
    kept = tuple(installed[package] for package in below if package in installed)
    if changes := package_changes(base.packages, kept):
        raise BuildFailed(
            f"{called} has other versions of base packages than the base {base.digest[:19]}:\n"
            + "\n".join(f"  {change}" for change in changes),
            hint=f"it was built on another base; build it on this one: torchkiln base build --tools {name}",
        )
    return LockedTools(
        os=base.os,
        name=name,
        base=base.digest,
        **asdict(encoded),
        encoder=ENCODER,
        packages=tuple(package for name, package in sorted(installed.items()) if name not in below),
    )


def _spec(
    name: str, base: LockedBase, store: Store, environ: Mapping[str, str], report: Reporting
) -> ArtefactSpec[LockedTools]:
    wanted, packages = recipe(base.os), packages_of(name)
    return ArtefactSpec(
        description=f"layer of tools {name} of {wanted.os}",
        lock=f"tools-{wanted.os}-{name}",
        kind=LockedTools,
        make=lambda: build(name, packages, base, store, environ=environ, report=report),
        remake=lambda locked: remade(locked, base, store, environ=environ, report=report),
        # The base and the mirrors determine the packages.
        inputs=(wanted.key(), *packages, base.digest, *key_of(wanted, environ)),
    )
