"""Writes the JSON beside the pages, and the commands that get, verify and run an image: those of README.md.

Keys of the JSON may be added, but are never removed or renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchkiln.site.catalogue import Catalogue, ListedImage, Run
from torchkiln.util.sentences import Texts, said

RUN = (
    "docker run -d --name work --gpus all -p 8888:8888 -p 2222:22 --shm-size=8g"
    " -v ./workspace:/workspace \\\n"
    '    -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)" {image}'
)
VERIFY = "verify {image} --key publisher=publisher.pub.pem --key laboratory=lab.pub.pem"
TRY = (
    "run {tag} -- python -c"
    " 'import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command line, and the name of the text that says what it does."""

    text: str
    line: str


def commands(image: ListedImage, catalogue: Catalogue) -> tuple[Command, ...]:
    """The commands for *image*, in the order in which they are run; none if it was retracted."""
    return tuple(_commands(image, catalogue))


def _commands(image: ListedImage, catalogue: Catalogue) -> Iterator[Command]:
    name = f"{catalogue.repository}:{image.tag}"
    if image.published and image.published.retracted:
        return
    if image.published:
        yield Command(text="cmd_pull", line=f"docker pull {name}@{image.published.digest}")
        yield Command(text="cmd_verify", line=f"torchkiln {VERIFY.format(image=name)}")
    else:
        name = f"{catalogue.local}:{image.tag}"
        yield Command(text="cmd_build", line=f"torchkiln build {image.tag} --load")
        yield Command(text="cmd_verify_layout", line="torchkiln verify dist")
        yield Command(text="cmd_try", line=f"torchkiln {TRY.format(tag=image.tag)}")
    yield Command(text="cmd_run", line=RUN.format(image=name))


def index_json(catalogue: Catalogue, english: Texts) -> dict[str, Any]:
    """The list of images; its sentences are English."""
    images = [_summary(image, english) for image in catalogue.images]
    return {"repository": catalogue.repository, "images": images}


def image_json(image: ListedImage, catalogue: Catalogue, english: Texts) -> dict[str, Any]:
    """Everything about one image; its sentences are English."""
    build = image.resolution.build
    assert build is not None  # each image of the catalogue has a build of torch
    return _summary(image, english) | {
        "reason": said(image.reason, english),
        "limits": [said(limit, english) for limit in image.limits],
        "wheel": {"version": build.version, "cuda": build.cuda, "index": build.source.value},
        "cudnn": build.cudnn,
        "nccl": build.nccl,
        "device_code": {
            "archs": list(build.archs),
            "gpus": {capability: list(names) for capability, names in image.gpus},
        },
        "locked_as_of": image.locked.as_of,
        "commands": [command.line for command in commands(image, catalogue)],
        "packages": [
            {
                "system": package.system,
                "name": package.name,
                "version": package.version,
                **({"bytes": package.size or None, "sha256": package.sha256} if package.sha256 else {}),
            }
            for package in image.packages
        ],
        "layers": [
            {
                "title": layer.title,
                "digest": layer.blob and layer.blob.digest,
                "diff_id": layer.blob and layer.blob.diff_id,
                "compressed_bytes": layer.blob and layer.blob.size,
                "unpacked_bytes": layer.blob and layer.blob.unpacked,
                "shared_with": list(layer.images),
            }
            for layer in image.layers
        ],
        "reports": [_report(run) for run in image.runs],
    }


def _summary(image: ListedImage, english: Texts) -> dict[str, Any]:
    resolution, published = image.resolution, image.published
    cell = resolution.cell
    return {
        "tag": image.tag,
        "aliases": list(image.aliases),
        "torch": cell.torch,
        "cuda": cell.cuda,
        "flavor": cell.flavor,
        "os": cell.os,
        "python": cell.python,
        "only_for": list(cell.gpus),
        "own_use": cell.own_use,
        "status": resolution.status.value,
        "state": image.state,
        "min_driver": resolution.min_driver,
        "full_driver": resolution.full_driver,
        "digest": image.digest,
        "compressed_bytes": image.size,
        "unpacked_bytes": image.unpacked,
        "locked_bytes": image.locked_size,
        "shared_bytes": image.shared,
        "tested_on": list(image.tested_on),
        "published": published
        and {"digest": published.digest, "warnings": [said(notice, english) for notice in published.notices]},
    }


def _report(run: Run) -> dict[str, Any]:
    return {
        "file": f"reports/{run.file}",
        "image": run.image,
        "current": run.current,
        "same_gpu_stack": run.same_stack,
        "when": run.when or None,
        "verdict": run.verdict,
        "gpus": run.gpus or None,
        "capabilities": list(run.capabilities),
        "driver": run.driver or None,
        "signed": run.signed,
        "signers": list(run.signers),
        "checks": [
            {
                "id": finding.id,
                "tier": finding.tier,
                "outcome": finding.outcome,
                "seconds": finding.seconds,
                "message": finding.message,
            }
            for finding in run.findings
        ],
    }
