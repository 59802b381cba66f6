"""The facts' toolkits against the index: what an image links to lies in the wheels, once."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from tests.gridcase import FACTS
from torchkiln.index.download import open_downloads
from torchkiln.index.package_index import open_index
from torchkiln.store import Store
from torchkiln.wanted import Wanted

TAIL = 1 << 20  # bytes at a wheel's end in which its directory stands


@pytest.mark.network
@pytest.mark.parametrize(("cuda", "torch"), [("13.0", "2.11.0")])
def test_every_link_leads_to_a_file_of_a_wheel(cuda: str, torch: str, tmp_path: Path) -> None:
    asked, store = FACTS.toolkits[cuda], Store(tmp_path)
    known = asked.toolkit
    wanted = Wanted(
        requirements=(f"torch=={torch}", asked.requires),
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of="2026-11-22",
        keep=(),
        bound=(),
    )
    wheels = [one for one in open_index(os.environ, store).wheels(wanted) if one.name.startswith("nvidia-")]
    downloads = open_downloads(os.environ, store)
    held: dict[str, str] = {}
    for wheel in wheels:
        tail = downloads.tail(wheel, min(TAIL, wheel.size))
        assert tail is not None
        with zipfile.ZipFile(io.BytesIO(tail)) as archive:
            for name in archive.namelist():
                assert name.endswith("/") or name not in held, f"{name}: of {wheel.name} and {held[name]}"
                held[name] = wheel.name

    links = [*(f"{known.folder}/bin/{name}" for name in known.programs), *known.libraries]
    folders = [f"{known.folder}/include/", f"{known.folder}/nvvm/"]
    there = {name for link in links for name in held if name == link or name.startswith(f"{link}/")}
    assert [
        link for link in links if not any(one == link or one.startswith(f"{link}/") for one in there)
    ] == []
    assert [folder for folder in folders if not any(name.startswith(folder) for name in held)] == []
    # And none is forgotten that a linker could be asked for.
    unnumbered = {name for name in held if name.startswith(f"{known.folder}/lib/lib") and ".so." in name}
    assert unnumbered - set(known.libraries) == {
        f"{known.folder}/lib/{name}"
        for name in (
            "libcufile_rdma.so.1",
            "libnvrtc-builtins.alt.so.13.0",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc.alt.so.13",
            "libnvtx3interop.so.1",
        )
    }
