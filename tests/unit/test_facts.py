"""torchkiln's file of facts fits its schema, cites existing sources, and is read into frozen values."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import jsonschema
import pytest
import yaml

from tests.planned import FACTS, MATRIX, ROOT
from torchkiln.matrix.explain import limit_text
from torchkiln.matrix.facts import cuda_of, parse
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.util.versions import numbers

DATA = ROOT / "torchkiln" / "data"
RAW: dict[str, Any] = yaml.safe_load((DATA / "compat.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((DATA / "compat.schema.json").read_text())


def test_the_facts_fit_their_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(RAW)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("releases", "2.7.1", "variants", "cu126", "archs"), ["sm50"]),
        (("releases", "2.7.1", "default", "sha256", "cp311"), "abc"),
        (("traps", "numpy-2", "constrian"), "numpy<2"),
        (("cuda", "12.1", "full"), 530),
        (("gpus", "9.0", "names"), []),
    ],
)
def test_the_schema_rejects_errors(path: tuple[str, ...], value: object):
    """A schema that accepts everything would pass the test above, too."""
    broken = json.loads(json.dumps(RAW))
    *parents, last = path
    place = broken
    for step in parents:
        place = place[step]
    place[last] = value
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(broken)


def test_every_source_id_is_in_the_table():
    cited = {source for sources in FACTS.citations.values() for source in sources}
    cited |= {source for sources in RAW["provenance"].values() for source in sources}
    assert cited <= FACTS.sources.keys()


def test_every_source_of_the_table_is_cited():
    cited = {source for sources in FACTS.citations.values() for source in sources}
    cited |= {source for sources in RAW["provenance"].values() for source in sources}
    assert FACTS.sources.keys() == cited


def test_every_note_and_its_facts_can_be_cited():
    for cell in all_cells(MATRIX):
        resolution = resolve(cell, MATRIX, FACTS)
        for note in (*resolution.constraints, *resolution.limits):
            assert FACTS.citations[note.fact], note
        for limit in resolution.limits:
            text = limit_text(limit, FACTS)
            assert all(value.partition(":")[0] in text for value in limit.values if "-" not in value)
            assert "{" not in text


def test_every_variant_has_drivers():
    variants = {variant.cuda for release in FACTS.releases.values() for variant in release.variants}
    assert variants <= FACTS.cuda.keys()


def test_the_default_wheel_is_among_the_variants():
    for release in FACTS.releases.values():
        assert release.variant(release.default.variant).cudnn, release.version


def test_floors_report_the_minor_version_zero_of_their_major():
    """The function `resolve.require_cuda` relies on it."""
    assert {major: floor.reports for major, floor in FACTS.floors.items()} == {
        "11": "11.0",
        "12": "12.0",
        "13": "13.0",
    }


def test_drivers_grow_with_cuda():
    toolkits = [FACTS.cuda[version] for version in sorted(FACTS.cuda, key=numbers)]
    assert toolkits == sorted(toolkits, key=lambda toolkit: numbers(toolkit.full))
    assert all(numbers(toolkit.ga) <= numbers(toolkit.full) for toolkit in toolkits)


def test_an_older_patch_has_its_changes_and_inherits_no_hash():
    older, newest = FACTS.releases["2.7.0"], FACTS.releases["2.7.1"]
    assert (older.default.triton, newest.default.triton) == ("3.3.0", "3.3.1")
    assert (older.torchvision, older.torchaudio) == ("0.22.0", "2.7.0")
    assert older.default.pins == newest.default.pins
    assert not {hash for _, hash in older.default.sha256} & {hash for _, hash in newest.default.sha256}
    assert older.index_sha256 == ()
    assert "memory" in FACTS.citations["releases.2.7.0.variants.cu118"]


def test_a_release_whose_libraries_come_through_cuda_toolkit() -> None:
    """Its packages have no -cu12 in their names, but cuDNN and NCCL are found."""
    release = FACTS.releases["2.11.0"]
    assert release.default.variant == "cu130"
    assert {"cublas", "cudart", "nvrtc"} <= set(release.default.toolkit)
    assert (release.variant("cu130").cudnn, release.variant("cu130").nccl) == ("9.19.0.56", "2.28.9")


def test_a_null_in_an_older_patch_removes_a_fact():
    """For example, torch 2.2.2 has a bound on Triton's Python, and torch 2.2.0 has none."""
    assert FACTS.releases["2.2.0"].default.triton_below is None
    assert FACTS.releases["2.2.2"].default.triton_below == "3.12"


def test_hashes_are_unique():
    hashes = [sha256 for release in FACTS.releases.values() for _, sha256 in release.default.sha256]
    hashes += [sha256 for release in FACTS.releases.values() for *_, sha256 in release.index_sha256]
    assert len(hashes) == len(set(hashes))


def test_the_shipped_facts_are_those_of_compat_yaml():
    assert parse((DATA / "compat.yaml").read_bytes()) == FACTS


def test_no_fact_of_the_repository_is_outside_the_package() -> None:
    """`matrix add` writes facts.yaml, which the wheel does not have: its facts belong into compat.yaml."""
    assert not (ROOT / "facts.yaml").exists()


def test_facts_are_frozen():
    with pytest.raises(FrozenInstanceError):
        FACTS.releases["2.7.1"].version = "2.7.2"  # type: ignore[misc]
    with pytest.raises(TypeError):
        FACTS.releases["2.9.9"] = FACTS.releases["2.7.1"]  # type: ignore[index]


@pytest.mark.parametrize(("variant", "cuda"), [("cu117", "11.7"), ("cu126", "12.6"), ("cu130", "13.0")])
def test_a_variants_last_digit_is_the_minor(variant: str, cuda: str):
    assert cuda_of(variant) == cuda
