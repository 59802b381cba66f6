"""Downloads of CUDA archives from a faulty server with NVIDIA's file layout, or from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cells import planned_devel, small_wheels
from tests.servers.cuda_archives import archive_of, mirror, path_of, serve, write_small
from tests.servers.index_server import IndexServer
from torchkiln.engine.cuda_layers import part_path, toolkit_layers
from torchkiln.errors import BadArchive, BuildFailed, ConfigError
from torchkiln.index.archives import VARIABLE, CudaArchives
from torchkiln.model.progress import Silent, Transfer
from torchkiln.store.store import Store

DATA = bytes(range(256)) * 200
ARCHIVE = archive_of(DATA)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """A server that has the archive; downloads from it do not pause between attempts."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda _attempt, _wait: 0.0)
    with IndexServer() as found:
        serve(found, ARCHIVE.path, DATA)
        yield found


def source(place: str) -> CudaArchives:
    return CudaArchives({VARIABLE: place, "PIP_CONFIG_FILE": "/dev/null"})


def fetch(place: str, part: Path) -> Path | None:
    return source(place).archive(ARCHIVE, part, Transfer())


def test_an_archive_is_downloaded_by_its_path(server: IndexServer, tmp_path: Path) -> None:
    counts: list[int] = []
    part = tmp_path / "part"
    found = source(f"{mirror(server)}/").archive(ARCHIVE, part, Transfer(counts.append))

    assert found == part
    assert part.read_bytes() == DATA
    assert sum(counts) == len(DATA)
    assert [path for _, path, _ in server.requests] == [f"/files/redist/{path_of('cuda_nvcc', '12.1.105')}"]


@pytest.mark.parametrize("fault", ["flip", "extra", "another's"])
def test_another_file_than_the_locked_one_is_refused(fault: str, server: IndexServer, tmp_path: Path) -> None:
    if fault == "flip":
        server.faults.flip = 777
    elif fault == "extra":
        server.faults.extra = b"x"
    else:
        serve(server, ARCHIVE.path, b"y" * 30)

    with pytest.raises(BadArchive, match=ARCHIVE.filename) as caught:
        fetch(mirror(server), tmp_path / "part")
    assert caught.value.exit_code == 6
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize("fault", ["gone", "down", "errors", "nowhere"])
def test_an_unavailable_archive_is_named_with_a_hint(fault: str, server: IndexServer, tmp_path: Path) -> None:
    place = mirror(server)
    if fault == "gone":
        server.faults.deleted = True
    elif fault == "down":
        server.faults.down = True
    elif fault == "errors":
        server.faults.errors = [503] * 20
    else:
        place = "http://127.0.0.1:9/redist"

    with pytest.raises(BuildFailed) as caught:
        fetch(place, tmp_path / "part")
    assert ARCHIVE.path in caught.value.message
    assert ARCHIVE.sha256 in caught.value.message
    assert VARIABLE in caught.value.hint
    assert "or to a local folder" in caught.value.hint
    assert not (tmp_path / "part").exists()


def test_credentials_are_sent_to_the_server_and_not_shown(server: IndexServer, tmp_path: Path) -> None:
    place = mirror(server).replace("://", "://me:secret@")
    fetch(place, tmp_path / "part")
    assert server.logins
    server.faults.deleted = True

    with pytest.raises(BuildFailed) as caught:
        fetch(place, tmp_path / "other")
    assert "secret" not in caught.value.message + caught.value.hint


def test_a_cancelled_download_leaves_no_file(server: IndexServer, tmp_path: Path) -> None:
    found = source(mirror(server)).archive(ARCHIVE, tmp_path / "part", Transfer(cancelled=lambda: True))

    assert found is None


def test_a_folder_of_archives_is_not_written(tmp_path: Path) -> None:
    """The folder may be flat or have NVIDIA's subfolders. A wrong file is refused, but not deleted."""
    flat = tmp_path / ARCHIVE.filename
    flat.write_bytes(DATA)
    assert fetch(str(tmp_path), tmp_path / "part") == flat
    deep = tmp_path / ARCHIVE.path
    deep.parent.mkdir(parents=True)
    deep.write_bytes(DATA[:-1])

    with pytest.raises(BadArchive, match=f"{len(DATA) - 1} bytes, the lock has {len(DATA)}"):
        fetch(str(tmp_path), tmp_path / "part")
    assert deep.exists()
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize("place", ["/nowhere/at/all", "ftp://host/redist", "https://"])
def test_an_invalid_setting(place: str, tmp_path: Path) -> None:
    """The error is raised before any download, even if the caller did not check the setting."""
    with pytest.raises(ConfigError, match=VARIABLE):
        source(place).require((ARCHIVE,))
    with pytest.raises(ConfigError, match=VARIABLE):
        fetch(place, tmp_path / "part")


def test_a_bad_archive_leaves_nothing_and_the_next_run_needs_only_it(
    server: IndexServer, tmp_path: Path
) -> None:
    """One of four archives is corrupt: the next run downloads only this archive."""
    archives = write_small(tmp_path / "redist")
    for archive in archives:
        serve(server, archive.path, (tmp_path / "redist" / archive.path).read_bytes())
    plan = planned_devel(small_wheels(tmp_path), archives)
    specs = [spec for spec in plan.layers if spec.kind == "toolkit"]
    store = Store(tmp_path / "cache")
    server.faults.flip, server.faults.only = 100, "cuda_nvcc"

    with pytest.raises(BadArchive, match="cuda_nvcc"):
        toolkit_layers(specs, store, source(mirror(server)), Silent())
    (nvcc,) = (item for item in archives if item.component == "cuda_nvcc")
    assert not (store.root / part_path(nvcc)).exists()
    assert list((store.root / "tmp").glob("*")) == []

    server.faults.flip, server.requests = None, []
    made = toolkit_layers(specs, store, source(mirror(server)), Silent())
    assert len(made) == len(specs)
    assert {path.rpartition("/")[2] for _, path, _ in server.requests} == {nvcc.filename}


def test_a_server_is_requested_before_it_is_needed(server: IndexServer, tmp_path: Path) -> None:
    """One byte of the smallest missing archive is requested; nothing for a folder."""
    source(mirror(server)).demand_reachable(())
    assert server.requests == []
    source(mirror(server)).demand_reachable((ARCHIVE,))
    last = f"bytes={ARCHIVE.size - 1}-{ARCHIVE.size - 1}"
    assert [byte_range for *_, byte_range in server.requests] == [last]

    (tmp_path / ARCHIVE.filename).write_bytes(DATA)
    source(str(tmp_path)).demand_reachable((ARCHIVE,))
    (tmp_path / ARCHIVE.filename).unlink()
    with pytest.raises(BuildFailed, match="not found in") as missing:
        source(str(tmp_path)).demand_reachable((ARCHIVE,))
    assert "https://developer.download.nvidia.com/compute/cuda/redist" in missing.value.hint


def test_an_unreachable_server_is_noticed(server: IndexServer) -> None:
    address = mirror(server)
    server.__exit__(None, None, None)
    with pytest.raises(BuildFailed, match="connection refused") as failure:
        source(address).demand_reachable((ARCHIVE,))
    assert ARCHIVE.path in failure.value.message
