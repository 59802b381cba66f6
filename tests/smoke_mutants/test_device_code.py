"""Mutants of the check `device-code`: images that were cut for capability 9.0 incorrectly. Needs no GPU."""

from __future__ import annotations

import json
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.applicable import not_applicable
from smoke_tests.fatbins import MAGIC
from smoke_tests.gpus import lacking
from smoke_tests.host import fault
from tests.cut_wheels import (
    LTO,
    MACHINE,
    ONE_CHIP,
    PTX,
    Code,
    Placed,
    install,
    library,
    with_metadata,
    write_wheel,
    zeroed,
)
from tests.smoke_mutants.mutant import pytest_folder
from tests.smoke_suites import CLAIMS, SUITE, findings, run_suite
from torchkiln.smoke.declared import declared_faults
from torchkiln.smoke.run import parse_output
from torchkiln.smoke.suite import load_suite

LIBRARY, SECOND, SMALL = "torch/lib/libtorch_cuda.so", "torch/lib/liblinalg.so.1", "torch/lib/libsmall.so"
# Containers like those of torch, cuDNN, cuBLASLt and cuSPARSE. For 9.0, the second container keeps its PTX,
# and the last is not cut, because it has no code for 9.0.
CONTAINERS: Sequence[Sequence[Code]] = (
    (Code(80), Code(86), Code(90), Code(90, flags=ONE_CHIP | 0x2011), Code(90, PTX)),
    (Code(70, PTX), Code(80)),
    (Code(90, flags=ONE_CHIP, head=72), Code(52, PTX)),
    (Code(100), Code(90), Code(50, LTO, head=120), Code(120, PTX, head=80)),
    (Code(80), Code(86)),
)


@dataclass
class Scene:
    """An environment with the distribution torch whose libraries are cut for 9.0, and its wheel."""

    site: Path
    python: Path
    wheel: Path
    sha256: str
    full: dict[str, bytes]  # the files of the wheel
    places: dict[str, list[Placed]]
    claims: dict[str, Any] = field(
        default_factory=lambda: {
            **CLAIMS,
            "gpus": ["9.0"],
            "wheel_archs": ["sm_80", "sm_90", "sm_100"],
            "device_code": 1,
        }
    )

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the image and its row in the RECORD, to hide the change."""
        files = {path: (self.site / path).read_bytes() for path in self.full if "dist-info" not in path}
        install(self.site, with_metadata("torch", {**files, name: data}))

    def facts(self, **more: Any) -> dict[str, Any]:
        wheels = [{"name": "torch", "version": "1.0", "sha256": self.sha256}]
        cut = {
            "device_code": {"wheels": ["torch"], "own_use": False},
            "wheel_files": {"torch": str(self.wheel)},
        }
        return {"schema": 1, "claims": self.claims, "labels": {}, "wheels": wheels, **cut} | more

    def run(self, tmp_path: Path, **more: Any) -> Mapping[str, Any]:
        """The finding of the check."""
        (tmp_path / "run").mkdir(exist_ok=True)
        events = run_suite(
            SUITE,
            tmp_path / "run",
            *("--only", "device-code"),
            python=str(self.python),
            facts=self.facts(**more),
            wheels=Path(pytest_folder()),
        )
        return findings(events)["device-code"]


def dropped(place: Placed) -> bool:
    """Whether no GPU of capability 9.0 loads the entry."""
    if place.container in (0, 3):
        return not (place.code.arch == 90 and place.code.kind == MACHINE)
    return place.container == 1 and place.code.kind == MACHINE


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python*")) / "site-packages"
    contents, places = {}, {}
    for name, section in ((LIBRARY, ".nv_fatbin"), (SECOND, "__nv_relfatbin")):
        contents[name], places[name] = library(CONTAINERS, section=section)
    small = library(((Code(80), Code(90)),))[0][-20_000:]
    others = {SMALL: small, "torch/__init__.py": b"", "torch/data.bin": b"x" * 2_000_000}
    full = with_metadata("torch", {**contents, **others})
    cut = {
        name: zeroed(data, [place for place in places[name] if dropped(place)])
        for name, data in contents.items()
    }
    install(site, with_metadata("torch", {**cut, **others}))
    wheel = tmp_path / "torch.whl"
    return Scene(
        site=site,
        python=tmp_path / "venv/bin/python",
        wheel=wheel,
        sha256=write_wheel(wheel, full),
        full=full,
        places=places,
    )


def test_an_image_that_was_cut_correctly_passes(scene: Scene, tmp_path: Path) -> None:
    """The measured values are right, and the gate computes the same bounds."""
    found = scene.run(tmp_path)

    assert (found["outcome"], found["message"]) == ("passed", "")
    measured = found["measured"]
    assert (measured["libraries"], measured["containers"]) == (2, 10)
    assert measured["zeroed"] == 2 * 7 * 4096
    kept = {"sm_90": 4, "sm_90a": 4, "compute_52": 2, "compute_70": 2, "sm_80": 2, "sm_86": 2}
    assert measured["kept"] == {name: 4096 * count for name, count in kept.items()}
    assert measured["unserved"] == {LIBRARY: 1, SECOND: 1}
    assert measured["wheels"] == {"torch": scene.sha256}

    suite = load_suite(SUITE)
    check = next(check for check in suite.checks if check.id == "device-code")
    line = json.dumps({"event": "finding", **found}).encode()
    finding = parse_output(line).findings["device-code"]
    facts = scene.facts()
    assert list(declared_faults(check, finding, suite, facts, {})) == []
    other = scene.facts(wheels=[{"name": "torch", "version": "1.0", "sha256": "0" * 64}])
    assert any("wheels" in text for text in declared_faults(check, finding, suite, other, {}))


def _too_many(scene: Scene) -> None:
    place = next(place for place in scene.places[LIBRARY] if place.code.flags & ONE_CHIP)
    scene.write(LIBRARY, zeroed((scene.site / LIBRARY).read_bytes(), [place]))


def _changed(at: Callable[[Scene], int]) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        data = bytearray((scene.site / LIBRARY).read_bytes())
        data[at(scene)] ^= 1
        scene.write(LIBRARY, bytes(data))

    return change


def _kept_byte(scene: Scene) -> int:
    return next(place.start for place in scene.places[LIBRARY] if place.code.arch == 90) + 100


def _zero_byte(scene: Scene) -> int:
    return scene.places[LIBRARY][0].start + 100


def _header_byte(scene: Scene) -> int:
    """The architecture in the header of an entry that is zeroed: 80 becomes 81."""
    return scene.places[LIBRARY][0].start - 64 + 28


def _wrong_capability(scene: Scene) -> None:
    """An image for 8.0 under the name of one for 9.0."""
    for name, places in scene.places.items():
        others = [
            place
            for place in places
            if place.code.arch != 80 and any(code.arch == 80 for code in CONTAINERS[place.container])
        ]
        scene.write(name, zeroed(scene.full[name], others))


def _needed_ptx(scene: Scene) -> None:
    place = next(place for place in scene.places[LIBRARY] if place.code.arch == 70)
    scene.write(LIBRARY, zeroed((scene.site / LIBRARY).read_bytes(), [place]))


def _needed_container(scene: Scene) -> None:
    """Zero the code in a container that must not be cut."""
    place = next(place for place in scene.places[LIBRARY] if place.container == 4 and place.code.arch == 80)
    scene.write(LIBRARY, zeroed((scene.site / LIBRARY).read_bytes(), [place]))


def _whole(scene: Scene) -> None:
    scene.write(SECOND, scene.full[SECOND])


def _one_left(scene: Scene) -> None:
    data = bytearray((scene.site / SECOND).read_bytes())
    place = next(place for place in scene.places[SECOND] if place.code.arch == 120)
    data[place.start : place.stop] = scene.full[SECOND][place.start : place.stop]
    scene.write(SECOND, bytes(data))


def _shorter(scene: Scene) -> None:
    scene.write(SECOND, (scene.site / SECOND).read_bytes()[:-100])


def _missing(scene: Scene) -> None:
    (scene.site / SECOND).unlink()


def _small(scene: Scene) -> None:
    scene.write(SMALL, bytes(len(scene.full[SMALL])))


def _data(scene: Scene) -> None:
    scene.write("torch/data.bin", b"y" * 2_000_000)


def _uninstalled(scene: Scene) -> None:
    (scene.site / "torch-1.0.dist-info/METADATA").unlink()
    (scene.site / "torch-1.0.dist-info/RECORD").unlink()
    (scene.site / "torch-1.0.dist-info").rmdir()


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (_too_many, {"lost": "sm_90a in the container"}),
        (_changed(_kept_byte), {"changed": "sm_90 in the container"}),
        (_changed(_zero_byte), {"not_zeroed": "sm_80 in the container"}),
        (_changed(_header_byte), {"changed": "outside of device code"}),
        (_changed(lambda _: 20), {"changed": "byte 0x14, outside of device code"}),
        (_changed(lambda scene: len(scene.full[LIBRARY]) - 1), {"changed": "outside of device code"}),
        (_wrong_capability, {"lost": "sm_90 in the container", "not_zeroed": "sm_80 in the container"}),
        (_needed_ptx, {"lost": "compute_70 in the container"}),
        (_needed_container, {"lost": "sm_80 in the container"}),
        (_whole, {"not_zeroed": f"{SECOND}: and 2 more"}),
        (_one_left, {"not_zeroed": "compute_120 in the container"}),
        (_shorter, {"absent": SECOND}),
        (_missing, {"absent": SECOND}),
        (_small, {"other": SMALL}),
        (_data, {"other": "torch/data.bin"}),
    ],
)
def test_each_difference_is_found(
    scene: Scene, tmp_path: Path, mutate: Callable[[Scene], None], expected: dict[str, str]
) -> None:
    """Each is found, although RECORD has the hashes of the changed files, so that `lock` would pass."""
    mutate(scene)
    found = scene.run(tmp_path)
    faults = {line.split(":")[0]: line for line in found["message"].splitlines()}

    assert found["outcome"] == "failed"
    assert faults.keys() == expected.keys()
    for name, words in expected.items():
        assert words in faults[name]


def test_an_image_without_the_distribution(scene: Scene, tmp_path: Path) -> None:
    _uninstalled(scene)
    found = scene.run(tmp_path)

    assert found["outcome"] == "failed"
    assert LIBRARY in found["message"]


def test_a_wheel_that_is_not_the_locked_one(scene: Scene, tmp_path: Path) -> None:
    """Such a wheel proves nothing about the locked wheel."""
    found = scene.run(tmp_path, wheels=[{"name": "torch", "version": "1.0", "sha256": "0" * 64}])

    assert (found["outcome"], found["message"].split(":")[0]) == ("failed", "wheels")


def test_another_rule_is_not_judged_by_this_one(scene: Scene, tmp_path: Path) -> None:
    scene.claims["device_code"] = 2

    assert scene.run(tmp_path)["message"].startswith("rule: is 2")


def test_without_the_wheels_it_is_not_run(scene: Scene, tmp_path: Path) -> None:
    """The check is skipped, so that the verdict is inconclusive; it never passes."""
    found = scene.run(tmp_path, wheel_files={})

    assert found["outcome"] == "skipped"
    assert "nothing to compare with: the wheels of torch are not here" in found["message"]


def test_it_does_not_apply_to_an_image_with_all_device_code(scene: Scene, tmp_path: Path) -> None:
    scene.claims = dict(CLAIMS)
    found = scene.run(tmp_path)

    assert (found["outcome"], found["message"]) == ("not-applicable", "device-code-is-whole")
    assert not_applicable("device-code", {"claims": CLAIMS | {"gpus": ["9.0"]}}, None) is None


def _for(scene: Scene, gpus: Sequence[str], zero: Callable[[Placed], bool]) -> None:
    """Make the scene an image for *gpus*, without the code for which *zero* is true."""
    scene.claims["gpus"] = list(gpus)
    for name, places in scene.places.items():
        scene.write(name, zeroed(scene.full[name], [place for place in places if zero(place)]))


def test_several_gpus_keep_the_code_of_each(scene: Scene, tmp_path: Path) -> None:
    """A GPU of 8.6 loads sm_86, or sm_80 if there is no sm_86. A GPU of 9.0 compiles compute_70."""
    zero = {(0, 80, MACHINE), (0, 90, PTX), (3, 100, MACHINE), (3, 50, LTO), (3, 120, PTX), (4, 80, MACHINE)}
    _for(
        scene,
        ["8.6", "9.0"],
        lambda place: (place.container, place.code.arch, place.code.kind) in zero,
    )
    found = scene.run(tmp_path)

    assert found["message"] == ""
    assert found["measured"]["unserved"] == {}


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize(
    ("gpu", "zero", "ptx", "name"),
    [
        ("8.6", {(0, 80), (0, 90), (2, 90), (4, 80)}, (1, 70), "compute_70"),
        ("9.0", set(), (2, 52), "compute_52"),
    ],
)
def test_ptx_beside_other_machine_code_must_stay(
    scene: Scene,
    tmp_path: Path,
    gpu: str,
    zero: set[tuple[int, int]],
    ptx: tuple[int, int],
    name: str,
    stays: bool,
) -> None:
    """The driver prefers PTX to sm_80 on 8.6, and may prefer it to sm_90a on 9.0."""
    zero = zero | (set() if stays else {ptx})
    _for(
        scene,
        [gpu],
        lambda place: (
            (place.container, place.code.arch) in zero
            or (gpu == "9.0" and dropped(place) and (place.container, place.code.arch) != ptx)
        ),
    )

    message = scene.run(tmp_path)["message"]
    assert (
        message.startswith("lost: ") and f"{name} in the container" in message if not stays else not message
    )


def test_a_container_outside_of_the_linkers_sections_is_not_cut(scene: Scene, tmp_path: Path) -> None:
    data = bytearray((scene.site / LIBRARY).read_bytes())
    at = data.index(MAGIC) + 16 + 64
    data[at : at + 4096] = bytes(4096)
    scene.write(LIBRARY, bytes(data))

    assert "changed: " in scene.run(tmp_path)["message"]


def test_a_container_that_does_not_follow_the_format(scene: Scene, tmp_path: Path) -> None:
    """The library is not cut, and the check reports the container."""
    data, places = library(CONTAINERS)
    damaged = bytearray(data)
    damaged[places[-1].start - 60] = 99  # the length of the last entry's header
    files = {LIBRARY: bytes(damaged), "torch/__init__.py": b""}
    cut, _ = library(((Code(80), Code(90)),), 3)
    files[SECOND] = cut
    scene.sha256 = write_wheel(scene.wheel, with_metadata("torch", files))
    scene.full = with_metadata("torch", files)
    places = library(((Code(80), Code(90)),), 3)[1]
    install(scene.site, with_metadata("torch", {**files, SECOND: zeroed(cut, places[:1])}))
    found = scene.run(tmp_path)

    assert found["message"] == ""
    assert [text.split(":")[0] for text in found["measured"]["unread"]] == [LIBRARY]


def _host(*capabilities: Sequence[int]) -> dict[str, Any]:
    gpus = [{"capability": capability, "memory": 80 << 30, "free": 80 << 30} for capability in capabilities]
    driver = {"libcuda": None, "init": 0, "gpus": gpus, "nodes": ["nvidia0"], "visible": None}
    return {"driver": {**driver, "driver": "580.65.06", "cuda": "13.0", "peers": []}, "shm": 1 << 30}


def test_on_another_gpu_the_host_is_to_blame() -> None:
    """The host is reported before the checks of tier 1, with the message for thin images."""
    claims = {"gpus": ["8.0", "9.0"], "archs": ["sm_80", "sm_90"], "wheel_cuda": "12.6"}

    assert lacking(1, _host((9, 0), (8, 6)), claims) is None
    assert lacking(1, _host((9, 0), (7, 5)), claims) == (
        "host: no code for compute capability 7.5 in this image, which is for 8.0, 9.0; use that for all GPUs"
    )
    assert fault("import", 0, _host((7, 5)), {"claims": claims}) is None
