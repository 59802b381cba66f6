"""`verify REGISTRY/REPOSITORY:TAG`: what was tampered with is seen, each way of it; what was not, passes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from tests.keys import ED, P256, STRANGER, public_pem
from tests.press import interpreter
from tests.published import Scene, a_built_press, a_scene
from tests.reports import TAG, found
from torchkiln.attest.signers import ByKey
from torchkiln.attest.statement import statement
from torchkiln.smoke.attestation import attest

__all__ = ["a_built_press", "a_scene"]

SMOKE, PROVENANCE = "urn:torchkiln:smoke-report:2", "https://slsa.dev/provenance/v1"
SPDX = "https://spdx.dev/Document"


def test_what_nobody_touched_passes(scene: Scene) -> None:
    scene.publish()
    done = scene.verify("--full", "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)

    assert (told["digest"], told["verified"]) == (scene.image.manifest, True)
    assert {point["what"] for point in told["points"]} >= {
        "signatures",
        "provenance",
        "lock",
        "smoke",
        "layers",
    }
    assert (scene.image.manifest.replace(":", "-") in scene.there.manifests) is not (
        scene.server.manners.lists_referrers
    )


def test_publishing_again_adds_nothing(scene: Scene) -> None:
    """Though an ECDSA signature of the same bytes is another one each time."""
    scene.publish()
    before = (set(scene.there.blobs), set(scene.there.manifests))
    scene.publish()

    assert (set(scene.there.blobs), set(scene.there.manifests)) == before


def test_a_flipped_byte_in_a_layer(scene: Scene) -> None:
    """Seen by who fetches it: the rest is proved without."""
    scene.publish()
    layer = max(scene.image.layers, key=lambda one: one.size)
    data = bytearray(scene.there.blobs[layer.digest])
    data[len(data) // 2] ^= 1
    scene.there.blobs[layer.digest] = bytes(data)

    assert f"layers: {scene.target}: blob {layer.digest[:19]}: checksum mismatch" in scene.refused("--full")
    assert scene.verify().exit_code == 0


def test_a_flipped_byte_in_the_manifest_or_the_config(scene: Scene) -> None:
    scene.publish()
    config = scene.there.blobs[scene.image.config_digest]
    scene.there.blobs[scene.image.config_digest] = config.replace(b"linux", b"linuy")
    assert "checksum mismatch" in scene.refused()

    scene.there.blobs[scene.image.config_digest] = config
    scene.there.manifests[TAG] = scene.there.manifests[TAG].replace(
        b'"schemaVersion":2', b'"schemaVersion": 2'
    )
    assert "not signed by a trusted key" in scene.refused()


def test_a_report_whose_words_were_changed(scene: Scene) -> None:
    """With the signature that it had."""
    scene.publish()
    bundle = scene.bundle(SMOKE)
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["checks"][0]["seconds"] = 0.5
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    scene.replace(SMOKE, json.dumps(bundle).encode())

    told = scene.refused()
    assert "statements: referrer sha256:" in told
    assert "the file was changed after it was signed" in told
    assert "import: no report has it" in told


def test_a_report_by_another_key(scene: Scene) -> None:
    scene.publish()
    bundle = scene.bundle(SMOKE)
    bundle["dsseEnvelope"] = json.loads(attest(scene.desk.report(scene.image), STRANGER))
    scene.replace(SMOKE, json.dumps(bundle).encode())

    assert "import: no report has it: it did not run" in scene.refused()
    stranger = scene.desk.write(public_pem(STRANGER), "stranger.pem")
    assert scene.verify("--key", stranger).exit_code == 0


def test_a_report_for_a_sibling_image(scene: Scene) -> None:
    """By the laboratory's own key, put beside this image."""
    scene.publish()
    sibling = scene.desk.build("2")
    bundle = scene.bundle(SMOKE)
    bundle["dsseEnvelope"] = json.loads(attest(scene.desk.report(sibling), ED))
    scene.replace(SMOKE, json.dumps(bundle).encode())

    assert f"its subject is {sibling.manifest}, not this image" in scene.refused()


def test_the_provenance_of_a_sibling(scene: Scene) -> None:
    """Signed for this image by the publisher, and its lock gives another."""
    from torchkiln.attest.provenance import provenance
    from torchkiln.lock.lock import load_locked

    scene.publish()
    scene.desk.build("2")
    other = load_locked(scene.desk.folder / "images", TAG)
    lie = ByKey(P256).sign(provenance(other, scene.image.manifest, source=None, builder="urn:x"))
    scene.replace(PROVENANCE, lie.data)

    assert "lock: layers differ from its lock" in scene.refused()


def test_a_configuration_that_its_lock_does_not_give(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the very layers, by a publisher whose source makes another one."""
    from torchkiln.plan import plan

    config = plan._config
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_config", lambda *given: replace(config(*given), workdir="/elsewhere"))
        scene.image = scene.desk.build()
        scene.publish()

    assert "lock: the configuration differs from that of its lock and this source" in scene.refused()


def test_an_sbom_that_is_missing(scene: Scene) -> None:
    scene.publish()
    scene.lose(SPDX)

    assert "sbom: no trusted SPDX document found" in scene.refused()


def test_an_sbom_that_lies(scene: Scene) -> None:
    """Signed by the publisher: one wheel has another version."""
    scene.publish()
    said = json.loads(base64.b64decode(scene.bundle(SPDX)["dsseEnvelope"]["payload"]))["predicate"]
    wheel = next(one for one in said["packages"] if one["name"] == "torch")
    wheel["versionInfo"] = "2.7.9"
    scene.replace(SPDX, ByKey(P256).sign(statement(TAG, scene.image.manifest, SPDX, said)).data)

    assert "sbom: SPDX: " in (told := scene.refused())
    assert "2.7.9" in told


def test_a_stale_referrer(scene: Scene) -> None:
    """Listed, and gone; or of another image."""
    scene.publish()
    name, told = scene.attached(SMOKE)
    if not scene.server.manners.lists_referrers:
        gone = scene.there.manifests.pop(name)
        assert "is listed, but not found" in scene.refused()
        scene.there.manifests[name] = gone
    blob = told["layers"][0]["digest"]
    scene.there.blobs[blob] = scene.there.blobs[blob][:-1]
    assert "checksum mismatch" in scene.refused()


def test_what_nobody_signed(scene: Scene) -> None:
    """It can be looked at; who trusts a key is not content with it."""
    scene.desk.keep(scene.desk.report(scene.image))
    argv = ["publish", TAG, "--to", scene.target, *scene.desk.here]
    done = scene.desk.run(*argv)
    assert done.exit_code == 0, done.exception
    assert "warning: not signed: anyone who can write to the registry" in done.stderr

    looked = scene.verify(keys=())
    assert looked.exit_code == 0, looked.exception
    assert "signatures not verified" in looked.stderr
    told = scene.refused()
    assert "signatures: not signed by a trusted key" in told
    assert "provenance: no trusted provenance found" in told


def test_what_was_published_in_spite_of_the_gate(scene: Scene) -> None:
    failed = scene.desk.report(scene.image, found("cuda", "failed", "is 0"), verdict="fail")
    scene.publish("--override", "for CPUs only", report=scene.desk.signed(failed))

    told = scene.refused()
    assert "smoke: published with --override: for CPUs only" in told
    assert "cuda: failed: is 0 (report 1)" in told


def test_another_suite_made_the_reports(scene: Scene) -> None:
    """Who looks later has a later suite: the decision says what the one held by which the checks ran."""
    scene.publish()
    (scene.desk.suite / "test_more.py").write_text("# one more\n")

    done = scene.verify()
    assert done.exit_code == 0, done.exception
    assert "by another suite than this one" in done.stderr


def test_the_policy_is_that_of_who_looks(scene: Scene) -> None:
    from torchkiln.util.places import ROOT

    scene.publish()
    text = (ROOT / "matrix.yaml").read_text().replace("gpus: []", 'gpus: ["10.0"]')
    policy = scene.desk.write(text.encode(), "matrix.yaml")

    assert "smoke: GPU 10.0: no report on such GPUs proves" in scene.refused("--policy", policy)


def test_it_is_built_again(scene: Scene) -> None:
    """From the lock in the provenance, on the base in the image; by no file of whoever published it."""
    scene.publish()
    for folder in ("images", "dist"):
        (scene.desk.folder / folder).rename(scene.desk.folder / f"{folder}-away")
    with interpreter():
        done = scene.verify("--rebuild")
    assert done.exit_code == 0, done.exception
    assert f"rebuild     rebuilt from its lock: {scene.image.manifest}" in done.stderr


@pytest.mark.parametrize(
    ("ref", "code", "told"),
    [
        ("{host}/team/app:v9", 2, "v9: manifest unknown"),
        ("{host}/team/none", 2, "latest: manifest unknown"),
        ("127.0.0.1:9/team/app:v1", 9, "connection refused"),
        ("no-such-folder", 2, "no such folder, and not a reference in a registry"),
    ],
)
def test_slips(scene: Scene, ref: str, code: int, told: str) -> None:
    done = scene.desk.run("verify", ref.format(host=scene.server.host))

    assert getattr(done.exception, "exit_code", None) == code, done.exception
    assert told in str(done.exception)
