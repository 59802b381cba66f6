"""List the files of a bundle: everything that a smoke run needs on a GPU host.

run.py            starts it, with Python 3.8 or newer
bundle.json       versions, arguments, the sha256 of every other file except the blobs, layers left out
layout/           the image, an OCI layout
checkout/         torchkiln, the suite, the image's lock, for the image of a project also the project's
packages/         the Python packages that torchkiln needs
python/           the Python of the image's base, with its C library, and GNU tar
cache/pytest/KEY  pytest, for use in the image
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln import __version__
from torchkiln.base.interpreter import LOADER, python_name
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.archive import index_of
from torchkiln.oci.image import canonical_json
from torchkiln.oci.layout import VERSION, ImageOnDisk
from torchkiln.smoke.bundle.held import HeldLayer, held_to_json
from torchkiln.smoke.suite import Suite
from torchkiln.util.files import pretty_json
from torchkiln.util.places import PACKAGE, SHIPPED

SCHEMA = 1
RUN, BUNDLE = "run.py", "bundle.json"
BLOBS = "layout/blobs/"
PROJECT = "checkout/project"  # its folder; bundle_run.py has the same name


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleFile:
    """A file of a bundle, with its *sha256* (hex)."""

    path: str
    source: Path | bytes
    size: int  # bytes
    sha256: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleParts:
    """The parts of a bundle. Each folder is included with all files."""

    image: ImageOnDisk
    tag: str  # of the lock
    python: str  # version, "3.11.2"
    suite: Suite
    lock: bytes  # of the image, as a file
    matrix: Path
    interpreter: Path
    packages: Path
    pytest: Path
    arguments: Sequence[str]  # of the command that checks the image, placed before those of run.py
    project: Mapping[str, bytes]  # more files, by path: those of a project whose checks run


def contents(parts: BundleParts, held: Mapping[Digest, HeldLayer]) -> tuple[BundleFile, ...]:
    """All files, blobs last, without the layers *held*, which the host has.

    :raises VerificationFailed: a blob of the layout is missing.
    """
    small = [
        _file(f"{place}/{path.relative_to(folder).as_posix()}", path)
        for place, folder in _folders(parts).items()
        for path in _files(folder)
    ]
    # The bytes in memory, which were hashed: the folder may have changed since.
    small += [_bytes(f"checkout/smoke_tests/{path}", data) for path, data in parts.suite.runnable().items()]
    small += [
        _file("checkout/matrix.yaml", parts.matrix),
        _bytes(f"checkout/images/{parts.tag}/lock.json", parts.lock),
        *(_bytes(path, data) for path, data in parts.project.items()),
        _bytes("layout/oci-layout", canonical_json(VERSION)),
        _bytes("layout/index.json", canonical_json(index_of(parts.image))),
    ]
    description = {
        "schema": SCHEMA,
        "tool": __version__,
        "tag": parts.image.ref,
        "image": parts.image.manifest,
        "suite": parts.suite.digest,
        "python": f"usr/bin/{python_name(parts.python)}",
        "loader": LOADER,
        "arguments": list(parts.arguments),
        "held": held_to_json(held.values()),
        "files": {file.path: file.sha256 for file in small},
    }
    run = _file(RUN, PACKAGE / "cli/bundle_run.py", mode=0o755)
    return (run, _bytes(BUNDLE, pretty_json(description)), *small, *_blobs(parts.image, held))


def _folders(parts: BundleParts) -> Mapping[str, Path]:
    return {
        "checkout/torchkiln": PACKAGE,
        "packages": parts.packages,
        "python": parts.interpreter,
        f"cache/pytest/{parts.pytest.name}": parts.pytest,
    }


def _files(folder: Path) -> Iterator[Path]:
    """The files below *folder*, without those in `SHIPPED`; follows links, and ignores broken links."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and SHIPPED not in path.parents:
            yield path


def _file(place: str, path: Path, mode: int | None = None) -> BundleFile:
    mode = mode or (0o755 if path.stat().st_mode & 0o100 else 0o644)
    return replace(_bytes(place, path.read_bytes()), source=path, mode=mode)


def _bytes(place: str, data: bytes) -> BundleFile:
    return BundleFile(path=place, source=data, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _blobs(image: ImageOnDisk, held: Mapping[Digest, HeldLayer]) -> Iterator[BundleFile]:
    blobs = {image.manifest: image.manifest_path, image.config_digest: image.config_path}
    blobs |= {layer.digest: layer.path for layer in image.layers if layer.digest not in held}
    for digest, path in blobs.items():
        algorithm, _, name = digest.partition(":")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise VerificationFailed(f"{path}: {error.strerror}", hint="build the image again") from error
        yield BundleFile(path=f"{BLOBS}{algorithm}/{name}", source=path, size=size, sha256=name)
