"""Finds and checks the Docker engine that the environment selects, inspects its images, and loads images."""

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


CDI_KIND = "nvidia.com/gpu"
OLDEST = 23  # the first major version of Docker Engine in which BuildKit is the default builder
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # the defaults of Podman
# Fixed. Otherwise the SDK asks the engine while it creates a client, and a failure leaves the client open.
_API = "1.41"
_CHUNK = 1 << 20
_TIMEOUT, _LOAD_TIMEOUT = 30, 1800  # seconds without data; an engine sends little while it unpacks
_SPACE_HINT = "check the free space where the engine keeps its data: docker system df"


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    host: str  # "unix:///var/run/docker.sock"
    version: str
    kind: str = "Docker"  # or "Podman", whose socket has the same API without BuildKit
    tls: Any = field(default=None, repr=False, compare=False)  # the SDK's TLSConfig


def find_engine(environ: Mapping[str, str] = os.environ, *, builds: bool = True) -> Engine:
    """The engine that Docker's client would use: that of DOCKER_HOST, or of the current context.

    :param builds: whether the engine must build images, which requires Docker's client with buildx.
    :raises ToolMissing: the engine cannot be reached or is too old, or buildx is missing.
    """
    from docker.errors import DockerException

    host, tls = _address(environ)
    try:
        with _connected(host, tls, _TIMEOUT) as client:
            reply = client.version(api_version=False)
    except (DockerException, OSError, ValueError) as error:
        raise _unreachable(host, error, builds) from error
    version = str(reply["Version"])
    if any(part.get("Name") == "Podman Engine" for part in reply.get("Components") or ()):
        if builds:
            raise ToolMissing(
                f"the engine at {host} is Podman {version}, which has no BuildKit",
                hint="build without it and load the image: --engine embedded --load",
            )
        return Engine(host=host, version=version, kind="Podman", tls=tls)
    major = re.match(r"\d+", version)
    if not major or int(major[0]) < OLDEST:
        raise ToolMissing(
            f"the Docker engine at {host} is too old: version {version}, {OLDEST}.0 or newer is required",
            hint="upgrade Docker, or build without it: --engine embedded",
        )
    if builds:
        _demand_buildx(environ)
    return Engine(host=host, version=version, tls=tls)


def _address(environ: Mapping[str, str]) -> tuple[str, Any]:
    """The engine's host and TLS settings. Docker's client reads contexts: the SDK does not find all."""
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env

    if environ.get("DOCKER_HOST"):
        settings = kwargs_from_env(dict(environ))
        return settings["base_url"], settings.get("tls")
    name = environ.get("DOCKER_CONTEXT")
    argv = ["docker", "context", "inspect", *([name] if name else [])]
    try:
        result = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return _DEFAULT_HOST, None
    if result.returncode:
        raise ToolMissing(
            f"cannot read the Docker context: {result.stderr.strip()}", hint="see `docker context ls`"
        )
    (context,) = json.loads(result.stdout)
    pem = Path(context["Storage"]["TLSPath"], "docker")
    tls = None
    if (pem / "cert.pem").is_file():
        pair = (str(pem / "cert.pem"), str(pem / "key.pem"))
        tls = TLSConfig(client_cert=pair, ca_cert=str(pem / "ca.pem"), verify=True)
    return context["Endpoints"]["docker"]["Host"] or _DEFAULT_HOST, tls


def connected(engine: Engine, timeout_s: int) -> contextlib.AbstractContextManager[DockerClient]:
    """The SDK's client of *engine*; *timeout_s*: seconds without data until a request fails.

    :raises DockerException: no connection; requests raise it or OSError.
    """
    return _connected(engine.host, engine.tls, timeout_s)


@contextlib.contextmanager
def _connected(host: str, tls: Any, timeout_s: int) -> Iterator[DockerClient]:
    import docker

    ssh = host.startswith("ssh:")
    client = docker.DockerClient(
        base_url=host, version=_API, timeout=timeout_s, tls=tls or False, use_ssh_client=ssh
    )
    with contextlib.closing(client):
        yield client


def _unreachable(host: str, error: Exception, builds: bool) -> ToolMissing:
    reason = str(error)
    alternative = ", or build without it: --engine embedded" if builds else ""
    if "Permission denied" in reason:
        hint = "join the group `docker` (and log in again), or run as root"
    elif "No such file" in reason or "refused" in reason:
        hint = f"start Docker (systemctl start docker){alternative}"
    else:
        hint = f"check DOCKER_HOST and `docker context ls`{alternative}"
    for known in ("Permission denied", "No such file or directory", "Connection refused"):
        if known in reason:
            reason = known
    return ToolMissing(f"cannot connect to the Docker engine at {host}: {reason}", hint=hint)


def _demand_buildx(environ: Mapping[str, str]) -> None:
    hint = "install docker-buildx-plugin (Debian: docker-buildx), or build without it: --engine embedded"
    try:
        found = subprocess.run(
            ["docker", "buildx", "version"], env=dict(environ), capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise ToolMissing("docker: command not found", hint=hint) from error
    if found.returncode:
        raise ToolMissing("the Docker client has no buildx plugin, which is required to build", hint=hint)


def image_in(engine: Engine, name: str) -> Mapping[str, Any] | None:
    """`docker image inspect` of *name*, a name or a digest; None if *engine* has no such image.

    :raises ToolMissing: the engine cannot be reached.
    """
    from docker.errors import DockerException, ImageNotFound

    try:
        with connected(engine, _TIMEOUT) as client:
            image: Mapping[str, Any] = client.api.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return None
    except (DockerException, OSError) as error:
        raise _unreachable(engine.host, error, builds=False) from error
    return image


def gpu_support(engine: Engine) -> Literal["", "toolkit", "cdi"]:
    """How *engine* passes GPUs to containers; "": no support was found.

    "toolkit": Docker has NVIDIA's runtime, or finds the hook of NVIDIA's toolkit. Otherwise "cdi", if a CDI
    specification names the GPUs; only those of an engine on this machine can be read.

    :raises ToolMissing: the engine cannot be reached.
    """
    from docker.errors import DockerException

    here = engine.host.startswith("unix:")
    if engine.kind == "Podman":
        return "cdi" if here and _has_cdi_specification(_CDI_FOLDERS) else ""
    try:
        with connected(engine, _TIMEOUT) as client:
            info = client.info()
    except (DockerException, OSError) as error:
        raise _unreachable(engine.host, error, builds=False) from error
    if "nvidia" in (info.get("Runtimes") or {}) or (here and shutil.which("nvidia-container-runtime-hook")):
        return "toolkit"
    return "cdi" if here and _has_cdi_specification(info.get("CDISpecDirs") or ()) else ""


def _has_cdi_specification(folders: Iterable[str]) -> bool:
    """Whether a readable CDI specification in one of *folders* names NVIDIA's GPUs."""
    files = (path for folder in folders for path in Path(folder).glob("*"))
    return any(
        CDI_KIND in path.read_text(errors="replace")
        for path in files
        if os.access(path, os.R_OK) and path.is_file()
    )


def load(image: ImageOnDisk, names: Sequence[str], engine: Engine, observer: Observer) -> None:
    """Load *image* into *engine* under *names* ("pytorch-cuda:v2.7"), as a stream of the layout's blobs.

    :raises BuildFailed: a blob cannot be read, or the engine refuses the image.
    """
    from docker.errors import DockerException

    total = sum(layer.size for layer in image.layers)
    observer.begin("load", image.ref, total)
    chunks = _archive(image, names)
    try:
        with connected(engine, _LOAD_TIMEOUT) as client:
            data = _counted(chunks, image.ref, observer)
            for message in client.api.load_image(data):  # type: ignore[no-untyped-call]
                if error := message.get("error"):
                    raise BuildFailed(
                        f"the engine at {engine.host} refused the image: {error}", hint=_SPACE_HINT
                    )
    except (DockerException, OSError) as error:
        raise BuildFailed(
            f"cannot load the image into the engine at {engine.host}: {error}", hint=_SPACE_HINT
        ) from error
    finally:
        chunks.close()
    observer.end("load", image.ref)


def _archive(image: ImageOnDisk, names: Sequence[str]) -> Generator[bytes, None, None]:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            stream_archive(image, out, "docker-archive", names)

    with os.fdopen(reading, "rb") as pipe, ThreadPoolExecutor(1, "archive") as thread:
        written = thread.submit(write)
        try:
            while chunk := pipe.read(_CHUNK):
                yield chunk
            written.result()
        finally:
            pipe.close()  # if the reader stops early, the writer gets EPIPE


def _counted(chunks: Iterable[bytes], name: str, observer: Observer) -> Iterator[bytes]:
    for chunk in chunks:
        observer.advance("load", name, len(chunk))
        yield chunk
