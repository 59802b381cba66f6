"""Writes the config and the manifest of an OCI image from its plan and its layers.

An artifact, such as a signature or an SBOM, has an OCI 1.1 manifest that refers to an image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from torchkiln.model.digest import Digest
from torchkiln.model.layer import DEFAULT_FORMAT, ImageLayer, LayerFormat
from torchkiln.model.plan import Healthcheck, ImageConfig, ImagePlan
from torchkiln.oci.compression import of_format

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

_ANNOTATION_PREFIX = "org.opencontainers.image."
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDocuments:
    """The two JSON blobs of an image."""

    config: bytes
    manifest: bytes

    @property
    def config_digest(self) -> Digest:
        """The digest of the config, which Docker's classic image store calls the image ID."""
        return digest_of(self.config)

    @property
    def manifest_digest(self) -> Digest:
        """The digest of the manifest, which identifies the image."""
        return digest_of(self.manifest)


def describe(
    plan: ImagePlan, layers: Sequence[ImageLayer], layer_format: LayerFormat = DEFAULT_FORMAT
) -> ImageDocuments:
    """Config and manifest of *plan* with its *layers*, lowest first, all in one format.

    They contain neither tags nor aliases, so renaming an image changes no byte.
    """
    config = canonical_json(_config(plan, layers))
    layer_type = of_format(layer_format).media_type
    # Registries show these labels as annotations.
    shown = {name: value for name, value in plan.config.labels if name.startswith(_ANNOTATION_PREFIX)}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, digest_of(config), len(config)),
        "layers": [descriptor(layer_type, layer.blob.digest, layer.blob.size) for layer in layers],
        "annotations": {**shown, _ANNOTATION_PREFIX + "created": _rfc3339(plan.epoch)},
    }
    return ImageDocuments(config=config, manifest=canonical_json(manifest))


def descriptor(media_type: str, digest: Digest, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def canonical_json(value: Any) -> bytes:
    """*value* as JSON with sorted keys, without blanks, in UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def _config(plan: ImagePlan, layers: Sequence[ImageLayer]) -> dict[str, Any]:
    created = _rfc3339(plan.epoch)
    return {
        **plan.locked.platform.oci,
        "created": created,
        "config": _runtime_config(plan.config),
        "rootfs": {"type": "layers", "diff_ids": [layer.blob.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"torchkiln: {layer.title}"} for layer in layers],
    }


def _runtime_config(config: ImageConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in config.env],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "WorkingDir": config.workdir,
        "ExposedPorts": {port: {} for port in config.ports},
        "Volumes": {volume: {} for volume in config.volumes},
        "Labels": dict(config.labels),
        "StopSignal": config.stop_signal,
    }
    if config.healthcheck is not None:
        fields["Healthcheck"] = _healthcheck(config.healthcheck)
    # Engines leave out empty fields, too, when they write a config.
    return {key: value for key, value in fields.items() if value}


def _healthcheck(check: Healthcheck) -> dict[str, Any]:
    return {
        "Test": ["CMD", *check.command],
        "Interval": check.interval * _NANOSECONDS,
        "Timeout": check.timeout * _NANOSECONDS,
        "StartPeriod": check.start_period * _NANOSECONDS,
        "Retries": check.retries,
    }


def _rfc3339(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A document that is attached to an image."""

    kind: str  # artifact type, also the media type of its only layer
    data: bytes = field(repr=False)
    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Referrer:
    """An artifact of an image as a registry lists it; nothing is verified yet."""

    digest: Digest
    size: int
    kind: str  # artifact type; empty if the registry does not list it
    annotations: Mapping[str, str] = field(hash=False)


def manifest_of(artifact: Artifact, subject: Mapping[str, Any]) -> bytes:
    """The manifest of *artifact*; *subject* is the image's descriptor. Deterministic."""
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": artifact.kind,
            "config": descriptor(EMPTY_TYPE, digest_of(EMPTY), len(EMPTY)),
            "layers": [descriptor(artifact.kind, digest_of(artifact.data), len(artifact.data))],
            "subject": dict(subject),
            "annotations": dict(artifact.annotations),
        }
    )
