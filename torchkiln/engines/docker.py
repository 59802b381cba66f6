"""ImagePlan → an image in a Docker engine, by the rendered Dockerfile and BuildKit.

Nothing of the wheels comes over the network while it builds: the locked ones are fetched and verified by us,
and handed over as a build context, as the base is by its digest, in a layout of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torchkiln.engines import buildx
from torchkiln.engines.observer import Observer
from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.files import remove_tree
from torchkiln.nouns import BuiltLayer, Digest, ImageConfig, ImagePlan, LockedWheel
from torchkiln.oci.archive import stream_archive
from torchkiln.oci.layout import ImageOnDisk, write_image
from torchkiln.plan import IMAGE_JSON
from torchkiln.store import Store

OLDEST = 23  # of engines: BuildKit is the default builder from here on
_BASE = "torchkiln-base"
_STREAMS = 6
_RAWJSON = (0, 13)
_PIECE = 1 << 20
_LOADING = 1800  # seconds without a word from an engine that unpacks
_ROOM = "is there room where the engine keeps its data? docker system df"
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


class WheelSource(Protocol):
    """Where wheels come from, whole and verified."""

    def fetch_wheel(self, wheel: LockedWheel, store: Store, observer: Observer) -> Path: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A Docker engine that answers, and its client's BuildKit."""

    host: str  # "unix:///var/run/docker.sock"
    version: str
    buildx: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineImage:
    """An image in an engine. `digest` is what the engine calls it; seconds by stage."""

    tag: str
    names: tuple[str, ...]
    digest: Digest
    engine: Engine
    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is handed on to BuildKit. `base`: a reference instead of our own base."""

    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    base: str | None = None


def find_engine(environ: Mapping[str, str] = os.environ, *, builds: bool = True) -> Engine:
    """The engine that the user's DOCKER_HOST or context names.

    :param builds: whether it is to build, which takes Docker's client with buildx.
    :raises ToolMissing: none answers, it is too old, or has no buildx; each with what to do.
    """
    import docker
    from docker.context import ContextAPI
    from docker.errors import DockerException

    context = None if "DOCKER_HOST" in environ else ContextAPI.get_current_context()
    host = environ.get("DOCKER_HOST") or (context.Host if context else "") or "unix:///var/run/docker.sock"
    try:
        # With a version of the API it asks nothing before it can be closed.
        with contextlib.closing(docker.DockerClient(base_url=host, version="1.41", timeout=30)) as client:
            version = str(client.version(api_version=False)["Version"])
    except (DockerException, OSError, ValueError) as error:
        raise _unreachable(host, error) from error
    major = re.match(r"\d+", version)
    if not major or int(major[0]) < OLDEST:
        raise ToolMissing(
            f"the Docker engine at {host} is {version}, too old: {OLDEST}.0 is the first that will do",
            hint="upgrade Docker, or build without it: --engine embedded",
        )
    return Engine(host=host, version=version, buildx=_buildx_version(environ) if builds else ())


def _unreachable(host: str, error: Exception) -> ToolMissing:
    told = str(error)
    if "Permission denied" in told:
        hint = "join the group `docker` (and log in again), or run as root"
    elif "No such file" in told or "refused" in told:
        hint = "start Docker (systemctl start docker), or build without it: --engine embedded"
    else:
        hint = "look at DOCKER_HOST and `docker context ls`, or build without Docker: --engine embedded"
    reason = next(
        (
            word
            for word in ("Permission denied", "No such file or directory", "Connection refused")
            if word in told
        ),
        told,
    )
    return ToolMissing(f"no Docker engine answers at {host}: {reason}", hint=hint)


def _buildx_version(environ: Mapping[str, str]) -> tuple[int, ...]:
    hint = "install docker-buildx-plugin (Debian: docker-buildx), or build without it: --engine embedded"
    try:
        asked = subprocess.run(
            ["docker", "buildx", "version"], env=dict(environ), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ToolMissing("Docker's client, `docker`, is not installed", hint=hint) from error
    found = re.search(r"v?(\d+)\.(\d+)", asked.stdout)
    if asked.returncode or not found:
        raise ToolMissing("Docker's client here has no buildx, which builds need", hint=hint)
    return int(found[1]), int(found[2])


def load(image: ImageOnDisk, names: Sequence[str], engine: Engine, observer: Observer) -> None:
    """Put *image* into *engine* under *names* ("pytorch-cuda:v2.7"): the layout's own blobs, as a stream.

    :raises BuildFailed: a blob cannot be read, or the engine does not take it.
    """
    import docker
    from docker.errors import DockerException

    total = sum(layer.size for layer in image.layers)
    observer.begin("load", image.ref, total)
    pieces = _archive(image, names)
    try:
        with contextlib.closing(docker.DockerClient(base_url=engine.host, timeout=_LOADING)) as client:
            data = _counted(pieces, image.ref, observer)
            for told in client.api.load_image(data):  # type: ignore[no-untyped-call]
                if error := told.get("error"):
                    raise BuildFailed(f"the engine at {engine.host} refused the image: {error}", hint=_ROOM)
    except (DockerException, OSError) as error:
        raise BuildFailed(f"the image could not be loaded into {engine.host}: {error}", hint=_ROOM) from error
    finally:
        pieces.close()
    observer.end("load", image.ref)


def _archive(image: ImageOnDisk, names: Sequence[str]) -> Generator[bytes, None, None]:
    """*image* as `docker load` wants it, a piece at a time."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            stream_archive(image, out, "docker-archive", names)

    with os.fdopen(reading, "rb") as pieces, ThreadPoolExecutor(1, "archive") as thread:
        written = thread.submit(write)
        try:
            while piece := pieces.read(_PIECE):
                yield piece
            written.result()
        finally:
            pieces.close()  # a writer that is not read to its end gets EPIPE


def _counted(pieces: Iterable[bytes], name: str, observer: Observer) -> Iterator[bytes]:
    for piece in pieces:
        observer.advance("load", name, len(piece))
        yield piece


def build(
    plan: ImagePlan,
    store: Store,
    files: Mapping[str, bytes],
    *,
    engine: Engine,
    repository: str,
    wheels: WheelSource,
    observer: Observer,
    options: Options,
    environ: Mapping[str, str] = os.environ,
) -> EngineImage:
    """Build *plan* on *engine*, under its tag and aliases in *repository*.

    :param files: Dockerfile and companions, as `render_folder` gives them; the base's blob is in *store*.
    :raises BuildFailed: a wheel is refused or cannot be had, or a step failed.
    """
    started = time.monotonic()
    names = tuple(f"{repository}:{tag}" for tag in (plan.tag, *plan.aliases))
    with ExitStack() as stack:
        work = store.temporary("docker")
        work.mkdir(parents=True)
        stack.callback(remove_tree, work)
        places = _fetched(plan.locked.wheels, store, wheels, observer)
        fetched = time.monotonic()
        base = options.base or _BASE
        contexts = {"wheels": _wheels(work / "wheels", places), "rootfs": _rootfs(work / "rootfs", plan)}
        if options.base is None:
            contexts[_BASE] = _base(work / "base", plan, store)
        request = buildx.Request(
            folder=_folder(work / "context", files),
            contexts=tuple(contexts.items()),
            arguments=(("BASE", base),),
            names=names,
            epoch=plan.epoch,
            builder=options.builder,
            cache_from=options.cache_from,
            cache_to=options.cache_to,
        )
        digest = buildx.build(
            request,
            work / "metadata.json",
            environ=environ,
            progress="rawjson" if engine.buildx >= _RAWJSON else "plain",
            observer=observer,
        )
    now = time.monotonic()
    return EngineImage(
        tag=plan.tag,
        names=names,
        digest=digest,
        engine=engine,
        seconds=(("download", fetched - started), ("build", now - fetched), ("total", now - started)),
    )


def _fetched(
    wheels: Sequence[LockedWheel], store: Store, source: WheelSource, observer: Observer
) -> list[Path]:
    """Every wheel's file in the store, the largest fetched first."""
    ordered = sorted(wheels, key=lambda wheel: -wheel.size)
    with ThreadPoolExecutor(_STREAMS, "fetch") as pool:
        futures = [pool.submit(source.fetch_wheel, wheel, store, observer) for wheel in ordered]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """*files* by their path below *folder*."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _wheels(folder: Path, places: Sequence[Path]) -> str:
    """The wheels in one folder, by hard links: the store never writes into a file."""
    folder.mkdir()
    for place in places:
        os.link(place, folder / place.name)
    return str(folder)


def _rootfs(folder: Path, plan: ImagePlan) -> str:
    files = {file.path: file.data for file in plan.layers[-1].files if file.path != IMAGE_JSON}
    folder.mkdir()
    return str(_folder(folder, files))


def _base(layout: Path, plan: ImagePlan, store: Store) -> str:
    """Our base as an image of one layer, under its locked digest."""
    locked = plan.locked.base
    layer = BuiltLayer(
        title=plan.layers[0].title,
        digest=locked.digest,
        diff_id=locked.diff_id,
        size=locked.size,
        unpacked=locked.unpacked,
    )
    bare = replace(plan, layers=plan.layers[:1], config=_NO_CONFIG)
    image = write_image(layout, bare, [layer], store.blob, refs=("base",))
    return f"oci-layout://{layout}@{image.manifest}"
