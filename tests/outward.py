"""What a container needs on this machine to reach the package index, as on any machine behind a proxy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_PASSED_ON = (
    "PIP_INDEX_URL",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "https_proxy",
    "http_proxy",
    "no_proxy",
)
_CA = "/run/host-ca.crt"


def outward(folder: Path) -> list[str]:
    """Options of `docker run`. A copy of the CA bundle goes into *folder*, which an engine can bind."""
    options = [word for name in _PASSED_ON if os.environ.get(name) for word in ("-e", name)]
    if bundle := os.environ.get("SSL_CERT_FILE"):
        shutil.copyfile(bundle, folder / "ca.crt")
        options += ["--volume", f"{folder / 'ca.crt'}:{_CA}:ro"]
        options += [word for name in ("PIP_CERT", "SSL_CERT_FILE") for word in ("-e", f"{name}={_CA}")]
    return options
