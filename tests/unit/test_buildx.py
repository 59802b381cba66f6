"""The command line of BuildKit's client, and the parser of its output."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchkiln.docker import build
from torchkiln.errors import BuildFailed
from torchkiln.model.progress import Silent

REQUEST = build.BuildxRequest(
    folder=Path("/context"),
    contexts=(("wheels", "/wheels"), ("base", "oci-layout:///base@sha256:1")),
    arguments=(("BASE", "base"),),
    names=("a:1", "a:2"),
    epoch=7,
    builder="far",
    cache_from=("type=registry,ref=x",),
    cache_to=("type=inline",),
    secrets=(("apt-ca", Path("/secrets/apt-ca")),),
)
STEP = "[stage-2  5/18] RUN pip install torch"


def log(data: bytes, stream: int = 2) -> dict[str, object]:
    """A piece of a build step's output, as an event of BuildKit's JSON output."""
    return {"vertex": f"sha256:{STEP}", "stream": stream, "data": base64.b64encode(data).decode()}


class RecordingObserver(Silent):
    """Records the events of an observer."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, work: str, name: str, total: int) -> None:
        self.lines.append(f"begin {work} {name}")

    def end(self, work: str, name: str) -> None:
        self.lines.append(f"end {work} {name}")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake `docker` that prints the output that a test chooses."""

    def docker_prints(output: str, code: int, digest: str = "") -> dict[str, str]:
        (tmp_path / "output").write_text(output)
        metadata = tmp_path / "metadata.json"
        metadata.write_text(json.dumps({"containerimage.digest": digest}))
        program = tmp_path / "docker"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nprint(open({str(tmp_path / 'output')!r}).read())\n"
            f"sys.exit({code})\n"
        )
        program.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return docker_prints


def printed(pretty: bool, **status: Any) -> str:
    """A JSON object in the format of buildx: on several lines until version 0.13, later on one line."""
    return json.dumps(status, indent=2 if pretty else None)


def vertex(name: str = STEP, **more: Any) -> dict[str, Any]:
    return {"digest": f"sha256:{name}", "name": name, **more}


def test_the_command_line() -> None:
    assert build.command(REQUEST, Path("/m.json"), "rawjson") == [
        *("docker", "buildx", "build", "--progress=rawjson", "--provenance=false"),
        *("--metadata-file", "/m.json", "--load", "--builder", "far"),
        *("--build-context", "wheels=/wheels", "--build-context", "base=oci-layout:///base@sha256:1"),
        *("--build-arg", "BASE=base", "--build-arg", "SOURCE_DATE_EPOCH=7"),
        *("--secret", "id=apt-ca,src=/secrets/apt-ca"),
        *("--tag", "a:1", "--tag", "a:2", "--cache-from", "type=registry,ref=x", "--cache-to", "type=inline"),
        "/context",
    ]


@pytest.mark.parametrize("pretty", [True, False])
def test_steps_are_reported_when_they_begin_and_end(client: Any, tmp_path: Path, pretty: bool) -> None:
    digest = "sha256:" + "a" * 64
    lines = [
        "#0 building with default",
        printed(pretty, vertexes=[vertex("[internal] load build definition", started="1", completed="2")]),
        printed(pretty, vertexes=[vertex(started="1")]),
        printed(pretty, vertexes=[vertex(started="1")], statuses=[{"id": "x", "current": 1}]),
        printed(pretty, vertexes=[vertex(started="1", completed="2")]),
    ]
    observer = RecordingObserver()
    environ = client("\n".join(lines), 0, digest)

    found = build.build_with_buildx(
        REQUEST, tmp_path / "metadata.json", environ=environ, progress="rawjson", observer=observer
    )

    assert found == digest
    assert observer.lines == [
        "begin step [stage-2 5/18] RUN pip install torch",
        "end step [stage-2 5/18] RUN pip install torch",
    ]


@pytest.mark.parametrize("pretty", [True, False])
def test_a_failed_step_shows_its_last_lines_and_its_position(
    client: Any, tmp_path: Path, pretty: bool
) -> None:
    """BuildKit sends partial lines and partial characters, so every position of a split is tested."""
    logs = [
        piece
        for number in range(50)
        for piece in (
            log(f"li{'ñ' * 9}".encode()[:-1]),
            log(b"a warn", 1),
            log(f"ñ {number}\n\n".encode()[1:]),
        )
    ]
    lines = [
        printed(pretty, vertexes=[vertex(started="1")]),
        *(printed(pretty, logs=[piece]) for piece in logs),
        printed(
            pretty,
            vertexes=[vertex(started="1", completed="2", error="process did not end well: exit code: 1")],
        ),
        "Dockerfile:17",
        "--------------------",
        "  17 | >>> RUN pip install torch",
        "--------------------",
        "ERROR: failed to solve: process did not end well",
    ]
    with pytest.raises(BuildFailed) as caught:
        build.build_with_buildx(
            REQUEST,
            tmp_path / "metadata.json",
            environ=client("\n".join(lines), 1),
            progress="rawjson",
            observer=Silent(),
        )

    message = caught.value.message
    assert message.startswith(
        "step '[stage-2 5/18] RUN pip install torch' failed: process did not end well: exit code: 1\n"
        f"  li{'ñ' * 9} 31\n"
    )
    assert f"  li{'ñ' * 9} 49\n  {'a warn' * 50}\nDockerfile:17\n" in message
    assert message.endswith("  17 | >>> RUN pip install torch\n--------------------")


def test_a_failure_in_plain_lines_shows_the_last_of_them(client: Any, tmp_path: Path) -> None:
    """An old buildx prints plain lines, and so does an engine that stops before the first step."""
    lines = [f"#{number} something" for number in range(50)]
    with pytest.raises(BuildFailed) as caught:
        build.build_with_buildx(
            REQUEST,
            tmp_path / "metadata.json",
            environ=client("\n".join([*lines, "ERROR: write x: no space left on device"]), 1),
            progress="plain",
            observer=Silent(),
        )

    assert caught.value.message.splitlines()[0] == "docker buildx build failed"
    assert caught.value.message.splitlines()[-1] == "ERROR: write x: no space left on device"
    assert "docker system df" in caught.value.hint
