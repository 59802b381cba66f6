"""Cells with a standalone Python: matrix, names, locks, layers and paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.layers import layer_of
from tests.planned import FACTS, LOCK_DIGEST, MATRIX, wheel
from tests.planned import locked as planned_lock
from tests.python_builds import MATRIX as MATRIX_TEXT
from tests.python_builds import NAME, matrix_with, standalone_lock
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.docker.dockerfile import render
from torchkiln.engine.cache_claims import build_needs
from torchkiln.engine.cache_keys import key_of, layer_key
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import BadWheel, ConfigError, Stale, ToolMissing
from torchkiln.locks.file import from_json, to_json
from torchkiln.locks.lock import inputs_digest
from torchkiln.matrix.explain import needs
from torchkiln.matrix.matrix import load
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.matrix.tags import aliases_of, cell_named, parse_name, tag_of
from torchkiln.model.cell import PythonArchive
from torchkiln.model.operating_system import base_name, operating_system
from torchkiln.model.plan import ArtefactLayer, WheelLayer
from torchkiln.model.recipe import ImagePython
from torchkiln.plan.plan import plan
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

OS = "python312-debian12"
TAG = f"2.7.1-cuda12.1-cudnn9-runtime-{OS}"
GRID = matrix_with("pythons/" + NAME, "3" * 64, FACTS)
LOCKED = standalone_lock(FACTS)
PYTHON = ImagePython(version="3.12.8", folder="3.11")


# --- names and matrix ------------------------------------------------------------------------------


def test_the_system_differs_from_its_base_in_the_python_only() -> None:
    found, base = operating_system(OS), operating_system("debian12")

    assert (found.name, found.python, found.distribution) == (OS, "3.12", "debian")
    assert replace(found, name=base.name, python=base.python) == base
    assert (base_name(OS), base_name("debian12")) == ("debian12", "debian12")
    with pytest.raises(ConfigError, match="not supported"):
        operating_system("python312-debian11")


def test_the_matrix_has_it_beside_its_base() -> None:
    """Its name, its Python version or --all selects it; by default it is not selected."""

    def systems(**selection: tuple[str, ...]) -> list[str]:
        return [cell.os for cell in select(Selection(torch=("2.7",), **selection), GRID)]

    assert systems() == ["debian12"]
    assert systems(os=(OS,)) == systems(python=("3.12",)) == [OS]
    (cell,) = select(Selection(torch=("2.7.1",), os=(OS,)), GRID)
    resolution = resolve(cell, GRID, FACTS)
    assert (cell.python, tag_of(resolution)) == ("3.12", TAG)
    assert aliases_of(resolution, replace(GRID, aliases=MATRIX.aliases), FACTS) == (
        f"2.7-cuda12.1-runtime-{OS}",
    )
    assert needs(resolution) == (NAME,)
    assert cell_named(TAG, GRID, FACTS) == cell
    parsed = parse_name(TAG)
    assert parsed is not None
    assert (parsed.os, parsed.flavor) == (OS, "runtime")


def test_the_suite_reads_the_system_in_its_tag() -> None:
    """The suite runs without torchkiln, so smoke_tests/expected.py has its own parser of tags."""
    from smoke_tests.expected import parse_tag

    assert parse_tag(TAG) == {
        "torch": "2.7.1",
        "cuda": "12.1",
        "cudnn": "9",
        "flavor": "runtime",
        "os": "debian12",
    }


def test_a_path_is_relative_to_the_matrix_and_a_url_has_a_plus() -> None:
    archive = GRID.standalone(OS)
    assert archive is not None
    assert GRID.standalone("debian12") is None
    assert replace(GRID, folder=Path("grids")).locate(archive) == f"grids/pythons/{NAME}"
    assert GRID.locate(replace(archive, sha256="4" * 64)) == ""

    url = "https://example.org/download/20241219/" + NAME.replace("+", "%2B")
    remote = matrix_with(url, "3" * 64, FACTS)
    assert remote.standalone(OS) == archive
    assert replace(remote, folder=Path("grids")).locate(archive) == url


ENTRY: Mapping[str, object] = {"python": "3.12", "os": "debian12", "archive": NAME, "sha256": "3" * 64}
WRONG: Mapping[str, tuple[list[dict[str, object]], str]] = {
    "base's Python": ([{**ENTRY, "python": "3.11"}], "debian12 has Python 3.11 already; remove this entry"),
    "too old": ([{**ENTRY, "python": "3.9"}], "Python 3.9 is not supported; the oldest is 3.10"),
    "a number": ([{**ENTRY, "python": 3.12}], "put it in quotes"),
    "twice": ([dict(ENTRY), {**ENTRY, "archive": "b.tgz"}], "duplicate entry: Python 3.12 of debian12"),
    "another system": ([{**ENTRY, "os": "debian11"}], "pythons[0].os: 'debian11' is not valid"),
    "no hash": ([{"python": "3.12", "os": "debian12", "archive": NAME}], "the key 'sha256' is missing"),
    "a short hash": ([{**ENTRY, "sha256": "12"}], "is not a sha256 of 64 lower-case hex digits"),
    "a folder": ([{**ENTRY, "archive": "builds/"}], "'' is not the name of a .tar.gz file"),
    "a zip file": ([{**ENTRY, "archive": "a.zip"}], "'a.zip' is not the name of a .tar.gz file"),
    "ftp": ([{**ENTRY, "archive": "ftp://a/b.tar.gz"}], "must be a path, or an http(s) URL"),
    "a query": ([{**ENTRY, "archive": "https://a/b.tar.gz?x=1"}], "URL without a query"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_reported_with_its_line(name: str) -> None:
    entries, why = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        load(f"{MATRIX_TEXT}pythons: {json.dumps(entries)}\n", FACTS)
    assert why in caught.value.message
    assert caught.value.message.startswith("matrix.yaml:")


def test_a_bound_can_name_the_system() -> None:
    text = f"{MATRIX_TEXT}pythons: {json.dumps([ENTRY])}\nbounds: [{{os: {OS}, reason: fails}}]\n"
    assert load(text, FACTS).bounds[0].os == OS


# --- locks -----------------------------------------------------------------------------------------


def test_a_lock_is_read_as_it_was_written() -> None:
    document = json.loads(to_json(LOCKED))

    assert from_json(to_json(LOCKED)) == LOCKED
    assert document["resolution"]["standalone"] == {"filename": NAME, "sha256": "3" * 64}
    assert document["standalone"]["version"] == "3.12.8"
    assert "pythons/" not in to_json(LOCKED).decode()


def test_another_archive_makes_the_lock_stale() -> None:
    other = matrix_with(NAME, "4" * 64, FACTS)
    moved = matrix_with("elsewhere/" + NAME, "3" * 64, FACTS)
    digests = [
        inputs_digest(resolve(LOCKED.resolution.cell, grid, FACTS), ()) for grid in (GRID, moved, other)
    ]
    assert digests[0] == digests[1] != digests[2]


CONTRADICTIONS: Mapping[str, tuple[dict[str, object], str]] = {
    "no layer": ({"standalone": None}, "standalone: not made from the archive in resolution.standalone"),
    "another archive": (
        {"standalone": replace(LOCKED.standalone, sha256="4" * 64) if LOCKED.standalone else None},
        "standalone: not made from the archive in resolution.standalone",
    ),
    "another Python": (
        {"standalone": replace(LOCKED.standalone, version="3.13.1") if LOCKED.standalone else None},
        "standalone: debian12 with Python 3.13.1, but the cell needs debian12 with Python 3.12",
    ),
    "another base": (
        {"base": replace(LOCKED.base, os="debian13")},
        "standalone: debian13 with Python 3.12.8, but the cell needs debian12",
    ),
    "the resolution of the base's Python": (
        {"resolution": planned_lock().resolution},
        "standalone: not made from the archive in resolution.standalone",
    ),
    "a cell without a standalone Python": (
        {"resolution": replace(LOCKED.resolution, standalone=None), "standalone": None},
        f"resolution.standalone: does not match {OS}",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradictory_lock_is_refused(name: str) -> None:
    changes, why = CONTRADICTIONS[name]
    with pytest.raises(Stale) as caught:
        from_json(to_json(replace(LOCKED, **changes)))
    assert why in caught.value.message


def test_the_cache_keeps_what_its_build_needs() -> None:
    """These are the layer, the Python that compiles, and the bytecode for each Python version."""
    planned = plan(LOCKED, (), aliases=(), lock_digest=LOCK_DIGEST)
    found = build_needs(planned)
    torch = next(one for one in LOCKED.wheels if one.name == "torch")
    nccl = next(one for one in LOCKED.wheels if one.name == "nvidia-nccl-cu12")

    assert f"blobs/sha256/{'e' * 64}" in found
    assert {f"interpreters/{'a' * 64}", f"interpreters/{'a' * 64}-{'e' * 64}"} < found
    assert f"bytecode/{layer_key((torch,), PYTHON)}.pack" in found
    assert f"bytecode/{layer_key((nccl,), ImagePython.of_base(LOCKED.base.python))}.pack" in found


# --- layers and paths ------------------------------------------------------------------------------


def layers_of(standalone: bool) -> dict[str, WheelLayer]:
    locked = LOCKED if standalone else planned_lock()
    found = plan(locked, (), aliases=(), lock_digest=LOCK_DIGEST).of(WheelLayer)
    return {layer.title: layer for layer in found}


def test_nvidias_layers_are_those_of_the_bases_python() -> None:
    """They have the same cache keys for both Pythons, so the same bytes. Other layers differ."""
    own, other = layers_of(standalone=False), layers_of(standalone=True)
    shared = [title for title in own if key_of(own[title]) == key_of(other[title])]

    assert own.keys() == other.keys()
    assert shared == [title for title in own if "nvidia" in title or title.startswith("CUDA libraries")]
    assert len(shared) == 4
    assert {other[title].python for title in own.keys() - {*shared}} == {PYTHON}


def test_wheels_of_nvidia_for_one_python_are_not_shared() -> None:
    bound = replace(wheel("nvidia-cublas-cu12", "12.6.4.1", megabytes=393), filename="a-1-cp312-cp312-x.whl")
    wheels = tuple(bound if one.name == bound.name else one for one in LOCKED.wheels)
    layers = plan(replace(LOCKED, wheels=wheels), (), aliases=(), lock_digest=LOCK_DIGEST).of(WheelLayer)

    (changed,) = (layer for layer in layers if bound in layer.wheels)
    assert changed.python == PYTHON


def test_the_python_is_above_the_shared_layers() -> None:
    """A host shares an unpacked layer only if all layers below it are the same, too."""
    layers = plan(LOCKED, (), aliases=(), lock_digest=LOCK_DIGEST).layers
    kinds = [layer.kind for layer in layers]
    at = kinds.index("standalone")

    assert kinds[:at] == [*["wheels"] * 9, "base"]
    assert isinstance(layers[at], ArtefactLayer)
    assert layers[at].title == "CPython 3.12.8"
    below = [
        layer.title for layer in plan(planned_lock(), (), aliases=(), lock_digest=LOCK_DIGEST).layers[:at]
    ]
    assert [layer.title for layer in layers[:at]] == below


def test_the_image_says_which_python_it_has() -> None:
    """Labels and image.json still name debian12 as the operating system."""
    planned = plan(LOCKED, (), aliases=(), lock_digest=LOCK_DIGEST)
    labels = dict(planned.config.labels)
    (facts,) = (file for file in planned.overlay.files if file.path == "etc/torchkiln/image.json")
    found = json.loads(facts.data)

    assert (labels["torchkiln.python"], labels["torchkiln.os"]) == ("3.12.8", "debian12")
    assert labels["torchkiln.standalone"] == "sha256:" + "e" * 64
    assert (found["python"], found["os"], found["tag"]) == ("3.12.8", "debian12", TAG)
    assert found["standalone"]["archive"] == NAME


@pytest.mark.parametrize("path", ["lib/python3.12/site-packages/x.py", "lib/python3.12"])
def test_a_wheel_cannot_replace_the_link(path: str, tmp_path: Path) -> None:
    spec = WheelSpec(name="demo", files=(File(path=f"demo-1.0.data/data/{path}", data=b"x"),))
    made = write_wheel(spec, tmp_path)

    with pytest.raises(BadWheel, match=r"would replace /opt/venv/lib/python3\.12.* of the virtual env"):
        layer_of([made], scheme=Scheme.of(PYTHON))
    layer_of([made])  # with the base's Python, lib/python3.12 is no link


def test_no_dockerfile_is_rendered() -> None:
    planned = plan(LOCKED, (), aliases=(), lock_digest=LOCK_DIGEST)
    with pytest.raises(ConfigError) as caught:
        render(planned, {}, ())
    assert caught.value.message == f"{TAG}: a Dockerfile cannot build an image with a standalone Python"
    assert "embedded engine" in caught.value.hint


def test_without_a_sandbox_the_archives_python_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted matrix may have named the archive."""
    monkeypatch.setattr(sandbox, "fault", lambda: "no user namespaces")
    located: list[PythonArchive] = []
    pythons = StandalonePythons(
        store=Store(tmp_path), environ={}, locate=lambda archive: located.append(archive) or ""
    )
    archive = PythonArchive(filename="cpython.tar.gz", sha256="0" * 64)

    with pytest.raises(ToolMissing, match=r"no sandbox is available .*: no user namespaces"):
        pythons.make(archive, "3.12", LOCKED.base)
    assert located == []
