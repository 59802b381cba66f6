"""Each cell has a resolution, and it is the same as in a table made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import FACTS, MATRIX, NATIVE_FIRST, WITHOUT_BEYOND, answer
from torchkiln.errors import Unresolvable
from torchkiln.matrix.cuda_redist import Redist, digest_of
from torchkiln.matrix.explain import limit_text, reason
from torchkiln.matrix.gpu_archs import how_served, served_classes
from torchkiln.matrix.matrix import Bound
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import all_cells
from torchkiln.model.cell import Source, Status
from torchkiln.util.versions import major_of, numbers

# Columns: torch, CUDA 11.7, 11.8, 12.1. N: native, M: minor-compat, -: unavailable, i: PyTorch's own index.
GRID = """
2.0.1  N cu117     N cu118 i   -
2.1.2  M cu118 i   N cu118 i   N cu121
2.2.2  M cu118 i   N cu118 i   N cu121
2.3.1  M cu118 i   N cu118 i   N cu121
2.4.1  M cu118 i   N cu118 i   N cu121
2.5.1  M cu118 i   N cu118 i   M cu124
2.6.0  M cu118 i   N cu118 i   M cu124
2.7.1  M cu118 i   N cu118 i   M cu126
2.8.0  -           -           M cu128
"""
FULL = {
    "cu117": "515.48.07",
    "cu118": "520.61.05",
    "cu121": "530.30.02",
    "cu124": "550.54.15",
    "cu126": "560.35.05",
    "cu128": "570.124.06",
    "cu130": "580.95.05",
    "cu132": "595.71.05",
}
# The oldest torch with a wheel for the system's Python.
OLDEST = {"debian12": "2.0.1", "debian13": "2.5.1", "ubuntu22.04": "2.0.1", "ubuntu24.04": "2.2.2"}
LETTERS = {Status.NATIVE: "N", Status.MINOR_COMPAT: "M", Status.UNAVAILABLE: "-"}


def _support(torch: str, cuda: str, **more: str) -> str:
    resolution = answer(torch, cuda, **more)
    build = resolution.build
    if build is None:
        return LETTERS[resolution.status]
    index = " i" if build.source is Source.PYTORCH else ""
    return f"{LETTERS[resolution.status]} {build.variant}{index}"


@pytest.mark.parametrize("line", GRID.strip().splitlines())
@pytest.mark.parametrize("os", OLDEST)
@pytest.mark.parametrize("flavor", ["runtime", "devel"])
def test_the_grid(line: str, os: str, flavor: str):
    torch, *expected = (
        cell.strip() for cell in line.replace("   ", "\t").replace("  ", "\t").split("\t") if cell
    )
    if numbers(torch) < numbers(OLDEST[os]):
        expected = ["-", "-", "-"]
    if (os, flavor) == ("debian13", "devel"):
        expected[:2] = ["-", "-"]  # Debian 13 has no gcc that nvcc 11 supports
    assert [_support(torch, cuda, os=os, flavor=flavor) for cuda in ("11.7", "11.8", "12.1")] == expected


def test_each_system_has_54_cells():
    cells = all_cells(WITHOUT_BEYOND)
    assert [sum(cell.os == os.name for cell in cells) for os in WITHOUT_BEYOND.os] == [54] * 4


def test_a_torch_without_a_wheel_for_the_systems_python_is_unavailable():
    found = answer("2.4.1", "12.1", os="debian13")
    assert found.why_unavailable == "torch 2.4.1 has no wheel for Python 3.13"
    assert found.nearest == (("2.5.1", "12.1"),)


def test_outside_the_grid_each_release_has_the_cuda_of_its_wheel():
    """The default index is enough, except for devel with CUDA 12.8: wheels of CUDA 12 have no nvcc."""
    beyond = [cell for cell in all_cells(MATRIX) if (cell.torch, cell.cuda) in MATRIX.beyond]
    assert [pair for pair in MATRIX.pairs if pair not in WITHOUT_BEYOND.pairs] == list(MATRIX.beyond)
    for cell in beyond:
        resolution = resolve(cell, MATRIX, FACTS)
        if (cell.torch, cell.python) == ("2.15.0", "3.10"):
            assert resolution.why_unavailable == "torch 2.15.0 has no wheel for Python 3.10"
            continue
        assert resolution.status is Status.NATIVE
        assert resolution.lockable == (cell.flavor == "runtime" or major_of(cell.cuda) == "13")


@pytest.mark.parametrize("matrix", [MATRIX, NATIVE_FIRST])
def test_invariants_of_every_resolution(matrix):
    """Each assertion holds for every cell of the matrix."""
    for cell in all_cells(matrix):
        resolution = resolve(cell, matrix, FACTS)
        build = resolution.build
        assert reason(resolution)
        if build is None:
            assert resolution.status is Status.UNAVAILABLE
            assert resolution.nearest
            assert (resolution.min_driver, resolution.full_driver, resolution.requirements) == (
                None,
                None,
                (),
            )
            continue
        assert major_of(build.cuda) == major_of(cell.cuda)
        assert numbers(build.cuda) >= numbers(cell.cuda)
        assert (build.cuda == cell.cuda) == (resolution.status is Status.NATIVE)
        assert resolution.full_driver == FULL[build.variant]
        assert (
            resolution.min_driver
            == {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}[major_of(cell.cuda)]
        )
        assert all(
            major_of(alternative.cuda) == major_of(cell.cuda) for alternative in resolution.alternatives
        )
        assert build not in resolution.alternatives


def test_the_nearest_cells_work():
    for cell in all_cells(MATRIX):
        for torch, cuda in resolve(cell, MATRIX, FACTS).nearest:
            if cell.os == "debian12":
                assert torch == cell.torch or cuda == cell.cuda
            assert answer(torch, cuda, flavor=cell.flavor, os=cell.os).status is not Status.UNAVAILABLE


def test_without_a_cell_of_the_same_torch_or_cuda_the_nearest_is_that_of_the_nearest_torch():
    """On debian13, CUDA 11.7 has no compiler, and torch 2.1.2 has no wheel for Python."""
    assert answer("2.1.2", "11.7", flavor="devel", os="debian13").nearest == (("2.5.1", "12.1"),)


def test_a_release_without_torchaudio():
    release = replace(FACTS.releases["2.7.1"], torchaudio="")
    facts = replace(FACTS, releases={**FACTS.releases, "2.7.1": release})
    cell = answer("2.7.1", "12.1").cell

    assert resolve(cell, MATRIX, facts).requirements[:3] == ("torch==2.7.1", "torchvision==0.22.1", "numpy")


def test_prefer_decides_nothing_else():
    for cell in all_cells(MATRIX):
        if (cell.torch, cell.cuda) != ("2.5.1", "12.1"):
            assert resolve(cell, MATRIX, FACTS) == resolve(cell, NATIVE_FIRST, FACTS)


@pytest.mark.parametrize(
    ("torch", "cuda"), [("2.0.1", "11.7"), ("2.1.2", "12.1"), ("2.1.2", "11.8"), ("2.2.2", "12.1")]
)
def test_setuptools_with_pkg_resources_only_if_torch_imports_it(torch: str, cuda: str):
    assert ("setuptools<70" in answer(torch, cuda).requirements) == (torch < "2.2")


def _limits(torch: str, cuda: str, **more: str) -> dict[str, str]:
    return {limit.fact: limit_text(limit, FACTS) for limit in answer(torch, cuda, **more).limits}


@pytest.mark.parametrize(
    ("torch", "cuda", "os", "fact", "text"),
    [
        ("2.0.1", "11.7", "debian12", "traps.no-compile-on-3.11", ""),
        ("2.0.1", "11.7", "ubuntu22.04", "traps.no-compile-on-3.11", None),
        ("2.1.2", "12.1", "debian12", "traps.no-compile-on-3.11", None),
        ("2.0.1", "11.7", "debian12", "rules.unserved", "9.0 (H100"),
        ("2.7.1", "12.1", "debian12", "rules.unserved", "10.0 (B200)"),
        ("2.8.0", "12.1", "debian12", "rules.young-gpu", "12.0 from 570"),
        ("2.7.1", "12.1", "debian12", "rules.young-gpu", None),
        ("2.7.1", "12.1", "debian12", "rules.minor-compat-ptx", ""),
    ],
)
def test_the_limits_of_a_cell(torch: str, cuda: str, os: str, fact: str, text: str | None) -> None:
    """The cell has the limit *fact* with *text* in its sentence; None: it does not have it."""
    found = _limits(torch, cuda, os=os)
    assert (fact in found) == (text is not None)
    assert text is None or text in found[fact]


def test_a_gpu_with_code_is_not_listed():
    assert "9.0" not in _limits("2.7.1", "12.1")["rules.unserved"]


def test_ptx_is_shown_only_if_present():
    assert "rules.no-ptx" in _limits("2.7.1", "12.1")
    newest_wheel = replace(
        FACTS,
        releases={"2.7.1": replace(FACTS.releases["2.7.1"], variants=FACTS.releases["2.7.1"].variants[-1:])},
    )
    cell = answer("2.7.1", "12.1").cell
    limits = {limit.fact for limit in resolve(cell, MATRIX, newest_wheel).limits}
    assert "rules.ptx-needs-driver" in limits
    assert "rules.no-ptx" not in limits


def test_native_cells_have_no_limits_of_minor_compat():
    assert not any("minor-compat" in fact for fact in _limits("2.4.1", "12.1"))


@pytest.mark.parametrize(
    ("torch", "cuda", "release", "cudnn"),
    [("2.0.1", "11.7", "11.7.1", "8"), ("2.7.1", "11.8", "11.8.0", "9"), ("2.1.2", "12.1", "12.1.1", "8")],
)
def test_devel_uses_a_release_of_nvidias_archives(torch: str, cuda: str, release: str, cudnn: str) -> None:
    """They are not on the default index, so the cell cannot be locked from it alone, but it can be built."""
    resolution = answer(torch, cuda, flavor="devel")

    assert not resolution.lockable
    assert "TORCHKILN_CUDA_ARCHIVES" in _limits(torch, cuda, flavor="devel")["rules.devel-archives"]
    assert resolution.toolkit is not None
    assert resolution.toolkit.release == release
    assert resolution.toolkit.archives == digest_of(FACTS.redist.releases[release])
    assert f"nvidia/cudnn/lib/libcudnn.so.{cudnn}" in resolution.toolkit.libraries
    assert require_buildable(resolution) == require_buildable(answer(torch, cuda))


@pytest.mark.parametrize(("torch", "built"), [("2.0.1", "11.7"), ("2.2.2", "11.8")])
def test_a_library_whose_name_contains_the_cuda_version_is_that_of_the_wheel(torch: str, built: str) -> None:
    """For example CUPTI in CUDA 11: torch 2.2.2 for CUDA 11.7 is built with CUDA 11.8."""
    toolkit = answer(torch, "11.7", flavor="devel").toolkit
    assert toolkit is not None
    assert [library for library in toolkit.libraries if "cupti" in library] == [
        f"nvidia/cuda_cupti/lib/libcupti.so.{built}"
    ]


def test_devel_of_a_release_that_is_not_known_cannot_be_built() -> None:
    lacking = replace(FACTS, redist=Redist(releases={}, untrusted=False))

    with pytest.raises(Unresolvable, match="devel"):
        require_buildable(resolve(answer("2.7.1", "12.1", flavor="devel").cell, MATRIX, lacking))


def test_an_untrusted_toolkit_is_a_limit() -> None:
    made_up = replace(FACTS, redist=replace(FACTS.redist, untrusted=True))
    resolved = resolve(answer("2.7.1", "12.1", flavor="devel").cell, MATRIX, made_up)

    assert "rules.untrusted-toolkit" in [limit.fact for limit in resolved.limits]


def test_an_unavailable_cell_cannot_be_built_and_names_its_neighbours():
    with pytest.raises(Unresolvable, match=r"no CUDA 12 build; the first is 2\.1\.0") as caught:
        require_buildable(answer("2.0.1", "12.1"))
    assert "--torch 2.0.1 --cuda 11.8" in caught.value.hint
    assert "--torch 2.1.2 --cuda 12.1" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_bound_makes_a_cell_unavailable_with_a_reason():
    bound = Bound(torch="2.7.1", cuda="12.1", flavor=None, os="debian12", reason="it fell over")
    bounded = replace(MATRIX, bounds=(bound,))
    resolution = answer("2.7.1", "12.1", matrix=bounded)
    assert resolution.status is Status.UNAVAILABLE
    assert "it fell over" in reason(resolution)
    assert ("2.7.1", "12.1") not in resolution.nearest
    assert answer("2.7.1", "12.1", os="ubuntu22.04", matrix=bounded).status is Status.MINOR_COMPAT


@pytest.mark.parametrize("matrix", [MATRIX, NATIVE_FIRST])
def test_the_order_of_the_facts_file_does_not_matter(matrix):
    turned = {
        version: replace(release, variants=release.variants[::-1])
        for version, release in FACTS.releases.items()
    }
    for cell in all_cells(matrix):
        alternative = resolve(cell, matrix, replace(FACTS, releases=turned))
        assert resolve(cell, matrix, FACTS) == alternative


def test_a_python_without_a_wheel_is_reported():
    cell = replace(answer("2.0.1", "11.7").cell, python="3.12")
    resolution = resolve(cell, MATRIX, FACTS)
    assert resolution.status is Status.UNAVAILABLE
    assert reason(resolution) == "torch 2.0.1 has no wheel for Python 3.12"


def test_no_older_minor_of_the_same_major_is_used():
    """torch 2.7.1 has no build for CUDA 12.9. Its newest build, for CUDA 12.8, is not used instead."""
    cell = replace(answer("2.7.1", "12.1").cell, cuda="12.9")
    assert reason(resolve(cell, MATRIX, FACTS)) == "torch 2.7.1 has no CUDA 12 build newer than 12.8"


@pytest.mark.parametrize(
    ("archs", "capability", "how"),
    [
        (["sm_86"], "8.6", "cubin"),
        (["sm_86"], "8.9", "cubin"),
        (["sm_86"], "8.0", None),
        (["sm_80"], "9.0", None),
        (["sm_90", "compute_90"], "10.0", "ptx"),
        (["compute_90"], "8.9", None),
        (["compute_86"], "8.0", None),
        (["sm_100"], "10.3", "cubin"),
        (["sm_120", "compute_120"], "12.1", "cubin"),
        ([], "9.0", None),
    ],
)
def test_which_code_runs_on_a_capability(archs: list[str], capability: str, how: str | None):
    assert how_served(archs, capability) == how


def test_an_invalid_arch_is_refused():
    with pytest.raises(ValueError, match="sm50"):
        how_served(["sm50"], "5.0")


@given(st.lists(st.sampled_from(["sm_50", "sm_70", "sm_80", "sm_90", "compute_90"])))
def test_more_code_never_runs_on_fewer_gpus(archs: list[str]):
    assert set(served_classes(archs, FACTS.gpus)) <= set(served_classes([*archs, "sm_120"], FACTS.gpus))
