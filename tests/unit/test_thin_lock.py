"""The lock and the plan of a thin image, and its labels and metadata."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module

import pytest

from smoke_tests.expected import expected as expected_of_suite
from tests.planned import FACTS, LOCK_DIGEST, MATRIX, PROFILE
from tests.reports import LOCKED
from tests.thin import FULL, thin_cell, thin_locked, thin_resolution
from torchkiln.engine.known import predicted_blobs
from torchkiln.errors import Stale
from torchkiln.locks.file import from_json, to_json
from torchkiln.locks.folder import lock_thin
from torchkiln.locks.lock import inputs_digest
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.recipe import DEVICE_CODE_RULE
from torchkiln.plan.plan import IMAGE_JSON, plan
from torchkiln.smoke.expected import facts_of

OPEN = ("torch", "torchaudio", "torchvision")


def planned(locked: LockedCell) -> ImagePlan:
    return plan(locked, (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


def image_json(locked: LockedCell) -> dict[str, object]:
    (data,) = (file.data for file in planned(locked).overlay.files if file.path == IMAGE_JSON)
    found: dict[str, object] = json.loads(data)
    return found


# --- lock -----------------------------------------------------------------------------------------


def test_it_has_the_wheels_of_the_full_lock_and_says_which_are_cut() -> None:
    found = thin_locked(("8.0", "9.0"))
    assert (found.wheels, found.base, found.epoch) == (LOCKED.wheels, LOCKED.base, LOCKED.epoch)
    assert found.device_code == DeviceCode(
        rule=DEVICE_CODE_RULE, gpus=("8.0", "9.0"), wheels=OPEN, own_use=False
    )
    own_use = thin_locked(own_use=True).device_code
    assert own_use is not None
    nvidia = {wheel.name for wheel in LOCKED.wheels if wheel.name.startswith("nvidia-")}
    assert {*own_use.wheels} == {*OPEN} | nvidia
    assert len(nvidia) > 10


@pytest.mark.parametrize(
    ("wheel", "path", "cut"),
    [
        ("torch", "torch/lib/libtorch_cuda.so", (True, True)),
        ("torch", "torch/lib/libc10_cuda.so", (True, True)),
        ("torch", "torch/lib/libcaffe2_nvrtc.so", (True, True)),
        ("torchvision", "torchvision/_C.so", (True, True)),
        ("torchvision", "torchvision.libs/libnvjpeg.e5f20359.so.12", (False, True)),
        ("torch", "torch/lib/libcudnn_ops_infer.so.8", (False, True)),
        ("torch", "torch/lib/libcudart-d0da41ae.so.11.0", (False, True)),
        ("torch", "torch/lib/libnccl.so.2", (False, True)),
        ("nvidia-cudnn-cu12", "nvidia/cudnn/lib/libcudnn.so.9", (False, True)),
        ("triton", "triton/_C/libtriton.so", (False, False)),
    ],
)
def test_nvidias_libraries_are_cut_for_own_use_only_in_whichever_wheel(
    wheel: str, path: str, cut: tuple[bool, bool]
) -> None:
    found = [thin_locked(own_use=own_use).device_code for own_use in (False, True)]
    assert tuple(one.cuts(wheel, path) for one in found if one) == cut


def test_its_inputs_depend_on_gpus_own_use_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    resolutions = [
        resolve(thin_cell(()), MATRIX, FACTS),
        thin_resolution(),
        thin_resolution(("8.0",)),
        thin_resolution(("8.0", "9.0")),
        thin_resolution(own_use=True),
    ]
    before = [inputs_digest(resolution, ()) for resolution in resolutions]
    assert len({*before}) == len(before)
    monkeypatch.setattr(import_module("torchkiln.locks.lock"), "DEVICE_CODE_RULE", DEVICE_CODE_RULE + 1)
    full, *others = (inputs_digest(resolution, ()) for resolution in resolutions)
    assert full == before[0]
    assert not {*others} & {*before}


@pytest.mark.parametrize(
    ("own_use", "change", "message"),
    [
        (False, {"gpus": ("8.0",)}, "device_code.gpus: differs from the GPUs of the cell"),
        (False, {"wheels": ("torch",)}, "device_code.wheels: must be torch, torchaudio, torchvision"),
        (
            False,
            {"wheels": (*OPEN[:1], "nvidia-cublas-cu12", *OPEN[1:])},
            "device_code.wheels: must be torch",
        ),
        (True, {"wheels": OPEN}, "device_code.wheels: must be nvidia-cublas-cu12"),
        (False, {"own_use": True}, "device_code.own_use: differs from that of the cell"),
        (True, {"own_use": False}, "device_code.own_use: differs from that of the cell"),
    ],
)
def test_an_inconsistent_lock_is_refused(own_use: bool, change: dict[str, object], message: str) -> None:
    found = thin_locked(own_use=own_use)
    assert found.device_code is not None
    changed = replace(found, device_code=replace(found.device_code, **change))  # type: ignore[arg-type]
    with pytest.raises(Stale, match=message):
        from_json(to_json(changed))


def test_gpus_and_device_code_need_each_other() -> None:
    with pytest.raises(Stale, match=r"device_code\.gpus: differs from the GPUs of the cell"):
        from_json(to_json(replace(thin_locked(), device_code=None)))
    with pytest.raises(Stale, match=r"device_code\.gpus: differs from the GPUs of the cell"):
        from_json(to_json(replace(LOCKED, device_code=thin_locked().device_code)))
    own = replace(LOCKED.resolution, cell=replace(LOCKED.resolution.cell, own_use=True))
    with pytest.raises(Stale, match="own_use without gpus"):
        from_json(to_json(replace(LOCKED, resolution=own)))


def test_an_outdated_full_lock_is_refused() -> None:
    found, below = thin_resolution(), resolve(thin_cell(()), MATRIX, FACTS)
    with pytest.raises(Stale) as caught:
        lock_thin(found, replace(LOCKED, inputs=LOCK_DIGEST), below=below)
    assert re.match(
        f"the lock of {FULL}, which has the wheels of the thin image, was made from another matrix",
        caught.value.message,
    )
    assert caught.value.hint == "first run: torchkiln lock --torch 2.7.1 --cuda 12.1"


def test_recorded_layers_stay_if_nothing_else_changed() -> None:
    below = resolve(thin_cell(()), MATRIX, FACTS)
    full = replace(LOCKED, resolution=below, inputs=inputs_digest(below, ()))
    first = thin_locked()
    recorded = replace(first, layers=first.layers[:3])
    again = lock_thin(thin_resolution(), full, below=below, previous=recorded)
    assert again == recorded
    moved = replace(full, wheels=full.wheels[1:])
    assert lock_thin(thin_resolution(), moved, below=below, previous=recorded).layers == full.layers


# --- plan -----------------------------------------------------------------------------------------


def test_layers_that_are_not_cut_are_those_that_the_full_lock_records() -> None:
    assert LOCKED.layers
    full, thin = planned(LOCKED), planned(thin_locked())
    blobs = [*zip(thin.layers, predicted_blobs(full), predicted_blobs(thin), strict=True)]
    for layer, of_full, of_thin in blobs[:-1]:
        cut = isinstance(layer, WheelLayer) and layer.device_code
        assert of_thin == (None if cut else of_full)


@pytest.mark.parametrize(
    ("gpus", "value"),
    [
        (("9.0",), "arch>=9.0,arch<10.0"),
        (("8.6", "8.9"), "arch>=8.6,arch<9.0"),
        (("8.0", "9.0"), "arch>=8.0,arch<9.0 arch>=9.0,arch<10.0"),
    ],
)
def test_nvidias_container_toolkit_refuses_other_gpus(gpus: tuple[str, ...], value: str) -> None:
    env = dict(planned(thin_locked(gpus)).config.env)
    assert env["NVIDIA_REQUIRE_ARCH"] == value
    assert env["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.0"
    assert "NVIDIA_REQUIRE_ARCH" not in dict(planned(LOCKED).config.env)


def test_the_claims_for_the_checks_in_the_image() -> None:
    """The suite compares each key of the claims with image.json and with the labels."""
    locked = thin_locked(("8.0", "9.0"), own_use=True)
    tag, digest = tag_of(locked.resolution), LOCK_DIGEST
    facts = facts_of(locked, {}, tag=tag, lock_digest=digest, manifest=digest)
    claims, found, labels = facts["claims"], image_json(locked), dict(planned(locked).config.labels)
    assert claims == {key: found[key] for key in claims}
    of_suite = expected_of_suite("labels", facts, {})
    assert of_suite == {key: labels[key] for key in of_suite}
    assert facts["device_code"]["wheels"][-3:] == [*OPEN]
    assert facts["env"]["NVIDIA_REQUIRE_ARCH"] == "arch>=8.0,arch<9.0 arch>=9.0,arch<10.0"
    full = facts_of(LOCKED, {}, tag=FULL, lock_digest=digest, manifest=digest)
    assert {*claims} - {*full["claims"]} == {"gpus", "device_code", "wheel_archs"}
    assert {*facts} - {*full} == {"device_code"}


def test_the_checks_compare_the_settings_of_the_image_s_config() -> None:
    """A setting that the config lacks is empty."""
    config = {
        "Labels": {"a": "b"},
        "Entrypoint": ["/e"],
        "Cmd": ["c"],
        "Healthcheck": {"Test": ["CMD", "h"]},
        "Env": ["X=1"],
    }
    digest, empty = LOCK_DIGEST, {"entrypoint": [], "cmd": [], "healthcheck": [], "env": []}
    full, none = (
        facts_of(LOCKED, given, tag=FULL, lock_digest=digest, manifest=digest) for given in (config, {})
    )
    assert (full["labels"], none["labels"], none["config"]) == ({"a": "b"}, {}, empty)
    assert full["config"] == {"entrypoint": ["/e"], "cmd": ["c"], "healthcheck": ["CMD", "h"], "env": ["X=1"]}
