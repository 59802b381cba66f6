"""Apptainer, of Debian's unstable release, runs Python from what `export squashfs` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.root import NoEngine, home, made, start
from tests.needs import needs_mmdebstrap, tool
from tests.roots import entry, layer, minimal_layout
from torchkiln.base import artefact
from torchkiln.locks.lock import load_locked
from torchkiln.oci.layout import open_layout
from torchkiln.oci.squashfs import find_tar2sqfs, write_squashfs
from torchkiln.oci.unpack import LayerBlob, layer_index
from torchkiln.runtimes.image_root import layers_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.network, needs_mmdebstrap]

_TAG = "2.7.1-cuda12.1-cudnn9-runtime"
_PACKAGES = ("apptainer", "squashfuse", "tini")
_NO_EXPIRY = "--aptopt=Acquire::Check-Valid-Until false"  # a mirror may be late
_PROGRAM = "import json, sqlite3, ssl; print(open('/etc/torchkiln-test').read(), ssl.OPENSSL_VERSION)"


def test_apptainer_runs_python_from_the_squashfs(tmp_path: Path) -> None:
    """The image is the base of a cell, with its Python, and another layer."""
    tool("tar2sqfs")
    try:
        root = made(home() / "apptainer", "sid", _PACKAGES, "--variant=minbase", _NO_EXPIRY)
    except NoEngine as error:
        pytest.skip(str(error))
    store = Store(cache_root())
    base, _ = artefact.ensure(load_locked(ROOT / "images", _TAG).base, store)
    lower = LayerBlob(path=store.blob(base.digest), diff_id=base.diff_id)
    upper = layer(tmp_path, entry("etc/torchkiln-test", b"second layer"))
    layout = minimal_layout(tmp_path / "dist", [lower, upper], {"Env": ["COLOUR=blue"]}, "t")
    image = open_layout(layout).image("t")
    layers = layers_of(image)
    file = tmp_path / "srv" / "image.squashfs"
    write_squashfs(layers, [layer_index(one) for one in layers], image_env(image), file, find_tar2sqfs())

    if not (init := root / "usr/bin/tini-static").exists():
        init.symlink_to("tini")
    (root / "etc/hosts").touch()
    for option in ("--no-privs", "--userns"):  # mounted by the kernel, and by squashfuse
        command = ["apptainer", "exec", "--containall", option, "/srv/image.squashfs"]
        code = start(root, file.parent, [*command, "python3", "-c", _PROGRAM]).wait(300)
        output = (file.parent / "log").read_text()
        assert code == 0, output
        assert "second layer OpenSSL 3" in output
