"""A retraction holds by who signed it, and not by what a registry's list says that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.keys import ED, P256, STRANGER, pem
from tests.published import KIND, Scene, a_built_press, a_scene
from tests.reports import TAG
from torchkiln.attest.publication import publication
from torchkiln.attest.retraction import RETRACTION, retraction
from torchkiln.attest.signers import ByKey, Unsigned
from torchkiln.attest.statement import statement
from torchkiln.errors import GateRefused

__all__ = ["a_built_press", "a_scene"]

WHEN = "2026-11-22T17:05:16Z"


def retracted(scene: Scene, by: Any, *, kind: str | None = RETRACTION, reason: str = "crashes") -> None:
    """Put it beside the image.

    :param by: a key; None: nobody.
    :param kind: what its annotation says; None: it has none.
    """
    told = retraction(TAG, scene.image.manifest, reason=reason, when=WHEN)
    artifact = (ByKey(by) if by else Unsigned()).sign(told)
    scene.beside(artifact.kind, artifact.data, annotations={KIND: kind} if kind else {})


def again(scene: Scene, *more: str) -> Any:
    report = scene.desk.signed(scene.desk.report(scene.image))
    return scene.desk.publish(scene.target, "--report", report, "--dated", "20261122", *more)


def listed(scene: Scene) -> dict[str, Any]:
    done = scene.desk.run("catalog", scene.target, *scene.desk.keys, "--json")
    assert done.exit_code == 0, done.exception
    [one] = json.loads(done.stdout)["images"]
    return dict(one)


@pytest.mark.parametrize("by", [None, STRANGER], ids=["nobody", "a stranger"])
def test_one_by_nobody_who_is_trusted_is_shown_and_does_not_count(scene: Scene, by: Any) -> None:
    """Whoever can write to the registry could keep an image from being published and used."""
    scene.publish()
    retracted(scene, by, reason="says a stranger")

    seen = scene.verify()
    assert seen.exit_code == 0, seen.exception
    assert "ignored, not signed by a trusted key: says a stranger" in seen.stderr
    done = again(scene)
    assert done.exit_code == 0, done.exception
    assert "retraction ignored, not signed by a trusted key: says a stranger" in done.stderr
    one = listed(scene)
    assert (one["good"], one["retracted"]) == (True, "")
    assert one["untrusted_retractions"] == ["says a stranger"]
    assert "retraction ignored" in scene.desk.run("catalog", scene.target, *scene.desk.keys).stdout


@pytest.mark.parametrize(
    "kind",
    [None, "https://spdx.dev/Document", "urn:torchkiln:clearance:1", "urn:torchkiln:retraction:2"],
    ids=["stripped", "SBOM", "decision", "another version"],
)
def test_one_whose_annotation_says_something_else(scene: Scene, kind: str | None) -> None:
    """A registry strips or changes what it lists; the signed statement says what it is."""
    scene.publish()
    retracted(scene, P256, kind=kind)

    assert "retracted at 2026-11-22T17:05:16Z: crashes" in scene.refused()
    assert (listed(scene)["good"], listed(scene)["retracted"]) == (False, "crashes")
    refused = again(scene)
    assert isinstance(refused.exception, GateRefused)
    assert refused.exception.missing == (("retraction", "crashes"),)


def test_what_is_called_a_retraction_and_is_none(scene: Scene) -> None:
    """Another tool's document, and a signed statement of something else, under that annotation."""
    scene.publish()
    scene.beside("application/spdx+json", b"{}", annotations={KIND: RETRACTION})
    artifact = ByKey(P256).sign(publication(TAG, scene.image.manifest, [TAG]))
    scene.beside(artifact.kind, artifact.data, annotations={KIND: RETRACTION})

    assert scene.verify().exit_code == 0
    assert again(scene).exit_code == 0
    assert listed(scene)["retracted"] == ""


def test_a_laboratory_retracts_nothing(scene: Scene) -> None:
    scene.publish()
    retracted(scene, ED)
    folder = scene.desk.folder
    keys = (
        "--key",
        f"publisher={folder / 'publisher.pub.pem'}",
        "--key",
        f"laboratory={folder / 'lab.pub.pem'}",
    )
    seen = scene.verify(keys=keys)

    assert seen.exit_code == 0, seen.exception
    assert "ignored, not signed by a trusted key: crashes" in seen.stderr


def test_one_of_another_image(scene: Scene) -> None:
    """Signed by the publisher, put beside this one."""
    scene.publish()
    other = retraction(TAG, "sha256:" + "5" * 64, reason="crashes", when=WHEN)  # type: ignore[arg-type]
    artifact = ByKey(P256).sign(other)
    scene.beside(artifact.kind, artifact.data)

    assert "its subject is sha256:5555" in scene.refused()
    assert again(scene).exit_code == 0


@pytest.mark.parametrize("reason", ["", " "])
def test_one_without_a_reason(scene: Scene, reason: str) -> None:
    """`catalog` took an empty reason for none."""
    scene.publish()
    said = {"reason": reason, "when": WHEN}
    artifact = ByKey(P256).sign(statement(TAG, scene.image.manifest, RETRACTION, said))
    scene.beside(artifact.kind, artifact.data)

    assert "retracted at" in scene.refused()
    assert (listed(scene)["good"], listed(scene)["retracted"]) == (False, "no reason given")


@pytest.mark.parametrize("when", ["2026-11-22T17:05:16Z", "2999-01-01T00:00:00Z", "yesterday", ""])
def test_its_time_decides_nothing(scene: Scene, when: str) -> None:
    """Nor do decisions that are put there afterwards: who trusts it must not use the image."""
    scene.publish()
    told = retraction(TAG, scene.image.manifest, reason="crashes", when=when)
    artifact = ByKey(P256).sign(told)
    scene.beside(artifact.kind, artifact.data)
    assert again(scene, "--override", "tested by hand").exit_code == 0

    assert "retracted at" in scene.refused()


def test_one_of_a_version_that_is_not_known_here(scene: Scene) -> None:
    """It holds: whoever signed it knew better."""
    scene.publish()
    told = statement(TAG, scene.image.manifest, "urn:torchkiln:retraction:2", {"because": "crashes"})
    artifact = ByKey(P256).sign(told)
    scene.beside(artifact.kind, artifact.data)

    assert "retracted at" in scene.refused()
    assert isinstance(again(scene).exception, GateRefused)
    assert listed(scene)["good"] is False


def test_the_key_that_signs_is_believed(scene: Scene) -> None:
    """`publish` without --trust: its own key's retraction counts, a stranger's does not."""
    scene.publish()
    scene.desk.keep(scene.desk.report(scene.image))
    key = ("--key", str(scene.desk.folder / "publisher.pem"), "--dated", "20261122")
    words = ("publish", TAG, "--to", scene.target, *scene.desk.here, *key)
    retracted(scene, STRANGER)
    assert scene.desk.run(*words).exit_code == 0
    retracted(scene, P256)
    assert isinstance(scene.desk.run(*words).exception, GateRefused)


def test_retract_moves_no_tag_to_what_a_stranger_cleared(scene: Scene, tmp_path: Path) -> None:
    """With its own key and no other: only what that key cleared is good."""
    scene.publish()
    first, evil = scene.image, scene.desk.build("2")
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(pem(STRANGER))
    stranger.chmod(0o600)
    scene.desk.keep(scene.desk.report(evil))
    words = ("publish", TAG, "--to", scene.target, *scene.desk.here, "--key", str(stranger))
    assert scene.desk.run(*words, "--dated", "20261130").exit_code == 0
    scene.there.manifests["v2.7"] = scene.there.manifests[first.manifest]
    key = ("--key", str(scene.desk.folder / "publisher.pem"), "--reason", "crashes")
    done = scene.desk.run("retract", f"{scene.target}:v2.7", *key)

    assert done.exit_code == 0, done.exception
    assert "v2.7" not in scene.there.manifests or (
        scene.there.manifests["v2.7"] != scene.there.manifests[evil.manifest]
    )


def test_retract_goes_by_no_dated_tag_that_was_moved(scene: Scene) -> None:
    """The newest good image is the one that was published last, not the one that somebody calls so."""
    images = [scene.image]
    scene.publish()
    for number in (2, 3):
        scene.image = scene.desk.build(str(number))
        images.append(scene.image)
        report = scene.desk.signed(scene.desk.report(scene.image))
        day = f"2026112{number + 1}"
        assert scene.desk.publish(scene.target, "--report", report, "--dated", day).exit_code == 0
    scene.there.manifests[f"{TAG}-20261130"] = scene.there.manifests[images[0].manifest]
    trusted = [word.replace("--key", "--trust") for word in scene.desk.keys]
    key = ("--key", str(scene.desk.folder / "publisher.pem"), *trusted, "--reason", "crashes")
    done = scene.desk.run("retract", f"{scene.target}:v2.7", *key)

    assert done.exit_code == 0, done.exception
    assert scene.there.manifests["v2.7"] == scene.there.manifests[images[1].manifest]


def test_a_tag_that_retract_moves_is_signed_for(scene: Scene) -> None:
    """To an image that was not published under it; `verify` holds the tag against what was signed."""
    scene.publish("--tag", TAG)  # no v2.7, and no dated tag
    first = scene.image
    scene.image = scene.desk.build("2")
    newer = scene.desk.signed(scene.desk.report(scene.image))
    assert scene.desk.publish(scene.target, "--report", newer, "--dated", "20261123").exit_code == 0
    artifact = ByKey(P256).sign(publication(TAG, first.manifest, [f"{TAG}-20261120"]))
    scene.image = first
    scene.beside(artifact.kind, artifact.data)
    scene.there.manifests[f"{TAG}-20261120"] = scene.there.manifests[first.manifest]
    trusted = [word.replace("--key", "--trust") for word in scene.desk.keys]
    key = ("--key", str(scene.desk.folder / "publisher.pem"), *trusted, "--reason", "crashes")
    assert scene.desk.run("retract", f"{scene.target}:v2.7", *key).exit_code == 0

    words = (*scene.desk.keys, "--suite", str(scene.desk.suite))
    seen = scene.desk.run("verify", f"{scene.target}:v2.7", *words)
    assert seen.exit_code == 0, seen.exception
    assert seen.stdout.split()[0] == first.manifest


def test_a_flood_is_refused_and_hides_nothing(scene: Scene) -> None:
    """What is read ends somewhere; a retraction behind that end must not be passed over."""
    scene.publish()
    entries = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{number:064x}",
            "size": 2,
        }
        for number in range(520)
    ]
    scene.there.manifests[scene.image.manifest.replace(":", "-")] = json.dumps(
        {"schemaVersion": 2, "manifests": [*scene.listed(), *entries]}
    ).encode()

    assert getattr(scene.verify().exception, "exit_code", None) == 12
    assert listed(scene)["good"] is False


def test_damaged_ones_before_it_hide_none(scene: Scene) -> None:
    """`publish` passes over a damaged statement; not over what stands behind many of them."""
    scene.publish()
    for number in range(25):
        manifest = scene.beside("application/vnd.in-toto+json", b"%d" % number)
        blob = json.loads(scene.there.manifests[manifest])["layers"][0]["digest"]
        scene.there.blobs[blob] = b"x"
    retracted(scene, P256)

    assert again(scene).exit_code != 0
    assert listed(scene)["good"] is False
