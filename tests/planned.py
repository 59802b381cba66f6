"""A small, invented lock for tests, and the repository's matrix, facts and resolutions."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from torchkiln.matrix import facts, matrix
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools, LockedWheel, OsPackage
from torchkiln.model.plan import ImagePlan, OverlayFile
from torchkiln.plan.plan import plan
from torchkiln.util.places import ROOT

LOCK_DIGEST = Digest("sha256:" + "1" * 64)
PACKAGES = ("ca-certificates", "python3", "python3-venv", "tini")
ENTRYPOINT = OverlayFile(path="opt/torchkiln/entrypoint", mode=0o755, data=b'#!/bin/sh\nexec "$@"\n')
PYTHONS = {"debian12": "3.11.2", "debian13": "3.13.5", "ubuntu22.04": "3.10.12", "ubuntu24.04": "3.12.3"}
PROFILE = OverlayFile(path="etc/profile.d/torchkiln.sh", mode=0o644, data=b"export VIRTUAL_ENV=/opt/venv\n")

_MEGABYTES = {
    "jupyterlab 4.5.0": 12,
    "numpy 2.3.5": 17,
    "nvidia-cublas-cu12 12.6.4.1": 393,
    "nvidia-cuda-cupti-cu12 12.6.80": 9,
    "nvidia-cuda-runtime-cu12 12.6.77": 1,
    "nvidia-cudnn-cu12 9.5.1.17": 571,
    "nvidia-cufile-cu12 1.11.1.6": 1,
    "nvidia-nccl-cu12 2.26.2": 201,
    "pillow 12.0.0": 7,
    "pip 25.3": 2,
    "torch 2.7.1": 821,
    "torchvision 0.22.1": 8,
    "tqdm 4.67.1": 1,
    "triton 3.3.1": 156,
    "uv 0.9.11": 21,
}


def wheel(name: str, version: str, *, megabytes: int) -> LockedWheel:
    """A pure wheel of *megabytes* million bytes; its hash derives from its name and version."""
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(
        name=name,
        version=version,
        filename=filename,
        sha256=hashlib.sha256(filename.encode()).hexdigest(),
        size=megabytes * 1_000_000,
        index=Source.DEFAULT,
    )


def tools_on(base: LockedBase, name: str = "devel") -> LockedTools:
    """The lock entry of invented tools on *base*."""
    return LockedTools(
        os=base.os,
        name=name,
        base=base.digest,
        digest=Digest("sha256:" + "c" * 64),
        diff_id=Digest("sha256:" + "d" * 64),
        size=42_000_000,
        unpacked=114_000_000,
        encoder=base.encoder,
        packages=(OsPackage(name="cmake", version="3.25.1-1"), OsPackage(name="gdb", version="13.1-3")),
    )


def locked(torch: str = "2.7.1", cuda: str = "12.1", os_name: str = "debian12") -> LockedCell:
    """An invented lock of the cell *torch* for *cuda* on *os_name*, with flavor runtime."""
    python = PYTHONS[os_name]
    known = facts.load()
    grid = matrix.read(ROOT / "matrix.yaml", known)
    cell = Cell(torch=torch, cuda=cuda, flavor="runtime", os=os_name, python=python[:4])
    return LockedCell(
        resolution=resolve(cell, grid, known),
        wheels=tuple(wheel(*requirement.split(), megabytes=size) for requirement, size in _MEGABYTES.items()),
        base=LockedBase(
            os=os_name,
            python=python,
            digest=Digest("sha256:" + "a" * 64),
            diff_id=Digest("sha256:" + "b" * 64),
            size=150_000_000,
            unpacked=500_000_000,
            encoder="libdeflate 0.9.0 level 6",
            packages=(OsPackage(name="tini", version="0.19.0-1"),),
        ),
        as_of="2026-11-21",
        epoch=1_795_219_200,
        inputs=Digest("sha256:" + "2" * 64),
        layers=(),
    )


def planned(torch: str = "2.7.1", *wheels: LockedWheel, os_name: str = "debian12") -> ImagePlan:
    """The plan of the invented lock of *torch*; *wheels*, if any, replace the wheels of the lock."""
    cell = locked(torch, os_name=os_name)
    return plan(
        replace(cell, wheels=wheels) if wheels else cell,
        (PROFILE, ENTRYPOINT),
        aliases=("v2.7", "latest") if os_name == "debian12" else (),
        lock_digest=LOCK_DIGEST,
    )


# --- the repository's matrix and facts -------------------------------------------------------------


FACTS = facts_of.load()
MATRIX = matrix_of.read(ROOT / "matrix.yaml", FACTS)
WITHOUT_BEYOND = replace(MATRIX, beyond=())
"""The grid torch x CUDA, without extra cells."""
NATIVE_FIRST = replace(MATRIX, prefer="native")


def answer(
    torch: str, cuda: str, *, flavor: str = "runtime", os: str = "debian12", matrix: matrix_of.Matrix = MATRIX
) -> Resolution:
    """The resolution of one cell of *matrix*."""
    (cell,) = select(Selection(torch=(torch,), cuda=(cuda,), flavor=(flavor,), os=(os,)), matrix)
    return resolve(cell, matrix, FACTS)
