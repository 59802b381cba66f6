"""Where the cache is."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The cache folder: $TORCHKILN_CACHE, else the platform's cache folder for torchkiln."""
    if set_by_user := os.environ.get("TORCHKILN_CACHE"):
        return Path(set_by_user).absolute()
    import platformdirs  # a bundle of smoke tests has none, and sets the variable

    return Path(platformdirs.user_cache_dir("torchkiln"))
