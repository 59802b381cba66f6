"""`pick` lists the images that run on a host, best first, and the reasons why others do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import FACTS, MATRIX, NATIVE_FIRST, WITHOUT_BEYOND
from torchkiln.errors import ConfigError
from torchkiln.matrix.gpu_archs import how_served
from torchkiln.matrix.pick import DriverVersion, Picked, parse_driver, parse_gpus, pick
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.util.versions import numbers

RUNTIME = tuple(resolve(cell, MATRIX, FACTS) for cell in select(Selection(), WITHOUT_BEYOND))
NAMES = tuple(name for kind in FACTS.gpus for name in kind.names)


def _pick(driver: str, *gpus: str) -> Picked:
    return pick(RUNTIME, parse_driver(driver), parse_gpus(gpus, FACTS))


def _cells(choice: Picked) -> list[tuple[str, str]]:
    return [(offer.resolution.cell.torch, offer.resolution.cell.cuda) for offer in choice.runs]


def _against(choice: Picked, torch: str, cuda: str) -> str:
    cell = (torch, cuda)
    found = [o for o in choice.fails if (o.resolution.cell.torch, o.resolution.cell.cuda) == cell]
    return "; ".join(found[0].obstacles)


def test_driver_535_and_an_h100():
    """All images run, except for images without code for the H100 and for unavailable cells."""
    choice = _pick("535", "H100")
    assert _cells(choice)[:3] == [("2.8.0", "12.1"), ("2.7.1", "12.1"), ("2.7.1", "11.8")]
    assert len(choice.runs) == 23
    assert "no code for H100 (capability 9.0)" in _against(choice, "2.0.1", "11.7")
    assert "compatibility mode" in choice.runs[0].conditions[0]
    assert ("2.4.1", "12.1") in [
        (o.resolution.cell.torch, o.resolution.cell.cuda) for o in choice.runs if not o.conditions
    ]


def test_a_driver_below_the_floor():
    choice = _pick("470", "V100")
    assert all(cuda in ("11.7", "11.8") for _, cuda in _cells(choice))
    assert "older than 525.60.13, the minimum for CUDA 12" in _against(choice, "2.7.1", "12.1")


@pytest.mark.parametrize(
    ("driver", "runs"),
    [("525.60.12", False), ("525.60.13", True), ("525", True), ("524", False), ("525.147", True)],
)
def test_the_floor_to_the_digit(driver: str, runs: bool):
    assert (("2.7.1", "12.1") in _cells(_pick(driver, "A100"))) is runs


def test_a_branch_that_reaches_the_floor_later_is_mentioned():
    offers = {
        o.resolution.cell.torch: o for o in _pick("525", "A100").runs if o.resolution.cell.cuda == "12.1"
    }
    assert "needs driver 525.60.13 or newer of branch 525" in offers["2.7.1"].conditions
    assert not any("of branch" in text for offer in _pick("530", "A100").runs for text in offer.conditions)


def test_blackwell_needs_a_recent_driver():
    assert _cells(_pick("570", "B200")) == [("2.8.0", "12.1")]
    old = _pick("565", "B200")
    assert (old.runs, old.host) == (
        (),
        ("driver 565 does not support B200 (capability 10.0); the first branch that does is 570",),
    )


def test_kepler_is_supported_until_470():
    assert ("2.7.1", "11.8") in _cells(_pick("470", "K80"))
    assert "does not support K80 (capability " in _pick("535", "K80").host[0]


def test_volta_is_supported_until_580():
    assert _pick("580", "V100").runs
    assert "does not support V100 (capability " in _pick("590", "V100").host[0]


def test_all_gpus_of_a_host_must_be_supported():
    choice = _pick("535", "P100", "H100")
    assert ("2.7.1", "12.1") in _cells(choice)
    assert "P100 (capability 6.0)" in _against(choice, "2.8.0", "12.1")


def test_an_arm_host_cannot_run_these_images():
    assert "aarch64" in _pick("580", "GB200").host[0]
    assert "aarch64" not in "".join(_pick("580", "B200").host)


def test_ptx_counts_only_on_a_driver_as_new_as_its_toolkit():
    """2.7.1+cu128 has compute_120: for a GPU newer than 12.0, the driver must compile it."""
    native = resolve(
        select(Selection(torch=("2.7.1",), cuda=("12.1",)), MATRIX)[0],
        MATRIX,
        _only_variant("2.7.1", "cu128"),
    )
    gpus = parse_gpus(["13.0"], FACTS)
    assert "only PTX" in pick([native], DriverVersion(version="565"), gpus).fails[0].obstacles[0]
    assert "compiles it" in pick([native], DriverVersion(version="580"), gpus).runs[0].conditions[0]


def _only_variant(torch: str, variant: str):
    from dataclasses import replace

    release = FACTS.releases[torch]
    only = tuple(item for item in release.variants if item.name == variant)
    return replace(FACTS, releases={torch: replace(release, variants=only)})


@pytest.mark.parametrize(
    ("text", "name", "capability"),
    [
        ("h100", "H100", "9.0"),
        ("NVIDIA H100 80GB HBM3", "H100", "9.0"),
        ("NVIDIA A100-SXM4-80GB", "A100", "8.0"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "8.9"),
        ("3090", "RTX 3090", "8.6"),
        ("2080Ti", "RTX 2080 Ti", "7.5"),
        ("RTX 4090D", "RTX 4090 D", "8.9"),
        ("6000 Ada", "RTX 6000 Ada", "8.9"),
        ("GTX 1660 SUPER", "GTX 1660", "7.5"),
        ("A10G", "A10", "8.6"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 Ada", "8.9"),
        ("NVIDIA RTX 2000 Ada Generation Laptop GPU", "RTX 2000 Ada", "8.9"),
        ("NVIDIA RTX PRO 4000 Blackwell SFF Edition", "RTX PRO 4000 Blackwell", "12.0"),
        ("NVIDIA GeForce RTX 3050 Ti Laptop GPU", "RTX 3050", "8.6"),
        ("Quadro RTX 5000 with Max-Q Design", "Quadro RTX 5000", "7.5"),
        ("P4000", "Quadro P4000", "6.1"),
        ("NVIDIA TITAN X (Pascal)", "TITAN X Pascal", "6.1"),
        ("NVIDIA GeForce GTX TITAN X", "GTX TITAN X", "5.2"),
        ("GRID A100-10C", "A100", "8.0"),
        ("9.0", "9.0", "9.0"),
        ("compute_90", "9.0", "9.0"),
        ("SM90a", "9.0", "9.0"),
    ],
)
def test_gpu_names_of_users_and_drivers(text: str, name: str, capability: str):
    (gpu,) = parse_gpus([text], FACTS)
    assert (gpu.name, gpu.kind.capability) == (name, capability)


@pytest.mark.parametrize(
    "text", ["T40", "A20", "6000", "RTX 6000", "RTX 5000", "TITAN X", "P40000", "L400", "sm_9"]
)
def test_a_number_is_not_the_beginning_of_another(text: str):
    """A T40 is not a T4, and the name "RTX 6000" exists in two generations."""
    with pytest.raises(ConfigError, match="unknown GPU"):
        parse_gpus([text], FACTS)


@pytest.mark.parametrize(
    "text", ["Jetson", "Jetson Nano", "NVIDIA Jetson AGX Orin", "Orin (nvgpu)", "AGX Xavier", "Jetson T5000"]
)
def test_a_jetson_is_not_served(text: str):
    choice = _pick("580", text)
    assert choice.runs == ()
    assert choice.host[0].endswith("is not supported: Jetsons are aarch64; the images are for x86_64")


@pytest.mark.parametrize("text", ["8.7", "sm_87", "compute_110", "12.1"])
def test_a_capability_that_only_arm_hosts_have_is_not_served(text: str):
    choice = _pick("580", text)
    assert choice.runs == ()
    assert choice.host[0].endswith("needs an aarch64 host; the images are for x86_64")


@pytest.mark.parametrize("name", NAMES)
def test_every_known_gpu_is_found_by_its_own_name(name: str):
    assert parse_gpus([name], FACTS)[0].name == name


def test_unknown_gpus_are_reported_at_once_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        parse_gpus(["H1000", "H100", "GTX1085"], FACTS)
    first, second = caught.value.message.splitlines()
    assert first.startswith("--gpu H1000: unknown GPU; nearest: H100")
    assert "GTX 1080" in second


@pytest.mark.parametrize("text", ["", "abc", "53", "535.x", "5350", "535.1.2.3", "-535"])
def test_not_a_driver(text: str):
    with pytest.raises(ConfigError, match="not a driver version"):
        parse_driver(text)


@pytest.mark.parametrize("text", ["535", "R535", "r535", " 535 "])
def test_a_branch(text: str):
    assert parse_driver(text) == DriverVersion(version="535")


DRIVERS = st.sampled_from(
    ["450.80.02", "470", "515.48.07", "525.60.13", "535", "550", "560.35.05", "570", "580", "590"]
)


@given(DRIVERS, st.lists(st.sampled_from(NAMES), max_size=2))
def test_pick_agrees_with_resolve(driver: str, gpus: list[str]):
    """Each cell is listed once. If it runs, its resolution allows the driver and has code for the GPUs."""
    choice = _pick(driver, *gpus)
    assert len(choice.runs) + len(choice.fails) == len(RUNTIME)
    for offer in choice.runs:
        build, floor = offer.resolution.build, offer.resolution.min_driver
        assert build is not None
        assert floor is not None
        assert DriverVersion(version=driver).reaches(floor) != "no"
        assert all(how_served(build.archs, gpu.kind.capability) for gpu in parse_gpus(gpus, FACTS))
    assert choice.host or all(offer.obstacles for offer in choice.fails)


@given(st.sampled_from(NAMES))
def test_a_newer_driver_loses_no_image_unless_it_drops_the_gpu(name: str):
    before, after = _pick("535", name), _pick("570", name)
    assert after.host or set(_cells(before)) <= set(_cells(after))


def test_best_first():
    for driver in ("470", "535", "580"):
        torches = [numbers(torch) for torch, _ in _cells(_pick(driver, "T4"))]
        assert torches == sorted(torches, reverse=True)


def test_pick_respects_a_matrix_that_prefers_native():
    resolutions = [
        resolve(cell, NATIVE_FIRST, FACTS) for cell in select(Selection(torch=("2.5",)), NATIVE_FIRST)
    ]
    choice = pick(resolutions, parse_driver("535"), parse_gpus(["H100"], FACTS))
    offer = next(o for o in choice.runs if o.resolution.cell.cuda == "12.1")
    assert offer.resolution.build is not None
    assert offer.resolution.build.version == "2.5.1+cu121"
