"""Components: their form in matrix.yaml, their names, a cell with some, its tag and its layers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.expected import DEFAULT_OS as DEFAULT_OF_THE_SUITE
from smoke_tests.expected import parse_tag
from tests.planned import FACTS, LOCK_DIGEST, MATRIX, PROFILE, locked, wheel
from torchkiln.errors import ConfigError, NothingSelected, Stale
from torchkiln.lock.file import from_json, plain, to_json
from torchkiln.lock.lock import inputs_digest
from torchkiln.matrix.components import ComponentOffer
from torchkiln.matrix.matrix import load
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, all_cells, everywhere, select
from torchkiln.matrix.sentences import limit_text
from torchkiln.matrix.tags import aliases_of, dated, names_of, parse_name, tag_of, undated
from torchkiln.model.cell import Resolution, Source, Status
from torchkiln.model.lock import LockedCell, LockedComponent, LockedWheel
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.layers import made_layers
from torchkiln.plan.plan import plan
from torchkiln.util.schema import shipped

HEAD = """\
torch: ["2.7.1"]
cuda: ["12.1"]
flavors: [runtime]
os:
  debian12: {python: "3.11"}
packages: [numpy]
repository: pytorch-cuda
components:
"""
SHA = "0" * 64


def answer(*components: str, torch: str = "2.7", os: str = "debian12") -> Resolution:
    (cell,) = select(Selection(torch=(torch,), cuda=("12.1",), os=(os,), components=components), MATRIX)
    return resolve(cell, MATRIX, FACTS)


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(HEAD + text, FACTS)
    return caught.value.message.splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  a: {sufix: a, requires: [b]}", r":9: components.a.sufix: unknown key; nearest valid: suffix"),
        ("  a: {suffix: a}", r":9: components.a: is empty; add requires, wheels or program"),
        ("  a: {suffix: A-b, requires: [b]}", r":9: components.a.suffix: .*letters and digits"),
        ("  a: {suffix: zstd, requires: [b]}", r":9: components.a.suffix: zstd has another meaning"),
        (
            "  a: {suffix: s, requires: [b]}\n  c: {suffix: s, requires: [d]}",
            r":10: .*: s is the suffix of a already",
        ),
        ("  numpy: {suffix: a, requires: [b]}", r":9: components.numpy: numpy is in `packages`"),
        ("  a: {suffix: a, requires: [Torch]}", r":9: components.a.requires\[0\]: the cell determines torch"),
        (
            "  a: {suffix: a, program: {name: conda, version: '1', file: f, sha256: " + SHA + "}}",
            r"micromamba",
        ),
        ("  a: {suffix: a, program: {name: micromamba, version: '1', file: ../f, sha256: x}}", r"sha256"),
        (
            "  a: {suffix: a, wheels: [{torch: '2.7', cuda: '12', file: a.whl, sha256: " + SHA + "}]}",
            r"file: ",
        ),
        ("  A_b: {suffix: a, requires: [b]}", r":9: "),
    ],
)
def test_an_invalid_component_is_reported_with_its_line(text: str, message: str) -> None:
    assert re.search(message, "\n".join(faults(text)))


def test_the_repositorys_components_fit_the_schema_and_have_valid_suffixes() -> None:
    jsonschema.Draft202012Validator.check_schema(shipped("matrix"))
    assert [offer.name for offer in MATRIX.components] == ["conda", "flash-attn", "transformers"]
    for offer in MATRIX.components:
        assert parse_name(f"2.7.1-cuda12.1-cudnn9-runtime-{offer.suffix}") is not None


def test_names_are_split_at_commas_sorted_and_unique() -> None:
    cells = select(
        Selection(torch=("2.7",), cuda=("12.1",), components=("transformers,conda", "conda")), MATRIX
    )
    assert [cell.components for cell in cells] == [("conda", "transformers")]


def test_cells_have_only_the_named_components() -> None:
    assert {cell.components for cell in all_cells(MATRIX)} == {()}
    every = select(Selection(every=True, components=("conda",)), MATRIX)
    assert len(every) == len(all_cells(MATRIX))
    assert {cell.components for cell in every} == {("conda",)}


def test_a_component_that_every_image_has_is_reported() -> None:
    selection = Selection(torch=("2.7",), cuda=("12.1",), components=("tensorboard,transformers",))
    assert select(selection, MATRIX)[0].components == ("transformers",)
    assert everywhere(selection, MATRIX) == ("tensorboard",)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"--with transformer: .* nearest: transformers"):
        select(Selection(torch=("2.7",), components=("transformer",)), MATRIX)
    with pytest.raises(NothingSelected, match="--with: no value given"):
        select(Selection(torch=("2.7",), components=(",",)), MATRIX)


def test_the_suffix_is_between_flavor_and_system() -> None:
    assert tag_of(answer("transformers")) == "2.7.1-cuda12.1-cudnn9-runtime-transformers"
    assert (
        tag_of(answer("transformers", "conda", os="ubuntu22.04"))
        == "2.7.1-cuda12.1-cudnn9-runtime-conda-transformers-ubuntu22.04"
    )


def test_an_image_with_components_has_no_aliases() -> None:
    with_it = answer("transformers")
    assert aliases_of(with_it, MATRIX, FACTS) == ()
    named = parse_name(tag_of(with_it))
    assert named is not None
    assert names_of(named, MATRIX) == ()


_SUFFIX = st.from_regex(r"[a-z][a-z0-9]{0,19}", fullmatch=True).filter(
    lambda text: text not in ("runtime", "devel", "zstd", *SYSTEMS)
)


@given(
    suffixes=st.lists(_SUFFIX, max_size=4),
    os=st.sampled_from(sorted(SYSTEMS)),
    day=st.sampled_from(["", "20261122", "20261122b"]),
)
def test_a_tag_is_parsed_into_its_parts(suffixes: list[str], os: str, day: str) -> None:
    """The inverse of `tag_of`, for all suffixes; a date after it is recognised."""
    offers = tuple(
        ComponentOffer(name=f"c{number}", suffix=suffix, requires=("x",), wheels=(), program=None)
        for number, suffix in enumerate(suffixes)
    )
    matrix = replace(MATRIX, components=offers)
    cell = select(
        Selection(torch=("2.7",), cuda=("12.1",), os=(os,), components=tuple(o.name for o in offers)), matrix
    )[0]
    tag = tag_of(resolve(cell, matrix, FACTS))
    if day:
        assert undated(dated(tag, day)) == (tag, day)
        assert parse_name(dated(tag, day)) is None
    named = parse_name(tag)
    assert named is not None
    assert (named.torch, named.cuda, named.flavor, named.os, named.suffixes) == (
        "2.7.1",
        "12.1",
        "runtime",
        os,
        tuple(suffixes),
    )


def test_files_that_no_index_has_are_reported_with_the_variable() -> None:
    found = answer("conda", "flash-attn")
    message = [limit_text(limit, FACTS) for limit in found.limits if limit.fact == "rules.own-files"]
    assert len(message) == 2
    assert message[0].startswith("micromamba-linux-64 is not on an index")
    assert "TORCHKILN_INDEX_MICROMAMBA" in message[0]
    assert "TORCHKILN_INDEX_FLASH_ATTN" in message[1]
    assert (found.lockable, answer("transformers").lockable) == (False, True)


@pytest.mark.parametrize(("torch", "os"), [("2.6", "debian12"), ("2.7", "ubuntu22.04")])
def test_a_wheel_for_another_torch_or_python_is_not_used(torch: str, os: str) -> None:
    found = answer("flash-attn", torch=torch, os=os)
    assert (found.status, found.build) == (Status.UNAVAILABLE, None)
    assert "no wheel of flash-attn for torch" in found.why_unavailable
    assert found.why_unavailable.endswith("only for torch 2.7 with CUDA 12")


def test_a_lock_without_components_has_no_keys_for_them() -> None:
    """So that existing locks keep their bytes and their inputs' digest."""
    message = plain(answer())
    assert "components" not in message
    assert "components" not in message["cell"]
    assert inputs_digest(answer(), ()) != inputs_digest(answer("transformers"), ())


# --- lock and layers ----------------------------------------------------------------------------------

PROGRAM = LockedWheel(
    name="micromamba",
    version="2.9.0",
    filename="micromamba-linux-64",
    sha256=next(offer.program.sha256 for offer in MATRIX.components if offer.program),
    size=13_000_000,
    index=Source.OWN,
)
ADDED = {
    "conda": (),
    "flash-attn": ("einops", "flash-attn"),
    "transformers": ("safetensors", "tokenizers", "transformers"),
}


def lock_with(*components: str) -> LockedCell:
    below = locked()
    own = wheel("flash-attn", "2.8.3", megabytes=256)
    more = {
        name: replace(own, index=Source.OWN, at="flash_attn-2.8.3+cu12-py3-none-any.whl")
        if name == "flash-attn"
        else wheel(name, "1.0", megabytes=3)
        for component in components
        for name in ADDED[component]
    }
    return replace(
        below,
        resolution=answer(*components),
        wheels=tuple(sorted((*below.wheels, *more.values()), key=lambda one: one.name)),
        components=tuple(
            LockedComponent(name=name, wheels=ADDED[name], program=PROGRAM if name == "conda" else None)
            for name in components
        ),
    )


def planned(*components: str) -> ImagePlan:
    return plan(lock_with(*components), (PROFILE,), aliases=(), lock_digest=LOCK_DIGEST)


@pytest.mark.parametrize("components", [(), ("conda",), ("flash-attn", "transformers"), tuple(ADDED)])
def test_the_lock_is_read_as_it_was_written(components: Sequence[str]) -> None:
    made = lock_with(*components)
    assert from_json(to_json(made)) == made
    assert (b'"components"' in to_json(made), b'"at"' in to_json(made)) == (
        bool(components),
        "flash-attn" in components,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": ()}, "have different components"),
        (
            {"components": (LockedComponent(name="transformers", wheels=("absent",)),)},
            "names absent, which is not in this lock",
        ),
        (
            {"components": (LockedComponent(name="transformers", wheels=(), program=PROGRAM),)},
            "a program has another sha256",
        ),
    ],
)
def test_an_inconsistent_lock_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(Stale, match=message):
        from_json(to_json(replace(lock_with("transformers"), **change)))  # type: ignore[arg-type]


def test_a_wheel_belongs_to_one_component() -> None:
    both = lock_with("flash-attn", "transformers")
    twice = (both.components[0], replace(both.components[1], wheels=("einops",)))
    with pytest.raises(Stale, match="einops belongs to two components"):
        from_json(to_json(replace(both, components=twice)))


def test_the_plain_image_is_below_the_components_which_are_sorted() -> None:
    below, above = planned(), planned(*ADDED)
    shared = len(below.layers) - 1

    assert above.layers[:shared] == below.layers[:shared]
    assert [(layer.kind, layer.title) for layer in above.layers[shared:-1]] == [
        ("program", "micromamba 2.9.0"),
        ("wheels", "einops 1.0"),
        ("wheels", "flash-attn 2.8.3"),
        ("wheels", "with transformers: safetensors 1.0, tokenizers 1.0, transformers 1.0"),
    ]


@given(st.lists(st.sampled_from(sorted(ADDED)), unique=True).map(sorted))
def test_every_wheel_is_in_one_layer_and_components_are_independent(components: list[str]) -> None:
    made = lock_with(*components)
    layers = made_layers(made)
    names = [item.name for layer in layers if layer.kind == "wheels" for item in layer.wheels]

    assert sorted(names) == [item.name for item in made.wheels]
    assert len({layer.title for layer in layers}) == len(layers)
    for component in components:
        alone = made_layers(lock_with(component))[len(made_layers(lock_with())) :]
        assert set(alone) <= set(layers)


def test_metadata_in_the_image() -> None:
    with_it, without = planned("conda", "transformers"), planned()
    facts = {file.path: file.data for file in with_it.layers[-1].files}

    assert dict(with_it.config.labels)["torchkiln.components"] == "conda transformers"
    assert "torchkiln.components" not in dict(without.config.labels)
    assert json.loads(facts["etc/torchkiln/image.json"])["components"] == ["conda", "transformers"]
    assert b"transformers" not in facts["etc/torchkiln/constraints.txt"]  # torch is pinned, and these are not


def test_conda_is_last_on_path() -> None:
    """Programs in conda's base must not precede the image's Python."""
    env, without = dict(planned("conda").config.env), dict(planned("transformers").config.env)
    folders = env["PATH"].split(":")

    assert folders[0] == "/opt/venv/bin"
    assert folders[-1] == "/opt/conda/condabin"
    assert ":".join(folders[:-1]) == without["PATH"]
    assert env["MAMBA_ROOT_PREFIX"] == "/opt/conda"
    assert "MAMBA_ROOT_PREFIX" not in without


@pytest.mark.parametrize("os", SYSTEMS)
@pytest.mark.parametrize("components", [(), ("transformers",), ("conda", "flash-attn", "transformers")])
def test_the_smoke_suite_reads_such_a_tag(components: Sequence[str], os: str) -> None:
    """It parses tags by itself, independently of the image."""
    if os != DEFAULT_OS and "flash-attn" in components:
        components = ("conda", "transformers")  # no such wheel for its Python
    message = parse_tag(tag_of(answer(*components, os=os)))
    assert message == {"torch": "2.7.1", "cuda": "12.1", "cudnn": "9", "flavor": "runtime", "os": os}
    assert parse_tag("2.7.1-cuda12.1-cudnn9-runtime-").keys() == message.keys()
    assert set(parse_tag("2.7.1-cuda12.1-cudnn9-runtime-").values()) == {None}


def test_the_schema_and_the_suite_know_each_system() -> None:
    """They cannot import the table: one is JSON, the other runs without torchkiln."""
    assert set(shipped("matrix")["properties"]["os"]["properties"]) == set(SYSTEMS)
    assert DEFAULT_OF_THE_SUITE == DEFAULT_OS
