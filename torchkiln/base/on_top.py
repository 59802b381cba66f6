"""Installs packages on the unpacked layers of an OS, and writes the difference as the tar of a layer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base.complaint import Unsolvable
from torchkiln.base.mmdebstrap import ExistingBase, Scratch
from torchkiln.base.tree_tar import dev_folder
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedBase, LockedTools, OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.oci.upper import write_upper
from torchkiln.store.store import Store

_PIN_PRIORITY = 1001  # from 1000 on, apt uses this version even if a newer one is available


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """Packages to install on layers, from the archive or from a folder of .deb files."""

    what: str  # "the tools", for messages
    packages: tuple[str, ...]
    lower: tuple[LockedBase | LockedTools, ...]  # the layers, lowest first
    misfit: str  # the start of the message if apt cannot install them: "the archive's packages no longer fit"
    hint: str  # the hint of that message
    debs: Path | None = None
    hard_links: bool = False  # whether the layer may have hard links


def layer_tar(addition: Addition, place: Scratch, store: Store) -> Path:
    """Install the packages, and write the layer with all new and changed files to the scratch folder.

    Takes half a minute, and temporarily two gigabytes of that folder.

    :raises BuildFailed: the packages do not fit, mmdebstrap failed, or its result cannot be a layer.
    """
    layer = place.folder / "layer.tar"
    try:
        whole = _installed(addition, place, store)
        with ExitStack() as opened:
            blobs = [store.blob(artefact.digest) for artefact in addition.lower]
            lower = [opened.enter_context(GZIP.open(blob)) for blob in blobs]
            upper = opened.enter_context(whole.open("rb"))
            out = opened.enter_context(layer.open("wb"))
            mtime, hard_links = place.recipe.epoch, addition.hard_links
            write_upper(lower, upper, out, mtime=mtime, hard_links=hard_links)
    except OSError as error:
        raise BuildFailed(
            f"{addition.what} cannot be built in {place.folder.parent}: {error.strerror}",
            hint="free disk space (2 GB are needed), or set TMPDIR to another folder",
        ) from error
    whole.unlink()
    return layer


def existing(
    lower: Iterable[LockedBase | LockedTools],
    place: Scratch,
    store: Store,
    *,
    packages: tuple[str, ...] = (),
    debs: Path | None = None,
    queries: tuple[str, ...] = (),
) -> ExistingBase:
    """The layers *lower*, copied to the scratch folder, with pins of their packages; or an empty root."""
    layers, pinned = list[Path](), list[OsPackage]()
    for artefact in lower:
        # A copy, because the root of a user namespace may have no access to the cache.
        copy = place.folder / f"{len(layers)}.tar.gz"
        layers.append(Path(shutil.copyfile(store.blob(artefact.digest), copy)))
        pinned += artefact.packages
    path = place.folder / "pins"
    path.write_text(pins(pinned))
    return ExistingBase(layers=tuple(layers), pins=path, packages=packages, debs=debs, queries=queries)


def pins(packages: Iterable[OsPackage]) -> str:
    """apt preferences that pin *packages* to their versions."""
    return "\n".join(
        f"Package: {package.name}\nPin: version {package.version}\nPin-Priority: {_PIN_PRIORITY}\n"
        for package in packages
    )


def _installed(addition: Addition, place: Scratch, store: Store) -> Path:
    """The tar of the whole system, layers and packages."""
    onto = existing(addition.lower, place, store, packages=addition.packages, debs=addition.debs)
    whole = place.folder / "whole.tar"
    try:
        with place.running(onto) as tar, whole.open("wb") as out:
            out.write(dev_folder(place.recipe.epoch))
            shutil.copyfileobj(tar, out, 1 << 20)
    except Unsolvable as error:
        on = addition.lower[-1].digest[:19]
        raise BuildFailed(
            f"unmet dependencies: {addition.misfit} the base {on}:\n" + error.message.partition("\n")[2],
            hint=addition.hint,
        ) from error
    return whole
