"""`publish` into docker-registry and crane, neither of which lists referrers: what is there afterwards."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

from tests.engine.crane import each_registry
from tests.engine.registry import RunningRegistry
from tests.press import Press, a_press, a_repository
from tests.pushing import has_all
from tests.reports import TAG, found
from torchkiln.errors import ConfigError, GateRefused, RegistryError

__all__ = ["a_press", "a_repository", "each_registry"]

DAY = "20261122"
NAMES = [TAG, f"{TAG}-{DAY}", "2.7-cuda12.1-runtime", "v2.7"]
KINDS = {
    "https://sigstore.dev/cosign/sign/v1",
    "https://slsa.dev/provenance/v1",
    "urn:torchkiln:smoke-report:2",
    "urn:torchkiln:clearance:1",
}


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


def test_zstd_has_names_of_its_own(registry: RunningRegistry, desk: Press, name: str) -> None:
    """Another digest, which wants a proof of its own; older engines never meet it under the plain names."""
    plain = desk.build()
    proof = desk.signed(desk.report(plain))
    image = desk.build(layer_format="zstd")
    to = f"{registry.host}/{name}"
    refused = desk.publish(to, "--report", proof)
    assert isinstance(refused.exception, GateRefused)
    assert ("report.dsse.json", f"is a report of another image: {plain.manifest}, not {image.manifest}") in (
        refused.exception.missing
    )

    done = desk.publish(to, "--report", desk.signed(desk.report(image)), "--dated", DAY)
    assert done.exit_code == 0, done.exception
    dated = f"{TAG}-zstd-{DAY}"
    assert registry.tags(name) == sorted([dated, *(f"{one}-zstd" for one in NAMES if one != f"{TAG}-{DAY}")])
    where = ("verify", f"{to}:v2.7-zstd", *desk.keys, "--suite", str(desk.suite), "--full")
    assert desk.run(*where).exit_code == 0


def test_a_dated_tag_never_moves(registry: RunningRegistry, desk: Press, name: str) -> None:
    to = f"{registry.host}/{name}"
    first = desk.build("1")
    assert desk.publish(to, "--report", desk.signed(desk.report(first)), "--dated", DAY).exit_code == 0
    second = desk.build("2")
    refused = desk.publish(to, "--report", desk.signed(desk.report(second)), "--dated", DAY)

    assert isinstance(refused.exception, RegistryError)
    assert (
        f"{TAG}-{DAY} already exists as {first.manifest}; a dated tag never moves"
        in refused.exception.message
    )
    assert asked(registry, f"{name}/manifests/{TAG}")["config"]["digest"] == first.config_digest


def test_a_day_that_is_none(registry: RunningRegistry, desk: Press, name: str) -> None:
    """`retract` would take the tag for one that moves."""
    report = desk.signed(desk.report(desk.build()))
    refused = desk.publish(f"{registry.host}/{name}", "--report", report, "--dated", "v1")

    assert isinstance(refused.exception, ConfigError)
    assert "'v1' is not a valid date" in refused.exception.message
    assert registry.tags(name) == []


def test_one_cell_that_fails_keeps_no_other_back(registry: RunningRegistry, desk: Press, name: str) -> None:
    """`--all`: of eighteen tags the layout has one; the exit code is the worst of the others'."""
    image = desk.build()
    report = desk.signed(desk.report(image))
    to = f"{registry.host}/{name}"
    argv = desk.publishing(to, "--report", report, "--json")
    done = desk.run(*(word for word in argv if word != TAG), "--all")

    assert getattr(done.exception, "exit_code", None) == 2
    assert " images failed" in str(done.exception)
    assert [json.loads(line)["digest"] for line in done.stdout.splitlines()] == [image.manifest]
    assert TAG in registry.tags(name)


def test_an_image_that_is_not_proved_needs_a_reason_that_stays(
    registry: RunningRegistry, desk: Press, name: str
) -> None:
    image = desk.build()
    failed = desk.signed(desk.report(image, found("cuda", "failed", "devices: is 0"), verdict="fail"))
    to = f"{registry.host}/{name}"
    refused = desk.publish(to, "--report", failed)
    assert isinstance(refused.exception, GateRefused)
    assert registry.tags(name) == []

    for reason, code in (("", 2), ("only for CPUs", 0)):
        done = desk.publish(to, "--report", failed, "--override", reason, "--json")
        assert getattr(done.exception, "exit_code", 0) == code, done.exception
    assert json.loads(done.stdout)["override"] == "only for CPUs"
    [clearance] = going_with(registry, name, image.manifest)["urn:torchkiln:clearance:1"]
    assert clearance["said"]["override"] == "only for CPUs"
    assert clearance["said"]["missing"] == [
        {"what": "cuda", "why": "failed: devices: is 0 (report.dsse.json)"}
    ]
