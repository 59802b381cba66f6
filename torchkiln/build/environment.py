"""Defines the services that all parts of a build use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchkiln.index.archives import CudaArchives
from torchkiln.model.layer import Blob
from torchkiln.model.progress import ArchiveSource, Fetcher, Observer
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Cache, downloads, progress and messages."""

    store: Store
    fetcher: Fetcher
    observer: Observer
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    archives: ArchiveSource = field(default_factory=lambda: CudaArchives(os.environ))
    say: Callable[[str], None] = lambda _: None
    on_layer: Callable[[Blob], None] = lambda _: None  # called once the blob is in the store
