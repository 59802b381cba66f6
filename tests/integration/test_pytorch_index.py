"""CUDA 11.8, which only PyTorch's index has: lock, plan, render and build with a local server.

The real index is not reachable. Locks and images of the local index are untrusted, and every command says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.servers.two_indexes import IndexWorkspace, furnished
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.public_record import recorded
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Source
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # the base, if it is not cached

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
TAG = "2.7.1-cuda11.8-cudnn9-runtime"
CELL = ("--torch", "2.7.1", "--cuda", "11.8")
UNTRUSTED = "uses an untrusted source"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexWorkspace]:
    with furnished(tmp_path_factory.mktemp("cu118"), "2.7.1", "2.2.2") as found:
        yield found


@pytest.fixture(scope="module")
def locked(workspace: IndexWorkspace) -> IndexWorkspace:
    ran = workspace.kiln("lock", *CELL)
    assert (ran.returncode, ran.stdout) == (0, f"{TAG}\n"), ran.stderr
    assert f"lock: {TAG}: warning: {UNTRUSTED}" in ran.stderr
    return workspace


@pytest.fixture(scope="module")
def image(locked: IndexWorkspace) -> IndexWorkspace:
    ran = locked.kiln("build", *CELL, "--json")
    assert ran.returncode == 0, ran.stderr
    assert UNTRUSTED in ran.stderr
    assert json.loads(ran.stdout)["untrusted"] is True
    return locked


def test_the_lock_has_the_real_pins_and_its_source(locked: IndexWorkspace) -> None:
    """The lock contains no URL; only the packages bound to PyTorch's index come from that index."""
    found = load_locked(locked.root / "images", TAG)
    versions = {wheel.name: wheel.version for wheel in found.wheels}
    bound = {wheel.name for wheel in found.wheels if wheel.index is Source.PYTORCH}

    assert dict(FACTS.cu118_pins).items() <= versions.items()
    assert (versions["torch"], versions["nvidia-cudnn-cu11"]) == ("2.7.1+cu118", "9.1.0.70")
    assert bound == {"torch", "torchvision", "torchaudio", "triton"}
    assert versions["numpy"] == "1.26.4"
    assert found.untrusted
    data = (locked.root / "images" / TAG / "lock.json").read_bytes()
    assert json.loads(data)["untrusted"] is True
    assert b"127.0.0.1" not in data


def test_plan_and_dockerfile_are_made_from_the_lock(locked: IndexWorkspace) -> None:
    """The libraries of CUDA 11.8 have separate layers, and the image has the label of untrusted sources."""
    assert "CUDA libraries" in locked.kiln("plan", *CELL).stdout
    ran = locked.kiln("render", *CELL)
    assert ran.returncode == 0, ran.stderr
    dockerfile = (locked.root / "images" / TAG / "Dockerfile").read_text()
    assert "nvidia-cublas-cu11" in (locked.root / "images" / TAG / "requirements.txt").read_text()
    assert 'torchkiln.untrusted="true"' in dockerfile


def test_list_explain_and_locked_builds_name_the_untrusted_source(locked: IndexWorkspace) -> None:
    listed = json.loads(locked.kiln("list", *CELL, "--json").stdout)
    assert (listed[0]["untrusted"], listed[0]["needs"]) == (True, ["PyTorch's own index"])
    assert f"{TAG}  (untrusted)" in locked.kiln("list", *CELL).stdout
    output = locked.kiln("explain", *CELL).stdout
    assert "needs      PyTorch's own index\n" in output
    assert f"lock       {UNTRUSTED}\n" in output
    ran = locked.kiln("build", *CELL, "--locked")
    assert (ran.returncode, UNTRUSTED in ran.stderr) == (6, True)


@pytest.mark.proof
def test_a_command_runs_in_the_image_with_a_warning(image: IndexWorkspace) -> None:
    code = (
        "import json, torch; print(torch.__file__, json.load(open('/etc/torchkiln/image.json'))['untrusted'])"
    )
    ran = image.kiln("run", TAG, "--", "python", "-c", code)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ("/opt/venv/lib/python3.11/site-packages/torch/__init__.py True\n")


@pytest.mark.proof
def test_an_untrusted_image_is_not_published_without_an_option(image: IndexWorkspace) -> None:
    ran = image.kiln("gate", TAG)
    assert (ran.returncode, UNTRUSTED in ran.stdout + ran.stderr) == (7, True)

    ran = image.kiln("publish", TAG, "--to", "127.0.0.1:9/team/untrusted", "--tag", TAG)
    assert (ran.returncode, UNTRUSTED in ran.stdout + ran.stderr) == (7, True)


def test_an_index_with_another_torch_than_the_public_record_is_refused(workspace: IndexWorkspace) -> None:
    """compat.yaml has the hash of 2.2.2, so only an index with `untrusted+` may have another wheel."""
    cell = Cell(torch="2.2.2", cuda="11.8", flavor="runtime", os="debian12", python="3.11")
    build = resolve(cell, MATRIX, FACTS).build
    assert build
    known = recorded(FACTS, build, "3.11")
    assert known
    words = ("lock", "--torch", "2.2.2", "--cuda", "11.8")

    ran = workspace.kiln(*words, index="")
    assert (ran.returncode, f"{known} on public record" in ran.stderr) == (6, True), ran.stderr
    assert not (workspace.root / "images" / "2.2.2-cuda11.8-cudnn8-runtime").exists()
    assert workspace.kiln(*words).returncode == 0
