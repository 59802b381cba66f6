"""`publish`, `retract` and `catalog` on docker-registry and crane."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.press import Press, a_press, a_repository
from tests.pushing import has_all
from tests.reports import TAG, found
from torchkiln.errors import ConfigError, GateRefused, RegistryError, VerificationFailed
from torchkiln.oci.layout import ImageOnDisk

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
    with urllib.request.urlopen(request, timeout=300) as answer:
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


ALIASES = ["2.7-cuda12.1-runtime", "v2.7"]


def released(desk: Press, repository: str, version: str, day: str, *more: str) -> ImageOnDisk:
    """The image with wheels of *version*, published on *day*."""
    image = desk.build(version)
    done = desk.publish(repository, "--report", desk.signed(desk.report(image)), "--dated", day, *more)
    assert done.exit_code == 0, done.exception
    return image


def digest_at(desk: Press, repository: str, tag: str) -> str:
    """What `verify` says that *tag* is."""
    done = desk.run("verify", f"{repository}:{tag}", *desk.keys, "--suite", str(desk.suite))
    assert done.exit_code == 0, done.exception
    return done.stdout.split()[0]


def listed(desk: Press, repository: str) -> dict[str, dict[str, Any]]:
    """The catalog, by digest."""
    done = desk.run("catalog", repository, *desk.keys, "--json")
    assert done.exit_code == 0, done.exception
    return {one["digest"]: one for one in json.loads(done.stdout)["images"]}


def test_tags_go_back_to_the_last_good_image(registry: RunningRegistry, desk: Press, name: str) -> None:
    repository = f"{registry.host}/{name}"
    first = released(desk, repository, "1", "20261120")
    second = released(desk, repository, "2", "20261121")
    assert digest_at(desk, repository, TAG) == second.manifest

    key = (
        "--key",
        str(desk.folder / "publisher.pem"),
        *(word.replace("--key", "--trust") for word in desk.keys),
    )
    done = desk.run("retract", f"{repository}:v2.7", "--reason", "crashes on H200", *key)
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"{second.manifest}\n"

    for tag in (TAG, f"{TAG}-20261120", *ALIASES):
        assert digest_at(desk, repository, tag) == first.manifest
    refused = desk.run("verify", f"{repository}:{TAG}-20261121", *desk.keys, "--suite", str(desk.suite))
    assert isinstance(refused.exception, VerificationFailed)
    assert "crashes on H200" in refused.exception.message
    there = listed(desk, repository)
    assert there[second.manifest]["tags"] == [f"{TAG}-20261121"]
    assert there[second.manifest]["retracted"] == "crashes on H200"
    assert (there[first.manifest]["good"], there[first.manifest]["retracted"]) == (True, "")
    assert there[first.manifest]["gpus"] == ["2 × NVIDIA H200"]
    again = desk.publish(repository, "--report", str(desk.folder / "report.dsse.json"), "--dated", "20261122")
    assert isinstance(again.exception, GateRefused)
    assert "was retracted" in again.exception.message
    told = desk.run("catalog", repository, *desk.keys).stdout
    assert "retracted: crashes on H200" in told


def test_tags_go_to_the_newest_of_the_good(registry: RunningRegistry, desk: Press, name: str) -> None:
    repository = f"{registry.host}/{name}"
    images = [released(desk, repository, str(day), f"2026111{day}") for day in (1, 2, 3)]
    done = desk.run("retract", f"{repository}:v2.7", "--reason", "too new")

    assert done.exit_code == 0, done.exception
    assert digest_at(desk, repository, "v2.7") == images[1].manifest


def test_a_retraction_that_nobody_signed_silences_none(
    registry: RunningRegistry, desk: Press, name: str
) -> None:
    """Whoever can write to the registry could have put it there, so that ours would be left out."""
    repository = f"{registry.host}/{name}"
    image = released(desk, repository, "1", "20261120")
    words = ["retract", f"{repository}@{image.manifest}", "--reason"]
    trusted = [word.replace("--key", "--trust") for word in desk.keys]
    key = ["--key", str(desk.folder / "publisher.pem")]

    def said(*more: str) -> Any:
        done = desk.run(*words, *more, "--json")
        assert done.stdout, done.exception
        return json.loads(done.stdout)["statement"]

    assert said("nobody's")
    assert said("ours", *key)
    assert not said("ours once more", *key, *trusted)
    refused = desk.run("verify", f"{repository}:{TAG}-20261120", *desk.keys, "--suite", str(desk.suite))
    assert isinstance(refused.exception, VerificationFailed)
    assert ": ours" in refused.exception.message
    assert "nobody's" not in refused.exception.message
    assert "once more" not in refused.exception.message


def test_where_no_good_image_is_left(registry: RunningRegistry, desk: Press, name: str) -> None:
    """One that was published in spite of the gate is none."""
    repository = f"{registry.host}/{name}"
    image = desk.build("1")
    failed = desk.report(image, found("cuda", "failed", "devices: is 0, wanted 1"), verdict="fail")
    report = desk.signed(failed)
    done = desk.publish(repository, "--report", report, "--dated", "20261119", "--override", "only for CPUs")
    assert done.exit_code == 0, done.exception
    assert "only for CPUs" in listed(desk, repository)[image.manifest]["override"]
    second = released(desk, repository, "2", "20261121")

    key = (
        "--key",
        str(desk.folder / "publisher.pem"),
        *(word.replace("--key", "--trust") for word in desk.keys),
    )
    done = desk.run("retract", f"{repository}@{second.manifest}", "--reason", "a secret in it", *key)
    if isinstance(registry, RunningCrane):
        assert done.exit_code == 0, done.exception
        assert registry.tags(name) == [f"{TAG}-20261119", f"{TAG}-20261121"]
    else:
        assert isinstance(done.exception, RegistryError)
        assert "still tagged, although retracted" in done.exception.message
        assert done.stdout == f"{second.manifest}\n"
    assert listed(desk, repository)[second.manifest]["retracted"] == "a secret in it"


def test_slips(registry: RunningRegistry, desk: Press, name: str) -> None:
    repository = f"{registry.host}/{name}"
    released(desk, repository, "1", "20261120")

    for words, told in (
        ((f"{repository}:v9", "--reason", "x"), "v9: manifest unknown"),
        ((repository, "--reason", "x"), "no tag and no digest"),
        ((f"{repository}:v2.7", "--reason", " "), "retract requires a reason"),
    ):
        done = desk.run("retract", *words)
        assert getattr(done.exception, "exit_code", None) == 2, done.exception
        assert told in str(done.exception)
    assert listed(desk, f"{registry.host}/team/nobody-was-here") == {}
