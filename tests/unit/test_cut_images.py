"""Thin images, in which libraries of torch are cut: built twice, and rebuilt from their lock."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest

from tests.cells import build, noise, planned_cell, put_base, small_wheels
from tests.cut_libraries import LIBRARY, expected, same
from tests.layers import SCHEME, tree_of_layer
from tests.needs import needs_namespaces
from tests.planned import FACTS, LOCK_DIGEST, MATRIX
from tests.publisher import interpreter
from tests.thin import thin_locked
from tests.unpublished import FakeIndex
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.engine import image as image_build
from torchkiln.engine.environment import Environment
from torchkiln.matrix.tags import tag_of
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import open_layout
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.load import plan_locked
from torchkiln.plan.plan import plan
from torchkiln.publishing.rebuild import RebuildContext, rebuild
from torchkiln.registry.reading import RepositoryReader
from torchkiln.store.store import Store


def wheels_of(folder: Path) -> list[Path]:
    """The wheels of `small_wheels`; torch contains device code."""
    torch = WheelSpec(
        name="torch",
        files=(
            File(path="torch/__init__.py", data=b"def main():\n    return 0\n"),
            File(path="torch/lib/libtorch_cuda.so", data=LIBRARY, mode=0o755),
            File(path="torch/noise", data=noise("torch", 300_000)),
        ),
    )
    others = small_wheels(folder)[1:]
    return [write_wheel(torch, folder), *others]


def thin(cell: ImagePlan) -> ImagePlan:
    """Make *cell* a thin image for capability 9.0; torch is the wheel to cut."""
    with patch("torchkiln.plan.layers.BIG_WHEEL", 100_000):
        return plan(thin_locked(full=cell.locked), (), aliases=(), lock_digest=LOCK_DIGEST)


def test_a_thin_image_is_built_twice_with_the_same_digest(tmp_path: Path) -> None:
    """Cached, downloaded and recorded wheels give the same image; its uncut layers are the full image's."""
    wheels = wheels_of(tmp_path / "wheels")
    cell = planned_cell(wheels)
    full = build(cell, tmp_path / "one", tmp_path / "full", FakeIndex(wheels))
    cached = build(thin(cell), tmp_path / "one", tmp_path / "layout", FakeIndex([]))
    arriving = build(thin(cell), tmp_path / "two", tmp_path / "layout2", FakeIndex(wheels, piece=60_000))
    recorded = thin(planned_cell(wheels, cached.image.layers[1:-1]))
    again = build(recorded, tmp_path / "three", tmp_path / "layout3", FakeIndex(wheels))

    assert cached.image.manifest == arriving.image.manifest == again.image.manifest != full.image.manifest
    (layer,) = (spec for spec in thin(cell).layers if isinstance(spec, WheelLayer) and spec.device_code)
    assert {one.title for one in set(cached.image.layers) - set(full.image.layers)} == {
        layer.title,
        cached.image.layers[-1].title,
    }
    blob = (
        tmp_path
        / "one/blobs/sha256"
        / next(
            one.blob.digest.removeprefix("sha256:") for one in cached.image.layers if one.title == layer.title
        )
    )
    tree = tree_of_layer(blob.read_bytes())
    assert same(tree[f"{_site()}/torch/lib/libtorch_cuda.so"].data, expected())
    for cache in ("one", "two", "three"):
        assert list((tmp_path / cache / "tmp").iterdir()) == []


def _site() -> str:
    return replace(SCHEME, python=f"{sys.version_info[0]}.{sys.version_info[1]}").site


@pytest.mark.proof
@needs_namespaces
def test_a_thin_image_is_rebuilt_from_its_lock(tmp_path: Path) -> None:
    """`verify --rebuild` rebuilds it in the same way."""
    wheels = wheels_of(tmp_path / "wheels")
    locked = thin_locked(full=planned_cell(wheels).locked)
    store, tag = Store(tmp_path / "cache"), tag_of(locked.resolution)
    put_base(locked.base, store)
    environment = Environment(store=store, fetcher=FakeIndex(wheels), observer=Silent())
    context = RebuildContext(
        matrix=MATRIX, facts=FACTS, store=store, index=lambda _: FakeIndex(wheels), observer=Silent()
    )
    with interpreter():
        image_build.build(plan_locked(locked, MATRIX, FACTS), tmp_path / "layout", environment)
        image = open_layout(tmp_path / "layout").image(tag)
        reader = cast(RepositoryReader, None)  # nothing is read: base and wheels are in the cache
        point = rebuild(reader, image, locked, context)
    assert point.text == f"rebuilt from its lock: {image.manifest}"
    assert validate(tmp_path / "layout", tag) == ()
