"""Docker's client and engines: choice of an engine, command line for a container, `docker save`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import socket
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import run_program
from tests.roots import entry, tar_of
from tests.servers.answering import Answering
from tests.zstd_frames import program, raw_frame
from torchkiln.compare.images import read_saved
from torchkiln.docker.daemon import find_engine
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import IteratorFile
from torchkiln.runtimes.command import Bind
from torchkiln.runtimes.docker import Container, client_command, parse_port


@contextmanager
def engine_of(version: str, *parts: str) -> Iterator[str]:
    """A server that answers like a Docker engine of the given version with the components *parts*."""

    made_of = [{"Name": part} for part in parts]
    body = json.dumps({"Version": version, "ApiVersion": "1.44", "Components": made_of}).encode()
    with Answering(lambda *_: (200, {"Content-Type": "application/json"}, body)) as server:
        yield f"tcp://127.0.0.1:{server.port}"


def client(folder: Path, script: str) -> str:
    """A PATH with a program `docker` that is a given shell script."""
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    return str(folder)


def test_a_usable_engine(tmp_path: Path) -> None:
    path = client(tmp_path, "echo github.com/docker/buildx v0.17.1 257815a")
    with engine_of("27.3.1") as host:
        found = find_engine({"DOCKER_HOST": host, "PATH": path})

    assert (found.host, found.version) == (host, "27.3.1")


@pytest.mark.parametrize("version", ["20.10.24", "dev"])
def test_an_engine_that_is_too_old(version: str) -> None:
    with (
        engine_of(version) as host,
        pytest.raises(ToolMissing, match=f"too old: version {version}") as caught,
    ):
        find_engine({"DOCKER_HOST": host})

    assert "--engine embedded" in caught.value.hint


def test_podman_loads_images_but_does_not_build() -> None:
    """This does not depend on the version, because Podman's version numbers differ from Docker's."""
    with engine_of("4.3.1", "Podman Engine", "Conmon") as host:
        found = find_engine({"DOCKER_HOST": host}, builds=False)
        assert (found.kind, found.version) == ("Podman", "4.3.1")
        with pytest.raises(ToolMissing, match=r"is Podman 4.3.1, which has no BuildKit") as caught:
            find_engine({"DOCKER_HOST": host})

    assert "--engine embedded --load" in caught.value.hint


def test_a_client_without_buildx(tmp_path: Path) -> None:
    path = client(tmp_path, "echo \"docker: 'buildx' is not a docker command\" >&2; exit 1")
    with engine_of("27.3.1") as host, pytest.raises(ToolMissing, match="has no buildx") as caught:
        find_engine({"DOCKER_HOST": host, "PATH": path})

    assert "docker-buildx" in caught.value.hint


def test_no_client(tmp_path: Path) -> None:
    with engine_of("27.3.1") as host, pytest.raises(ToolMissing, match="docker: command not found"):
        find_engine({"DOCKER_HOST": host, "PATH": str(tmp_path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an unprivileged user")
def test_a_socket_without_permission(tmp_path: Path) -> None:
    """A separate process, because its user becomes `nobody`, and the SDK leaves a socket open."""
    path = tmp_path / "docker.sock"
    code = f"""
import os, docker, docker.context
from torchkiln.docker.daemon import find_engine
from torchkiln.errors import KilnError
os.setuid(65534)
try:
    find_engine({{"DOCKER_HOST": "unix://{path}"}})
except KilnError as error:
    print(type(error).__name__, error.message, error.hint)
"""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0o600)
        ran = run_program([sys.executable, "-c", code])

    assert ran.stdout.startswith(
        f"ToolMissing cannot connect to the Docker engine at unix://{path}: Permission"
    )
    assert "group `docker`" in ran.stdout


def test_the_shortest_command_line() -> None:
    container = Container(image="i:1", command=(), shm_size=1 << 20)

    assert client_command(container, terminal=False) == [
        *("docker", "run", "--rm", "--interactive", "--shm-size", "1048576", "i:1")
    ]


def test_the_longest_command_line() -> None:
    container = Container(
        image="i:1",
        command=("sh", "-c", "x"),
        entrypoint=False,
        env=("A=b c",),
        user="5:6",
        workdir="/w",
        binds=(Bind(source=Path("/a"), target="/b"), Bind(source=Path("/c"), target="/d", writable=True)),
        ports=("80:80", "81"),
        gpus="2",
        shm_size=5,
    )

    assert client_command(container, terminal=True) == [
        *("docker", "run", "--rm", "--interactive", "--tty", "--gpus", "2", "--shm-size", "5"),
        *("--mount", "type=bind,source=/a,target=/b,readonly", "--mount", "type=bind,source=/c,target=/d"),
        *("--publish", "80:80", "--publish", "81", "--env", "A=b c", "--user", "5:6", "--workdir", "/w"),
        *("--entrypoint", "", "i:1", "sh", "-c", "x"),
    ]


@pytest.mark.parametrize(
    ("gpus", "option"), [("all", "all"), ("device=1", "device=1"), ("device=0,GPU-1f", '"device=0,GPU-1f"')]
)
def test_gpus_are_parsed_like_by_the_client(gpus: str, option: str) -> None:
    line = client_command(Container(image="i", command=(), gpus=gpus), terminal=False)

    assert line[line.index("--gpus") + 1] == option
    assert next(csv.reader([option])) == [gpus]


@pytest.mark.parametrize("podman_at", ["", "unix:///p.sock"])
def test_gpus_by_their_cdi_names(podman_at: str) -> None:
    """Docker and Podman have the same option for CDI names."""
    container = Container(image="i", command=(), gpus="device=0,GPU-1f", cdi=True)
    line = client_command(container, terminal=False, podman_at=podman_at)

    assert line[0] == ("podman" if podman_at else "docker")
    assert "--gpus" not in line
    assert [line[at + 1] for at, word in enumerate(line) if word == "--device"] == [
        *("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1f")
    ]


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/\r\n"), min_size=1).filter(
        lambda s: s not in "..."
    )
)
def test_a_folder_of_any_name_is_one_field_of_the_option(name: str) -> None:
    bind = Bind(source=Path("/x", name), target="/t")
    line = client_command(Container(image="i", command=(), binds=(bind,)), terminal=False)

    (fields,) = csv.reader([line[line.index("--mount") + 1]])
    assert fields == ["type=bind", f"source=/x/{name}", "target=/t", "readonly"]


@pytest.mark.parametrize(
    "text", ["80", "80:80", "127.0.0.1:80:80", "[::1]:80:80/udp", "127.0.0.1::80", "1-2:3-4"]
)
def test_ports(text: str) -> None:
    assert parse_port(text)


@pytest.mark.parametrize("text", ["", "x", "x:y:z:1", "80:", "1-3:3-4"])
def test_an_invalid_port(text: str) -> None:
    with pytest.raises(ConfigError, match="--publish"):
        parse_port(text)


LOWER = tar_of([entry("a", b"1"), entry("b", b"22")])
UPPER = tar_of([entry(".wh.a"), entry("c", b"333")])
CONFIG = {
    "rootfs": {"diff_ids": ["sha256:1", "sha256:2", "sha256:1"]},
    "history": [
        {"created_by": "COPY  a b"},
        {"created_by": "ENV x", "empty_layer": True},
        {"created_by": "RUN rm a"},
        {},
    ],
}


def saved(lower: bytes, upper: bytes, *, documents_last: bool, layers: tuple[str, ...]) -> bytes:
    """A `docker save` archive with three layers; the third layer is the first one again."""
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": list(layers)}]
    documents = [
        entry("config.json", json.dumps(CONFIG).encode()),
        entry("manifest.json", json.dumps(manifest).encode()),
    ]
    blobs = [
        entry("one/layer.tar", lower),
        entry("three/layer.tar", kind=tarfile.SYMTYPE, to="../one/layer.tar"),
        entry("two/layer.tar", upper),
    ]
    return tar_of([*blobs, *documents] if documents_last else [*documents, *blobs])


ORDER = ("one/layer.tar", "two/layer.tar", "three/layer.tar")


@pytest.mark.parametrize("documents_last", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, program], ids=["tar", "gzip", "zstd"])
@pytest.mark.parametrize("piece", [1, 700, 1 << 20])
def test_layers_in_the_manifests_order(
    documents_last: bool, pack: Callable[[bytes], bytes], piece: int
) -> None:
    """The order of the archive's entries and the sizes of its chunks make no difference."""
    blobs = [pack(layer) for layer in (LOWER, UPPER)]
    data = saved(*blobs, documents_last=documents_last, layers=ORDER)

    pieces = (part for at in range(0, len(data), piece) for part in (b"", data[at : at + piece]))
    layers = read_saved(IteratorFile(pieces), lambda path: path == "c")

    assert [layer.diff_id for layer in layers] == ["sha256:1", "sha256:2", "sha256:1"]
    assert [layer.title for layer in layers] == ["COPY a b", "RUN rm a", ""]
    assert [(layer.contents.files, layer.contents.bytes) for layer in layers] == [(2, 3), (1, 3), (2, 3)]
    assert layers[1].contents.deleted == ("a",)
    assert layers[1].contents.texts == {"c": "333"}
    assert [layer.size for layer in layers[:2]] == (
        [None, None] if pack is bytes else [len(blob) for blob in blobs]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar_of([entry("manifest.json", b"[]")]), "unpack"),
        (tar_of([entry("a", b"{}")]), "has no 'manifest.json'"),
        (saved(LOWER, UPPER, documents_last=True, layers=("one/layer.tar",)), "longer"),
        (saved(LOWER, UPPER, documents_last=True, layers=("x", "y", "z")), "has no 'x'"),
        (saved(raw_frame(LOWER)[:-9], UPPER, documents_last=True, layers=ORDER), "before the end"),
        (saved(gzip.compress(LOWER)[:-9], UPPER, documents_last=True, layers=ORDER), None),
        (b"", None),
    ],
    ids=["no image", "no manifest", "too few", "other names", "zstd", "cut", "nothing"],
)
def test_unreadable_archives_are_refused(data: bytes, message: str | None) -> None:
    with pytest.raises(DAMAGED, match=message):
        read_saved(io.BytesIO(data), lambda _: False)
