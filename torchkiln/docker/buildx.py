"""A Dockerfile and its contexts → an image, by BuildKit through `docker buildx build`.

The docker SDK has no BuildKit, so this is Docker's own client as a process. It tells its progress as JSON
(`--progress=rawjson`, buildx 0.13 and newer) between lines of plain talk, in which a failure shows the place
in the Dockerfile; an older one tells plain lines only.
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
_STEP = re.compile(r"^\[[^\]]*\d+/\d+\] ")  # "[stage-2  5/18] RUN ...": what comes from the Dockerfile
_WIDTH = 110  # of a step's name; whole commands are longer than a screen
_SPACE = "no space left on device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One build. `contexts` are (name, folder or oci-layout), `arguments` (name, value)."""

    folder: Path  # with the Dockerfile
    contexts: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str], ...]
    names: tuple[str, ...]  # "pytorch-cuda:v2.7"
    epoch: int
    secrets: tuple[tuple[str, Path], ...] = ()  # (id, file), mounted for steps that ask for it
    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()


def command(request: Request, metadata: Path, progress: str) -> list[str]:
    """The command line; the answer's digests go to *metadata*.

    Without provenance, so that the engine's answer is the image and no index. Config and history tell the
    epoch; files in layers do not: BuildKit rewrites no times for an engine that unpacks what it built.
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
    request: Request, metadata: Path, *, environ: Mapping[str, str], progress: str, observer: Observer
) -> Digest:
    """Run the build and give the image's digest, as the engine names it.

    :param progress: "rawjson" or "plain".
    :raises BuildFailed: a step failed: which, its last lines, its place in the Dockerfile.
    """
    story = _Story(observer)
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
            for found in _told(process.stdout):
                story.hear(found)
        except BaseException:  # Ctrl-C too; not `finally`, for a client at its end must come to its exit code
            process.terminate()  # and the engine ends the step
            raise
    if process.returncode:
        raise story.failure()
    told = json.loads(metadata.read_bytes())
    return parse_digest(told["containerimage.digest"])


def _told(stream: IO[str]) -> Iterator[dict[str, Any] | str]:
    """JSON objects, over however many lines, and the plain lines between them."""
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


class _Story:
    """What BuildKit told so far."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._names: dict[str, str] = {}
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._lines: dict[str, deque[str]] = {}
        self._rest: dict[tuple[str, int], bytes] = {}  # of a step's stream, which is cut anywhere
        self._failed: tuple[str, str] | None = None  # vertex, error
        self._talk: deque[str] = deque(maxlen=60)

    def hear(self, found: dict[str, Any] | str) -> None:
        """One object or line."""
        if isinstance(found, str):
            self._talk.append(found)
            return
        for vertex in found.get("vertexes") or ():
            self._vertex(vertex)
        for log in found.get("logs") or ():
            self._log(log["vertex"], log.get("stream", 0), base64.b64decode(log["data"]))

    def _log(self, vertex: str, stream: int, data: bytes) -> None:
        whole, _, rest = (self._rest.pop((vertex, stream), b"") + data).rpartition(b"\n")
        self._rest[vertex, stream] = rest
        lines = self._lines.setdefault(vertex, deque(maxlen=_LAST))
        lines.extend(line for line in whole.decode(errors="replace").splitlines() if line.strip())

    def _vertex(self, vertex: dict[str, Any]) -> None:
        digest, name = vertex["digest"], _short(vertex["name"])
        self._names[digest] = name
        step = _STEP.match(name)
        if step and vertex.get("started") and digest not in self._begun:
            self._begun.add(digest)
            self._observer.begin("step", name, 0)
        if vertex.get("error") and self._failed is None:
            self._failed = (digest, vertex["error"])
        elif step and vertex.get("completed") and digest not in self._ended:
            self._ended.add(digest)
            self._observer.end("step", name)

    def failure(self) -> BuildFailed:
        """Why the build ended."""
        talk = [line for line in self._talk if line.strip()]
        place = _dockerfile_part(talk)
        if self._failed is None:  # before any step, or told in plain lines
            last = talk[-_LAST:]
            return BuildFailed("\n".join(["docker buildx build failed", *last]), hint=_hint("\n".join(last)))
        digest, error = self._failed
        for vertex, stream in [*self._rest]:
            self._log(vertex, stream, b"\n")
        lines = self._lines.get(digest, ())
        told = [f"step {self._names[digest]!r} failed: {error}", *(f"  {line}" for line in lines), *place]
        return BuildFailed("\n".join(told), hint=_hint(f"{error}\n" + "\n".join(lines)))


def _short(name: str) -> str:
    one_line = " ".join(name.split())
    return one_line if len(one_line) <= _WIDTH else one_line[: _WIDTH - 1] + "…"


def _dockerfile_part(talk: list[str]) -> list[str]:
    """`Dockerfile:17` and the lines around it, as buildx shows them."""
    starts = [number for number, line in enumerate(talk) if re.fullmatch(r"\S*Dockerfile:\d+", line)]
    return [line for line in talk[starts[-1] :] if not line.startswith("ERROR")] if starts else []


def _hint(text: str) -> str:
    if _SPACE in text:
        return "make room where the engine keeps its data: docker system df; docker builder prune"
    return "the step's own words stand above"
