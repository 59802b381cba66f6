"""Finds the cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The cache folder: $TORCHKILN_CACHE, else the platform's cache folder for torchkiln."""
    if set_by_user := os.environ.get("TORCHKILN_CACHE"):
        return Path(set_by_user).absolute()
    import platformdirs  # missing in a bundle of smoke tests, which sets the variable

    return Path(platformdirs.user_cache_dir("torchkiln"))
