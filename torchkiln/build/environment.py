"""What all parts of a build work with, handed on as one value."""

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
    """The cache, where files come from, and who hears of the work."""

    store: Store
    fetcher: Fetcher
    observer: Observer
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    archives: ArchiveSource = field(default_factory=lambda: CudaArchives(os.environ))
    say: Callable[[str], None] = lambda _: None
    on_layer: Callable[[Blob], None] = lambda _: None  # once it is in the store
