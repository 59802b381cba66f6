"""`publish --keyless` where something is missing or answers wrongly: what, what to do, and no tag is set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.keyless_scene import TRUST, Desk, Job, a_desk, a_job, job
from tests.reports import TAG
from tests.standin.sigstore_ca import new_key
from tests.standin.sigstore_server import CERT, PROOFS, REQUEST_TOKEN, TIME, TOKEN
from torchkiln.errors import KilnError

__all__ = ["a_desk", "a_job"]

REKOR = PROOFS[0]


def refused(scene: Job, code: int) -> KilnError:
    """Why nothing was published; `Job.publish` sees to it that no secret is told."""
    error = scene.publish().exception
    assert isinstance(error, KilnError), error
    assert (error.exit_code, scene.there.tags) == (code, []), error
    assert error.hint
    return error


@pytest.mark.parametrize("name", ["ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"])
def test_a_job_without_the_permission(scene: Job, name: str) -> None:
    scene.become(**{name: None})
    error = refused(scene, 2)

    assert f"{name} environment variable was unset" in error.message
    assert "id-token: write" in error.hint


def test_no_job_at_all(scene: Job) -> None:
    scene.become(GITHUB_ACTIONS=None)
    error = refused(scene, 2)

    assert error.message == ("--keyless requires a CI job with an OpenID identity: no credentials found")
    assert scene.sigstore.asked == []


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, REQUEST_TOKEN.encode(), "OIDC token request failed (code=500)"),
        (500, b"\xff\xfe", "can't decode"),
        (403, b'{"message": "eyJhbGciOi.eyJpc3Mi.c2ln"}', "OIDC token request failed (code=403)"),
        (200, b"<html>", "malformed or incomplete JSON"),
        (200, b'{"value": 5}', "malformed or incomplete JSON"),
        (200, b'{"value": "no token"}', "Malformed token"),
        (200, b'{"value": "eyJ9.eyJ9.eyJ9"}', "Malformed token"),
        (200, json.dumps({"value": REQUEST_TOKEN}).encode(), "Malformed token"),
    ],
)
def test_a_giver_of_tokens_that_answers_wrongly(scene: Job, status: int, body: bytes, told: str) -> None:
    scene.sigstore.manners.answers[TOKEN] = (status, body)

    assert told in refused(scene, 8).message


def test_a_giver_of_tokens_that_is_not_there(scene: Job) -> None:
    scene.become(ACTIONS_ID_TOKEN_REQUEST_URL="http://127.0.0.1:9/token")

    assert "OIDC token request timed out" in refused(scene, 8).message


def test_a_token_whose_time_is_over(scene: Job) -> None:
    scene.sigstore.manners.life = -60
    error = refused(scene, 8)

    assert "(ExpiredSignatureError)" in error.message
    assert "clock" in error.hint


@pytest.mark.parametrize(
    ("place", "status", "body", "told"),
    [
        (CERT, 500, b"{}", "500 Server Error"),
        (CERT, 400, b'{"code": 3, "message": "There was an error"}', "400 Client Error"),
        (CERT, 201, b"<html>", "Expecting value"),
        (CERT, 201, b"{}", "missing certificate chain"),
        (CERT, 201, b'{"signedCertificateEmbeddedSct": {"chain": {"certificates": ["", ""]}}}', "PEM"),
        (REKOR, 500, b"{}", "500"),
        (REKOR, 201, b"{}", ""),
        (REKOR, 201, b"<html>", "Expecting value"),
    ],
)
def test_a_service_that_answers_wrongly(scene: Job, place: str, status: int, body: bytes, told: str) -> None:
    scene.sigstore.manners.answers[place] = (status, body)
    message = refused(scene, 8).message

    assert message.startswith("Sigstore: ")
    assert told in message


def test_a_service_that_is_not_there(scene: Job) -> None:
    file = scene.desk.folder / "trust.json"
    file.write_text(file.read_text().replace(scene.sigstore.url, "http://127.0.0.1:9"))

    assert refused(scene, 8).message == f"Sigstore: http://127.0.0.1:9{CERT}: failed to connect"


def test_a_token_for_somebody_else(scene: Job) -> None:
    """Fulcio looks at it; what comes here from the job is handed on."""
    scene.sigstore.manners.claims["iss"] = "https://elsewhere.example"

    assert "400 Client Error" in refused(scene, 8).message


def test_a_fulcio_whose_certificates_are_in_another_log(scene: Job) -> None:
    """Then it is not the one that is trusted."""
    scene.sigstore.authority.ct_key = new_key()
    error = refused(scene, 12)

    assert "SCT verify failed" in error.message
    assert TRUST in error.hint


def test_without_timestamps_the_second_rekor_proves_no_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(desk, monkeypatch, rekor=2) as scene:
        scene.sigstore.manners.answers[TIME] = (500, b"")

        assert "signed timestamp" in refused(scene, 8).message


def test_it_is_completed_when_the_service_is_back(scene: Job) -> None:
    """What was signed before it went is not signed again."""
    real, count = scene.sigstore.log.add, 0

    def breaks(asked: dict[str, object]) -> dict[str, object]:
        nonlocal count
        count += 1
        if count == 3:
            raise ValueError("full")
        return real(asked)

    scene.sigstore.log.add = breaks  # type: ignore[method-assign]
    assert "full" in refused(scene, 8).message
    done = scene.publish()

    assert done.exit_code == 0, done.exception
    assert len(scene.sigstore.log.leaves) == 1 + len(scene.bundles())
    assert TAG in scene.there.tags


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("{", "Invalid JSON"),
        ("{}", "Field required"),
        ('{"mediaType": "x", "trustedRoot": {}, "signingConfig": {}}', ""),
    ],
)
def test_a_trust_file_that_is_none(scene: Job, text: str | None, told: str) -> None:
    file = scene.desk.folder / "mine.json"
    if text is not None:
        file.write_text(text)
    scene.become(**{TRUST: str(file)})

    message = refused(scene, 2).message
    assert message.startswith(f"{TRUST}={file}: ")
    assert told in message


def test_a_trust_file_of_a_later_form(scene: Job) -> None:
    """Each part says which form it has."""
    file = scene.desk.folder / "trust.json"
    file.write_text(file.read_text().replace("signingconfig.v0.2", "signingconfig.v9"))

    assert "signingconfig.v0.2+json'" in refused(scene, 2).message


def test_a_trust_file_of_services_that_are_not_spoken(scene: Job) -> None:
    file = scene.desk.folder / "trust.json"
    file.write_text(file.read_text().replace('"majorApiVersion": 1', '"majorApiVersion": 9'))

    assert "No valid Rekor transparency log" in refused(scene, 2).message


def test_the_public_sigstore_out_of_reach(scene: Job, tmp_path: Path) -> None:
    """Through a proxy that is not there: nothing here asks the real one."""
    scene.become(
        **{TRUST: None, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        XDG_DATA_HOME=str(tmp_path / "data"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )

    assert refused(scene, 8).message.startswith("Sigstore: ")


def test_the_library_is_not_there(scene: Job) -> None:
    scene.patch.setitem(sys.modules, "sigstore.oidc", None)
    error = refused(scene, 8)

    assert (error.message, error.hint) == (
        "keyless signing requires the package sigstore",
        "pip install 'torchkiln[keyless]'",
    )


def test_two_ways_to_sign(scene: Job) -> None:
    done = scene.desk.publish(scene.target, "--keyless", "--report", scene.report)

    assert getattr(done.exception, "exit_code", None) == 2
    assert "--key and --keyless cannot be used together" in str(done.exception)
