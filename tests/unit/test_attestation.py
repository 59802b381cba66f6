"""Signed statements: the report in them comes back with its signer, and nothing else is taken for one."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.keys import ED, KEYS, P256, SECRET, STRANGER, pem, public_pem
from tests.reports import IMAGE, OTHER, TAG, report
from torchkiln.attest import keys
from torchkiln.attest.dsse import PASSPHRASE, fingerprint, sign
from torchkiln.cli.shared import reports
from torchkiln.cli.smoke import smoke
from torchkiln.errors import ConfigError, KilnError, VerificationFailed
from torchkiln.smoke.attestation import PAYLOAD_TYPE, attest, beside, read
from torchkiln.smoke.report import document, to_json

# --- statements -------------------------------------------------------------------------------------


def written(folder: Path, data: bytes, name: str = "report.dsse.json") -> Path:
    """A file with *data*."""
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_a_report_comes_back_from_its_statement_with_its_signer(key: Any, tmp_path: Path) -> None:
    told = report(nonce="request-0001")
    found = read(written(tmp_path, attest(told, key)), [STRANGER.public_key(), key.public_key()])

    assert found.report == told
    assert (found.signed, found.signers) == (True, (fingerprint(key.public_key()),))


def test_the_statement_is_in_toto_s_with_the_image_as_its_subject() -> None:
    envelope = json.loads(attest(report(), ED))
    statement = json.loads(base64.b64decode(envelope["payload"]))

    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": TAG, "digest": {"sha256": IMAGE.removeprefix("sha256:")}}]
    assert statement["predicate"] == document(report())


def test_a_plain_report_is_taken_with_the_signature_beside_it(tmp_path: Path) -> None:
    plain = written(tmp_path, to_json(report()), "report.json")
    assert (read(plain).signed, read(plain).signers) == (False, ())
    assert read(plain, [ED.public_key()]).signers == ()
    written(tmp_path, attest(report(), ED))

    assert beside(plain) == tmp_path / "report.dsse.json"
    assert (read(plain).signed, read(plain).signers) == (True, ())
    assert read(plain, [ED.public_key()]).signers == (fingerprint(ED.public_key()),)


def test_a_plain_report_that_was_changed_beside_its_signature_is_refused(tmp_path: Path) -> None:
    written(tmp_path, attest(report(), ED))
    plain = written(tmp_path, to_json(report(image=OTHER)), "report.json")

    for trusted in ([], [ED.public_key()]):
        with pytest.raises(VerificationFailed, match=r"differs from the report in report\.dsse\.json"):
            read(plain, trusted)


def test_an_environment_has_nothing_to_be_signed_for() -> None:
    with pytest.raises(ConfigError, match="names no image"):
        attest(report(image=None, tag=None), ED)


def secret(folder: Path, data: bytes) -> Path:
    """A private key's file, as openssl leaves it."""
    path = written(folder, data, "key.pem")
    path.chmod(0o600)
    return path


# --- what is refused --------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], object], key: Any = ED) -> bytes:
    """A signed statement in which *change* was made afterwards."""
    envelope = json.loads(attest(report(), key))
    change(envelope)
    return json.dumps(envelope).encode()


def other_payload(envelope: dict[str, Any]) -> None:
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["verdict"] = "fail"
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()


def cut(envelope: dict[str, Any]) -> None:
    whole = base64.b64decode(envelope["signatures"][0]["sig"])
    envelope["signatures"][0]["sig"] = base64.b64encode(whole[:-1]).decode()


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "payload": (other_payload, "the file was changed after it was signed"),
    "payloadType": (lambda e: e.update(payloadType="application/json"), "invalid signature"),
    "a shorter signature": (cut, "invalid signature"),
    "an empty signature": (lambda e: e["signatures"][0].update(sig=""), "invalid signature"),
    "no keyid and another payload": (
        lambda e: (other_payload(e), e["signatures"][0].pop("keyid")),
        "no signature by a trusted key",
    ),
    "a payload that is no base64": (lambda e: e.update(payload="?"), "invalid base64"),
    "a signature that is no base64": (lambda e: e["signatures"][0].update(sig="é"), "invalid base64"),
    "no signature": (lambda e: e.update(signatures=[]), "signatures: must not be empty"),
    "seventeen signatures": (lambda e: e.update(signatures=e["signatures"] * 17), "signatures: "),
    "signatures that are none": (lambda e: e.update(signatures={}), "signatures: must be a list"),
    "no payload": (lambda e: e.pop("payload"), "the key 'payload' is missing"),
    "a payload that is a number": (lambda e: e.update(payload=1), "payload: must be text"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_a_changed_envelope_is_refused(change: Any, why: str, key: Any, tmp_path: Path) -> None:
    file = written(tmp_path, changed(change, key))

    with pytest.raises(VerificationFailed, match=re.escape(why)) as refused:
        read(file, [key.public_key()])
    assert refused.value.exit_code == 12
    assert refused.value.hint


@pytest.mark.parametrize(
    ("payload_type", "change", "why"),
    [
        ("application/vnd.example+json", {}, "not 'application/vnd.example"),
        (PAYLOAD_TYPE, {"_type": "https://in-toto.io/Statement/v0.1"}, "_type: must be"),
        (PAYLOAD_TYPE, {"predicateType": "urn:torchkiln:smoke-report:1"}, "predicateType: must be"),
        (PAYLOAD_TYPE, {"subject": []}, "subject: "),
        (PAYLOAD_TYPE, {"subject": [{"digest": {"sha256": "0" * 64}}]}, "its subject is not the image"),
        (PAYLOAD_TYPE, {"predicate": {}}, "predicate: the key 'schema' is missing"),
    ],
)
def test_a_good_signature_on_something_else_is_refused(
    payload_type: str, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """What the key's holder signed for other purposes is no report of ours."""
    statement = json.loads(base64.b64decode(json.loads(attest(report(), ED))["payload"])) | change
    file = written(tmp_path, sign(payload_type, json.dumps(statement).encode(), ED))

    with pytest.raises(KilnError, match=re.escape(why)):
        read(file, [ED.public_key()])


def test_a_payload_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """Two readers could take it for two things, signed or not."""
    payload = base64.b64decode(json.loads(attest(report(), ED))["payload"])
    twice = payload.replace(b'"verdict":"pass"', b'"verdict":"fail","verdict":"pass"')
    file = written(tmp_path, sign(PAYLOAD_TYPE, twice, ED))

    with pytest.raises(VerificationFailed, match="duplicate key 'verdict'"):
        read(file, [ED.public_key()])


def test_a_stranger_s_signature_is_none(tmp_path: Path) -> None:
    """Nor is one that names a trusted key: a keyid decides nothing."""
    file = written(tmp_path, attest(report(), STRANGER))
    with pytest.raises(VerificationFailed, match="no signature by a trusted key") as refused:
        read(file, [ED.public_key(), P256.public_key()])
    assert fingerprint(ED.public_key()) in refused.value.hint

    named = changed(lambda e: e["signatures"][0].update(keyid=fingerprint(ED.public_key())), STRANGER)
    with pytest.raises(VerificationFailed, match="invalid signature"):
        read(written(tmp_path, named), [ED.public_key()])
    unnamed = changed(lambda e: e["signatures"][0].update(keyid="nobody"))
    assert read(written(tmp_path, unnamed), [ED.public_key()]).signers


def test_of_two_signatures_one_by_a_trusted_key_is_enough(tmp_path: Path) -> None:
    """As DSSE has it; who else signed is nobody's witness."""
    second = json.loads(attest(report(), STRANGER))["signatures"]
    both = changed(lambda e: e.update(signatures=second + e["signatures"]))
    file = written(tmp_path, both)

    assert read(file, [ED.public_key()]).signers == (fingerprint(ED.public_key()),)
    assert len(read(file, [ED.public_key(), STRANGER.public_key(), ED.public_key()]).signers) == 2
    with pytest.raises(VerificationFailed, match=r"no signature by a trusted key \(key IDs: "):
        read(file, [P256.public_key()])
    twice = changed(lambda e: e.update(signatures=e["signatures"] * 2))
    assert read(written(tmp_path, twice), [ED.public_key()]).signers == (fingerprint(ED.public_key()),)


@pytest.mark.parametrize("name", ["report.json", "report.dsse.json"])
def test_an_oversized_file_is_not_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    with file.open("wb") as out:
        out.truncate(1 << 40)  # sparse

    with pytest.raises(ConfigError, match="longer than"):
        read(file)


def test_a_huge_envelope_beside_a_report_is_not_read_either(tmp_path: Path) -> None:
    plain = written(tmp_path, to_json(report()), "report.json")
    with (tmp_path / "report.dsse.json").open("wb") as out:
        out.truncate(1 << 40)

    with pytest.raises(ConfigError, match="longer than"):
        read(plain, [ED.public_key()])


# --- through the command line -----------------------------------------------------------------------


def ran(*argv: object) -> Any:
    return CliRunner().invoke(smoke, ["show", *map(str, argv)])


def test_show_says_whether_and_by_whom(tmp_path: Path) -> None:
    plain = written(tmp_path, to_json(report()), "report.json")
    trusted = written(tmp_path, public_pem(ED), "public.pem")
    assert ran(plain).stdout.splitlines()[-2:] == ["unsigned", "pass"]
    refused = ran(plain, "--trust", trusted).exception
    assert isinstance(refused, VerificationFailed)
    assert "report.json is not signed: report.dsse.json not found" in refused.message

    written(tmp_path, attest(report(), ED))
    assert ran(plain).stdout.splitlines()[-2] == "signed, not verified: name the key with --trust PUBLIC.pem"
    for file in (plain, tmp_path / "report.dsse.json"):
        done = ran(file, "--trust", trusted)
        assert (done.exit_code, done.stdout.splitlines()[-2:]) == (
            0,
            [f"signed by {fingerprint(ED.public_key())}", "pass"],
        )
    told = json.loads(ran(plain, "--trust", trusted, "--json").stdout)
    assert (told["signed"], told["signers"]) == (True, [fingerprint(ED.public_key())])


def test_show_still_judges_what_is_signed(tmp_path: Path) -> None:
    """Who holds the key can lie; not about what the values give."""
    lie = written(tmp_path, attest(replace(report(), verdict="inconclusive"), ED))
    trusted = written(tmp_path, public_pem(ED), "public.pem")

    assert "its values give 'pass'" in str(ran(lie, "--trust", trusted).exception)


def test_what_a_run_writes_is_signed_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `smoke --report r.json --key key.pem` ends: report, statement beside it, verdict on stdout."""
    monkeypatch.setenv(PASSPHRASE, SECRET)
    key = keys.private_key(secret(tmp_path, pem(ED, SECRET)))
    to = reports.ReportFiles(
        report=tmp_path / "r.json", junit=tmp_path / "r.xml", markdown=None, as_json=False
    )
    reports.publish(report(nonce="request-0001"), to, key)

    found = read(tmp_path / "r.json", [ED.public_key()])
    assert (found.report.nonce, found.signers) == ("request-0001", (fingerprint(ED.public_key()),))
    said = capsys.readouterr()
    assert said.out == "pass\n"
    assert "nonce request-0001" in said.err
    files = [tmp_path / name for name in ("r.json", "r.dsse.json", "r.xml")]
    told = "".join((said.err, *(file.read_text() for file in files)))
    lines = pem(ED).decode().splitlines()[1:-1] + pem(ED, SECRET).decode().splitlines()[1:-1]
    assert [secret for secret in (SECRET, (b"\x01" * 32).hex(), *lines) if secret in told] == []


def test_the_pass_phrase_leaves_the_environment_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process of an image under test is a child of one that still has it."""
    monkeypatch.setenv(PASSPHRASE, SECRET)
    keys.private_key(secret(tmp_path, pem(ED, SECRET)))

    told = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert PASSPHRASE not in told
    assert SECRET not in told


def test_a_pass_phrase_is_no_argument() -> None:
    """It would stand in the list of processes and in the shell's history."""
    options = [name for command in smoke.commands.values() for one in command.params for name in one.opts]

    assert not [name for name in options if "pass" in name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_private_key_that_others_may_read_signs_nothing(tmp_path: Path, mode: int) -> None:
    key = secret(tmp_path, pem(ED))
    assert keys.private_key(key)
    key.chmod(mode)

    with pytest.raises(ConfigError, match=f"permissions {mode:04o} for the private key") as refused:
        keys.private_key(key)
    assert refused.value.hint.startswith(f"run: chmod 600 {key}")
