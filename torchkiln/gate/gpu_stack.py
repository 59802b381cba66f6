"""Which runs in an earlier image also prove an image: those with the same GPU stack. Pure.

Nothing here is read from a label, and a report states no stack: the lock of the earlier image is found by the
digest that the check `claims` measured inside that image, and the stack is computed from it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest, digest_of_json, parse_digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.model.recipe import RECIPE, STACK_RECIPE
from torchkiln.model.report import Finding, SignedReport
from torchkiln.smoke.expected import facts_of
from torchkiln.util import codec

#: What binds an image to a lock: the lock's digest in the image, and the comparison of all its files.
BINDING = ("claims", "lock")
_NVIDIA = ("nvidia-", "cuda-")
# torch, torchvision and torchaudio with what they require, by METADATA of torch 2.0.1 to 2.15.0:
# tests/integration/test_gpu_stack_of_torch.py compares it.
_WHEELS = frozenset(
    {
        *(
            "torch",
            "torchvision",
            "torchaudio",
            "triton",
            "pytorch-triton",
            "numpy",
            "pillow",
            "sympy",
            "mpmath",
        ),
        *("networkx", "filelock", "fsspec", "jinja2", "markupsafe", "setuptools", "typing-extensions"),
    }
)
_LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6")


def is_of_stack(name: str) -> bool:
    """Whether the wheel *name* is part of the GPU stack."""
    return name in _WHEELS or name.startswith(_NVIDIA)


def gpu_stack(locked: LockedCell) -> Digest:
    """The digest of what decides results on GPUs: CUDA libraries, torch with its requirements, Python, libc.

    It has the hashes of the wheels, not of their layers: a lock's digest covers the former only, and a layer
    follows from its wheels, the Python and the recipe.
    """
    versions = {package.name: package.version for package in locked.os_packages}
    wheels = (wheel for wheel in locked.wheels if is_of_stack(wheel.name))
    return digest_of_json(
        {
            "wheels": {wheel.name: wheel.sha256 for wheel in wheels},
            "archives": {archive.component: archive.sha256 for archive in locked.archives},
            "device_code": codec.plain(locked.device_code) if locked.device_code else None,
            "python": locked.python.version,
            "standalone": locked.standalone.sha256 if locked.standalone else None,
            "libraries": {name: versions.get(name) for name in _LIBRARIES},
            **({} if locked.platform is LINUX_AMD64 else {"platform": locked.platform.name}),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierImage:
    """An image with its lock and its reports; its recipe has the environment variables of the present one."""

    image: Digest
    locked: LockedCell
    recipe: int
    reports: tuple[SignedReport, ...]

    @property
    def evidence(self) -> list[tuple[SignedReport, Mapping[str, Any]]]:
        """Each report with the facts with which the checks compared this image."""
        tag, digest = tag_of(self.locked.resolution), lock_digest(self.locked)
        facts = facts_of(self.locked, {}, tag=tag, lock_digest=digest, manifest=self.image)
        facts["claims"]["recipe"] = self.recipe
        return [(signed_report, facts) for signed_report in self.reports]


def earlier_images(
    signed_reports: Iterable[SignedReport],
    present: LockedCell,
    find: Callable[[Digest], LockedCell | None],
) -> Iterator[EarlierImage]:
    """The images of *signed_reports* that have the GPU stack of *present*.

    :param find: returns the lock with a digest; any other lock is ignored.
    """
    stack, known = gpu_stack(present), lock_digest(present)
    by_image = defaultdict(list)
    for signed_report in signed_reports:
        if signed_report.report.image and not signed_report.report.project:
            by_image[signed_report.report.image].append(signed_report)
    for image, reports in by_image.items():
        built = {found for signed_report in reports for found in built_from(signed_report.report.findings)}
        if len(built) == 1:
            digest, recipe = built.pop()
            locked = present if digest == known else find(digest)
            if (
                locked is not None
                and lock_digest(locked) == digest
                and gpu_stack(locked) == stack
                and STACK_RECIPE <= recipe <= RECIPE
            ):
                yield EarlierImage(image=image, locked=locked, recipe=recipe, reports=tuple(reports))


def built_from(findings: Iterable[Finding]) -> Iterator[tuple[Digest, int]]:
    """The lock and the recipe that the check `claims` read in the image."""
    for finding in findings:
        if finding.id == "claims":
            claims = json.loads(finding.measured).get("image_json")
            if isinstance(claims, Mapping) and isinstance(claims.get("recipe"), int):
                with suppress(ValueError):
                    yield parse_digest(str(claims.get("lock"))), claims["recipe"]
