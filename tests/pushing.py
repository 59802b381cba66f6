"""Helpers for tests of registries: small incompressible images, and pushes without pauses."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cells import noise
from tests.engine.registry import RunningRegistry
from tests.oci_samples import BlobFolder, files, plan, tar_of
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_image
from torchkiln.registry.credentials import Login
from torchkiln.registry.push import History, Pushed, PushOptions, push
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.store.store import Store
from torchkiln.util.http.session import DIRECT, Network

# Two layers are uploaded by PATCH and can be interrupted, one is uploaded by a single PUT.
SIZES = {"torch": 3_000_000, "triton": 1_500_000, "the rest": 30_000}


def image(folder: Path, tag: str, sizes: Mapping[str, int] = SIZES, *, labels: str = "") -> ImageOnDisk:
    """An image in *folder*/dist; its layers depend on their names, its config on *labels*."""
    blobs = BlobFolder(folder / "made")
    layers = [
        blobs.layer(name, tar_of(files(**{f"opt__{number}": noise(name, size)})), pack=_stored)
        for number, (name, size) in enumerate(sizes.items())
    ]
    described = plan(tag, titles=tuple(sizes), labels=(("for", labels or tag),))
    write_image(folder / "dist", described, layers, blobs.path)
    return open_layout(folder / "dist").image(tag)


def _stored(tar: bytes) -> bytes:
    """A gzip file without compression, because compressing noise takes most of the time of a push."""
    return gzip.compress(tar, 0, mtime=0)


@dataclass
class Rests:
    """A sleep function that only records the durations."""

    seconds: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def push_to(
    host: str,
    name: str,
    pushed: ImageOnDisk,
    *,
    tags: Sequence[str] = ("v1",),
    login: Login | None = None,
    store: Store | None = None,
    mount_from: Sequence[str] = (),
    rests: Rests | None = None,
    jobs: int = 2,
    network: Network = DIRECT,
    plain_http: bool = False,
) -> Pushed:
    """Push like `publish`, but without pauses."""
    with Registry(host, login, network, plain_http=plain_http, sleep=rests or Rests()) as registry:
        registry.check()
        return push(
            pushed,
            registry,
            Repository(host=host, name=name),
            PushOptions(observer=Silent(), history=History(store), mount_from=tuple(mount_from), jobs=jobs),
            tags=tags,
        )


def digests(pushed: ImageOnDisk) -> dict[Digest, Path]:
    """The file of every blob of an image, including the manifest."""
    found = {layer.digest: layer.path for layer in pushed.layers}
    return found | {pushed.config_digest: pushed.config_path, pushed.manifest: pushed.manifest_path}


def has_all(registry: RunningRegistry, name: str, pushed: ImageOnDisk) -> bool:
    """Whether the repository has each blob of the image and its manifest, byte for byte."""
    return all(
        registry.content(name, digest) == path.read_bytes() for digest, path in digests(pushed).items()
    )
