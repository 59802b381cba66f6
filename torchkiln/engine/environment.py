"""Defines the services that all parts of a build use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchkiln.index.archives import CudaArchives
from torchkiln.index.lazy import LazyIndex
from torchkiln.model.layer import Blob
from torchkiln.model.progress import ArchiveSource, Fetcher, Observer
from torchkiln.store.store import Store
from torchkiln.vault import VARIABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    store: Store
    fetcher: Fetcher
    observer: Observer
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    archives: ArchiveSource = field(default_factory=lambda: CudaArchives(os.environ))
    say: Callable[[str], None] = lambda _: None
    on_layer: Callable[[Blob], None] = lambda _: None  # called once the blob is in the store


def open_environment(
    store: Store,
    *,
    observer: Observer,
    say: Callable[[str], None] = lambda _: None,
    on_layer: Callable[[Blob], None] = lambda _: None,
) -> Environment:
    """The services with the settings of this process: files come from its vaults, else from its index.

    :raises ConfigError: the name of a vault is invalid.
    """
    archives: ArchiveSource = CudaArchives(os.environ)
    index: Fetcher = LazyIndex(store)
    if os.environ.get(VARIABLE):
        from torchkiln.vault.places import vaults_of  # imported here because it loads slowly
        from torchkiln.vault.sources import VaultArchives, VaultFetcher

        vaults = vaults_of(os.environ)
        archives, index = VaultArchives(vaults, archives), VaultFetcher(vaults, index)
    return Environment(
        store=store, fetcher=index, archives=archives, observer=observer, say=say, on_layer=on_layer
    )


def with_vaults(fetcher: Fetcher, environ: Mapping[str, str]) -> Fetcher:
    """*fetcher*, which is only asked for what the vaults of *environ* lack.

    :raises ConfigError: the name of a vault is invalid.
    """
    if not environ.get(VARIABLE):
        return fetcher
    from torchkiln.vault.places import vaults_of  # imported here because it loads slowly
    from torchkiln.vault.sources import VaultFetcher

    return VaultFetcher(vaults_of(environ), fetcher)
