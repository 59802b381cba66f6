"""Image, suite, a Python of its own -> the files of a bundle: all that a smoke run needs on a GPU host.

run.py            starts it, with any Python from 3.8 on
bundle.json       what it is, what it was asked to run, the sha256 of every other file but the blobs
layout/           the image, an OCI layout: its digests say whether it is whole
checkout/         torchkiln, the suite, the image's lock
packages/         the Python packages that torchkiln needs
python/           the Python of the image's base, with its C library, and GNU tar
cache/pytest/KEY  pytest, for inside; beside it comes the unpacked image
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln import __version__
from torchkiln.base.interpreter import LOADER, python_name
from torchkiln.errors import VerificationFailed
from torchkiln.oci.archive import index_of
from torchkiln.oci.image import canonical_json
from torchkiln.oci.layout import VERSION, ImageOnDisk
from torchkiln.smoke.suite import Suite
from torchkiln.util.files import pretty_json
from torchkiln.util.places import ROOT

SCHEMA = 1
RUN, BUNDLE = "run.py", "bundle.json"
BLOBS = "layout/blobs/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """A file of a bundle. Who copies it compares it with *sha256* (hex)."""

    path: str
    source: Path | bytes
    size: int  # bytes
    sha256: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a bundle is put together from. Folders are taken whole."""

    image: ImageOnDisk
    tag: str
    python: str  # version, "3.11.2"
    suite: Suite
    images: Path  # the folder of locks
    matrix: Path
    interpreter: Path
    packages: Path
    pytest: Path
    arguments: Sequence[str]  # of `smoke run`, before those that are given to run.py


def contents(parts: Parts) -> tuple[Carried, ...]:
    """Every file, small ones first.

    :raises VerificationFailed: a blob of the layout is not there.
    """
    small = [
        _file(f"{place}/{path.relative_to(folder).as_posix()}", path)
        for place, folder in _folders(parts).items()
        for path in _files(folder)
    ]
    # As it was digested; the folder may hold something else by now.
    small += [_bytes(f"checkout/smoke_tests/{path}", data) for path, data in parts.suite.runnable().items()]
    small += [
        _file("checkout/matrix.yaml", parts.matrix),
        _bytes("layout/oci-layout", canonical_json(VERSION)),
        _bytes("layout/index.json", canonical_json(index_of(parts.image))),
    ]
    told = {
        "schema": SCHEMA,
        "tool": __version__,
        "tag": parts.tag,
        "image": parts.image.manifest,
        "suite": parts.suite.digest,
        "python": f"usr/bin/{python_name(parts.python)}",
        "loader": LOADER,
        "arguments": list(parts.arguments),
        "files": {one.path: one.sha256 for one in small},
    }
    run = _file(RUN, ROOT / "torchkiln/cli/bundle_run.py", mode=0o755)
    return (run, _bytes(BUNDLE, pretty_json(told)), *small, *_blobs(parts.image))


def _folders(parts: Parts) -> Mapping[str, Path]:
    return {
        "checkout/torchkiln": ROOT / "torchkiln",
        f"checkout/images/{parts.tag}": parts.images / parts.tag,
        "packages": parts.packages,
        "python": parts.interpreter,
        f"cache/pytest/{parts.pytest.name}": parts.pytest,
    }


def _files(folder: Path) -> Iterator[Path]:
    """Links are followed, and left out where they lead nowhere."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _file(place: str, path: Path, mode: int | None = None) -> Carried:
    data = path.read_bytes()
    mode = mode or (0o755 if path.stat().st_mode & 0o100 else 0o644)
    return Carried(
        path=place, source=path, size=len(data), sha256=hashlib.sha256(data).hexdigest(), mode=mode
    )


def _bytes(place: str, data: bytes) -> Carried:
    return Carried(path=place, source=data, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _blobs(image: ImageOnDisk) -> Iterator[Carried]:
    blobs = {image.manifest: image.manifest_path, image.config_digest: image.config_path}
    blobs |= {layer.digest: layer.path for layer in image.layers}
    for digest, path in blobs.items():
        algorithm, _, name = digest.partition(":")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise VerificationFailed(f"{path}: {error.strerror}", hint="build the image again") from error
        yield Carried(path=f"{BLOBS}{algorithm}/{name}", source=path, size=size, sha256=name)
