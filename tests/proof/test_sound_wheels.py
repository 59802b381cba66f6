"""Wheels of the real index on the image of 2.7.1: none that works is refused, those for another torch are.

The wheels are those of projects that people have, resolved as `lock --project` does; each is deleted after it
was read. About 5 GB are downloaded in all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timezone

import pytest

from tests.needs import nightly
from torchkiln.index.download import Downloads
from torchkiln.index.package_index import open_index
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.project.fixed import constraints_of, fixed_wheels
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.symbols.check import check_wheels
from torchkiln.symbols.known import has_platform

pytestmark = [pytest.mark.proof, nightly]

PROJECTS = (
    "datasets transformers accelerate peft bitsandbytes sentence-transformers tiktoken sentencepiece",
    "vllm==0.10.1.1",
    "lightning tensordict==0.8.3 torchrl==0.8.1 torchcodec==0.5 torchao==0.11 wandb torchdata",
    "scikit-learn xgboost lightgbm catboost statsmodels polars duckdb pyarrow",
    "opencv-python-headless albumentations scikit-image av decord imageio-ffmpeg matplotlib",
    "jax tensorflow-cpu onnxruntime-gpu onnx",
    "spacy gensim pandas nltk",
    "fastapi uvicorn[standard] grpcio-tools sqlalchemy psycopg2-binary asyncpg orjson redis[hiredis]",
    "rasterio geopandas h5py netcdf4 zarr",
    "faiss-cpu usearch lancedb pymilvus numba cupy-cuda12x gradio librosa",
    "monai[nibabel,itk,skimage,openslide,tifffile,lmdb,psutil,zarr]",
    "pymc cvxpy ortools shap umap-learn",
    "dask[complete] distributed fastparquet tables",
    "scrapy gevent pymongo lxml pycryptodome rapidfuzz",
    "qiskit-aer rdkit biopython pysam scanpy",
)
OLD_ABI = "built with the pre-C++11 ABI, torch has the C++11 ABI"
OTHER = "there it has other parameters, so this was built for another torch"
# Wheels that were compiled for torch 2.3, 2.5, 2.6 and 2.8.
FOR_OTHER_TORCH = {
    ("torchtext", "0.18.0"): OLD_ABI,
    ("xformers", "0.0.28.post3"): OTHER,
    ("torchvision", "0.21.0"): OLD_ABI,
    ("torchaudio", "2.6.0"): OLD_ABI,
    ("torchvision", "0.23.0"): OTHER,
    ("torchaudio", "2.8.0"): OTHER,
}


class OnTheImage:
    """The check of wheels of the index on the image of *cell*."""

    def __init__(self, cell: LockedCell) -> None:
        self.cell, self.store = cell, Store(cache_root())
        self.index = open_index(os.environ, self.store)
        self.fixed = tuple(fixed_wheels(cell.wheels).values())

    def wheels(self, requirements: Iterable[str], constraints: Iterable[str]) -> list[LockedWheel]:
        """The wheels of a resolution that are for one platform, and not in the image."""
        there = {wheel.sha256 for wheel in self.cell.wheels}
        wanted = IndexRequest(
            requirements=tuple(requirements),
            constraints=tuple(constraints),
            python=self.cell.resolution.cell.python,
            glibc=operating_system(self.cell.resolution.cell.os).glibc,
            as_of=f"{datetime.now(timezone.utc):%Y-%m-%d}",
            keep=(),
            bound=(),
        )
        wheels = self.index.locked(self.index.pins(wanted), wanted)
        return [wheel for wheel in wheels if has_platform(wheel) and wheel.sha256 not in there]

    def check(self, wheel: LockedWheel) -> list[str]:
        """The faults of *wheel*, which is downloaded and, if it was not there before, deleted."""
        new = not self.store.has_wheel(wheel)
        path = Downloads(self.index.pages).fetch_wheel(wheel, self.store)
        try:
            found = check_wheels([wheel], self.fixed, self.cell.base, self.store)
        finally:
            if new:
                path.unlink()
        assert found.unread == ()
        return [f"{wheel.filename}: {fault.path} {fault.sentence}" for fault in found.faults]


@pytest.fixture(scope="module")
def image(image: object, locked: LockedCell) -> OnTheImage:
    """With its wheels and its base in the cache."""
    return OnTheImage(locked)


@pytest.mark.parametrize("project", PROJECTS)
def test_no_sound_wheel_is_refused(project: str, image: OnTheImage) -> None:
    """Each alone: stricter than together, when one may have what another needs."""
    wheels = image.wheels(project.split(), constraints_of(image.cell.wheels))

    assert len(wheels) > 5
    assert [fault for wheel in wheels for fault in image.check(wheel)] == []


@pytest.mark.parametrize(("name", "version"), FOR_OTHER_TORCH)
def test_a_wheel_for_another_torch_is_refused(name: str, version: str, image: OnTheImage) -> None:
    [wheel] = [one for one in image.wheels([f"{name}=={version}"], []) if one.name == name]

    faults = image.check(wheel)
    assert any(FOR_OTHER_TORCH[name, version] in fault for fault in faults), faults
