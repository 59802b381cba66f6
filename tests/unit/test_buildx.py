"""The command line of BuildKit's client, and what is read from its plain progress."""

from __future__ import annotations

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
    secrets=(("apt-ca", Path("/secrets/apt-ca")),),
    options=build.BuildxOptions(
        builder="far", cache_from=("type=registry,ref=x",), cache_to=("type=inline",)
    ),
)
STEP = "[stage-2  5/18] RUN pip install torch"


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


def test_the_command_line() -> None:
    assert build.command(REQUEST, Path("/m.json")) == [
        *("docker", "buildx", "build", "--progress=plain", "--provenance=false"),
        *("--metadata-file", "/m.json", "--load", "--builder", "far"),
        *("--build-context", "wheels=/wheels", "--build-context", "base=oci-layout:///base@sha256:1"),
        *("--build-arg", "BASE=base", "--build-arg", "SOURCE_DATE_EPOCH=7"),
        *("--secret", "id=apt-ca,src=/secrets/apt-ca"),
        *("--tag", "a:1", "--tag", "a:2", "--cache-from", "type=registry,ref=x", "--cache-to", "type=inline"),
        "/context",
    ]


def test_steps_are_reported_when_they_begin_and_end(client: Any, tmp_path: Path) -> None:
    """buildx names a step again when its output continues; a program's output has the time before it."""
    digest = "sha256:" + "a" * 64
    lines = [
        "#0 building with default",
        "#1 [internal] load build definition from Dockerfile",
        "#1 DONE 0.0s",
        "",
        f"#9 {STEP}",
        "#9 0.412 #9 DONE 1.0s",
        "#9 ...",
        "#10 [stage-2  6/18] COPY a /b",
        "#10 CACHED",
        f"#9 {STEP}",
        "#9 DONE 2.5s",
    ]
    observer = RecordingObserver()
    environ = client("\n".join(lines), 0, digest)

    found = build.build_with_buildx(REQUEST, tmp_path / "metadata.json", environ=environ, observer=observer)

    assert found == digest
    assert observer.lines == [
        "begin step [stage-2 5/18] RUN pip install torch",
        "begin step [stage-2 6/18] COPY a /b",
        "end step [stage-2 6/18] COPY a /b",
        "end step [stage-2 5/18] RUN pip install torch",
    ]


def failure(client: Any, tmp_path: Path, lines: list[str]) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        build.build_with_buildx(
            REQUEST, tmp_path / "metadata.json", environ=client("\n".join(lines), 1), observer=Silent()
        )
    return caught.value


def test_a_failed_step_shows_its_last_lines_and_its_position(client: Any, tmp_path: Path) -> None:
    found = failure(
        client,
        tmp_path,
        [
            f"#9 {STEP}",
            *(f"#9 0.{number} line {number}" for number in range(50)),
            "#9 ERROR: process did not end well: exit code: 1",
            "------",
            f" > {STEP}:",
            *(f"0.{number} line {number} ñ" for number in range(40, 50)),
            "------",
            "Dockerfile:17",
            "--------------------",
            "  17 | >>> RUN pip install torch",
            "--------------------",
            "ERROR: failed to solve: process did not end well",
        ],
    )

    head = "step '[stage-2 5/18] RUN pip install torch' failed: process did not end well: exit code: 1\n"
    assert found.message.startswith(f"{head}0.40 line 40 ñ\n")
    assert found.message.endswith("\n0.49 line 49 ñ\nDockerfile:17\n  17 | >>> RUN pip install torch")
    assert found.hint == "see the output of the step above"


def test_a_failure_before_the_first_step_shows_the_last_lines(client: Any, tmp_path: Path) -> None:
    lines = [f"#{number} something" for number in range(50)]
    found = failure(client, tmp_path, [*lines, "ERROR: write x: no space left on device"])

    assert found.message.splitlines()[0] == "docker buildx build failed"
    assert found.message.splitlines()[-1] == "ERROR: write x: no space left on device"
    assert "docker system df" in found.hint
