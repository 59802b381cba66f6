"""Collect the parts of a bundle: download Python packages, and extract Python from the image's base."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchkiln.base.interpreter import LIBRARIES, extract_python, python_name
from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.locks.file import to_json
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedBase, LockedCell
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.smoke.bundle.contents import BundleParts
from torchkiln.smoke.pytest_wheels import pytest_wheels, wheels_for
from torchkiln.smoke.suite import Suite
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# Extracted with Python and its libraries: GNU tar with its libraries, and libgcc_s for compiled packages.
_ALSO = rf"usr/bin/tar|{LIBRARIES}/lib(acl|selinux|pcre2-8|gcc_s)\.so\.[^/]+"


@contextlib.contextmanager
def parts_of(
    image: ImageOnDisk,
    locked: LockedCell,
    suite: Suite,
    *,
    matrix: Path,
    arguments: Sequence[str],
    project: Mapping[str, bytes],
    store: Store,
) -> Iterator[BundleParts]:
    """The parts of the bundle that runs *suite* in *image*; leaving the context removes temporary files.

    :raises ConfigError: the image is for another platform.
    :raises VerificationFailed: no layer is the base in the lock, or it is damaged.
    :raises BuildFailed: packages cannot be downloaded, or the disk is full.
    """
    if locked.platform is not LINUX_AMD64:
        raise ConfigError(f"bundles are for {LINUX_AMD64.name}, but the image is for {locked.platform.name}")
    base = locked.base  # compared by diff_id, not digest: layers can be compressed again, with zstd
    layer = next((layer for layer in image.layers if layer.diff_id == base.diff_id), None)
    if layer is None:
        raise VerificationFailed(
            f"{image.ref}: no layer has the diff_id {base.diff_id[:19]} of the base in its lock",
            hint="build the image again",
        )
    pytest = pytest_wheels(suite.requirements, store)
    packages = wheels_for(python_name(base.python).removeprefix("python"), _REQUIREMENTS.read_bytes(), store)
    temporary = store.temporary("bundle")
    try:
        _extract_python(layer.path, base, temporary)
        yield BundleParts(
            image=image,
            tag=tag_of(locked.resolution),
            python=base.python,
            suite=suite,
            lock=to_json(locked),
            matrix=matrix,
            interpreter=temporary,
            packages=packages,
            pytest=pytest,
            arguments=arguments,
            project=project,
        )
    finally:
        remove_tree(temporary)


def _extract_python(blob: Path, base: LockedBase, into: Path) -> None:
    try:
        extract_python(blob, base, into, also=_ALSO)
    except OSError as error:
        raise BuildFailed(f"cannot extract Python from the base: {error}") from error
    except DAMAGED as error:
        raise VerificationFailed(f"{blob}: damaged: {error}", hint="build the image again") from error
