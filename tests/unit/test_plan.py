"""The plan: each wheel is in one layer, the order of layers favours sharing, the config; and rootfs/."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import ENTRYPOINT, LOCK_DIGEST, PROFILE, locked, planned, wheel
from torchkiln.errors import BuildFailed, ConfigError, Unresolvable
from torchkiln.model.cell import Constraint
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import OverlayFile
from torchkiln.model.recipe import BIG_WHEEL, MAX_LAYER, ImagePython
from torchkiln.plan import layers as planned_layers
from torchkiln.plan.load import load
from torchkiln.plan.plan import CONSTRAINTS, IMAGE_JSON, constraints, plan
from torchkiln.util.files import rows_json
from torchkiln.util.places import ROOTFS

NAMES = (
    "absl-py", "cmake", "cuda-bindings", "cuda-toolkit", "jupyterlab", "lit", "numpy", "nvidia-cublas",
    "nvidia-cublas-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nvtx-cu11", "pillow", "pip",
    "tensorboard", "torch", "torchaudio", "torchvision", "tqdm", "triton", "uv",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
wheel_layers = partial(planned_layers.wheel_layers, python=ImagePython.of_base("3.11.2"))

wheel_sets = st.lists(st.sampled_from(NAMES), unique=True).flatmap(
    lambda names: st.tuples(
        *(st.builds(wheel, st.just(n), st.just("1"), megabytes=st.integers(1, 5000)) for n in names)
    )
)


@given(wheel_sets)
def test_every_wheel_is_in_exactly_one_layer_and_none_is_too_large(wheels: tuple[LockedWheel, ...]) -> None:
    layers = wheel_layers(wheels)
    placed = [item for layer in layers for item in layer.wheels]
    assert sorted(placed, key=lambda one: one.name) == sorted(wheels, key=lambda one: one.name)
    assert all(sum(item.size for item in layer.wheels) <= MAX_LAYER for layer in layers)
    assert all(
        len(layer.wheels) == 1 for layer in layers if any(item.size >= BIG_WHEEL for item in layer.wheels)
    )


@given(st.data())
def test_the_order_of_the_lock_does_not_matter(data: st.DataObject) -> None:
    wheels = data.draw(wheel_sets)
    assert wheel_layers(data.draw(st.permutations(wheels))) == wheel_layers(wheels)


@pytest.mark.parametrize("suffix", ["-cu11", "-cu12", ""])
def test_layers_are_ordered_from_the_most_shared_to_the_least_for_every_suffix(suffix: str) -> None:
    """The order must not depend on the suffix, because NVIDIA's newer wheels have none."""
    names = (
        "uv",
        "numpy",
        "torch",
        "triton",
        f"nvidia-nccl{suffix}",
        f"nvidia-cublas{suffix}",
        "cuda-toolkit",
    )
    layers = wheel_layers(wheel(name, "1", megabytes=30) for name in names)
    assert [layer.wheels[0].name for layer in layers] == [
        "cuda-toolkit", f"nvidia-cublas{suffix}", f"nvidia-nccl{suffix}", "triton", "torch", "numpy", "uv",
    ]  # fmt: skip


def test_small_wheels_are_split_before_a_layer_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.plan.layers.MAX_LAYER", 30_000_000)
    layers = wheel_layers(wheel(name, "1", megabytes=12) for name in ("a", "b", "c"))
    assert [[item.name for item in layer.wheels] for layer in layers] == [["a", "b"], ["c"]]


def test_a_wheel_too_large_for_registries_is_refused_by_name() -> None:
    with pytest.raises(BuildFailed, match=r"torch-1-py3-none-any\.whl has 5001000000 bytes"):
        wheel_layers([wheel("torch", "1", megabytes=5001)])


@given(st.dictionaries(st.text(), VALUES))
def test_rows_are_the_same_json(values: dict[str, Any]) -> None:
    assert json.loads(rows_json(values)) == values


def test_only_torch_and_its_libraries_are_pinned() -> None:
    """constraints.txt, for pip and uv, has these pins and the bounds that this torch needs."""
    one = locked()
    bound = Constraint(requirement="numpy<2", fact="traps.numpy")
    bounded = replace(one, resolution=replace(one.resolution, constraints=(bound,)))
    lines = [line for line in constraints(bounded).splitlines() if not line.startswith("#")]
    pinned = {w for w in one.wheels if w.name.startswith(("torch", "triton", "nvidia-", "cuda-"))}
    assert lines == [*sorted(f"{w.name}=={w.version}" for w in pinned), "numpy<2"]
    assert len(lines) < len(one.wheels)
    assert dict(planned().config.env)["PIP_CONSTRAINT"] == dict(planned().config.env)["UV_CONSTRAINT"]
    assert dict(planned().config.env)["PIP_CONSTRAINT"] == f"/{CONSTRAINTS}"


def test_recorded_layers_and_aliases_do_not_change_the_image() -> None:
    one = locked()
    first = plan(one, (ENTRYPOINT,), aliases=("latest",), lock_digest=LOCK_DIGEST)
    second = plan(one, (ENTRYPOINT,), aliases=(), lock_digest=LOCK_DIGEST)
    assert (first.layers, first.config) == (second.layers, second.config)


def test_the_order_of_overlay_files_does_not_matter() -> None:
    one = locked()
    forth = plan(one, (PROFILE, ENTRYPOINT), aliases=(), lock_digest=LOCK_DIGEST)
    back = plan(one, (ENTRYPOINT, PROFILE), aliases=(), lock_digest=LOCK_DIGEST)
    assert forth == back


@pytest.mark.parametrize("path", [IMAGE_JSON, CONSTRAINTS])
def test_rootfs_must_not_contain_generated_files(path: str) -> None:
    with pytest.raises(ConfigError, match=f"rootfs/{path}"):
        plan(locked(), (OverlayFile(path=path, mode=0o644, data=b"{}"),), aliases=(), lock_digest=LOCK_DIGEST)


def test_an_unavailable_cell_has_no_plan() -> None:
    one = locked()
    unavailable = replace(one, resolution=replace(one.resolution, build=None))
    with pytest.raises(Unresolvable, match=r"torch 2\.7\.1 with CUDA 12\.1"):
        plan(unavailable, (), aliases=(), lock_digest=LOCK_DIGEST)


def test_modes_are_normalised_and_files_sorted(tmp_path: Path) -> None:
    """The umask under which a repository was checked out must not change an image."""
    for name, mode in (("b/run", 0o770), ("b/data", 0o660), ("a", 0o600)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
    assert [(file.path, file.mode, file.data) for file in load(tmp_path)] == [
        ("a", 0o644, b"a"),
        ("b/data", 0o644, b"b/data"),
        ("b/run", 0o755, b"b/run"),
    ]


def test_all_links_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "to-file").symlink_to("/etc/passwd")
    (tmp_path / "to-folder").symlink_to("/etc")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert "to-file" in caught.value.message
    assert "to-folder" in caught.value.message


def test_a_missing_rootfs_is_reported() -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        load(Path("/nonexistent/rootfs"))


def test_our_rootfs_has_the_programs_that_the_config_starts() -> None:
    executable = {file.path for file in load(ROOTFS) if file.mode == 0o755}
    commands = {"usr/local/bin/doctor", "usr/local/bin/help"}
    assert executable == {"opt/torchkiln/entrypoint", "opt/torchkiln/healthcheck", *commands}


def test_caches_of_tools_are_excluded(tmp_path: Path) -> None:
    """__pycache__ and folders that are marked as a cache are left out; all other files are included."""
    taken = {"a.py", ".hidden", "b/CACHEDIR", "b/pycache/x", "CACHEDIR.TAG"}
    left = {
        "__pycache__/a.pyc",
        "b/__pycache__/deep/a.pyc",
        "b/.tool_cache/CACHEDIR.TAG",
        "b/.tool_cache/3.11/x",
    }
    for name in taken | left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "b/.tool_cache/link").symlink_to("/etc")
    assert {file.path for file in load(tmp_path)} == taken


def test_all_of_our_rootfs_is_included() -> None:
    """Only caches are left out."""
    there = {path for path in ROOTFS.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    caches = {path.parent for path in there if path.name == "CACHEDIR.TAG"}
    included = {path for path in there if not caches & set(path.parents)}
    assert {ROOTFS / file.path for file in load(ROOTFS)} == included


def test_every_image_has_the_recipes() -> None:
    recipes = {file.path for file in load(ROOTFS) if file.path.startswith("opt/torchkiln/examples/recipes/")}
    assert "opt/torchkiln/examples/recipes/train.py" in recipes
    assert not any(path.endswith(".md") for path in recipes)  # documentation must not change images
