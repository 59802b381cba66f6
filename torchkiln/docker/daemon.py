"""A Docker engine that answers: which one the user means, whether it will do, and images into it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.progress import Observer
from torchkiln.oci.archive import stream_archive
from torchkiln.oci.layout import ImageOnDisk

if TYPE_CHECKING:
    from docker import DockerClient


OLDEST = 23  # of engines: BuildKit is the default builder from here on
_USUAL = "unix:///var/run/docker.sock"
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # Podman's
_API = "1.41"  # named, so that a client asks nothing before it can be closed
_PIECE = 1 << 20
_ASKING, _LOADING = 30, 1800  # seconds without a word; an engine that unpacks says little
_ROOM = "is there room where the engine keeps its data? docker system df"


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An engine that answers as Docker does, and its client's BuildKit, "0.13" as (0, 13)."""

    host: str  # "unix:///var/run/docker.sock"
    version: str
    buildx: tuple[int, ...]
    kind: str = "Docker"  # or "Podman", whose socket answers the same questions but builds in its own way
    tls: Any = field(default=None, repr=False, compare=False)  # the SDK's TLSConfig


def find_engine(environ: Mapping[str, str] = os.environ, *, builds: bool = True) -> Engine:
    """The engine that the user means, found as Docker's client does: DOCKER_HOST, or the context.

    :param builds: whether it is to build, which takes Docker's client with buildx.
    :raises ToolMissing: none answers, it is too old, or has no buildx; each with what to do.
    """
    from docker.errors import DockerException

    host, tls = _address(environ)
    try:
        with _connected(host, tls, _ASKING) as client:
            told = client.version(api_version=False)
    except (DockerException, OSError, ValueError) as error:
        raise _unreachable(host, error, builds) from error
    version = str(told["Version"])
    if any(part.get("Name") == "Podman Engine" for part in told.get("Components") or ()):
        if builds:
            raise ToolMissing(
                f"at {host} is Podman {version}, which has no BuildKit to build with",
                hint="build without it, and hand the image over: --engine embedded --load",
            )
        return Engine(host=host, version=version, buildx=(), kind="Podman", tls=tls)
    major = re.match(r"\d+", version)
    if not major or int(major[0]) < OLDEST:
        raise ToolMissing(
            f"the Docker engine at {host} is {version}, too old: {OLDEST}.0 is the first that will do",
            hint="upgrade Docker, or build without it: --engine embedded",
        )
    return Engine(host=host, version=version, buildx=_buildx_version(environ) if builds else (), tls=tls)


def _address(environ: Mapping[str, str]) -> tuple[str, Any]:
    """Host and TLS settings. Contexts are asked of Docker's client: the SDK overlooks some."""
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env

    if environ.get("DOCKER_HOST"):
        told = kwargs_from_env(dict(environ))
        return told["base_url"], told.get("tls")
    name = environ.get("DOCKER_CONTEXT")
    argv = ["docker", "context", "inspect", *([name] if name else [])]
    try:
        asked = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return _USUAL, None
    if asked.returncode:
        raise ToolMissing(f"no Docker context: {asked.stderr.strip()}", hint="docker context ls")
    (context,) = json.loads(asked.stdout)
    pem = Path(context["Storage"]["TLSPath"], "docker")
    tls = None
    if (pem / "cert.pem").is_file():
        pair = (str(pem / "cert.pem"), str(pem / "key.pem"))
        tls = TLSConfig(client_cert=pair, ca_cert=str(pem / "ca.pem"), verify=True)
    return context["Endpoints"]["docker"]["Host"] or _USUAL, tls


@contextlib.contextmanager
def connected(engine: Engine, patience: int) -> Iterator[DockerClient]:
    """The SDK's client of *engine*, which may be silent for *patience* seconds.

    :raises DockerException: no connection; whatever is asked of the client raises it or OSError.
    """
    with _connected(engine.host, engine.tls, patience) as client:
        yield client


@contextlib.contextmanager
def _connected(host: str, tls: Any, patience: int) -> Iterator[DockerClient]:
    import docker

    ssh = host.startswith("ssh:")
    client = docker.DockerClient(
        base_url=host, version=_API, timeout=patience, tls=tls or False, use_ssh_client=ssh
    )
    with contextlib.closing(client):
        yield client


def _unreachable(host: str, error: Exception, builds: bool) -> ToolMissing:
    told = str(error)
    other_way = ", or build without it: --engine embedded" if builds else ""
    if "Permission denied" in told:
        hint = "join the group `docker` (and log in again), or run as root"
    elif "No such file" in told or "refused" in told:
        hint = f"start Docker (systemctl start docker){other_way}"
    else:
        hint = f"look at DOCKER_HOST and `docker context ls`{other_way}"
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


def image_in(engine: Engine, name: str) -> Mapping[str, Any] | None:
    """What *engine* tells of its image *name*, a name or a digest; None: it has none such.

    :raises ToolMissing: it does not answer.
    """
    from docker.errors import DockerException, ImageNotFound

    try:
        with connected(engine, _ASKING) as client:
            told: Mapping[str, Any] = client.api.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return None
    except (DockerException, OSError) as error:
        raise _unreachable(engine.host, error, builds=False) from error
    return told


def way_to_gpus(engine: Engine) -> Literal["", "toolkit", "cdi"]:
    """How containers of *engine* get GPUs; "": as far as can be seen, not at all.

    "toolkit": Docker has NVIDIA's runtime, or finds the hook of its toolkit. Else "cdi", where a
    specification names the GPUs; those can be seen only of an engine on this machine.

    :raises ToolMissing: it does not answer.
    """
    from docker.errors import DockerException

    here = engine.host.startswith("unix:")
    if engine.kind == "Podman":
        return "cdi" if here and _named_in(_CDI_FOLDERS) else ""
    try:
        with connected(engine, _ASKING) as client:
            told = client.info()
    except (DockerException, OSError) as error:
        raise _unreachable(engine.host, error, builds=False) from error
    if "nvidia" in (told.get("Runtimes") or {}) or (here and shutil.which("nvidia-container-runtime-hook")):
        return "toolkit"
    return "cdi" if here and _named_in(told.get("CDISpecDirs") or ()) else ""


def _named_in(folders: Iterable[str]) -> bool:
    """Whether a CDI specification in one of them, that we may read, names NVIDIA's GPUs."""
    files = (path for folder in folders for path in Path(folder).glob("*"))
    return any(
        CDI_KIND in path.read_text(errors="replace")
        for path in files
        if os.access(path, os.R_OK) and path.is_file()
    )


def load(image: ImageOnDisk, names: Sequence[str], engine: Engine, observer: Observer) -> None:
    """Put *image* into *engine* under *names* ("pytorch-cuda:v2.7"): the layout's own blobs, as a stream.

    :raises BuildFailed: a blob cannot be read, or the engine does not take it.
    """
    from docker.errors import DockerException

    total = sum(layer.size for layer in image.layers)
    observer.begin("load", image.ref, total)
    pieces = _archive(image, names)
    try:
        with connected(engine, _LOADING) as client:
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


CDI_KIND = "nvidia.com/gpu"
