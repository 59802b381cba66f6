"""Thin cells: which GPUs can be named, how such a cell resolves, and its tag."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.expected import parse_tag
from tests.planned import FACTS, MATRIX
from tests.thin import FULL, thin_cell, thin_resolution
from torchkiln.errors import ConfigError, NothingSelected, Unresolvable
from torchkiln.locks.lock import how_to_lock
from torchkiln.matrix.explain import explain
from torchkiln.matrix.gpu_archs import how_served, is_kept_for, kept_archs, served_classes
from torchkiln.matrix.matrix import load
from torchkiln.matrix.pick import gpus_in, kept_gpus, parse_driver, parse_gpus, pick, suffix_of
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import Selection, all_cells, select, with_thin
from torchkiln.matrix.tags import (
    aliases_for,
    aliases_of,
    cell_named,
    dated,
    find_cell,
    misfit,
    names_of,
    parse_name,
    tag_of,
    undated,
)
from torchkiln.model.cell import Cell, Limit
from torchkiln.model.layer import LAYER_FORMATS, split_format, tag_suffix
from torchkiln.model.operating_system import SYSTEMS

CAPABILITIES = [kind.capability for kind in FACTS.gpus]
SERVED = [kind.capability for kind in FACTS.gpus if kind.names_on()]
ARCHS = sorted({variant.archs for release in FACTS.releases.values() for variant in release.variants})
HEAD = """\
torch: ["2.7.1"]
cuda: ["12.1"]
flavors: [runtime]
os:
  debian12: {python: "3.11"}
packages: [numpy]
repository: pytorch-cuda
"""
_KEPT = st.lists(st.sampled_from(SERVED), min_size=1, max_size=5).map(lambda names: kept_gpus(names, FACTS))


# --- names of GPUs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (("9.0",), ("9.0",)),
        (("9.0,8.0",), ("8.0", "9.0")),
        (("9.0", "8.0, 9.0"), ("8.0", "9.0")),
        (("H100", "A100"), ("8.0", "9.0")),
        (("H100,H200",), ("9.0",)),
        (("RTX 4090",), ("8.9",)),
        (("4090", "sm_100"), ("8.9", "10.0")),
        (("NVIDIA H100 80GB HBM3",), ("9.0",)),
    ],
)
def test_gpus_are_named_as_for_pick_and_sorted_by_number(
    values: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert kept_gpus(values, FACTS) == found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("H1000,9.0", r"^--gpus H1000: unknown GPU; nearest: H100"),
        ("Orin", r"^--gpus Orin: needs an aarch64 host"),
        ("GH200", r"^--gpus GH200: needs an aarch64 host"),
        ("8.7", r"^--gpus 8.7: no known GPU of an x86_64 host has this capability; nearest: 8"),
        ("9.7", r"^--gpus 9.7: no known GPU of an x86_64 host"),
        ("foo,bar", r"--gpus foo: unknown GPU[^\n]*\n--gpus bar: unknown GPU"),
    ],
)
def test_a_gpu_that_no_x86_host_has_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        kept_gpus((value,), FACTS)
    assert "--gpus 9.0" in caught.value.hint


def test_no_gpu() -> None:
    with pytest.raises(NothingSelected, match=r"^--gpus: a value is required"):
        kept_gpus((" , ",), FACTS)


# --- which code is kept, and for whom --------------------------------------------------------------


@pytest.mark.parametrize(
    ("archs", "kept", "found"),
    [
        ("sm_80 sm_86 sm_90", "9.0", "sm_90"),
        ("sm_80 sm_86 sm_90", "8.0 9.0", "sm_80 sm_90"),
        ("sm_80 sm_86 sm_90", "8.9", "sm_86"),
        ("sm_80 sm_90", "8.6", "sm_80"),
        ("sm_90 sm_100 sm_120 compute_120", "12.0", "sm_120"),
        ("sm_90 compute_90", "10.0", "compute_90"),
        ("sm_90 sm_90a", "9.0", "sm_90 sm_90a"),
        ("sm_80 sm_90", "", "sm_80 sm_90"),
    ],
)
def test_the_code_that_a_gpu_loads_is_kept(archs: str, kept: str, found: str) -> None:
    assert kept_archs(archs.split(), kept.split()) == tuple(found.split())


def test_every_kept_gpu_runs_as_before_and_no_code_is_kept_without_one() -> None:
    for archs, capability in product(ARCHS, CAPABILITIES):
        kept = kept_archs(archs, (capability,))
        assert how_served(kept, capability) == how_served(archs, capability)
        assert bool(kept) == bool(how_served(archs, capability))


@pytest.mark.parametrize(
    ("kept", "capability", "runs"),
    [
        ("8.0", "8.0", True),
        ("8.0", "8.9", True),
        ("8.6", "8.0", False),
        ("9.0", "8.0", False),
        ("9.0", "10.0", False),
        ("8.6 9.0", "8.9", True),
        ("", "3.7", True),
    ],
)
def test_code_for_a_capability_serves_this_and_later_minors(kept: str, capability: str, runs: bool) -> None:
    assert is_kept_for(capability, kept.split()) is runs


def test_code_that_also_serves_a_lower_minor_does_not_count() -> None:
    """torch has sm_80 for a GPU 8.6, but another library may have sm_86: 8.6 counts as served."""
    served = served_classes(("sm_80", "sm_90"), FACTS.gpus, ("8.6",))
    assert [kind.capability for kind in served] == ["8.6", "8.7", "8.9"]


# --- resolution -----------------------------------------------------------------------------------


def test_the_build_of_a_thin_cell_is_that_of_the_full_one() -> None:
    full, found = resolve(thin_cell(()), MATRIX, FACTS), thin_resolution()
    assert (found.build, found.requirements, found.status) == (full.build, full.requirements, full.status)
    assert Limit(fact="rules.device-code", values=("9.0",)) in found.limits
    assert "rules.no-ptx" not in [limit.fact for limit in found.limits]
    (unserved,) = [limit.values for limit in found.limits if limit.fact == "rules.unserved"]
    assert {"8.0", "8.9", "10.0"} < {*unserved}
    assert "9.0" not in unserved


def test_own_use_is_a_limit() -> None:
    facts = [limit.fact for limit in thin_resolution(own_use=True).limits]
    assert "rules.own-use" in facts
    assert "rules.own-use" not in [limit.fact for limit in thin_resolution().limits]
    texts = dict(explain(thin_cell(own_use=True), MATRIX, FACTS).limits)
    assert "licence may not allow" in texts["rules.own-use"]
    assert "capability 9.0," in texts["rules.device-code"]
    assert "PTX for newer GPUs is left out" in texts["rules.device-code"]


def test_a_gpu_that_the_build_does_not_serve() -> None:
    with pytest.raises(Unresolvable) as caught:
        require_buildable(thin_resolution(("9.0", "12.0")))
    assert caught.value.message == (
        "torch 2.7.1 with CUDA 12.1 (runtime, debian12, GPUs 9.0,12.0) is unavailable: 2.7.1+cu126 has no"
        " code for capability 12.0, only for 5.2, 6.0, 6.1, 7.0, 7.5, 8.0, 8.6, 8.9, 9.0"
    )
    assert caught.value.hint == "nearest: --torch 2.8.0 --cuda 12.1"


@given(kept=_KEPT, pair=st.sampled_from(MATRIX.pairs))
def test_a_thin_cell_is_available_iff_the_full_build_serves_all_its_gpus(
    kept: tuple[str, ...], pair: tuple[str, str]
) -> None:
    full = Cell(torch=pair[0], cuda=pair[1], flavor="runtime", os="debian12", python="3.11")
    build = resolve(full, MATRIX, FACTS).build
    found = resolve(replace(full, gpus=kept), MATRIX, FACTS)
    expected = build is not None and all(how_served(build.archs, capability) for capability in kept)
    assert (found.build is not None) is expected


def test_explain_shows_only_kept_code() -> None:
    found = explain(thin_cell(("8.6", "9.0")), MATRIX, FACTS)
    assert found.archs == ("sm_86", "sm_90")
    assert [capability for capability, _ in found.gpus] == ["8.6", "8.9", "9.0"]
    assert (found.tag, found.aliases) == (f"{FULL}-sm86-sm90", ())


def test_a_host_with_other_gpus_never_gets_a_thin_image() -> None:
    cells = (thin_cell(()), thin_cell(("8.0",)), thin_cell(("9.0",)), thin_cell(("8.0", "9.0")))
    for names, tags in (
        (["H100"], [FULL, f"{FULL}-sm90", f"{FULL}-sm80-sm90"]),
        (["RTX 4090"], [FULL, f"{FULL}-sm80", f"{FULL}-sm80-sm90"]),
        (["H100", "A100"], [FULL, f"{FULL}-sm80-sm90"]),
        (["V100"], [FULL]),
    ):
        resolutions = [resolve(cell, MATRIX, FACTS) for cell in cells]
        found = pick(resolutions, parse_driver("570"), parse_gpus(names, FACTS))
        assert [tag_of(one.resolution) for one in found.runs] == tags
        assert all(one.resolution.cell.gpus for one in found.fails)
    (text,) = found.fails[0].obstacles
    assert text == "its device code is for 8.0 only, not for V100 (capability 7.0)"


# --- matrix.yaml ----------------------------------------------------------------------------------


def test_the_axis_gives_thin_cells_beside_the_full_ones() -> None:
    matrix = load(HEAD + 'gpus: ["9.0", "8.0, 8.6", ["12.0", "9.0"]]\n', FACTS)
    assert matrix.gpus == (("9.0",), ("8.0", "8.6"), ("9.0", "12.0"))
    assert [cell.gpus for cell in all_cells(matrix)] == [(), *matrix.gpus]
    (alone,) = select(Selection(torch=("2.7",)), matrix)
    assert alone.gpus == ()
    named = select(Selection(every=True, gpus=("8.9",)), matrix)
    assert [cell.gpus for cell in named] == [("8.9",)]
    assert with_thin([alone, replace(alone, gpus=("9.0",))], matrix) == all_cells(matrix)


def test_the_repositorys_matrix_has_no_thin_cells() -> None:
    assert {cell.gpus for cell in all_cells(MATRIX)} == {()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[9.0]", r":8: gpus\[0\]: must be text or a list, not 9.0; put it in quotes"),
        ("[]", r":8: gpus: must not be empty"),
        ("[[]]", r":8: gpus\[0\]: must not be empty"),
        ('["sm_90"]', r":8: gpus\[0\]: 'sm_90' is not compute capabilities"),
        ('\n  - "9.0"\n  - ["H100"]', r":10: gpus\[1\]\[0\]: 'H100' is not a compute capability"),
        ('\n  - "9.0"\n  - "9.7"', r":10: gpus\[1\]: 9.7: no known GPU .*nearest: 9.0"),
        ('["8.0,9.0", ["9.0", "8.0"]]', r":8: gpus\[1\]: duplicate entry 8.0,9.0"),
        ('["9.0", "9.0"]', r":8: gpus\[1\]: duplicate entry '9.0'"),
    ],
)
def test_an_invalid_axis_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{HEAD}gpus: {text}\n", FACTS)
    assert re.search(message, caught.value.message)


# --- tags -----------------------------------------------------------------------------------------


@given(
    kept=st.one_of(st.just(()), _KEPT),
    own_use=st.booleans(),
    os=st.sampled_from(sorted(SYSTEMS)),
    layer_format=st.sampled_from(LAYER_FORMATS),
    day=st.sampled_from(["", "20261122", "20261122b"]),
)
def test_a_tag_is_parsed_into_its_parts(
    kept: tuple[str, ...], own_use: bool, os: str, layer_format: str, day: str
) -> None:
    """The parser is the inverse of `tag_of`; a tag may also contain a layer format and a date."""
    selection = Selection(torch=("2.8",), cuda=("12.8",), os=(os,), gpus=kept, own_use=own_use and bool(kept))
    (cell,) = select(selection, replace(MATRIX, cuda=("12.8",)))
    resolution = resolve(cell, MATRIX, FACTS)
    if resolution.build is None:
        return  # torch's build has no code for one of the GPUs
    tag = tag_of(resolution)
    form = tag_suffix(layer_format)  # type: ignore[arg-type]
    whole = dated(f"{tag}{form}", day) if day else f"{tag}{form}"
    base = (undated(whole) or (whole, ""))[0]
    assert split_format(base) == (tag, layer_format)
    parsed = parse_name(tag)
    assert parsed is not None
    assert (parsed.torch, parsed.cuda, parsed.flavor, parsed.os) == ("2.8.0", "12.8", "runtime", os)
    assert (parsed.gpus, parsed.own_use) == (kept, cell.own_use)
    assert parse_name(dated(tag, "20261122")) is None
    assert misfit(whole, base, MATRIX) is None
    # The suite has another parser of tags.
    of_suite = {"torch": "2.8.0", "cuda": "12.8", "cudnn": "9", "flavor": "runtime", "os": os}
    assert parse_tag(tag) == of_suite
    assert parse_tag(f"{tag}-") == dict.fromkeys(of_suite)


@given(_KEPT, st.booleans())
def test_the_suffix_is_read_back(kept: tuple[str, ...], own_use: bool) -> None:
    suffix = suffix_of(thin_cell(kept, own_use=own_use))
    assert gpus_in(suffix) == kept
    assert suffix_of(thin_cell(())) == ""


def test_examples_of_tags() -> None:
    assert tag_of(thin_resolution()) == f"{FULL}-sm90"
    assert tag_of(thin_resolution(("8.0", "9.0"))) == f"{FULL}-sm80-sm90"
    assert tag_of(thin_resolution(own_use=True)) == f"{FULL}-sm90-ownuse"
    ubuntu = replace(thin_cell(()), os="ubuntu22.04", python="3.10")
    found = thin_resolution(cell=ubuntu, own_use=True)
    assert tag_of(found) == f"{FULL}-sm90-ownuse-ubuntu22.04"


@pytest.mark.parametrize(
    "tail", ["-ownuse", "-sm", "-sm9", "-ownuse-sm90", "-sm90-transformers", "-transformers"]
)
def test_invalid_suffixes_name_no_image(tail: str) -> None:
    assert parse_name(f"{FULL}{tail}") is None
    assert find_cell(f"{FULL}{tail}", MATRIX, FACTS) is None


def test_a_tag_names_its_cell_and_no_other() -> None:
    assert cell_named(f"{FULL}-sm80-sm90", MATRIX, FACTS) == thin_cell(("8.0", "9.0"))
    assert cell_named(f"{FULL}-sm90-ownuse", MATRIX, FACTS) == thin_cell(own_use=True)
    for other in ("-sm90-sm80", "-sm120", "-sm90-sm90", "-sm090", "-sm97", "-sm87"):
        assert find_cell(f"{FULL}{other}", MATRIX, FACTS) is None


def test_a_thin_image_has_no_alias() -> None:
    newest = resolve(find_cell("latest", MATRIX, FACTS) or thin_cell(()), MATRIX, FACTS)
    assert "latest" in aliases_of(newest, MATRIX, FACTS)
    cut = resolve(replace(newest.cell, gpus=("9.0",)), MATRIX, FACTS)
    assert aliases_of(cut, MATRIX, FACTS) == ()
    parsed = parse_name(tag_of(cut))
    assert parsed is not None
    assert (names_of(parsed, MATRIX), aliases_for(tag_of(cut), MATRIX)) == ((), ())


def test_the_name_of_another_image_is_refused() -> None:
    own = f"{FULL}-sm90"
    for tag, why in {
        FULL: f"the image is {own}",
        f"{FULL}-sm80": f"the image is {own}",
        f"{own}-ownuse": f"the image is {own}",
        "latest": "this is not an alias of it",
        "v2.7-20261122": "this is not an alias of it",
    }.items():
        assert why in (misfit(tag, own, MATRIX) or "")
    assert misfit(own, f"{own}-ownuse", MATRIX)


def test_the_command_that_locks_it() -> None:
    command = how_to_lock(thin_cell(("8.0", "9.0"), own_use=True))
    assert command == "torchkiln lock --torch 2.7.1 --cuda 12.1 --gpus 8.0,9.0 --own-use"
