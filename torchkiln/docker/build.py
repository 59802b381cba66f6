"""Builds an image in a Docker engine from the rendered Dockerfile.

The build itself downloads no wheel: the locked wheels are downloaded and verified before it, and passed as a
build context. The base is passed as an OCI layout, by digest.

The Docker SDK for Python does not support BuildKit, so Docker's client runs as a process. Its plain progress
has a line for each step and its end; after a failure it repeats the step's last lines and shows its place
in the Dockerfile.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchkiln.engine.cuda_layers import lay_out
from torchkiln.engine.dependencies import check_metadata
from torchkiln.engine.environment import Environment
from torchkiln.engine.prefetch import fetched
from torchkiln.errors import BuildFailed
from torchkiln.locks.file import requirements_txt
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.layer import ImageLayer
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import ArtefactLayer, ImageConfig, ImagePlan
from torchkiln.model.progress import Observer
from torchkiln.oci.layout import write_image
from torchkiln.plan.plan import GENERATED
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

_BASE = "torchkiln-base"
_CONTEXTS = {"base": _BASE, "tools": "tools"}  # kind of layer: name of its context in the Dockerfile
_STREAMS = 6
_NO_CONFIG = ImageConfig(
    env=(),
    entrypoint=(),
    cmd=(),
    workdir="/",
    ports=(),
    volumes=(),
    labels=(),
    stop_signal="",
    healthcheck=None,
)
_LAST = 40  # lines that are kept for an error
_STEP = re.compile(r"#(\d+) (\[[^\]]*\d+/\d+\] .*)")  # "#9 [stage-2  5/18] RUN ...": a step of the Dockerfile
_END = re.compile(r"#(\d+) (?:DONE.*|CACHED|ERROR: (.*))")
_WIDTH = 110  # characters of a step's name
_NO_SPACE = "no space left on device"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineImage:
    """An image in an engine. `digest` is its ID there; `base` is a digest, or a reference from the user."""

    tag: str
    names: tuple[str, ...]
    digest: Digest
    base: str
    seconds: tuple[tuple[str, float], ...]  # by stage
    base_moved: tuple[str, ...] = ()  # packages in which a rebuilt base differs from the lock


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildxOptions:
    """Options that are passed to BuildKit. `base`: a user's base image, on which the build runs apt."""

    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    base: str | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def build(
    plan: ImagePlan,
    files: Mapping[str, bytes],
    environment: Environment,
    *,
    repository: str,
    options: BuildxOptions,
) -> EngineImage:
    """Build *plan* on the engine of the environment, under its tag and aliases in *repository*.

    :param files: the Dockerfile and the files beside it, as `render_folder` returns them.
    :raises BuildFailed: a wheel is invalid or cannot be downloaded, or a step failed.
    """
    started, store = time.monotonic(), environment.store
    names = tuple(f"{repository}:{tag}" for tag in (plan.tag, *plan.aliases))
    with ExitStack() as stack:
        work = store.temporary("docker")
        work.mkdir(parents=True)
        stack.callback(remove_tree, work)
        tree = lay_out(
            plan, store, work / "toolkit", archives=environment.archives, observer=environment.observer
        )
        paths = _fetched(plan.locked.wheels, environment)
        check_metadata(plan.locked, store)
        fetched_at = time.monotonic()
        base = options.base or _BASE
        contexts = {"wheels": _linked(work / "wheels", paths), "rootfs": _rootfs(work / "rootfs", plan)}
        if tree:
            contexts["toolkit"] = str(tree)
        if options.base is None:
            contexts |= {
                _CONTEXTS[layer.kind]: _as_image(work / layer.kind, layer, plan, store)
                for layer in plan.of(ArtefactLayer)
            }
        request = BuildxRequest(
            folder=_written(work / "context", {**files, "requirements.txt": requirements_txt(plan.locked)}),
            contexts=tuple(contexts.items()),
            arguments=(("BASE", base),),
            names=names,
            epoch=plan.epoch,
            secrets=_secrets(work / "secrets", options.secrets),
            options=options,
        )
        digest = build_with_buildx(
            request, work / "metadata.json", environ=environment.environ, observer=environment.observer
        )
    now = time.monotonic()
    return EngineImage(
        tag=plan.tag,
        names=names,
        digest=digest,
        base=options.base or plan.locked.base.digest,
        seconds=(("download", fetched_at - started), ("build", now - fetched_at), ("total", now - started)),
    )


def _fetched(wheels: Sequence[LockedWheel], environment: Environment) -> list[Path]:
    """The path of each wheel in the store; the largest is fetched first."""
    ordered = sorted(wheels, key=lambda wheel: -wheel.size)
    with ThreadPoolExecutor(_STREAMS, "fetch") as pool:
        futures = [pool.submit(fetched, wheel, environment) for wheel in ordered]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure, start no other download


def _written(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _secrets(folder: Path, secrets: Mapping[str, bytes]) -> tuple[tuple[str, Path], ...]:
    """Write the secrets where other users cannot read them; they are removed after the build."""
    folder.mkdir(mode=0o700)
    for id, data in secrets.items():
        (folder / id).write_bytes(data)
    return tuple((id, folder / id) for id in secrets)


def _linked(folder: Path, paths: Sequence[Path]) -> str:
    """Create *folder* with hard links to *paths*; safe: the store never writes into an existing file."""
    folder.mkdir()
    for path in paths:
        os.link(path, folder / path.name)
    return str(folder)


def _rootfs(folder: Path, plan: ImagePlan) -> str:
    files = {file.path: file.data for file in plan.overlay.files if file.path not in GENERATED}
    folder.mkdir()
    return str(_written(folder, files))


def _as_image(layout: Path, layer: ArtefactLayer, plan: ImagePlan, store: Store) -> str:
    """The base or the tools as an image of one layer, with the locked digest."""
    bare = replace(plan, layers=(layer,), config=_NO_CONFIG)
    built = ImageLayer(title=layer.title, blob=layer.blob)
    image = write_image(layout, bare, [built], store.blob, refs=(layer.kind,))
    return f"oci-layout://{layout}@{image.manifest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildxRequest:
    """One build. `contexts` are (name, folder or oci-layout), `arguments` (name, value)."""

    folder: Path  # has the Dockerfile
    contexts: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str], ...]
    names: tuple[str, ...]  # "pytorch-cuda:v2.7"
    epoch: int
    secrets: tuple[tuple[str, Path], ...]  # (id, file), mounted for steps that request it
    options: BuildxOptions


def command(request: BuildxRequest, metadata: Path) -> list[str]:
    """The command line; buildx writes the image's digest to *metadata*.

    Provenance is off, so that the result is an image and not an index. The epoch sets the times in config and
    history, but not in layers: if the engine unpacks the image, BuildKit rewrites no timestamps of files.
    """
    argv = ["docker", "buildx", "build", "--progress=plain", "--provenance=false"]
    argv += ["--metadata-file", str(metadata), "--load"]
    options = request.options
    argv += ["--builder", options.builder] if options.builder else []
    for flag, pairs in (("--build-context", request.contexts), ("--build-arg", request.arguments)):
        argv += [word for name, value in pairs for word in (flag, f"{name}={value}")]
    argv += ["--build-arg", f"SOURCE_DATE_EPOCH={request.epoch}"]
    argv += [word for id, file in request.secrets for word in ("--secret", f"id={id},src={file}")]
    many = {"--tag": request.names, "--cache-from": options.cache_from, "--cache-to": options.cache_to}
    for flag, values in many.items():
        argv += [word for value in values for word in (flag, value)]
    return [*argv, str(request.folder)]


def build_with_buildx(
    request: BuildxRequest, metadata: Path, *, environ: Mapping[str, str], observer: Observer
) -> Digest:
    """Run the build and return the engine's ID of the image.

    :raises BuildFailed: a step failed; the message has its last lines and its place in the Dockerfile.
    """
    log = _BuildLog(observer)
    with subprocess.Popen(
        command(request, metadata),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                log.add(line.rstrip())
        except BaseException:  # Ctrl-C, too; not `finally`: a client that has ended sets its exit code
            process.terminate()  # the engine then ends the step
            raise
    if process.returncode:
        raise log.failure()
    return parse_digest(json.loads(metadata.read_bytes())["containerimage.digest"])


class _BuildLog:
    """Reads the output of buildx: reports the steps of the Dockerfile, and keeps the last lines."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._names: dict[str, str] = {}  # of the steps, by their number
        self._running: set[str] = set()
        self._failed = ""  # the failed step and its error
        self._last: deque[str] = deque(maxlen=_LAST)

    def add(self, line: str) -> None:
        if line:
            self._last.append(line)
        if (found := _STEP.fullmatch(line)) and found[1] not in self._names:
            self._names[found[1]] = name = _short(found[2])
            self._running.add(found[1])
            self._observer.begin("step", name, 0)
        elif (found := _END.fullmatch(line)) and found[1] in self._running:
            self._running.remove(found[1])
            if found[2]:
                self._failed = self._failed or f"step {self._names[found[1]]!r} failed: {found[2]}"
            else:
                self._observer.end("step", self._names[found[1]])

    def failure(self) -> BuildFailed:
        """The error of a build that failed, with the end of the step's output and of the Dockerfile."""
        lines = [line for line in self._last if self._failed == "" or not line.startswith(("ERROR", "---"))]
        starts = [number for number, line in enumerate(lines) if line.startswith(" > ")]
        if self._failed and starts:  # buildx repeats the output of the failed step below its name
            lines = lines[starts[-1] + 1 :]
        return BuildFailed(
            "\n".join([self._failed or "docker buildx build failed", *lines]),
            hint=_hint("\n".join([self._failed, *lines])),
        )


def _short(name: str) -> str:
    one_line = " ".join(name.split())
    return one_line if len(one_line) <= _WIDTH else one_line[: _WIDTH - 1] + "…"


def _hint(output: str) -> str:
    if _NO_SPACE in output:
        return "free space where the engine keeps its data: docker system df; docker builder prune"
    return "see the output of the step above"
