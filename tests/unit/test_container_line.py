"""A container as the line for Docker's client; what the engine's refusals mean."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import ConfigError
from torchkiln.runtimes.command import Bind
from torchkiln.runtimes.docker_args import Container, client_command, parse_port


def test_the_shortest_line() -> None:
    container = Container(image="i:1", command=(), shm_size=1 << 20)

    assert client_command(container, terminal=False) == [
        *("docker", "run", "--rm", "--interactive", "--shm-size", "1048576", "i:1")
    ]


def test_the_longest_line() -> None:
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
    ("gpus", "option"),
    [("all", "all"), ("device=1", "device=1"), ("device=0,GPU-1f", '"device=0,GPU-1f"')],
)
def test_gpus_as_the_client_reads_them(gpus: str, option: str) -> None:
    line = client_command(Container(image="i", command=(), gpus=gpus), terminal=False)

    assert line[line.index("--gpus") + 1] == option
    assert next(csv.reader([option])) == [gpus]


@pytest.mark.parametrize("podman_at", ["", "unix:///p.sock"])
def test_gpus_by_their_cdi_names(podman_at: str) -> None:
    """The same option for either client."""
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
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ConfigError, match="--publish"):
        parse_port(text)
