"""Builds an image in a Docker engine from the rendered Dockerfile.

The build itself downloads no wheel: the locked wheels are downloaded and verified before it, and passed as a
build context. The base is passed as an OCI layout, by digest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchkiln.docker import buildx
from torchkiln.docker.daemon import Engine
from torchkiln.engine.cuda_layers import lay_out
from torchkiln.engine.dependencies import check_metadata
from torchkiln.engine.environment import Environment
from torchkiln.engine.fetched import fetched
from torchkiln.locks.file import requirements_txt
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import ArtefactLayer, ImageConfig, ImagePlan
from torchkiln.oci.layout import write_image
from torchkiln.plan.plan import GENERATED
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

_BASE = "torchkiln-base"
_CONTEXTS = {"base": _BASE, "tools": "tools"}  # kind of layer: name of its context in the Dockerfile
_STREAMS = 6
_RAWJSON = (0, 13)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineImage:
    """An image in an engine. `digest` is its ID there; `base` is a digest, or a reference from the user."""

    tag: str
    names: tuple[str, ...]
    digest: Digest
    engine: Engine
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
    engine: Engine,
    environment: Environment,
    *,
    repository: str,
    options: BuildxOptions,
) -> EngineImage:
    """Build *plan* on *engine*, under its tag and aliases in *repository*.

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
            plan,
            store,
            work / "toolkit",
            archives=environment.archives,
            observer=environment.observer,
        )
        paths = _fetched(plan.locked.wheels, environment)
        check_metadata(plan.locked, store)
        fetched_at = time.monotonic()
        base = options.base or _BASE
        contexts = {
            "wheels": _linked(work / "wheels", paths),
            "rootfs": _rootfs(work / "rootfs", plan),
        }
        if tree:
            contexts["toolkit"] = str(tree)
        if options.base is None:
            contexts |= {
                _CONTEXTS[layer.kind]: _as_image(work / layer.kind, layer, plan, store)
                for layer in plan.of(ArtefactLayer)
            }
        request = buildx.BuildxRequest(
            folder=_written(work / "context", {**files, "requirements.txt": requirements_txt(plan.locked)}),
            contexts=tuple(contexts.items()),
            arguments=(("BASE", base),),
            names=names,
            epoch=plan.epoch,
            secrets=_secrets(work / "secrets", options.secrets),
            builder=options.builder,
            cache_from=options.cache_from,
            cache_to=options.cache_to,
        )
        digest = buildx.build(
            request,
            work / "metadata.json",
            environ=environment.environ,
            progress="rawjson" if engine.buildx >= _RAWJSON else "plain",
            observer=environment.observer,
        )
    now = time.monotonic()
    return EngineImage(
        tag=plan.tag,
        names=names,
        digest=digest,
        engine=engine,
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
    """Write *files*, by their path below *folder*."""
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
