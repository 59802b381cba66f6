"""The facts' toolkits against the index: what an image links to lies in the wheels, once."""

from __future__ import annotations

import io
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gridcase import FACTS, MATRIX
from torchkiln.index.download import open_downloads
from torchkiln.index.package_index import open_index
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Resolution
from torchkiln.model.index import IndexRequest
from torchkiln.plan.cuda_toolkit import libraries_of
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAIL = 1 << 20  # bytes at a wheel's end in which its directory stands


@pytest.mark.proof
@pytest.mark.parametrize(("cuda", "torch"), [("13.0", "2.11.0")])
def test_every_link_leads_to_a_file_of_a_wheel(cuda: str, torch: str, tmp_path: Path) -> None:
    asked, store = FACTS.toolkits[cuda], Store(tmp_path)
    known = asked.toolkit
    wanted = IndexRequest(
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


LIBRARY = re.compile(r".*/lib/lib\w+\.so\.[\d.]+")
LOCKED = {
    path.parent.name: load_locked(ROOT / "images", path.parent.name)
    for path in sorted((ROOT / "images").glob("*-runtime/lock.json"))
}


def devel(tag: str) -> Resolution:
    """What a devel image of the cell would be."""
    return resolve(replace(LOCKED[tag].resolution.cell, flavor="devel"), MATRIX, FACTS)


@pytest.mark.proof
@pytest.mark.parametrize("tag", [tag for tag in LOCKED if (kit := devel(tag).toolkit) and kit.release])
def test_the_wheels_have_what_takes_the_place_of_the_archives_libraries(tag: str, tmp_path: Path) -> None:
    """Of each locked torch: each link leads to a file, and no library of the toolkit is forgotten."""
    locked, resolution = LOCKED[tag], devel(tag)
    assert resolution.toolkit
    archives = FACTS.redist.releases[resolution.toolkit.release]
    linked = libraries_of(replace(locked, resolution=resolution, archives=archives))
    downloads = open_downloads(os.environ, Store(tmp_path))
    held = set()
    for wheel in locked.wheels:
        if wheel.name.startswith("nvidia-"):
            tail = downloads.tail(wheel, min(TAIL, wheel.size))
            assert tail is not None
            with zipfile.ZipFile(io.BytesIO(tail)) as archive:
                held |= {
                    name for name in archive.namelist() if re.fullmatch(r".*/lib/lib\w+\.so\.[\d.]+", name)
                }

    assert set(linked) - held == set()
    # Parts of others, which nobody names to a linker; and those that the facts say are left out.
    others = re.compile(r".*/lib(cudnn_\w+|cufile_rdma|cusparseLt|OpenCL)\.so\.\d")
    assert {name for name in held - set(linked) if not others.fullmatch(name)} == set()
