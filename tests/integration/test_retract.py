"""`retract` and `catalog`, on docker-registry (which deletes no tags) and crane (which does)."""

from __future__ import annotations

import json
from typing import Any

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.press import Press, a_press, a_repository
from tests.reports import TAG, found
from torchkiln.errors import GateRefused, RegistryError, VerificationFailed
from torchkiln.oci.layout import ImageOnDisk

__all__ = ["a_press", "a_repository", "each_registry"]

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
