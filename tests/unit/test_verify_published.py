"""`verify REGISTRY/REPOSITORY:TAG` detects each kind of tampering, and accepts unchanged images."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from tests.keys import P256, UNKNOWN_KEY, public_pem
from tests.published import Scene, a_built_publisher, a_scene_with_referrers, a_server, each_scene
from tests.publisher import interpreter
from tests.reports import TAG, found, report
from torchkiln.attest.signers import ByKey, OpenedStatement
from torchkiln.attest.statement import statement
from torchkiln.errors import VerificationFailed
from torchkiln.gate.clearance import CLEARANCE
from torchkiln.publishing.attached import reports_in
from torchkiln.smoke.attestation import attest, statement_of

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server", "each_scene"]

SMOKE, PROVENANCE = "urn:torchkiln:smoke-report:2", "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"


def test_an_unchanged_image_passes(each_scene: Scene) -> None:
    each_scene.publish()
    done = each_scene.verify("--full", "--json")
    assert done.exit_code == 0, done.exception
    result = json.loads(done.stdout)

    assert (result["digest"], result["verified"]) == (each_scene.image.manifest, True)
    assert {point["what"] for point in result["points"]} >= {
        "signatures",
        "provenance",
        "lock",
        "smoke",
        "layers",
    }
    assert (each_scene.image.manifest.replace(":", "-") in each_scene.there.manifests) is not (
        each_scene.server.behaviour.lists_referrers
    )


def test_publishing_again_adds_nothing(each_scene: Scene) -> None:
    """Nothing is added although each ECDSA signature of the same bytes is different."""
    each_scene.publish()
    before = (set(each_scene.there.blobs), set(each_scene.there.manifests))
    each_scene.publish()

    assert (set(each_scene.there.blobs), set(each_scene.there.manifests)) == before


def test_publishing_again_adds_what_is_missing(each_scene: Scene) -> None:
    each_scene.publish()
    each_scene.lose(CLEARANCE)
    each_scene.publish()

    assert each_scene.attached(CLEARANCE)
    assert each_scene.verify().exit_code == 0


def test_an_invalid_report_hides_no_other() -> None:
    good = OpenedStatement(statement=statement_of(report()), signed=True, signers=("k",), envelope=None)
    bad = replace(good, statement=replace(good.statement, predicate="{}"))
    reports, faults = reports_in([bad, good])

    assert ([found.name for found in reports], len(faults)) == (["report 2"], 1)


def test_a_flipped_byte_in_a_layer(scene: Scene) -> None:
    """Only --full reads layers and detects it."""
    scene.publish()
    layer = max(scene.image.layers, key=lambda image_layer: image_layer.size)
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


def test_a_changed_report(scene: Scene) -> None:
    """The report was changed, but not its signature."""
    scene.publish()
    bundle = scene.bundle(SMOKE)
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["checks"][0]["seconds"] = 0.5
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    scene.replace(SMOKE, json.dumps(bundle).encode())

    result = scene.refused()
    assert "statements: referrer sha256:" in result
    assert "the file was changed after it was signed" in result
    assert "import: not run: no report contains it" in result


def test_a_report_by_another_key(scene: Scene) -> None:
    scene.publish()
    bundle = scene.bundle(SMOKE)
    bundle["dsseEnvelope"] = json.loads(attest(scene.publisher.report(scene.image), UNKNOWN_KEY))
    scene.replace(SMOKE, json.dumps(bundle).encode())

    failed = scene.verify().exception
    assert isinstance(failed, VerificationFailed)
    assert "import: not run: no report contains it" in failed.message
    assert failed.hint.startswith("statements that no trusted key signed: 1; if a laboratory that you trust")
    unknown_key = scene.publisher.write(public_pem(UNKNOWN_KEY), "stranger.pem")
    assert scene.verify("--key", f"any={unknown_key}").exit_code == 0


def test_the_provenance_of_another_image(scene: Scene) -> None:
    """The publisher signed it for this image, but it contains another image's lock."""
    from torchkiln.attest.provenance import provenance
    from torchkiln.locks.lock import load_locked

    scene.publish()
    scene.publisher.build("2")
    other_lock = load_locked(scene.publisher.folder / "images", TAG)
    wrong_provenance = ByKey(P256).sign(
        provenance(other_lock, scene.image.manifest, source=None, builder="urn:x")
    )
    scene.replace(PROVENANCE, wrong_provenance.data)

    assert "lock: layers differ from its lock" in scene.refused()


def test_a_configuration_that_does_not_match_its_lock(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher with changed source code built it; its layers are the lock's."""
    from torchkiln.plan import plan

    config = plan._config
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_config", lambda *arguments: replace(config(*arguments), workdir="/elsewhere"))
        scene.image = scene.publisher.build()
        scene.publish()

    assert "lock: the configuration differs from that of its lock and this source" in scene.refused()


def test_a_missing_sbom(scene: Scene) -> None:
    scene.publish()
    scene.lose(CYCLONEDX)

    assert "sbom: no trusted CycloneDX document found" in scene.refused()


def test_a_wrong_sbom(scene: Scene) -> None:
    """The publisher signed it, but one wheel in it has a different version."""
    scene.publish()
    bill = json.loads(base64.b64decode(scene.bundle(CYCLONEDX)["dsseEnvelope"]["payload"]))["predicate"]
    wheel = next(part for part in bill["components"] if part["name"] == "torch")
    wheel["version"], wheel["purl"] = "2.7.9", "pkg:pypi/torch@2.7.9"
    scene.replace(CYCLONEDX, ByKey(P256).sign(statement(TAG, scene.image.manifest, CYCLONEDX, bill)).data)

    assert "sbom: Python package torch: the SBOM has 2.7.9, the image 1.0" in scene.refused()


def test_a_statement_in_spdx_is_not_used(scene: Scene) -> None:
    """Earlier versions attached one to each image. Whatever it says, it is like any unknown statement."""
    scene.publish()
    old = ByKey(P256).sign(statement(TAG, scene.image.manifest, "https://spdx.dev/Document", {"packages": 7}))
    scene.beside(old.kind, old.data)

    assert scene.counted().startswith("7 statements by ")
    assert scene.verify("--full").exit_code == 0
    scene.lose(CYCLONEDX)
    assert "sbom: no trusted CycloneDX document found" in scene.refused()


def test_unsigned_attachments(scene: Scene) -> None:
    """`verify` warns about them; with a trusted key, it fails."""
    scene.publisher.keep(scene.publisher.report(scene.image))
    argv = ["publish", TAG, "--to", scene.target, *scene.publisher.here]
    done = scene.publisher.run(*argv)
    assert done.exit_code == 0, done.exception
    assert "warning: not signed: anyone who can write to the registry" in done.stderr

    looked = scene.verify(keys=())
    assert looked.exit_code == 0, looked.exception
    assert "signatures not verified" in looked.stderr
    result = scene.refused()
    assert "signatures: not signed by a trusted key" in result
    assert "provenance: no trusted provenance found" in result


def test_an_image_published_with_an_override(scene: Scene) -> None:
    failed = scene.publisher.report(scene.image, found("cuda", "failed", "is 0"), verdict="fail")
    scene.publish("--override", "for CPUs only", report=scene.publisher.signed(failed))

    result = scene.refused()
    assert "smoke: published with --override: for CPUs only" in result
    assert "cuda: failed: is 0 (report 1)" in result


def test_reports_of_another_suite(scene: Scene) -> None:
    """A newer torchkiln has a newer suite, so the gate's decision lists the checks of the suite that ran."""
    scene.publish()
    (scene.publisher.suite / "another.py").write_text("NUMBER = 1\n")

    done = scene.verify()
    assert done.exit_code == 0, done.exception
    assert "by a different suite than this one" in done.stderr


def test_the_image_is_rebuilt(scene: Scene) -> None:
    """From the lock in the provenance and the base in the image; no file of the publisher is needed."""
    scene.publish()
    for folder in ("images", "dist"):
        (scene.publisher.folder / folder).rename(scene.publisher.folder / f"{folder}-away")
    with interpreter():
        done = scene.verify("--rebuild")
    assert done.exit_code == 0, done.exception
    assert f"rebuild     rebuilt from its lock: {scene.image.manifest}" in done.stderr


@pytest.mark.parametrize(
    ("ref", "result"), [("app:v9", "v9: manifest unknown"), ("none", "latest: manifest unknown")]
)
def test_an_unknown_image(scene: Scene, ref: str, result: str) -> None:
    done = scene.publisher.run("verify", f"{scene.server.host}/team/{ref}")

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert result in str(done.exception)
