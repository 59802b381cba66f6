"""`publish`, `withdraw` and `ls` with two real registries: docker-registry and crane's."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

from tests.engine.crane import RunningCrane, both_registries, each_registry
from tests.engine.registry import RunningRegistry
from tests.publisher import Publisher, a_publisher, a_repository
from tests.pushing import has_all
from tests.reports import TAG, found
from torchkiln.errors import ConfigError, GateRefused, RegistryError, VerificationFailed
from torchkiln.oci.layout import ImageOnDisk

__all__ = ["a_publisher", "a_repository", "each_registry"]

DAY = "20261122"
NAMES = [TAG, f"{TAG}-{DAY}", "2.7-cuda12.1-runtime", "v2.7"]
KINDS = {
    "https://sigstore.dev/cosign/sign/v1",
    "https://slsa.dev/provenance/v1",
    "urn:torchkiln:smoke-report:2",
    "urn:torchkiln:clearance:1",
}


def read(registry: RunningRegistry, path: str) -> bytes:
    """GET *path* of the registry, without torchkiln's client."""
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"
    request = urllib.request.Request(f"http://{registry.host}/v2/{path}", headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return bytes(answer.read())


def get(registry: RunningRegistry, path: str) -> Any:
    return json.loads(read(registry, path))


def attachments(registry: RunningRegistry, name: str, digest: str) -> dict[str, list[dict[str, Any]]]:
    """All attachments of the image by kind: the bundles, decoded only with json and base64."""
    index = get(registry, f"{name}/manifests/{digest.replace(':', '-')}")
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in index["manifests"]:
        manifest = get(registry, f"{name}/manifests/{entry['digest']}")
        assert manifest["subject"]["digest"] == digest
        [layer] = manifest["layers"]
        assert layer["mediaType"] == manifest["artifactType"] == entry["artifactType"]
        bundle_json = json.loads(registry.blob(layer["digest"]).read_bytes())
        kind = manifest["annotations"]["dev.sigstore.bundle.predicateType"]
        payload = json.loads(base64.b64decode(bundle_json["dsseEnvelope"]["payload"]))
        assert payload["predicateType"] == kind
        assert payload["subject"][0]["digest"]["sha256"] == digest.partition(":")[2]
        found.setdefault(kind, []).append({"bundle": bundle_json, "content": payload["predicate"]})
    return found


def test_a_tested_image_is_published_and_verified_from_the_registry_alone(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    """`verify` needs only the registry, which has all attachments. A dated tag never moves."""
    image, to = publisher.build(), f"{registry.host}/{name}"
    report = publisher.signed(publisher.report(image))
    done = publisher.publish(to, "--report", report, "--dated", DAY)
    assert done.exit_code == 0, done.exception or done.stderr

    assert done.stdout == f"{to}@{image.manifest}\n"
    assert registry.tags(name) == sorted(NAMES)
    assert has_all(registry, name, image)
    there = attachments(registry, name, image.manifest)
    assert set(there) >= KINDS
    assert all(len(ones) == 1 for ones in there.values())
    [clearance] = there["urn:torchkiln:clearance:1"]
    assert clearance["content"]["override"] is None
    assert clearance["content"]["missing"] == []
    assert [tag["gpus"] for tag in clearance["content"]["reports"]] == ["2 × NVIDIA H200"]
    [smoke] = there["urn:torchkiln:smoke-report:2"]
    assert smoke["content"]["verdict"] == "pass"

    verify = ("verify", f"{to}:{TAG}", *publisher.keys, "--suite", str(publisher.suite))
    done = publisher.run(*verify)
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"{image.manifest} {to}:{TAG}\n"
    full = publisher.run(*verify, "--full", "--json")
    assert full.exit_code == 0, full.exception
    result = json.loads(full.stdout)
    assert (result["digest"], result["verified"]) == (image.manifest, True)
    first = ["signatures", "provenance", "lock", "smoke"]
    assert [point["what"] for point in result["points"]][:4] == first

    second = publisher.build("2")
    refused = publisher.publish(to, "--report", publisher.signed(publisher.report(second)), "--dated", DAY)
    assert isinstance(refused.exception, RegistryError)
    fault = f"{TAG}-{DAY} already exists as {image.manifest}; a dated tag never moves"
    assert fault in refused.exception.message
    assert get(registry, f"{name}/manifests/{TAG}")["config"]["digest"] == image.config_digest


def test_zstd_has_its_own_tags(registry: RunningRegistry, publisher: Publisher, name: str) -> None:
    """The zstd image has a different digest and report. Plain tags never name it, for older engines."""
    plain = publisher.build()
    proof = publisher.signed(publisher.report(plain))
    image = publisher.build(layer_format="zstd")
    to = f"{registry.host}/{name}"
    refused = publisher.publish(to, "--report", proof)
    assert isinstance(refused.exception, GateRefused)
    assert ("report.dsse.json", f"is a report of another image: {plain.manifest}, not {image.manifest}") in (
        refused.exception.missing
    )

    done = publisher.publish(to, "--report", publisher.signed(publisher.report(image)), "--dated", DAY)
    assert done.exit_code == 0, done.exception
    dated = f"{TAG}-zstd-{DAY}"
    assert registry.tags(name) == sorted([dated, *(f"{tag}-zstd" for tag in NAMES if tag != f"{TAG}-{DAY}")])
    where = ("verify", f"{to}:v2.7-zstd", *publisher.keys, "--suite", str(publisher.suite), "--full")
    assert publisher.run(*where).exit_code == 0


def test_a_failing_cell_does_not_stop_the_others(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    """`--all` with a layout that has one of eighteen tags; the exit code is that of the worst failure."""
    image = publisher.build()
    report = publisher.signed(publisher.report(image))
    to = f"{registry.host}/{name}"
    argv = publisher.publishing(to, "--report", report, "--json")
    done = publisher.run(*(word for word in argv if word != TAG), "--all")

    assert getattr(done.exception, "exit_code", None) == 2
    assert " images failed" in str(done.exception)
    assert [json.loads(line)["digest"] for line in done.stdout.splitlines()] == [image.manifest]
    assert TAG in registry.tags(name)


def test_an_untested_image_needs_an_override_reason_that_is_recorded(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    image = publisher.build()
    failed = publisher.signed(
        publisher.report(image, found("cuda", "failed", "devices: is 0"), verdict="fail")
    )
    to = f"{registry.host}/{name}"
    refused = publisher.publish(to, "--report", failed)
    assert isinstance(refused.exception, GateRefused)
    assert registry.tags(name) == []

    for reason, code in (("", 2), ("only for CPUs", 0)):
        done = publisher.publish(to, "--report", failed, "--override", reason, "--json")
        assert getattr(done.exception, "exit_code", 0) == code, done.exception
    assert json.loads(done.stdout)["override"] == "only for CPUs"
    [clearance] = attachments(registry, name, image.manifest)["urn:torchkiln:clearance:1"]
    assert clearance["content"]["override"] == "only for CPUs"
    assert clearance["content"]["missing"] == [
        {"what": "cuda", "why": "failed: devices: is 0 (report.dsse.json)"}
    ]


ALIASES = ["2.7-cuda12.1-runtime", "v2.7"]


def released(publisher: Publisher, repository: str, version: str, day: str, *more: str) -> ImageOnDisk:
    """Build the image with wheels of *version*, and publish it with the date *day*."""
    image = publisher.build(version)
    done = publisher.publish(
        repository, "--report", publisher.signed(publisher.report(image)), "--dated", day, *more
    )
    assert done.exit_code == 0, done.exception
    return image


def listed(publisher: Publisher, repository: str) -> dict[str, dict[str, Any]]:
    """The catalog, by digest."""
    done = publisher.run("ls", repository, *publisher.keys, "--json")
    assert done.exit_code == 0, done.exception
    return {image["digest"]: image for image in json.loads(done.stdout)["images"]}


def signing(publisher: Publisher) -> tuple[str, ...]:
    """The options of a `withdraw` that signs."""
    trusted = (word.replace("--key", "--trust") for word in publisher.keys)
    return "--key", str(publisher.folder / "publisher.pem"), *trusted


def test_tags_move_back_to_the_newest_good_image(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    repository = f"{registry.host}/{name}"
    _, good, bad = (released(publisher, repository, str(day), f"2026111{day}") for day in (1, 2, 3))
    done = publisher.run("withdraw", f"{repository}:v2.7", "--reason", "crashes on H200", *signing(publisher))
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"{bad.manifest}\n"

    for tag in (TAG, f"{TAG}-20261112", *ALIASES):
        assert get(registry, f"{name}/manifests/{tag}")["config"]["digest"] == good.config_digest, tag
    suite = ("--suite", str(publisher.suite))
    assert publisher.run("verify", f"{repository}:v2.7", *publisher.keys, *suite).exit_code == 0
    refused = publisher.run("verify", f"{repository}:{TAG}-20261113", *publisher.keys, *suite)
    assert isinstance(refused.exception, VerificationFailed)
    assert "crashes on H200" in refused.exception.message
    there = listed(publisher, repository)
    assert there[bad.manifest]["tags"] == [f"{TAG}-20261113"]
    assert there[bad.manifest]["retracted"] == "crashes on H200"
    assert (there[good.manifest]["good"], there[good.manifest]["retracted"]) == (True, "")
    assert there[good.manifest]["gpus"] == ["2 × NVIDIA H200"]
    report = str(publisher.folder / "report.dsse.json")
    again = publisher.publish(repository, "--report", report, "--dated", "20261122")
    assert isinstance(again.exception, GateRefused)
    assert "was retracted" in again.exception.message
    assert "retracted: crashes on H200" in publisher.run("ls", repository, *publisher.keys).stdout


def test_an_unsigned_retraction_does_not_replace_ours(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    """`withdraw` signs a retraction even if an unsigned one exists, which an attacker could have added."""
    repository = f"{registry.host}/{name}"
    image = released(publisher, repository, "1", "20261120")
    words = ["withdraw", f"{repository}@{image.manifest}", "--reason"]

    def retracted(*more: str) -> Any:
        done = publisher.run(*words, *more, "--json")
        assert done.stdout, done.exception
        return json.loads(done.stdout)["statement"]

    assert retracted("a forged reason")
    assert retracted("ours", "--key", str(publisher.folder / "publisher.pem"))
    assert not retracted("ours once more", *signing(publisher))
    refused = publisher.run(
        "verify", f"{repository}:{TAG}-20261120", *publisher.keys, "--suite", str(publisher.suite)
    )
    assert isinstance(refused.exception, VerificationFailed)
    assert ": ours" in refused.exception.message
    assert "a forged reason" not in refused.exception.message
    assert "once more" not in refused.exception.message


@both_registries
def test_without_a_good_image(registry: RunningRegistry, publisher: Publisher, name: str) -> None:
    """An image that was published with an override is no replacement for a retracted one."""
    repository = f"{registry.host}/{name}"
    image = publisher.build("1")
    failed = publisher.report(image, found("cuda", "failed", "devices: is 0, wanted 1"), verdict="fail")
    report = publisher.signed(failed)
    done = publisher.publish(
        repository, "--report", report, "--dated", "20261119", "--override", "only for CPUs"
    )
    assert done.exit_code == 0, done.exception
    assert "only for CPUs" in listed(publisher, repository)[image.manifest]["override"]
    second = released(publisher, repository, "2", "20261121")

    words = ("withdraw", f"{repository}@{second.manifest}", "--reason", "a secret in it")
    done = publisher.run(*words, *signing(publisher))
    if isinstance(registry, RunningCrane):
        assert done.exit_code == 0, done.exception
        assert registry.tags(name) == [f"{TAG}-20261119", f"{TAG}-20261121"]
    else:
        assert isinstance(done.exception, RegistryError)
        assert "still tagged, although retracted" in done.exception.message
        assert done.stdout == f"{second.manifest}\n"
    assert listed(publisher, repository)[second.manifest]["retracted"] == "a secret in it"
    assert listed(publisher, f"{registry.host}/team/never-pushed") == {}


def test_a_push_is_unproven_and_moves_no_tag_of_publish(
    registry: RunningRegistry, publisher: Publisher, name: str
) -> None:
    """It needs no report, and attaches nothing."""
    repository = f"{registry.host}/{name}"
    tested = publisher.build()
    report = publisher.signed(publisher.report(tested))
    assert publisher.publish(repository, "--report", report, "--dated", DAY).exit_code == 0
    image = publisher.build("2")
    assert image.manifest != tested.manifest

    done = publisher.run("push", "v2.7", "--to", repository, "--output", str(publisher.layout), "--json")
    assert done.exit_code == 0, done.exception
    printed = json.loads(done.stdout)
    assert (printed["digest"], printed["tags"], printed["proven"]) == (
        image.manifest,
        [f"unproven-{TAG}"],
        False,
    )
    assert f"warning: {repository}@{image.manifest} is unproven: no gate has cleared it" in done.stderr
    assert registry.tags(name) == sorted([*NAMES, f"unproven-{TAG}"])
    listed = json.loads(publisher.run("ls", repository, *publisher.keys, "--json").stdout)["images"]
    assert {each["digest"]: (sorted(each["tags"]), each["good"]) for each in listed} == {
        tested.manifest: (sorted(NAMES), True),
        image.manifest: ([f"unproven-{TAG}"], False),
    }
    assert isinstance(
        publisher.run("verify", f"{repository}:unproven-{TAG}", *publisher.keys).exception, VerificationFailed
    )

    done = publisher.run("push", TAG, "--to", repository, "--output", str(publisher.layout), "--tag", "v2.7")
    assert done.exit_code == 0
    assert f"{repository}:v2.7 moves from {tested.manifest}" in done.stderr
    shown = publisher.run("verify", f"{repository}:v2.7").exception
    assert image.manifest[:19] in str(shown)
    done = publisher.run(
        "push", TAG, "--to", repository, "--output", str(publisher.layout), "--tag", NAMES[1]
    )
    assert isinstance(done.exception, ConfigError)
    assert "a dated tag" in done.exception.message
