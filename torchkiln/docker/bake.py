"""Writes the file of `docker buildx bake`: a target for each image, groups by torch, CUDA, flavor and OS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torchkiln.model.operating_system import SYSTEMS
from torchkiln.model.plan import ImagePlan
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.files import pretty_json
from torchkiln.util.versions import minor_of

NAME = "docker-bake.json"


def bake(plans: Sequence[ImagePlan], repository: str) -> bytes:
    """The bytes of the bake file. Paths in it are relative to the folder that has images/ and rootfs/.

    Users can set these bake variables: REPOSITORY, WHEELS (a folder), BASE_<OS>, and for devel images
    TOOLKIT_<CUDA>, a folder that `torchkiln plan toolkit` fills.
    """
    groups: dict[str, list[str]] = {"default": []}
    for plan in plans:
        cell = plan.locked.resolution.cell
        # All groups except those of flavors can be built with the default index alone. A target that needs
        # NVIDIA's archives is only in the group of its flavor; a target that was locked by public record is
        # in none.
        names = ("default", f"torch-{minor_of(cell.torch)}", f"cuda-{cell.cuda}", cell.flavor, cell.os)
        if plan.locked.by_record:
            continue
        for group in (cell.flavor,) if plan.locked.archives else names:
            groups.setdefault(_target(group), []).append(_target(plan.tag))
    systems = sorted({plan.locked.resolution.cell.os for plan in plans})
    variables = {"REPOSITORY": repository, "WHEELS": "wheels"}
    variables |= {_base(system): SYSTEMS[system].docker_base for system in systems}
    with_archives = [plan for plan in plans if plan.locked.archives]
    variables |= {_folder(plan): f"toolkit-{plan.locked.resolution.cell.cuda}" for plan in with_archives}
    return pretty_json(
        {
            "variable": {name: {"default": value} for name, value in variables.items()},
            "group": {name: {"targets": targets} for name, targets in sorted(groups.items())},
            "target": {_target(plan.tag): _bake_target(plan) for plan in plans},
        }
    )


def _bake_target(plan: ImagePlan) -> dict[str, Any]:
    return {
        "context": f"images/{plan.tag}",
        "contexts": {"wheels": "${WHEELS}", "rootfs": "rootfs", **_toolkit(plan)},
        "args": {
            "BASE": f"${{{_base(plan.locked.resolution.cell.os)}}}",
            "SOURCE_DATE_EPOCH": str(plan.epoch),
        },
        "tags": [f"${{REPOSITORY}}:{tag}" for tag in (plan.tag, *plan.aliases)],
        "platforms": [LINUX_AMD64.name],
    }


def _toolkit(plan: ImagePlan) -> dict[str, str]:
    """The build context with NVIDIA's toolkit, if the lock has its archives."""
    return {"toolkit": f"${{{_folder(plan)}}}"} if plan.locked.archives else {}


def _folder(plan: ImagePlan) -> str:
    return f"TOOLKIT_{plan.locked.resolution.cell.cuda.replace('.', '_')}"


def _target(name: str) -> str:
    """*name* with only the characters that bake allows: letters, digits, `-` and `_`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _base(system: str) -> str:
    return f"BASE_{re.sub(r'[^A-Z0-9]', '_', system.upper())}"
