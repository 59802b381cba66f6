"""An image of a layout, its lock, a suite -> a bundle's parts: what is missing is fetched or taken out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchkiln.base.interpreter import LIBRARIES, extract_python, python_name
from torchkiln.errors import BuildFailed, VerificationFailed
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedBase, LockedCell
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.smoke.bundle.contents import Parts
from torchkiln.smoke.pytest_wheels import pytest_wheels, wheels_for
from torchkiln.smoke.suite import Suite
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# GNU tar, and what it and compiled packages load; Python's own libraries come with it.
_ALSO = rf"usr/bin/tar|{LIBRARIES}/lib(acl|selinux|pcre2-8|gcc_s)\.so\.[^/]+"


@contextlib.contextmanager
def parts_of(
    image: ImageOnDisk,
    locked: LockedCell,
    suite: Suite,
    *,
    images: Path,
    matrix: Path,
    arguments: Sequence[str],
    store: Store,
) -> Iterator[Parts]:
    """The parts of the bundle that runs *suite* in *image*; they stay while the context does.

    :raises VerificationFailed: the image does not start with the base of its lock, or that is damaged.
    :raises BuildFailed: packages cannot be fetched, or the disk is full.
    """
    base, lowest = locked.base, image.layers[0]
    if lowest.digest != base.digest:
        raise VerificationFailed(
            f"{image.ref}: its lowest layer is {lowest.digest[:19]}, its lock's base {base.digest[:19]}",
            hint="build the image again",
        )
    pytest = pytest_wheels(suite.requirements, store)
    packages = wheels_for(python_name(base.python).removeprefix("python"), _REQUIREMENTS.read_bytes(), store)
    temporary = store.temporary("bundle")
    try:
        _take_python(lowest.path, base, temporary)
        yield Parts(
            image=image,
            tag=tag_of(locked.resolution),
            python=base.python,
            suite=suite,
            images=images,
            matrix=matrix,
            interpreter=temporary,
            packages=packages,
            pytest=pytest,
            arguments=arguments,
        )
    finally:
        remove_tree(temporary)


def _take_python(blob: Path, base: LockedBase, into: Path) -> None:
    try:
        extract_python(blob, base, into, also=_ALSO)
    except OSError as error:
        raise BuildFailed(f"the bundle's Python cannot be taken out of the base: {error}") from error
    except DAMAGED as error:
        raise VerificationFailed(f"{blob}: damaged: {error}", hint="build the image again") from error
