"""`publish --keyless` and `verify --identity` with the real sigstore library and local Sigstore services."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from tests.keyless_scene import Job, Prepared, a_job, a_prepared_publisher, job
from tests.reports import TAG
from tests.servers.sigstore_ca import HOST
from tests.servers.sigstore_server import IDENTITY, ISSUER, SigstoreServer
from torchkiln.attest.keyless import Keyless
from torchkiln.attest.statement import statement
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import parse_digest

__all__ = ["a_job", "a_prepared_publisher"]

PROVENANCE = "https://slsa.dev/provenance/v1"
FORK = "mallory/app/.github/workflows/publish.yml@refs/heads/main"


@pytest.fixture(scope="module")
def once(prepared: Prepared) -> Iterator[Job]:
    """A job that has published."""
    with pytest.MonkeyPatch.context() as patch, job(prepared, patch) as scene:
        done = scene.publish()
        assert done.exit_code == 0, done.exception
        yield scene


@pytest.fixture
def published(once: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """The published job, in the same state for each test."""
    state = (once.there.blobs, once.there.manifests, once.sigstore.behaviour.claims)
    before = [dict(kept) for kept in state]
    once.patch = monkeypatch
    yield once
    for kept, was in zip(state, before, strict=True):
        kept.clear()
        kept.update(was)
    once.trust(once.sigstore)


def refused(done: Result) -> str:
    """The error message."""
    assert isinstance(done.exception, VerificationFailed), done.exception
    assert (done.exception.exit_code, done.stdout) == (12, "")
    return done.exception.message


@pytest.mark.parametrize("rekor", [1, 2])
@pytest.mark.parametrize("lists", [True, False], ids=["referrers", "by a tag"])
def test_signatures_of_a_job_are_verified_elsewhere(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, rekor: int, lists: bool
) -> None:
    with job(prepared, monkeypatch, rekor=rekor, lists_referrers=lists) as scene:
        done = scene.publish()
        assert done.exit_code == 0, done.exception
        assert f"signing as {IDENTITY}" in done.stderr
        scene.become(GITHUB_ACTIONS=None, ACTIONS_ID_TOKEN_REQUEST_TOKEN=None)
        result = scene.verify("--json")

        assert result.exit_code == 0, result.exception
        points = {point["what"]: point["text"] for point in json.loads(result.stdout)["points"]}
        assert points["signatures"].endswith(f"by {IDENTITY}")
        assert len(scene.sigstore.log.leaves) == 1 + len(scene.bundles())
        assert TAG in scene.there.tags


def test_each_signature_has_its_own_token(scene: Job) -> None:
    """GitHub's tokens expire after five minutes, and a push may take an hour."""
    assert scene.publish().exit_code == 0
    tokens = scene.sigstore.tokens

    assert len(tokens) == len(set(tokens)) == 1 + len(scene.bundles())


@pytest.mark.parametrize("rekor", [1, 2])
def test_publishing_again_signs_nothing(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, rekor: int
) -> None:
    """The second run is the same workflow with another token; its statements are already signed."""
    with job(prepared, monkeypatch, rekor=rekor) as scene:
        assert scene.publish().exit_code == 0
        before = (set(scene.there.blobs), set(scene.there.manifests), len(scene.sigstore.log.leaves))
        done = scene.publish()

        assert done.exit_code == 0, done.exception
        after = (set(scene.there.blobs), set(scene.there.manifests), len(scene.sigstore.log.leaves))
        assert before == after


def test_another_statement_of_that_kind_is_signed_too(scene: Job) -> None:
    """For example, a retraction with another reason."""
    image = parse_digest("sha256:" + "5" * 64)
    first_statement, other = (statement(TAG, image, PROVENANCE, {"reason": text}) for text in ("one", "two"))
    here = Keyless.of_this_job()
    there = here.sign(first_statement)

    assert here.matches(first_statement, there.data, there.kind)
    assert not here.matches(other, there.data, there.kind)
    assert not here.matches(first_statement, there.data, "application/vnd.in-toto+json")


def test_another_workflow_signs_for_itself(published: Job) -> None:
    """Its statements are added to those of the first, and count for clients that trust it."""
    count = len(published.bundles())
    published.sigstore.behaviour.claims["job_workflow_ref"] = FORK
    assert published.publish().exit_code == 0

    assert len(published.bundles()) == 2 * count
    result = published.verify()
    assert result.exit_code == 0, result.exception
    assert f"{count} by others ignored" in result.stderr
    assert published.verify(identity=f"{HOST}/{FORK}").exit_code == 0


@pytest.mark.parametrize(
    "who",
    [
        {"identity": f"{HOST}/{FORK}"},
        {"identity": IDENTITY.replace("main", "maim")},
        {"identity": IDENTITY[:-1]},
        {"identity": f"{IDENTITY}/"},
        {"identity": IDENTITY.upper()},
        {"identity": IDENTITY.replace("a", "\u0430")},
        {"identity": IDENTITY.replace("team", "t.*")},
        {"identity": f" {IDENTITY}"},
        {"identity": IDENTITY, "issuer": "https://gitlab.example"},
        {"identity": IDENTITY, "issuer": f"{ISSUER}/"},
        {"identity": IDENTITY, "issuer": ISSUER.upper()},
        {"identity": IDENTITY, "issuer": ""},
    ],
)
def test_an_identity_that_did_not_sign(published: Job, who: dict[str, str]) -> None:
    issuer = who.get("issuer", ISSUER)
    result = refused(published.verify("--issuer", issuer, identity=who["identity"]))

    assert "not signed by a trusted key" in result
    assert "provenance: no trusted provenance found" in result


@pytest.mark.parametrize("part", ["certificateAuthorities", "ctlogs", "tlogs"])
def test_another_sigstore_is_not_trusted(published: Job, part: str) -> None:
    """A client that trusts another Fulcio, certificate log or Rekor with the same names rejects them."""
    with SigstoreServer() as other:
        file = other.trust(published.publisher.folder / "other.json")
        root = json.loads(file.read_text())["trustedRoot"]
    published.trust(published.sigstore, **{part: root[part]})
    result = refused(published.verify())

    assert f"no valid signature of {IDENTITY}: " in result
    assert "not signed by a trusted key" in result


def _other_payload(bundle: dict[str, Any]) -> None:
    envelope = bundle["dsseEnvelope"]
    first_statement = json.loads(base64.b64decode(envelope["payload"]))
    first_statement["predicate"]["more"] = "words"
    envelope["payload"] = base64.b64encode(json.dumps(first_statement).encode()).decode()


def _entry(**other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0].update(other)


def _proof(**other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"].update(other)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param(_other_payload, "DSSE: invalid signature", id="the payload changed"),
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
def test_a_bundle_changed_afterwards_is_refused(
    published: Job, how: Callable[[dict[str, Any]], object], why: str
) -> None:
    """The bundle names the job as its signer, but it is not valid: `verify` fails and says why."""
    published.change(PROVENANCE, how)
    result = refused(published.verify())

    assert f"no valid signature of {IDENTITY}: " in result
    assert why in result
    assert "provenance: no trusted provenance found" in result


@pytest.mark.parametrize("raw", ["", "AAAA", "not base64!", 5])
def test_an_invalid_certificate_identifies_no_signer(published: Job, raw: object) -> None:
    published.change(
        PROVENANCE, lambda bundle: bundle["verificationMaterial"]["certificate"].update(rawBytes=raw)
    )

    result = published.verify()
    assert "provenance: no trusted provenance found" in refused(result)
    assert "; 1 by others ignored" in result.stderr


def test_a_statement_of_the_job_for_another_image(published: Job) -> None:
    """The job's signature is valid and in the log, but the statement is attached to this image."""
    sibling = parse_digest("sha256:" + "5" * 64)
    of_sibling = json.loads(Keyless.of_this_job().sign(statement(TAG, sibling, PROVENANCE, {})).data)
    published.change(PROVENANCE, lambda bundle: bundle.update(of_sibling))

    assert f"its subject is {sibling}, not this image" in refused(published.verify())


def test_without_trusted_identities_sigstore_is_not_needed(published: Job) -> None:
    """Everyone can read bundles signed without a key."""
    published.become(TORCHKILN_SIGSTORE_TRUST="/none")
    result = published.publisher.run(
        "verify", f"{published.target}:{TAG}", "--suite", str(published.publisher.suite)
    )

    assert result.exit_code == 0, result.exception
    assert "signatures not verified" in result.stderr
