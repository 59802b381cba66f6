"""Skip tests whose requirements this host does not meet, with the reason; network options for containers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler: apt-get install gcc")
needs_ldconfig = pytest.mark.skipif(
    not Path("/sbin/ldconfig").exists(), reason="no ldconfig to put into an image: apt-get install libc-bin"
)
needs_mmdebstrap = pytest.mark.skipif(
    not shutil.which("mmdebstrap"), reason="mmdebstrap is not installed: apt-get install mmdebstrap"
)
needs_cuobjdump = pytest.mark.skipif(
    not shutil.which("cuobjdump"),
    reason="no cuobjdump: pip install nvidia-cuda-cuobjdump, and put its folder into PATH",
)
#: For proofs that take long, need much disk space, or read many projects of an index. `.ci/run` skips them.
nightly = pytest.mark.skipif(
    os.environ.get("NIGHTLY") != "yes", reason="takes long or needs 16 GB: set NIGHTLY=yes"
)
without_gpus = pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="this host has GPUs; the test needs a host without"
)


@functools.cache
def namespaces_fault() -> str:
    """Why this host allows no namespaces, as unshare reports it; empty if it allows them."""
    kinds = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup"]
    kinds += ["--map-root-user"] if os.geteuid() else []
    try:
        done = subprocess.run(["unshare", *kinds, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unshare is not installed: apt-get install util-linux"
    return done.stderr.strip() if done.returncode else ""


needs_namespaces = pytest.mark.skipif(bool(namespaces_fault()), reason=f"no namespaces: {namespaces_fault()}")


def tool(name: str) -> None:
    """Skip if the program *name* is not installed; Debian's package has the same name."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")


def give_up(reason: str) -> NoReturn:
    """Skip the test with *reason*; if `.ci/run` has set TORCHKILN_NEEDS_ENGINE, let it fail instead."""
    (pytest.fail if os.environ.get("TORCHKILN_NEEDS_ENGINE") else pytest.skip)(reason)


# --- network options of containers -----------------------------------------------------------------


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
    """Options of `docker run` for access to the network. The CA bundle is copied to *folder* and mounted."""
    options = [word for name in _PASSED_ON if os.environ.get(name) for word in ("-e", name)]
    if bundle := os.environ.get("SSL_CERT_FILE"):
        shutil.copyfile(bundle, folder / "ca.crt")
        options += ["--volume", f"{folder / 'ca.crt'}:{_CA}:ro"]
        options += [word for name in ("PIP_CERT", "SSL_CERT_FILE") for word in ("-e", f"{name}={_CA}")]
    return options
