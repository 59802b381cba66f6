"""Whether a retraction counts depends on its signature, not on its annotation in a registry's list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.keys import ED, P256, UNKNOWN_KEY, pem
from tests.published import KIND, Scene, a_built_publisher, a_scene_with_referrers, a_server
from tests.reports import TAG
from torchkiln.attest.signers import ByKey, Signer, Unsigned
from torchkiln.attest.statement import RETRACTION, Statement, publication, retraction, statement
from torchkiln.errors import GateRefused

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server"]

WHEN = "2026-11-22T17:05:16Z"
PUBLISHER = ByKey(P256)


def retracted(scene: Scene, by: Any, *, kind: str | None = RETRACTION, reason: str = "crashes") -> None:
    """Attach a retraction to the image.

    :param by: the signing key; None for an unsigned retraction.
    :param kind: the annotation; None for none.
    """
    said = retraction(TAG, scene.image.manifest, reason=reason, when=WHEN)
    attach(scene, said, ByKey(by) if by else Unsigned(), annotations={KIND: kind} if kind else {})


def attach(scene: Scene, said: Statement, signer: Signer = PUBLISHER, **more: Any) -> None:
    artifact = signer.sign(said)
    scene.beside(artifact.kind, artifact.data, **more)


def again(scene: Scene, *more: str) -> Any:
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    return scene.publisher.publish(scene.target, "--report", report, "--dated", "20261122", *more)


def listed(scene: Scene) -> dict[str, Any]:
    done = scene.publisher.run("ls", scene.target, *scene.publisher.keys, "--json")
    assert done.exit_code == 0, done.exception
    [one] = json.loads(done.stdout)["images"]
    return dict(one)


def test_an_untrusted_retraction_is_shown_and_does_not_count(scene: Scene) -> None:
    """If it counted, anyone with write access to the repository could block an image."""
    scene.publish()
    retracted(scene, UNKNOWN_KEY, reason="by an unknown key")

    verified = scene.verify()
    assert verified.exit_code == 0, verified.exception
    assert "ignored, not signed by a trusted key: by an unknown key" in verified.stderr
    done = again(scene)
    assert done.exit_code == 0, done.exception
    assert "retraction ignored, not signed by a trusted key: by an unknown key" in done.stderr
    one = listed(scene)
    assert (one["good"], one["retracted"]) == (True, "")
    assert one["untrusted_retractions"] == ["by an unknown key"]
    assert "retraction ignored" in scene.publisher.run("ls", scene.target, *scene.publisher.keys).stdout


def test_three_untrusted_retractions_are_shown(scene: Scene) -> None:
    """At most three are shown, because anyone with write access can add any number of them."""
    scene.publish()
    for number in range(4):
        retracted(scene, None, reason=f"reason {number}")

    shown = listed(scene)["untrusted_retractions"]
    assert len({*shown} & {f"reason {number}" for number in range(4)}) == len(shown) == 3


@pytest.mark.parametrize("kind", [None, "https://cyclonedx.org/bom"], ids=["stripped", "SBOM"])
def test_a_retraction_with_a_wrong_annotation(scene: Scene, kind: str | None) -> None:
    """A registry can change or remove annotations, so only the signed statement counts."""
    scene.publish()
    retracted(scene, P256, kind=kind)

    assert "retracted at 2026-11-22T17:05:16Z: crashes" in scene.refused()
    assert (listed(scene)["good"], listed(scene)["retracted"]) == (False, "crashes")
    refused = again(scene)
    assert isinstance(refused.exception, GateRefused)
    assert refused.exception.missing == (("retraction", "crashes"),)


def test_another_statement_annotated_as_a_retraction(scene: Scene) -> None:
    """A document of another tool, or another signed statement, is no retraction with such an annotation."""
    scene.publish()
    scene.beside("application/spdx+json", b"{}", annotations={KIND: RETRACTION})
    attach(scene, publication(TAG, scene.image.manifest, [TAG]), annotations={KIND: RETRACTION})

    assert scene.verify().exit_code == 0
    assert again(scene).exit_code == 0
    assert listed(scene)["retracted"] == ""


def test_a_laboratory_cannot_retract(scene: Scene) -> None:
    scene.publish()
    retracted(scene, ED)
    folder = scene.publisher.folder
    keys = (
        "--key",
        f"publisher={folder / 'publisher.pub.pem'}",
        "--key",
        f"laboratory={folder / 'lab.pub.pem'}",
    )
    verified = scene.verify(keys=keys)

    assert verified.exit_code == 0, verified.exception
    assert "ignored, not signed by a trusted key: crashes" in verified.stderr


def test_a_retraction_of_another_image(scene: Scene) -> None:
    """The publisher signed it for another image; someone attached it to this image."""
    scene.publish()
    of_another_image = retraction(TAG, "sha256:" + "5" * 64, reason="crashes", when=WHEN)  # type: ignore[arg-type]
    attach(scene, of_another_image)

    assert "its subject is sha256:5555" in scene.refused()
    assert again(scene).exit_code == 0


def test_a_retraction_without_a_reason(scene: Scene) -> None:
    """An earlier version of `ls` ignored a retraction with an empty reason."""
    scene.publish()
    predicate = {"reason": " ", "when": WHEN}
    attach(scene, statement(TAG, scene.image.manifest, RETRACTION, predicate))

    assert "retracted at" in scene.refused()
    assert (listed(scene)["good"], listed(scene)["retracted"]) == (False, "no reason given")


@pytest.mark.parametrize("when", ["2999-01-01T00:00:00Z", ""])
def test_the_time_of_a_retraction_does_not_matter(scene: Scene, when: str) -> None:
    """Even a later decision of the gate does not cancel it."""
    scene.publish()
    attach(scene, retraction(TAG, scene.image.manifest, reason="crashes", when=when))
    assert again(scene, "--override", "tested manually").exit_code == 0

    assert "retracted at" in scene.refused()


def test_a_retraction_of_an_unknown_version(scene: Scene) -> None:
    """It counts even if a newer torchkiln wrote it in another format."""
    scene.publish()
    kind = "urn:torchkiln:retraction:2"
    attach(scene, statement(TAG, scene.image.manifest, kind, {"because": "crashes"}))

    assert "retracted at" in scene.refused()
    assert isinstance(again(scene).exception, GateRefused)
    assert listed(scene)["good"] is False


def test_the_signing_key_is_trusted(scene: Scene) -> None:
    """`publish` without --trust trusts its own --key: only retractions by this key count."""
    scene.publish()
    scene.publisher.keep(scene.publisher.report(scene.image))
    key = ("--key", str(scene.publisher.folder / "publisher.pem"), "--dated", "20261122")
    words = ("publish", TAG, "--to", scene.target, *scene.publisher.here, *key)
    retracted(scene, UNKNOWN_KEY)
    assert scene.publisher.run(*words).exit_code == 0
    retracted(scene, P256)
    assert isinstance(scene.publisher.run(*words).exception, GateRefused)


def test_withdraw_moves_no_tag_to_an_image_cleared_by_an_unknown_key(scene: Scene, tmp_path: Path) -> None:
    """With --key and without --trust, only images that this key cleared are candidates."""
    scene.publish()
    first, evil = scene.image, scene.publisher.build("2")
    unknown_key = tmp_path / "stranger.pem"
    unknown_key.write_bytes(pem(UNKNOWN_KEY))
    unknown_key.chmod(0o600)
    scene.publisher.keep(scene.publisher.report(evil))
    words = ("publish", TAG, "--to", scene.target, *scene.publisher.here, "--key", str(unknown_key))
    assert scene.publisher.run(*words, "--dated", "20261130").exit_code == 0
    scene.there.manifests["v2.7"] = scene.there.manifests[first.manifest]
    key = ("--key", str(scene.publisher.folder / "publisher.pem"), "--reason", "crashes")
    done = scene.publisher.run("withdraw", f"{scene.target}:v2.7", *key)

    assert done.exit_code == 0, done.exception
    assert "v2.7" not in scene.there.manifests


def test_withdraw_ignores_moved_dated_tags(scene: Scene) -> None:
    """The tag moves to the image that was published last, not to the image of the newest tag."""
    images = [scene.image]
    scene.publish()
    for number in (2, 3):
        scene.image = scene.publisher.build(str(number))
        images.append(scene.image)
        report = scene.publisher.signed(scene.publisher.report(scene.image))
        day = f"2026112{number + 1}"
        assert scene.publisher.publish(scene.target, "--report", report, "--dated", day).exit_code == 0
    scene.there.manifests[f"{TAG}-20261130"] = scene.there.manifests[images[0].manifest]
    trusted = [word.replace("--key", "--trust") for word in scene.publisher.keys]
    key = ("--key", str(scene.publisher.folder / "publisher.pem"), *trusted, "--reason", "crashes")
    done = scene.publisher.run("withdraw", f"{scene.target}:v2.7", *key)

    assert done.exit_code == 0, done.exception
    assert scene.there.manifests["v2.7"] == scene.there.manifests[images[1].manifest]


def test_a_tag_moved_by_withdraw_is_signed(scene: Scene) -> None:
    """The image was not published under this tag, and `verify` requires a signed statement of it."""
    scene.publish("--tag", TAG)  # so the image has neither the tag v2.7 nor a dated tag
    first = scene.image
    scene.image = scene.publisher.build("2")
    newer = scene.publisher.signed(scene.publisher.report(scene.image))
    assert scene.publisher.publish(scene.target, "--report", newer, "--dated", "20261123").exit_code == 0
    scene.image = first
    attach(scene, publication(TAG, first.manifest, [f"{TAG}-20261120"]))
    scene.there.manifests[f"{TAG}-20261120"] = scene.there.manifests[first.manifest]
    trusted = [word.replace("--key", "--trust") for word in scene.publisher.keys]
    key = ("--key", str(scene.publisher.folder / "publisher.pem"), *trusted, "--reason", "crashes")
    assert scene.publisher.run("withdraw", f"{scene.target}:v2.7", *key).exit_code == 0

    words = (*scene.publisher.keys, "--suite", str(scene.publisher.suite))
    verified = scene.publisher.run("verify", f"{scene.target}:v2.7", *words)
    assert verified.exit_code == 0, verified.exception
    assert verified.stdout.split()[0] == first.manifest


def test_a_flood_is_refused_and_hides_nothing(scene: Scene) -> None:
    """The number of attachments that are read is limited, but a retraction must not be missed."""
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


def test_damaged_statements_before_it_do_not_hide_a_retraction(scene: Scene) -> None:
    """`publish` skips damaged statements, and reads the statements after them."""
    scene.publish()
    for number in range(25):
        manifest = scene.beside("application/vnd.in-toto+json", b"%d" % number)
        blob = json.loads(scene.there.manifests[manifest])["layers"][0]["digest"]
        scene.there.blobs[blob] = b"x"
    retracted(scene, P256)

    assert again(scene).exit_code != 0
    assert listed(scene)["good"] is False
