"""Plans an image from a lock: its ordered layers and its config, for either engine. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.matrix.gpu_archs import kept_archs
from torchkiln.matrix.resolve import require_buildable, require_cuda
from torchkiln.matrix.tags import tag_of
from torchkiln.model.device_code import Gpus
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedArchive, LockedCell, LockedStandalone, LockedTools
from torchkiln.model.plan import (
    ArtefactLayer,
    Healthcheck,
    ImageConfig,
    ImagePlan,
    OverlayFile,
    OverlayLayer,
    PlannedLayer,
    RemovalLayer,
    ToolkitLayer,
    WheelLayer,
)
from torchkiln.model.recipe import PREFIX, RECIPE
from torchkiln.model.untrusted import is_untrusted
from torchkiln.plan.cuda_toolkit import compiler_links, library_links, settings, toolkit_links
from torchkiln.plan.layers import made_layers
from torchkiln.util import codec
from torchkiln.util.files import rows_json
from torchkiln.util.versions import numbers

SCHEMA = 2  # of image.json and of `plan --json`
IMAGE_JSON = "etc/torchkiln/image.json"
CONSTRAINTS = "etc/torchkiln/constraints.txt"
GENERATED = (IMAGE_JSON, CONSTRAINTS)  # the overlay has them, and the files of rootfs/

# A volume, so that files in it survive `docker restart`, are not on the slow overlay file system and can be
# written with --read-only; BuildKit keeps files that a derived Dockerfile puts there.
_WORKSPACE = "/workspace"

# The last folder is for Kubernetes services such as GKE, which mount the driver's programs there.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"
# These services mount the driver's libraries here, not in the usual library folders, without ldconfig.
_DRIVERS = ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64")
_OF_TORCH = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton"})
_NO_LABELS = ("schema", "tag", "cut_wheels", "wheels", "archives")  # of the facts in image.json
_HEADER = "# What this image was built with. To let go of it: PIP_CONSTRAINT= UV_CONSTRAINT= pip install ..."


def plan(
    locked: LockedCell, overlay: Sequence[OverlayFile], *, aliases: Sequence[str], lock_digest: Digest
) -> ImagePlan:
    """The plan of *locked*: layers of wheels and archives, base, and *overlay* with the generated files.

    The base is above the wheels, because an engine unpacks each layer again that is above a changed one, and
    a refresh changes the base only: docs/adr/0052.

    *aliases* depend on the whole matrix: see `tags.aliases_of`. *lock_digest* is the value of
    `file.lock_digest`.

    :raises ConfigError: *overlay* contains a generated file.
    :raises Unresolvable: the cell is unavailable.
    :raises BuildFailed: a wheel is too large for a layer.
    """
    require_buildable(locked.resolution)
    tag = tag_of(locked.resolution)
    facts = image_facts(locked, tag, lock_digest)
    for file in overlay:
        if file.path in GENERATED:
            raise ConfigError(f"rootfs/{file.path}: the plan generates this file", hint="delete it")
    generated = (
        OverlayFile(path=IMAGE_JSON, mode=0o644, data=rows_json(facts)),
        OverlayFile(path=CONSTRAINTS, mode=0o644, data=constraints(locked).encode()),
    )
    files = tuple(sorted((*overlay, *generated), key=lambda file: file.path))
    base = ArtefactLayer(
        title=f"{locked.base.os} base ({_count(len(locked.base.packages), 'package')})", artefact=locked.base
    )
    top = OverlayLayer(
        title=f"torchkiln ({_count(len(files), 'file')})",
        files=files,
        links=(*library_links(locked), *toolkit_links(locked), *compiler_links(locked)),
    )
    return ImagePlan(
        locked=locked,
        tag=tag,
        aliases=tuple(aliases),
        layers=(*made_layers(locked), base, *_standalone(locked), *_tools(locked), top),
        config=_config(locked, facts),
        epoch=locked.epoch,
        recipe=RECIPE,
    )


def _standalone(locked: LockedCell) -> tuple[ArtefactLayer, ...]:
    """The layer of the standalone Python, if *locked* has one; it replaces the interpreter of the base."""
    if (standalone := locked.standalone) is None:
        return ()
    return (ArtefactLayer(title=f"CPython {standalone.version}", artefact=standalone),)


def _tools(locked: LockedCell) -> tuple[ArtefactLayer, ...]:
    """The layer of OS tools of a devel image; its packages are installed on the base."""
    if locked.tools is None:
        return ()
    count = _count(len(locked.tools.packages), "package")
    title = f"{locked.base.os} tools {locked.tools.name} ({count})"
    return (ArtefactLayer(title=title, artefact=locked.tools),)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _config(locked: LockedCell, facts: Mapping[str, Any]) -> ImageConfig:
    toolkit, cell = settings(locked), locked.resolution.cell
    return ImageConfig(
        env=(
            ("PATH", ":".join((f"{PREFIX}/bin", *toolkit.programs, _SYSTEM_PATH))),
            ("LANG", "C.UTF-8"),
            ("VIRTUAL_ENV", PREFIX),
            ("PYTHONUNBUFFERED", "1"),  # so that `docker logs` and `nohup ... &` show output at once
            ("LD_LIBRARY_PATH", ":".join((*_DRIVERS, *toolkit.libraries))),
            # Later installations must not replace the packages that were tested together.
            ("PIP_CONSTRAINT", f"/{CONSTRAINTS}"),
            ("UV_CONSTRAINT", f"/{CONSTRAINTS}"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
            ("NVIDIA_VISIBLE_DEVICES", "all"),
            ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
            ("NVIDIA_REQUIRE_CUDA", require_cuda(locked.resolution)),
            *_require_arch(cell.gpus),
            *toolkit.env,
        ),
        entrypoint=("/usr/bin/tini", "--", "/opt/torchkiln/entrypoint"),
        cmd=(),
        workdir=_WORKSPACE,
        ports=("22/tcp", "6006/tcp", "8888/tcp"),
        volumes=(_WORKSPACE,),
        labels=_labels(facts, locked.epoch),
        stop_signal="SIGTERM",
        healthcheck=Healthcheck(
            command=("/opt/torchkiln/healthcheck",), interval=30, timeout=5, start_period=30, retries=3
        ),
    )


def _require_arch(gpus: Gpus) -> tuple[tuple[str, str], ...]:
    """The variable by which NVIDIA's container toolkit refuses GPUs on which code for *gpus* does not run.

    In the value, a space means "or", and a comma "and".
    """
    lowest: dict[int, int] = {}
    for major, minor in map(numbers, gpus):
        lowest[major] = min(minor, lowest.get(major, minor))
    served = " ".join(f"arch>={major}.{minor},arch<{major + 1}.0" for major, minor in lowest.items())
    return (("NVIDIA_REQUIRE_ARCH", served),) if served else ()


def _labels(facts: Mapping[str, Any], epoch: int) -> tuple[tuple[str, str], ...]:
    created = datetime.fromtimestamp(epoch, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": f"torch {facts['torch']}",
        "org.opencontainers.image.version": facts["tag"],
        "org.opencontainers.image.created": created,
    }
    labels |= {f"torchkiln.{name}": _label(value) for name, value in facts.items() if name not in _NO_LABELS}
    return tuple(sorted((key, value) for key, value in labels.items() if value))


def _label(fact: Any) -> str:
    if isinstance(fact, dict):
        return str(fact["digest"])
    if isinstance(fact, list):
        return " ".join(fact)
    return "" if fact is None else "true" if fact is True else str(fact)


def image_facts(locked: LockedCell, tag: str, lock_digest: Digest) -> dict[str, Any]:
    """The contents of /etc/torchkiln/image.json, the image's description of itself."""
    resolution, cell, cut = locked.resolution, locked.resolution.cell, locked.device_code
    build, thin = require_buildable(resolution), dict[str, Any]()
    if cut:
        thin = {"gpus": list(cut.gpus), "wheel_archs": list(build.archs), "device_code": cut.rule}
        thin |= {"cut_wheels": list(cut.wheels)}
    return {
        "schema": SCHEMA,
        "tag": tag,
        "torch": build.version,
        "cuda": cell.cuda,
        "wheel_cuda": build.cuda,
        "status": resolution.status.value,
        "flavor": cell.flavor,
        "os": locked.base.os,
        "python": locked.python.version,
        "cudnn": build.cudnn,
        "nccl": build.nccl,
        "min_driver": resolution.min_driver,
        "full_driver": resolution.full_driver,
        "archs": list(kept_archs(build.archs, cell.gpus)),
        **thin,
        **({"own_use": True} if cell.own_use else {}),
        "limits": [str(limit) for limit in resolution.limits],
        "lock": lock_digest,
        "base": locked.base.digest,
        **({"tools": _tools_facts(locked.tools)} if locked.tools else {}),
        **({"standalone": _standalone_facts(locked.standalone)} if locked.standalone else {}),
        "recipe": RECIPE,
        **({"untrusted": True} if is_untrusted(locked) else {}),
        "wheels": [
            {"name": wheel.name, "version": wheel.version, "sha256": wheel.sha256} for wheel in locked.wheels
        ],
        **({"archives": [_archive_facts(archive) for archive in locked.archives]} if locked.archives else {}),
    }


def _tools_facts(tools: LockedTools) -> dict[str, Any]:
    return {
        "name": tools.name,
        "digest": tools.digest,
        "packages": {package.name: package.version for package in tools.packages},
    }


def _standalone_facts(standalone: LockedStandalone) -> dict[str, Any]:
    return {
        "python": standalone.version,
        "digest": standalone.digest,
        "archive": standalone.filename,
        "sha256": standalone.sha256,
    }


def _archive_facts(archive: LockedArchive) -> dict[str, str]:
    return {"name": archive.component, "version": archive.version, "sha256": archive.sha256}


def constraints(locked: LockedCell) -> str:
    """The contents of constraints.txt: pins of torch and its CUDA libraries, and the lock's constraints."""
    pins = [
        f"{wheel.name}=={wheel.version}"
        for wheel in locked.wheels
        if wheel.name in _OF_TORCH or wheel.name.startswith(("nvidia-", "cuda-"))
    ]
    bounds = [bound.requirement for bound in locked.resolution.constraints]
    return "".join(f"{line}\n" for line in (_HEADER, *sorted(pins), *sorted(bounds)))


def to_json(plan: ImagePlan) -> dict[str, Any]:
    """*plan* as `torchkiln plan --json` prints it: overlay files by their hashes, sizes in bytes."""
    config: dict[str, Any] = codec.plain(plan.config)
    return {
        "schema": SCHEMA,
        "tag": plan.tag,
        "aliases": list(plan.aliases),
        "recipe": plan.recipe,
        "epoch": plan.epoch,
        "layers": [_layer_json(layer) for layer in plan.layers],
        "config": config | {"env": dict(plan.config.env), "labels": dict(plan.config.labels)},
    }


def _layer_json(layer: PlannedLayer) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": layer.kind, "title": layer.title, "bytes": layer.size}
    match layer:
        case ArtefactLayer():
            return values | {"digest": layer.artefact.digest}
        case WheelLayer():
            return values | {"wheels": [wheel.filename for wheel in layer.wheels]}
        case ToolkitLayer():
            return values | {"archives": [archive.filename for archive in layer.archives]}
        case RemovalLayer():
            return values | {"removed": list(layer.paths)}
        case OverlayLayer():
            values |= {"links": {link.path: link.target for link in layer.links}} if layer.links else {}
    return values | {"files": [_file_json(file) for file in layer.files]}


def _file_json(file: OverlayFile) -> dict[str, str]:
    return {"path": file.path, "mode": f"{file.mode:04o}", "sha256": hashlib.sha256(file.data).hexdigest()}
