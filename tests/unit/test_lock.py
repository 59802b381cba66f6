"""`lock`: its requests to the index, which versions it keeps, when a lock is stale, and its two files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.planned import FACTS, MATRIX, answer
from tests.servers.index_server import IndexServer
from torchkiln.cli.lock import lock as lock_command
from torchkiln.errors import KilnError, Unresolvable
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.freshness import staleness
from torchkiln.locks.lock import EVERYTHING, System, Versions, inputs_digest, load_locked, lock, save
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Resolution, Source
from torchkiln.model.digest import Digest
from torchkiln.model.index import IndexRequest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedBase, LockedCell, LockedWheel, OsPackage
from torchkiln.util.places import ROOT

IMAGES = ROOT / "images"
BOUND = ("torch", "torchvision", "torchaudio", "triton")
ZEROS = Digest("sha256:" + "0" * 64)
ONES = Digest("sha256:" + "1" * 64)
BASE = LockedBase(
    os="debian12",
    python="3.11.2",
    digest=ZEROS,
    diff_id=ONES,
    size=1,
    unpacked=2,
    encoder="none",
    packages=(OsPackage(name="apt", version="2.6.2"),),
)
ON, TODAY = System(base=BASE), Versions(as_of="2026-11-21")
LAYER = ImageLayer(title="torch", blob=Blob(digest=ONES, diff_id=ZEROS, size=1, unpacked=2))


def resolution(torch: str = "2.7.1", cuda: str = "12.1") -> Resolution:
    return answer(torch, cuda)


def wheel(name: str, version: str, index: Source = Source.DEFAULT) -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, filename=filename, sha256="a" * 64, size=3, index=index)


class Shelf:
    """A fake index that returns its wheels and records the requests."""

    def __init__(self, *wheels: LockedWheel) -> None:
        self.stock = wheels
        self.requests: list[IndexRequest] = []

    def wheels(self, request: IndexRequest) -> tuple[LockedWheel, ...]:
        self.requests.append(request)
        return self.stock


def locked(*more: LockedWheel, previous: LockedCell | None = None, **options: object) -> LockedCell:
    shelf = Shelf(*more, wheel("torch", "2.7.1"))
    return lock(resolution(), shelf, ON, Versions(as_of="2026-11-21", previous=previous), **options)  # type: ignore[arg-type]


def test_requests_depend_on_the_image_and_not_on_the_host() -> None:
    shelf = Shelf(wheel("torch", "2.1.2"))
    lock(resolution("2.1.2"), shelf, ON, TODAY, bound=BOUND)
    (request,) = shelf.requests

    assert (request.python, request.glibc, request.as_of, request.bound) == (
        "3.11",
        (2, 36),
        "2026-11-21",
        (),
    )
    assert {"torch==2.1.2", "setuptools<70"} <= set(request.requirements)
    assert {"numpy<2", "nvidia-nvjitlink-cu12==12.1.105"} <= set(request.constraints)


@pytest.mark.parametrize(
    ("upgrade", "expected"), [(("NumPy",), (("torch", "2.7.1"),)), (EVERYTHING, ())], ids=["one", "all"]
)
def test_an_upgrade_unpins_and_moves_the_date(upgrade: tuple[str, ...], expected: tuple[object, ...]) -> None:
    first = locked(wheel("numpy", "2.4.6"))
    shelf = Shelf(*first.wheels)
    second = lock(resolution(), shelf, ON, Versions(as_of="2030-01-01", previous=first, upgrade=upgrade))

    assert shelf.requests[0].keep == expected
    assert shelf.requests[0].as_of == second.as_of == "2030-01-01"
    assert second.epoch == 1893456000


def test_recorded_layers_are_kept_while_their_inputs_are_unchanged() -> None:
    first = replace(locked(), layers=(LAYER,))

    assert locked(previous=first).layers == (LAYER,)
    assert locked(wheel("numpy", "2.4.6"), previous=first).layers == ()


def test_another_base_keeps_recorded_layers_unless_its_python_changed() -> None:
    """Wheel layers contain bytecode for the base's Python; nothing else in them depends on the base."""

    def on(*packages: OsPackage) -> LockedCell:
        base = replace(BASE, packages=packages)
        return replace(locked(), base=base, layers=(LAYER,))

    python, sudo = OsPackage(name="python3.11", version="3.11.2-6"), OsPackage(name="sudo", version="1")
    moved = (replace(python, version="3.11.3-1"), OsPackage(name="libpython3.11-stdlib", version="1"))
    for before, after, expected in (
        ((python,), (python, sudo), True),
        ((python,), (moved[0],), False),
        ((python,), (python, moved[1]), False),
    ):
        system = System(base=replace(BASE, packages=after))
        again = lock(resolution(), Shelf(*locked().wheels), system, replace(TODAY, previous=on(*before)))
        assert again.layers == ((LAYER,) if expected else ())


@pytest.mark.parametrize(
    "given", [wheel("torch", "2.7.0"), wheel("numpy", "1"), wheel("torch", "2.7.1", Source.PYTORCH)]
)
def test_an_index_with_another_torch_is_refused(given: LockedWheel) -> None:
    with pytest.raises(Unresolvable, match=r"expected torch 2\.7\.1 from"):
        lock(resolution(), Shelf(given), ON, TODAY)


def test_an_unavailable_cell_is_not_locked() -> None:
    with pytest.raises(Unresolvable, match="CUDA 12"):
        lock(resolution("2.0.1"), Shelf(), ON, TODAY)


@given(
    names=st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True), unique=True),
    layers=st.lists(st.from_regex(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{0,20}", fullmatch=True)),
)
def test_the_file_form_is_lossless_and_fits_its_schema(names: list[str], layers: list[str]) -> None:
    before = replace(
        locked(*(wheel(name, "1.0") for name in names if name != "torch")),
        layers=tuple(replace(LAYER, title=title) for title in layers),
    )
    data = to_json(before)

    assert from_json(data) == before
    jsonschema.validate(json.loads(data), SCHEMA)


SCHEMA = json.loads((ROOT / "torchkiln" / "data" / "lock.schema.json").read_bytes())


def test_the_digest_does_not_depend_on_recorded_layers() -> None:
    assert lock_digest(replace(locked(), layers=(LAYER,))) == lock_digest(locked())
    assert lock_digest(replace(locked(), as_of="2026-11-22")) != lock_digest(locked())


def test_another_release_in_the_matrix_leaves_other_locks_fresh() -> None:
    less = replace(MATRIX, torch=MATRIX.torch[:-1])

    assert inputs_digest(resolve(resolution().cell, less, FACTS), BOUND) == inputs_digest(resolution(), BOUND)


def test_the_reason_of_a_stale_lock_is_shown(tmp_path: Path) -> None:
    fresh = resolution()
    save(tmp_path, locked())
    assert staleness(tmp_path, fresh, BOUND, BASE) == ()

    with_another_requirement = replace(fresh, requirements=(*fresh.requirements, "einops"))
    assert staleness(tmp_path, with_another_requirement, BOUND, BASE) == ("locked with other requirements",)
    assert "its base" in staleness(tmp_path, fresh, BOUND, replace(BASE, digest=ONES))[0]
    (tmp_path / "2.7.1-cuda12.1-cudnn9-runtime" / "requirements.txt").write_text("")
    assert staleness(tmp_path, fresh, BOUND, BASE) == ("requirements.txt does not match lock.json",)
    assert "not locked yet" in staleness(tmp_path, resolution("2.6.0"), BOUND, BASE)[0]


# --- the real resolver against a local index of PyTorch's layout ---------------------------------


class Workspace:
    """A default index and PyTorch's index, an environment that configures both, and a folder of images."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        self.server, self.images = server, root / "images"
        self.environ = {
            "UV_DEFAULT_INDEX": server.url("default"),
            "UV_CACHE_DIR": str(root / "uv"),
            "UV_HTTP_RETRIES": "0",
            "TORCHKILN_INDEX_PYTORCH": server.url("whl"),
            "TORCHKILN_CACHE": str(root / "cache"),
            "PIP_CONFIG_FILE": "/dev/null",
        }
        base = self.images / "base-debian12" / "base.json"
        base.parent.mkdir(parents=True)
        base.write_bytes((IMAGES / "base-debian12" / "base.json").read_bytes())

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, and the messages on stderr."""
        runner = CliRunner(env=self.environ)
        result = runner.invoke(
            lock_command,
            [*arguments, "--images", str(self.images), "--as-of", "2026-11-21"],
            catch_exceptions=True,
        )
        error = result.exception
        if isinstance(error, KilnError):
            return error.exit_code, result.stdout, f"{result.stderr}{error.message}\n{error.hint}"
        assert error is None, error
        return 0, result.stdout, result.stderr


@contextmanager
def a_server() -> Iterator[IndexServer]:
    """A server with both indexes. Its last numpy was uploaded after the date for which the tests lock."""
    with IndexServer() as server:
        old = "2024-06-01T00:00:00Z"
        for name in (*MATRIX.packages, "filelock", "sympy"):
            server.add("default", name, "1.0", date=old)
        server.add("default", "numpy", "1.5", date="2026-11-21T00:00:00Z")
        for name, version in CU118.items():
            server.add("default", name, version, date=old, tag="py3-none-manylinux1_x86_64")
        server.add("default", "torch", "2.3.1", requires=["from-the-wrong-index"], date=old)
        server.add("whl", "numpy", "99.0")
        requires = [f'{name}=={version}; platform_system == "Linux"' for name, version in CU118.items()]
        requires += ['triton==2.3.1; python_version < "3.12"', "filelock", "sympy"]
        local = {"tag": "cp311-cp311-linux_x86_64"}
        server.add("whl", "torch", "2.3.1+cu118", requires=requires, **local)
        server.add(
            "whl", "torch", "2.3.1+cu118", requires=["not-this-python"], tag="cp312-cp312-linux_x86_64"
        )
        server.add("whl", "torchvision", "0.18.1+cu118", requires=["numpy", "torch==2.3.1"], **local)
        server.add("whl", "torchaudio", "2.3.1+cu118", requires=["torch==2.3.1+cu118"], **local)
        for index in ("default", "whl"):
            server.add(index, "triton", "2.3.1", requires=["filelock"], payload=index.encode(), date=old)
        yield server


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    with a_server() as server:
        yield Workspace(server, tmp_path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `images` after the first run of `lock`."""
    with a_server() as server:
        workspace = Workspace(server, tmp_path_factory.mktemp("first"))
        assert workspace.run("--torch", "2.3.1", "--cuda", "11.8")[:2] == (0, f"{TAG}\n")
    return workspace.images


@pytest.fixture
def locked_before(workspace: Workspace, first: Path) -> Workspace:
    shutil.copytree(first / TAG, workspace.images / TAG)
    return workspace


# The facts record the pins in METADATA of the real wheel.
_PINS = yaml.safe_load((ROOT / "torchkiln" / "data" / "compat.yaml").read_bytes())["cu118_pins"]
CU118 = {
    **{name: version for name, version in _PINS.items() if name.startswith("nvidia-")},
    "nvidia-cudnn-cu11": "8.7.0.84",
    "nvidia-nccl-cu11": "2.20.5",
}
TAG = "2.3.1-cuda11.8-cudnn8-runtime"


def test_a_cell_of_pytorchs_index_is_locked_from_it(first: Path) -> None:
    """Files that were uploaded after the lock's date are ignored."""
    found = load_locked(first, TAG)
    bound = {item.name: item.version for item in found.wheels if item.index is Source.PYTORCH}

    assert bound == {
        "torch": "2.3.1+cu118",
        "torchaudio": "2.3.1+cu118",
        "torchvision": "0.18.1+cu118",
        "triton": "2.3.1",
    }
    assert CU118.items() <= {item.name: item.version for item in found.wheels}.items()
    assert {item.version for item in found.wheels if item.name == "numpy"} == {"1.0"}
    data = (first / TAG / "lock.json").read_bytes()
    assert json.loads(data)["indexes"] == ["default-index", "pytorch"]
    assert b"127.0.0.1" not in data


def test_locked_twice_gives_the_same_bytes(locked_before: Workspace) -> None:
    workspace = locked_before
    first = (workspace.images / TAG / "lock.json").read_bytes()
    workspace.server.add("default", "numpy", "1.1", date="2024-07-01T00:00:00Z")
    assert "unchanged" in workspace.run("--torch", "2.3.1", "--cuda", "11.8")[2]
    assert (workspace.images / TAG / "lock.json").read_bytes() == first

    assert "numpy 1.0 → 1.1" in workspace.run("--torch", "2.3.1", "--cuda", "11.8", "--upgrade", "numpy")[2]
    workspace.server.yanked["numpy-1.1-py3-none-any.whl"] = "data loss"
    messages = workspace.run("--torch", "2.3.1", "--cuda", "11.8")[2]
    assert "warning: numpy 1.1 was yanked: data loss" in messages


def test_an_unreachable_index_is_named_by_its_setting(workspace: Workspace) -> None:
    workspace.environ["TORCHKILN_INDEX_PYTORCH"] = "http://me:secret@127.0.0.1:9/whl"
    code, _, messages = workspace.run("--torch", "2.3.1", "--cuda", "11.8")
    assert (code, "TORCHKILN_INDEX_PYTORCH" in messages, "secret" in messages) == (6, True, False)


def test_upload_dates_that_are_sometimes_missing_change_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real index sent the same page sometimes with, sometimes without the dates of its newest files."""
    workspace.server.add("default", "numpy", "1.4", date="2026-11-20T00:00:00Z")
    workspace.server.add("default", "numpy", "1.6", date="2026-11-21T12:00:00Z")
    page, answers = IndexServer.page, iter([False, False, True] * 50)

    def unreliable_page(server: IndexServer, index: str, project: str) -> bytes | None:
        body = page(server, index, project)
        if body and (index, project) == ("default", "numpy") and not next(answers):
            return re.sub(rb' data-upload-time="2026[^"]*"', b"", body)
        return body

    monkeypatch.setattr(IndexServer, "page", unreliable_page)
    workspace.run("--torch", "2.3.1", "--cuda", "11.8")
    assert "numpy==1.4 " in (workspace.images / TAG / "requirements.txt").read_text()


def test_check_needs_no_index(locked_before: Workspace) -> None:
    workspace = locked_before
    workspace.environ |= {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/", "TORCHKILN_INDEX_PYTORCH": ""}
    assert workspace.run("--check", "--torch", "2.3.1", "--cuda", "11.8")[0] == 0

    code, _, messages = workspace.run("--check")
    assert code == 5
    assert messages.count("not locked yet") == 9 + len(MATRIX.beyond)
