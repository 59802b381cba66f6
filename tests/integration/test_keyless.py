"""`publish --keyless` and `verify --identity`, by the real library, against a Sigstore on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from tests.keyless_scene import Desk, Job, a_desk, a_job, job
from tests.reports import TAG
from tests.standin.sigstore_ca import HOST
from tests.standin.sigstore_server import IDENTITY, ISSUER, SigstoreServer
from torchkiln.attest.keyless import Keyless
from torchkiln.attest.statement import statement
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import parse_digest

__all__ = ["a_desk", "a_job"]

PROVENANCE = "https://slsa.dev/provenance/v1"
FORK = "mallory/app/.github/workflows/publish.yml@refs/heads/main"


@pytest.fixture
def published(scene: Job) -> Job:
    done = scene.publish()
    assert done.exit_code == 0, done.exception
    return scene


def refused(done: Result) -> str:
    """What is wrong."""
    assert isinstance(done.exception, VerificationFailed), done.exception
    assert (done.exception.exit_code, done.stdout) == (12, "")
    return done.exception.message


@pytest.mark.parametrize("rekor", [1, 2])
@pytest.mark.parametrize("lists", [True, False], ids=["referrers", "by a tag"])
def test_what_a_job_signed_is_verified_elsewhere(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, rekor: int, lists: bool
) -> None:
    with job(desk, monkeypatch, rekor=rekor, lists_referrers=lists) as scene:
        done = scene.publish()
        assert done.exit_code == 0, done.exception
        assert f"signing as {IDENTITY}" in done.stderr
        scene.become(GITHUB_ACTIONS=None, ACTIONS_ID_TOKEN_REQUEST_TOKEN=None)
        told = scene.verify("--json")

        assert told.exit_code == 0, told.exception
        points = {one["what"]: one["text"] for one in json.loads(told.stdout)["points"]}
        assert points["signatures"].endswith(f"by {IDENTITY}")
        assert len(scene.sigstore.log.leaves) == 1 + len(scene.bundles())
        assert TAG in scene.there.tags


def test_each_signature_has_a_token_of_its_own(published: Job) -> None:
    """GitHub's live for five minutes, and a push may take an hour."""
    tokens = published.sigstore.tokens

    assert len(tokens) == len(set(tokens)) == 1 + len(published.bundles())


@pytest.mark.parametrize("rekor", [1, 2])
def test_publishing_again_signs_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch, rekor: int) -> None:
    """By the same workflow: its next run has another token."""
    with job(desk, monkeypatch, rekor=rekor) as scene:
        assert scene.publish().exit_code == 0
        before = (set(scene.there.blobs), set(scene.there.manifests), len(scene.sigstore.log.leaves))
        done = scene.publish()

        assert done.exit_code == 0, done.exception
        after = (set(scene.there.blobs), set(scene.there.manifests), len(scene.sigstore.log.leaves))
        assert before == after


def test_something_else_of_that_kind_is_not_what_was_sealed(scene: Job) -> None:
    """A retraction, say, for another reason."""
    image = parse_digest("sha256:" + "5" * 64)
    said, other = (statement(TAG, image, PROVENANCE, {"reason": text}) for text in ("one", "two"))
    here = Keyless.of_this_job()
    there = here.sign(said)

    assert here.matches(said, there.data, there.kind)
    assert not here.matches(other, there.data, there.kind)
    assert not here.matches(said, there.data, "application/vnd.in-toto+json")


def test_another_workflow_signs_for_itself(published: Job) -> None:
    """What it says goes beside what the first said, and counts for who trusts it."""
    count = len(published.bundles())
    published.sigstore.manners.claims["job_workflow_ref"] = FORK
    assert published.publish().exit_code == 0

    assert len(published.bundles()) == 2 * count
    told = published.verify()
    assert told.exit_code == 0, told.exception
    assert f"{count} by others ignored" in told.stderr
    assert published.verify(identity=f"{HOST}/{FORK}").exit_code == 0


@pytest.mark.parametrize(
    "who",
    [
        {"identity": f"{HOST}/{FORK}"},
        {"identity": IDENTITY.replace("main", "maim")},
        {"identity": IDENTITY, "issuer": "https://gitlab.example"},
    ],
    ids=["another workflow", "another branch", "another issuer"],
)
def test_whoever_did_not_sign(published: Job, who: dict[str, str]) -> None:
    issuer = who.get("issuer", ISSUER)
    told = refused(published.verify("--issuer", issuer, identity=who["identity"]))

    assert "not signed by a trusted key" in told
    assert "provenance: no trusted provenance found" in told


@pytest.mark.parametrize("part", ["certificateAuthorities", "ctlogs", "tlogs"])
def test_another_sigstore(published: Job, part: str) -> None:
    """Who trusts another Fulcio, log of certificates or Rekor, all of the same names, believes none of it."""
    with SigstoreServer() as other:
        file = other.trust(published.desk.folder / "other.json")
        root = json.loads(file.read_text())["trustedRoot"]
    published.trust(published.sigstore, **{part: root[part]})
    told = refused(published.verify())

    assert f"no valid signature of {IDENTITY}: " in told
    assert "not signed by a trusted key" in told


def _other_words(bundle: dict[str, Any]) -> None:
    envelope = bundle["dsseEnvelope"]
    said = json.loads(base64.b64decode(envelope["payload"]))
    said["predicate"]["more"] = "words"
    envelope["payload"] = base64.b64encode(json.dumps(said).encode()).decode()


def _entry(**other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0].update(other)


def _proof(**other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"].update(other)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param(_other_words, "DSSE: invalid signature", id="the payload changed"),
        pytest.param(
            lambda bundle: bundle["verificationMaterial"].update(tlogEntries=[]),
            "exactly one log entry",
            id="in no log",
        ),
        pytest.param(_proof(rootHash=base64.b64encode(b"?" * 32).decode()), "root hash", id="another root"),
        pytest.param(_proof(logIndex="0"), "inclusion proof has wrong size", id="another place"),
        pytest.param(
            _entry(integratedTime="1600000000"),
            "cert is not valid at validation time",
            id="years before the certificate",
        ),
        pytest.param(_entry(integratedTime="9" * 18), "", id="no time"),
        pytest.param(_entry(canonicalizedBody="e30="), "invalid root hash", id="no entry"),
        pytest.param(
            _proof(checkpoint={"envelope": "rekor\n1\n!\n\n— rekor !\n"}),
            "malformed Note",
            id="no checkpoint",
        ),
        pytest.param(_proof(treeSize="nine"), "failed to load bundle", id="no number"),
        pytest.param(_entry(inclusionPromise=None), "must contain an inclusion promise", id="no promise"),
    ],
)
def test_what_was_changed_afterwards(
    published: Job, how: Callable[[dict[str, Any]], object], why: str
) -> None:
    """It says that it is the job's, and is not: whoever wrote it, verification ends in a sentence."""
    published.change(PROVENANCE, how)
    told = refused(published.verify())

    assert f"no valid signature of {IDENTITY}: " in told
    assert why in told
    assert "provenance: no trusted provenance found" in told


@pytest.mark.parametrize("raw", ["", "AAAA", "not base64!", 5])
def test_what_is_no_certificate_is_nobodys(published: Job, raw: object) -> None:
    published.change(
        PROVENANCE, lambda bundle: bundle["verificationMaterial"]["certificate"].update(rawBytes=raw)
    )

    told = published.verify()
    assert "provenance: no trusted provenance found" in refused(told)
    assert "; 1 by others ignored" in told.stderr


def test_a_statement_of_the_job_for_another_image(published: Job) -> None:
    """Signed by the very job, in the log, and put beside this image."""
    sibling = parse_digest("sha256:" + "5" * 64)
    lie = json.loads(Keyless.of_this_job().sign(statement(TAG, sibling, PROVENANCE, {})).data)
    published.change(PROVENANCE, lambda bundle: bundle.update(lie))

    assert f"its subject is {sibling}, not this image" in refused(published.verify())


def test_whoever_trusts_nobody_needs_no_sigstore(published: Job) -> None:
    """What is signed without a key can be read by all."""
    published.become(TORCHKILN_SIGSTORE_TRUST="/none")
    told = published.desk.run("verify", f"{published.target}:{TAG}", "--suite", str(published.desk.suite))

    assert told.exit_code == 0, told.exception
    assert "signatures not verified" in told.stderr
