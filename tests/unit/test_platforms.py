"""Cells, tags, wheels and images of linux/arm64, beside those of linux/amd64, which do not change."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import oci_samples, planned
from tests.needs import tool
from tests.oci_samples import BlobFolder, files, tar_of
from torchkiln.cli.grid import pick as pick_command
from torchkiln.docker.dockerfile import demand_full
from torchkiln.engine.dependencies import faults
from torchkiln.errors import BadWheel, ConfigError, Stale
from torchkiln.index.choose import tags_of
from torchkiln.locks.file import from_json, to_json
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import how_to_lock
from torchkiln.matrix.explain import explain
from torchkiln.matrix.pick import Picked, parse_driver, parse_gpus, pick
from torchkiln.matrix.resolve import nearest_options, resolve
from torchkiln.matrix.select import Selection, all_cells, select
from torchkiln.matrix.tags import aliases_of, cell_named, misfit, parse_name, tag_of
from torchkiln.model.cell import Cell, Status
from torchkiln.model.index import WheelMetadata
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.model.platform import LINUX_AMD64, LINUX_ARM64, PLATFORMS
from torchkiln.oci.image import describe
from torchkiln.oci.layout import Layout, open_layout, write_image
from torchkiln.oci.platform_index import platform_of
from torchkiln.plan.cuda_toolkit import library_links
from torchkiln.projects.source import fresh_parent
from torchkiln.smoke.bundle.make import parts_of
from torchkiln.util.places import ROOT
from torchkiln.wheel import splice
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.install import parse_name as parse_wheel

FACTS = planned.FACTS
BOTH = replace(planned.MATRIX, platforms=tuple(PLATFORMS), gpus=())
TAG = "2.11.0-cuda13.0-cudnn9-runtime"
ARM_TAG = f"{TAG}-arm64"
ARM = cell_named(ARM_TAG, BOTH, FACTS)


def arm(**changes: str) -> Cell:
    return replace(ARM, **changes)  # type: ignore[arg-type]


def locked() -> LockedCell:
    """An invented lock for linux/arm64."""
    found = planned.locked("2.11.0", "13.0")
    base = replace(found.base, platform=LINUX_ARM64.name)
    return replace(found, resolution=resolve(ARM, BOTH, FACTS), base=base)


# --- cells and tags ---------------------------------------------------------------------------------


def test_the_platform_is_an_axis_of_the_matrix() -> None:
    """It is named, or linux/amd64; with --all, cells of linux/arm64 begin at the first torch that has it."""
    named = Selection(torch=("2.11",), platform=("linux/arm64",))
    assert select(named, BOTH) == (ARM,)
    assert {cell.platform for cell in select(Selection(torch=("2.11",)), BOTH)} == {LINUX_AMD64.name}
    of_arm = {cell.torch for cell in all_cells(BOTH) if cell.platform == LINUX_ARM64.name}
    assert of_arm == {"2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"}
    amd = [cell for cell in all_cells(BOTH) if cell.platform == LINUX_AMD64.name]
    assert amd == list(all_cells(replace(planned.MATRIX, gpus=())))
    with pytest.raises(ConfigError, match="--platform linux/arm64: not in the matrix"):
        select(named, planned.MATRIX)


def test_only_tags_of_another_platform_name_it() -> None:
    resolution = resolve(ARM, BOTH, FACTS)
    assert tag_of(resolution) == ARM_TAG
    assert tag_of(resolve(arm(platform="linux/amd64"), BOTH, FACTS)) == TAG
    for tag, platform in ((TAG, "linux/amd64"), (ARM_TAG, "linux/arm64"), (f"{ARM_TAG}-debian13",) * 2):
        parsed = parse_name(tag)
        assert parsed
        assert parsed.platform == ("linux/arm64" if "arm64" in tag else platform)
    assert parse_name(f"{TAG}-arm65") is None
    aliases = aliases_of(replace(resolution, cell=ARM), BOTH, FACTS)
    assert aliases[0] == "2.11-cuda13.0-runtime-arm64"
    assert all(cell_named(alias, BOTH, FACTS) == ARM for alias in aliases)
    assert misfit("latest-arm64", TAG, BOTH)
    assert misfit(ARM_TAG, TAG, BOTH)
    assert misfit(ARM_TAG, ARM_TAG, BOTH) is None
    assert how_to_lock(ARM).endswith("--cuda 13.0 --platform linux/arm64")


UNAVAILABLE = {
    "torch": (arm(torch="2.7.1", cuda="12.1"), "no CUDA wheels for linux/arm64; the first that has is 2.11"),
    "flavor": (arm(flavor="devel"), "have the flavor runtime, the system debian12, and all GPU code"),
    "system": (arm(os="debian13", python="3.13"), "have the flavor runtime, the system debian12"),
    "GPUs": (replace(ARM, gpus=("9.0",)), "have the flavor runtime, the system debian12, and all GPU code"),
}


@pytest.mark.parametrize(("cell", "why"), UNAVAILABLE.values(), ids=UNAVAILABLE)
def test_cells_that_are_not_built_for_arm64_have_a_reason(cell: Cell, why: str) -> None:
    resolution = resolve(cell, BOTH, FACTS)
    assert resolution.status is Status.UNAVAILABLE
    assert why in resolution.why_unavailable
    assert all(option.endswith("--platform linux/arm64") for option in nearest_options(resolution))


def test_a_release_whose_device_code_is_not_known_is_unavailable() -> None:
    release = FACTS.releases["2.11.0"]
    variants = tuple(replace(variant, aarch64=()) for variant in release.variants)
    facts = replace(FACTS, releases={**FACTS.releases, "2.11.0": replace(release, variants=variants)})
    why = resolve(ARM, BOTH, facts).why_unavailable
    assert why == "torchkiln does not know the device code of torch 2.11.0 for linux/arm64"
    assert resolve(arm(platform="linux/amd64"), BOTH, facts).build


def test_an_explanation_has_the_device_code_and_the_gpus_of_the_platform() -> None:
    of_arm, of_amd = (explain(arm(platform=name), BOTH, FACTS) for name in ("linux/arm64", "linux/amd64"))
    assert of_arm.archs == ("sm_80", "sm_90", "sm_100", "sm_110", "sm_120")
    assert "sm_110" not in of_amd.archs
    names = dict(of_arm.gpus)
    assert "GH200" in names["9.0"]
    assert "GH200" not in dict(of_amd.gpus)["9.0"]
    assert names["12.1"] == ("GB10", "DGX Spark")
    assert "Thor" in names["11.0"]
    assert "8.7" not in names  # Orin


# --- pick -------------------------------------------------------------------------------------------


def picked(gpu: str, *platforms: str) -> Picked:
    cells = [arm(platform=platform) for platform in platforms or PLATFORMS]
    return pick(
        [resolve(cell, BOTH, FACTS) for cell in cells], parse_driver("580.95.05"), parse_gpus([gpu], FACTS)
    )


@pytest.mark.parametrize("gpu", ["GH200", "GB200", "DGX Spark", "GB10", "Thor", "12.1"])
def test_gpus_of_arm_hosts_get_images_for_arm64(gpu: str) -> None:
    found = picked(gpu)
    assert [tag_of(one.resolution) for one in found.runs] == [ARM_TAG]
    assert "aarch64" in found.fails[0].obstacles[0]
    assert found.host == ()
    assert picked(gpu, "linux/amd64").runs == ()


@pytest.mark.parametrize("gpu", ["Orin", "Jetson AGX Orin", "Xavier"])
def test_tegra_is_refused_on_every_platform(gpu: str) -> None:
    assert picked(gpu).runs == picked(gpu, "linux/arm64").runs == ()
    assert picked(gpu, "linux/arm64").host == (
        f"{gpu} is not supported: CUDA for aarch64 is built for ARM servers (sbsa), not for Tegra",
    )
    assert "not for Tegra" not in " ".join(picked(gpu, "linux/amd64").host)


def test_a_gpu_of_any_host_runs_images_of_both_platforms() -> None:
    assert {tag_of(one.resolution) for one in picked("H100").runs} == {TAG, ARM_TAG}


def test_the_command_asks_for_the_platform_that_the_gpu_needs(tmp_path: Path) -> None:
    """Without --platform, linux/amd64, unless only an ARM host has the GPU."""
    text = (ROOT / "matrix.yaml").read_text()
    (tmp_path / "matrix.yaml").write_text(f"platforms: [linux/amd64, linux/arm64]\n{text}")

    def tags(gpu: str, *more: str) -> list[str]:
        words = ["--matrix", str(tmp_path / "matrix.yaml"), "--torch", "2.11", "--driver", "580.95.05"]
        ran = CliRunner().invoke(pick_command, [*words, "--gpu", gpu, "--json", *more])
        return [run["tag"] for run in json.loads(ran.stdout)["runs"] if run["flavor"] == "runtime"]

    assert tags("DGX Spark") == [ARM_TAG]
    assert tags("H100") == [TAG]
    assert tags("H100", "--platform", "linux/arm64") == [ARM_TAG]
    assert tags("Orin") == []


# --- wheels and locks -------------------------------------------------------------------------------


def test_wheels_are_chosen_by_the_tags_of_the_platform() -> None:
    amd, of_arm = (tags_of("3.11", (2, 36), platform) for platform in PLATFORMS.values())
    assert {tag.platform for tag in of_arm} >= {"manylinux_2_28_aarch64", "manylinux2014_aarch64", "any"}
    assert not any("x86" in tag.platform or "manylinux1" in tag.platform for tag in of_arm)
    assert amd == tags_of("3.11", (2, 36))
    assert not any("aarch64" in tag.platform for tag in amd)


def check(tag: str, inside: str, name: str) -> None:
    wheel = f"Wheel-Version: 1.0\nTag: {inside}\n".encode()
    metadata = b"Metadata-Version: 2.1\nName: a\nVersion: 1\n"
    scheme = Scheme(prefix="/opt/venv", python="3.11", platform=PLATFORMS[name])
    splice.check(wheel, metadata, parse_wheel(f"a-1-{tag}.whl"), scheme)


def test_a_wheel_must_fit_the_platform() -> None:
    """NVIDIA's wheels for ARM servers have the platform "sbsa" in the file WHEEL."""
    check("py3-none-manylinux_2_28_aarch64", "py3-none-manylinux2014_sbsa", "linux/arm64")
    check("cp311-cp311-manylinux_2_28_aarch64", "cp311-cp311-manylinux_2_28_aarch64", "linux/arm64")
    for tag, inside, name, fault in (
        ("py3-none-linux_x86_64", "py3-none-any", "linux/arm64", "Python 3.11, aarch64 Linux"),
        ("py3-none-linux_aarch64", "py3-none-any", "linux/amd64", "Python 3.11, x86_64 Linux"),
        ("py3-none-any", "py3-none-manylinux2014_sbsa", "linux/amd64", "the tags in WHEEL"),
        ("py3-none-any", "py3-none-linux_x86_64", "linux/arm64", "the tags in WHEEL"),
    ):
        with pytest.raises(BadWheel, match=fault):
            check(tag, inside, name)


def test_markers_have_the_machine_of_the_image() -> None:
    found = locked()
    [torch] = [wheel for wheel in found.wheels if wheel.name == "torch"]
    text = 'missing; platform_machine == "aarch64"'
    metadata = {
        torch.sha256: WheelMetadata(requires_python="", requires=(text,), version="2.7.1", name="torch")
    }
    assert faults([torch], metadata, ["torch"], found.python) == (
        f"{torch.filename}: requires {text}, which is not locked",
    )
    assert faults([torch], metadata, ["torch"], replace(found.python, platform="linux/amd64")) == ()


def test_a_lock_names_its_platform_unless_it_is_the_default() -> None:
    found = locked()
    data = to_json(found)
    assert from_json(data) == found
    assert b'"platform": "linux/arm64"' in data
    assert b"platform" not in to_json(planned.locked())
    amd = replace(found, base=replace(found.base, platform=LINUX_AMD64.name))
    with pytest.raises(Stale, match="base: for linux/amd64, but the cell needs linux/arm64"):
        from_json(to_json(amd))


def test_links_to_libraries_are_in_the_folder_of_the_platform() -> None:
    found = locked()
    cublas = replace(found.wheels[2], libraries=("nvidia/cu13/lib/libcublas.so.13",))
    [link] = library_links(replace(found, wheels=(cublas,)))
    assert link.path == "usr/lib/aarch64-linux-gnu/libcublas.so.13"


def test_what_is_not_built_for_arm64_is_refused(tmp_path: Path) -> None:
    """Dockerfiles, bundles, and projects on its images."""
    found = locked()
    with pytest.raises(ConfigError, match="a Dockerfile cannot build an image for linux/arm64"):
        demand_full(found)
    locks = LockFolder(tmp_path, BOTH, FACTS)
    with pytest.raises(ConfigError, match="projects on images for linux/arm64 are not supported"):
        fresh_parent(locks, ARM, {})
    image: Any = None  # nothing of it is read
    with (
        pytest.raises(ConfigError, match="bundles are for linux/amd64, but the image is for linux/arm64"),
        parts_of(image, found, image, matrix=tmp_path, arguments=(), project={}, store=image),
    ):
        pass


# --- images -----------------------------------------------------------------------------------------


def image_plan(tag: str, platform: str) -> ImagePlan:
    found = oci_samples.plan(tag)
    cell = replace(found.locked.resolution.cell, platform=platform)
    return replace(
        found,
        locked=replace(found.locked, resolution=replace(found.locked.resolution, cell=cell)),
    )


def write(folder: Path, tag: str, platform: str, content: bytes = b"x") -> str:
    """Write an image to folder/layout; returns its digest."""
    store = BlobFolder(folder / "store")
    layers = (store.layer("base", tar_of(files(etc__motd=platform.encode() + content))),)
    return write_image(folder / "layout", image_plan(tag, platform), layers, store.path).manifest


def both(folder: Path) -> tuple[Layout, str, str]:
    amd, of_arm = write(folder, TAG, "linux/amd64"), write(folder, ARM_TAG, "linux/arm64")
    return open_layout(folder / "layout"), amd, of_arm


def test_the_config_has_the_platform() -> None:
    documents = describe(image_plan(ARM_TAG, "linux/arm64"), ())
    config = json.loads(documents.config)
    assert (config["os"], config["architecture"]) == ("linux", "arm64")


def test_a_tag_is_an_index_of_the_images_for_both_platforms(tmp_path: Path) -> None:
    layout, amd, of_arm = both(tmp_path)
    index = json.loads((layout.path / "index.json").read_bytes())["manifests"]
    by_name = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in index}
    inner = json.loads(layout.blob(by_name[TAG]["digest"]).read_bytes())["manifests"]
    assert [(each["platform"]["architecture"], each["digest"]) for each in inner] == [
        ("amd64", amd),
        ("arm64", of_arm),
    ]
    # torchkiln reads the names as before
    assert layout.refs() == {TAG: amd, ARM_TAG: of_arm}
    assert layout.image(TAG).manifest == amd
    assert platform_of(layout.image(TAG).config) is LINUX_AMD64
    assert layout.image(amd).ref == TAG
    assert platform_of(layout.image(ARM_TAG).config) is LINUX_ARM64
    assert oci_samples.words(layout) == []


def test_one_platform_alone_has_no_index(tmp_path: Path) -> None:
    write(tmp_path, ARM_TAG, "linux/arm64")
    write(tmp_path, "other", "linux/amd64")
    write(tmp_path, "other-arm64", "linux/amd64")  # the name only looks like that of another platform
    entries = open_layout(tmp_path / "layout").written_entries()
    assert {entry["mediaType"] for entry in entries} == {"application/vnd.oci.image.manifest.v1+json"}


@pytest.mark.parametrize(("tag", "platform"), [(TAG, "linux/amd64"), (ARM_TAG, "linux/arm64")])
def test_the_index_follows_a_new_image(tmp_path: Path, tag: str, platform: str) -> None:
    layout, *before = both(tmp_path)
    new = write(tmp_path, tag, platform, b"new")
    [index] = [entry for entry in layout.written_entries() if "index" in entry["mediaType"]]
    inner = json.loads(layout.blob(index["digest"]).read_bytes())["manifests"]
    kept = before[1] if tag == TAG else before[0]
    assert {each["digest"] for each in inner} == {new, kept}
    assert layout.refs()[tag] == new
    assert oci_samples.words(layout) == []
    names = {path.name for path in (layout.path / "blobs/sha256").iterdir()}
    assert len(names) == 7  # index, and two images of manifest, config and layer


def test_skopeo_takes_the_image_of_its_platform(tmp_path: Path) -> None:
    tool("skopeo")
    layout, amd, of_arm = both(tmp_path)

    def skopeo(*words: str) -> str:
        command = ["skopeo", *words, f"oci:{layout.path}:{TAG}"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    raw = json.loads(skopeo("inspect", "--raw"))
    assert [each["digest"] for each in raw["manifests"]] == [amd, of_arm]
    for architecture in ("amd64", "arm64"):
        found = json.loads(skopeo("--override-arch", architecture, "inspect"))
        assert found["Architecture"] == architecture
