"""Runs `docker buildx build` and reports its progress.

The Docker SDK for Python does not support BuildKit, so Docker's client runs as a process. It prints progress
as JSON (`--progress=rawjson`, buildx 0.13 and newer) between plain lines, which show the place of a failure
in the Dockerfile; older clients print plain lines only.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.progress import Observer

_LAST = 20  # lines of a failed step that are shown
_STEP = re.compile(r"^\[[^\]]*\d+/\d+\] ")  # "[stage-2  5/18] RUN ...": a step of the Dockerfile
_WIDTH = 110  # characters of a step's name
_NO_SPACE = "no space left on device"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildxRequest:
    """One build. `contexts` are (name, folder or oci-layout), `arguments` (name, value)."""

    folder: Path  # has the Dockerfile
    contexts: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str], ...]
    names: tuple[str, ...]  # "pytorch-cuda:v2.7"
    epoch: int
    secrets: tuple[tuple[str, Path], ...] = ()  # (id, file), mounted for steps that request it
    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()


def command(request: BuildxRequest, metadata: Path, progress: str) -> list[str]:
    """The command line; buildx writes the image's digest to *metadata*.

    Provenance is off, so that the result is an image and not an index. The epoch sets the times in config and
    history, but not in layers: if the engine unpacks the image, BuildKit rewrites no timestamps of files.
    """
    argv = ["docker", "buildx", "build", f"--progress={progress}", "--provenance=false"]
    argv += ["--metadata-file", str(metadata), "--load"]
    if request.builder:
        argv += ["--builder", request.builder]
    for flag, pairs in (("--build-context", request.contexts), ("--build-arg", request.arguments)):
        argv += [word for name, value in pairs for word in (flag, f"{name}={value}")]
    argv += ["--build-arg", f"SOURCE_DATE_EPOCH={request.epoch}"]
    argv += [word for id, file in request.secrets for word in ("--secret", f"id={id},src={file}")]
    for flag, values in (
        ("--tag", request.names),
        ("--cache-from", request.cache_from),
        ("--cache-to", request.cache_to),
    ):
        argv += [word for value in values for word in (flag, value)]
    return [*argv, str(request.folder)]


def build(
    request: BuildxRequest, metadata: Path, *, environ: Mapping[str, str], progress: str, observer: Observer
) -> Digest:
    """Run the build and return the engine's ID of the image.

    :param progress: "rawjson" or "plain".
    :raises BuildFailed: a step failed; the message has its last lines and its place in the Dockerfile.
    """
    log = _BuildLog(observer)
    with subprocess.Popen(
        command(request, metadata, progress),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout
        try:
            for message in _messages(process.stdout):
                log.add(message)
        except BaseException:  # Ctrl-C, too; not `finally`: a client that has ended sets its exit code
            process.terminate()  # the engine then ends the step
            raise
    if process.returncode:
        raise log.failure()
    return parse_digest(json.loads(metadata.read_bytes())["containerimage.digest"])


def _messages(stream: IO[str]) -> Iterator[dict[str, Any] | str]:
    """JSON objects, each of one or more lines, and the plain lines between them."""
    decoder, pending = json.JSONDecoder(), ""
    for line in stream:
        if not pending and not line.startswith("{"):
            yield line.rstrip("\n")
            continue
        pending += line
        if line.startswith("}") or line.rstrip().endswith("}"):
            try:
                found, _ = decoder.raw_decode(pending)
            except json.JSONDecodeError:
                continue
            pending = ""
            yield found
    yield from pending.splitlines()


class _BuildLog:
    """Collects the messages of BuildKit: the steps, their output and the failed step."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._names: dict[str, str] = {}
        self._started: set[str] = set()
        self._completed: set[str] = set()
        self._output: dict[str, deque[str]] = {}  # the last lines of each step, by its digest
        self._partial: dict[tuple[str, int], bytes] = {}  # the last, incomplete line of a step's stream
        self._failed: tuple[str, str] | None = None  # the digest of the failed step, and its error
        self._plain: deque[str] = deque(maxlen=60)

    def add(self, message: dict[str, Any] | str) -> None:
        """Record one object or plain line."""
        if isinstance(message, str):
            self._plain.append(message)
            return
        for vertex in message.get("vertexes") or ():
            self._add_vertex(vertex)
        for log in message.get("logs") or ():
            self._add_output(log["vertex"], log.get("stream", 0), base64.b64decode(log["data"]))

    def _add_output(self, vertex: str, stream: int, data: bytes) -> None:
        complete, _, partial = (self._partial.pop((vertex, stream), b"") + data).rpartition(b"\n")
        self._partial[vertex, stream] = partial
        lines = self._output.setdefault(vertex, deque(maxlen=_LAST))
        lines.extend(line for line in complete.decode(errors="replace").splitlines() if line.strip())

    def _add_vertex(self, vertex: dict[str, Any]) -> None:
        digest, name = vertex["digest"], _short(vertex["name"])
        self._names[digest] = name
        step = _STEP.match(name)
        if step and vertex.get("started") and digest not in self._started:
            self._started.add(digest)
            self._observer.begin("step", name, 0)
        if vertex.get("error") and self._failed is None:
            self._failed = (digest, vertex["error"])
        elif step and vertex.get("completed") and digest not in self._completed:
            self._completed.add(digest)
            self._observer.end("step", name)

    def failure(self) -> BuildFailed:
        """The error of a build that failed."""
        plain = [line for line in self._plain if line.strip()]
        if self._failed is None:  # it failed before any step, or progress is plain
            last = plain[-_LAST:]
            return BuildFailed("\n".join(["docker buildx build failed", *last]), hint=_hint("\n".join(last)))
        digest, error = self._failed
        for vertex, stream in [*self._partial]:
            self._add_output(vertex, stream, b"\n")
        output = self._output.get(digest, ())
        lines = [f"step {self._names[digest]!r} failed: {error}", *(f"  {line}" for line in output)]
        return BuildFailed(
            "\n".join([*lines, *_dockerfile_excerpt(plain)]), hint=_hint("\n".join([error, *output]))
        )


def _short(name: str) -> str:
    one_line = " ".join(name.split())
    return one_line if len(one_line) <= _WIDTH else one_line[: _WIDTH - 1] + "…"


def _dockerfile_excerpt(plain: list[str]) -> list[str]:
    """`Dockerfile:17` and the lines around it, as buildx prints them."""
    starts = [number for number, line in enumerate(plain) if re.fullmatch(r"\S*Dockerfile:\d+", line)]
    return [line for line in plain[starts[-1] :] if not line.startswith("ERROR")] if starts else []


def _hint(output: str) -> str:
    if _NO_SPACE in output:
        return "free space where the engine keeps its data: docker system df; docker builder prune"
    return "see the output of the step above"
