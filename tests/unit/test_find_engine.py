"""Engines that will not do, each with what to do about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from torchkiln.docker.daemon import find_engine
from torchkiln.errors import ToolMissing


@contextmanager
def engine_of(version: str, *parts: str) -> Iterator[str]:
    """Something that answers as an engine of that version does, made of *parts*."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            made_of = [{"Name": part} for part in parts]
            answer = {"Version": version, "ApiVersion": "1.44", "Components": made_of}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: tests are quiet."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def client(folder: Path, script: str) -> str:
    """A PATH with a `docker` of that shell script."""
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    return str(folder)


def test_an_engine_that_will_do(tmp_path: Path) -> None:
    path = client(tmp_path, "echo github.com/docker/buildx v0.17.1 257815a")
    with engine_of("27.3.1") as host:
        found = find_engine({"DOCKER_HOST": host, "PATH": path})

    assert (found.host, found.version, found.buildx) == (host, "27.3.1", (0, 17))


@pytest.mark.parametrize("version", ["20.10.24", "dev"])
def test_one_that_is_too_old(version: str) -> None:
    with (
        engine_of(version) as host,
        pytest.raises(ToolMissing, match=f"too old: version {version}") as caught,
    ):
        find_engine({"DOCKER_HOST": host})

    assert "--engine embedded" in caught.value.hint


def test_podman_takes_images_and_builds_none() -> None:
    """Whatever its version, which counts otherwise than Docker's."""
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
    with engine_of("27.3.1") as host, pytest.raises(ToolMissing, match="`docker`, is not installed"):
        find_engine({"DOCKER_HOST": host, "PATH": str(tmp_path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody without rights")
def test_a_socket_that_one_may_not_use(tmp_path: Path) -> None:
    """In a process of its own: who became nobody stays it, and the SDK leaves a socket open."""
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
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.stdout.startswith(
        f"ToolMissing cannot connect to the Docker engine at unix://{path}: Permission"
    )
    assert "group `docker`" in ran.stdout
