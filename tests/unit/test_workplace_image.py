"""What an image knows of itself, and whether its torch holds code for a GPU."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.inside import PACKAGE
from tests.planned import LOCK_DIGEST, locked
from tests.smoke_suites import SUITE
from torchkiln.matrix.facts import load as facts
from torchkiln.matrix.gpu_archs import how_served
from torchkiln.plan.plan import IMAGE_JSON, plan
from workplace.image import load, serves

BUILDS = sorted({build.archs for release in facts().releases.values() for build in release.variants})
SERIES = sorted({arch.partition("_")[2] for archs in BUILDS for arch in archs}, key=int)
CAPABILITIES = [(major, minor) for major in range(3, 14) for minor in range(10)]


def ours(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """What the side that builds images says."""
    return how_served(archs, f"{capability[0]}.{capability[1]}") is not None


def test_image_json_is_read_as_the_build_writes_it(tmp_path: Path) -> None:
    cell = locked()
    written = plan(cell, (), aliases=(), lock_digest=LOCK_DIGEST)
    (data,) = (
        file.data
        for layer in written.layers
        for file in getattr(layer, "files", ())
        if file.path == IMAGE_JSON
    )
    (tmp_path / "image.json").write_bytes(data)
    found, build = load(tmp_path / "image.json"), cell.resolution.build

    assert build
    assert (found.tag, found.torch, found.wheel_cuda) == (written.tag, build.version, build.cuda)
    assert (found.cudnn, found.nccl, found.archs) == (build.cudnn, build.nccl, build.archs)
    assert (found.cuda, found.python) == (cell.resolution.cell.cuda, cell.base.python)
    assert (found.min_driver, found.full_driver) == (
        cell.resolution.min_driver,
        cell.resolution.full_driver,
    )
    assert found.wheels == tuple((wheel.name, wheel.version) for wheel in cell.wheels)


def test_what_nobody_knows_of_an_image_is_empty(tmp_path: Path) -> None:
    """Where CUDA's libraries lie inside torch's wheel, the lock may not tell their versions."""
    texts = ("tag", "torch", "cuda", "wheel_cuda", "cudnn", "nccl", "python", "min_driver", "full_driver")
    told = dict.fromkeys(texts, "1") | {"cudnn": None, "archs": [], "wheels": [], "schema": 1}
    (tmp_path / "image.json").write_text(json.dumps(told))

    assert load(tmp_path / "image.json").cudnn == ""


def test_every_build_serves_here_what_it_serves_there() -> None:
    """Two programs that cannot share code, over all builds that are known and all GPUs there could be."""
    differ = [pair for pair in product(BUILDS, CAPABILITIES) if serves(*pair) is not ours(*pair)]

    assert differ == []
    assert len(BUILDS) >= 5


@pytest.mark.parametrize("kind", ["sm", "compute"])
def test_each_arch_alone_too(kind: str) -> None:
    archs = [(f"{kind}_{series}",) for series in SERIES]

    assert [pair for pair in product(archs, CAPABILITIES) if serves(*pair) is not ours(*pair)] == []


@pytest.mark.parametrize("kind", ["sm", "compute"])
@pytest.mark.parametrize("letter", ["a", "f"])
def test_a_letter_behind_an_arch_means_that_gpu_alone(kind: str, letter: str) -> None:
    """Stricter than the table of builds, which takes sm_90a for sm_90: no wheel of its has a letter."""
    for series, capability in product(SERIES, CAPABILITIES):
        archs, own = (f"{kind}_{series}{letter}",), (int(series[:-1]), int(series[-1]))

        assert serves(archs, capability) is (capability == own)
        assert ours(archs, capability) or capability != own


def test_a_name_that_is_no_arch_serves_nothing() -> None:
    """A list of the future is passed over, not a traceback in every container."""
    assert not serves(("sm_", "sm_next", "", "sm"), (9, 0))
    assert serves(("sm_next", "sm_90"), (9, 0))


def test_the_probe_of_the_driver_is_the_smoke_suites() -> None:
    """Changed on one side: cp smoke_tests/probes/driver.py rootfs/opt/torchkiln/workplace/driver_probe.py

    Both folders are used as they lie: rootfs/ as a context of committed Dockerfiles and docker-bake.json,
    smoke_tests/ by its runner where there is no torchkiln; neither takes a link.
    """
    here, there = PACKAGE / "driver_probe.py", SUITE / "probes/driver.py"
    assert here.read_bytes() == there.read_bytes(), f"cp {there} {here}, or the other way round"
