"""`publish` into docker-registry and crane, neither of which lists referrers: what is there afterwards."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crane import each_registry
from tests.engine.registry import RunningRegistry
from tests.press import Press, press
from tests.pushing import has_all
from tests.reports import TAG

__all__ = ["each_registry"]

DAY = "20261122"
NAMES = [TAG, f"{TAG}-{DAY}", "2.7-cuda12.1-runtime", "v2.7"]
KINDS = {
    "https://sigstore.dev/cosign/sign/v1",
    "https://slsa.dev/provenance/v1",
    "urn:torchkiln:smoke-report:2",
    "urn:torchkiln:clearance:1",
}


@pytest.fixture
def desk(tmp_path: Path) -> Press:
    return press(tmp_path)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A repository that no other test has."""
    return f"team/{tmp_path.name.lower().replace('_', '-').strip('-')}"


def asked(registry: RunningRegistry, path: str) -> Any:
    """What the registry answers, as a program asks that is not ours."""
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"
    request = urllib.request.Request(f"http://{registry.host}/v2/{path}", headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def going_with(registry: RunningRegistry, name: str, digest: str) -> dict[str, list[dict[str, Any]]]:
    """Everything that goes with the image, by its kind: the bundles, decoded by json and base64 alone."""
    index = asked(registry, f"{name}/manifests/{digest.replace(':', '-')}")
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in index["manifests"]:
        manifest = asked(registry, f"{name}/manifests/{entry['digest']}")
        assert manifest["subject"]["digest"] == digest
        [layer] = manifest["layers"]
        assert layer["mediaType"] == manifest["artifactType"] == entry["artifactType"]
        told = json.loads(registry.blob(layer["digest"]).read_bytes())
        kind = manifest["annotations"]["dev.sigstore.bundle.predicateType"]
        payload = json.loads(base64.b64decode(told["dsseEnvelope"]["payload"]))
        assert payload["predicateType"] == kind
        assert payload["subject"][0]["digest"]["sha256"] == digest.partition(":")[2]
        found.setdefault(kind, []).append({"bundle": told, "said": payload["predicate"]})
    return found


def test_what_was_proved_is_published_with_all_that_goes_with_it(
    registry: RunningRegistry, desk: Press, name: str
) -> None:
    image = desk.build()
    done = desk.publish(
        f"{registry.host}/{name}", "--report", desk.signed(desk.report(image)), "--dated", DAY
    )
    assert done.exit_code == 0, done.exception or done.stderr

    assert done.stdout == f"{registry.host}/{name}@{image.manifest}\n"
    assert registry.tags(name) == sorted(NAMES)
    assert has_all(registry, name, image)
    there = going_with(registry, name, image.manifest)
    assert set(there) >= KINDS
    assert all(len(ones) == 1 for ones in there.values())
    [clearance] = there["urn:torchkiln:clearance:1"]
    assert clearance["said"]["override"] is None
    assert clearance["said"]["missing"] == []
    assert [one["gpus"] for one in clearance["said"]["reports"]] == ["2 × NVIDIA H200"]
    [report] = there["urn:torchkiln:smoke-report:2"]
    assert report["said"]["verdict"] == "pass"


def verified(desk: Press, registry: RunningRegistry, name: str, *more: str) -> Any:
    """`verify` of the tag, from an empty cache."""
    return desk.run("verify", f"{registry.host}/{name}:{TAG}", *desk.keys, "--suite", str(desk.suite), *more)


def test_it_is_verified_from_the_registry_alone(registry: RunningRegistry, desk: Press, name: str) -> None:
    image = desk.build()
    report = desk.signed(desk.report(image))
    assert desk.publish(f"{registry.host}/{name}", "--report", report).exit_code == 0

    done = verified(desk, registry, name)
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"{image.manifest} {registry.host}/{name}:{TAG}\n"
    full = verified(desk, registry, name, "--full", "--json")
    assert full.exit_code == 0, full.exception
    told = json.loads(full.stdout)
    assert (told["digest"], told["verified"]) == (image.manifest, True)
    assert [point["what"] for point in told["points"]][:4] == ["signatures", "provenance", "lock", "smoke"]
