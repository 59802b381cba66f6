"""Signed statements: the report and its signer are read from them; statements of other kinds are refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.keys import ED, KEYS, P256, SECRET, UNKNOWN_KEY, pem, public_pem
from tests.programs import run_program
from tests.reports import OTHER, report
from torchkiln.attest import keys
from torchkiln.attest.dsse import PASSPHRASE, fingerprint, sign
from torchkiln.cli.shared import reports
from torchkiln.cli.smoke import smoke
from torchkiln.errors import ConfigError, KilnError, VerificationFailed
from torchkiln.smoke.attestation import PAYLOAD_TYPE, attest, read
from torchkiln.smoke.report import to_json

# --- statements -------------------------------------------------------------------------------------


def written(folder: Path, data: bytes, name: str = "report.dsse.json") -> Path:
    """A file with *data*."""
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_a_report_is_read_from_its_statement_with_its_signer(key: Any, tmp_path: Path) -> None:
    smoke_report = report(nonce="request-0001")
    found = read(written(tmp_path, attest(smoke_report, key)), [UNKNOWN_KEY.public_key(), key.public_key()])

    assert found.report == smoke_report
    assert (found.signed, found.signers) == (True, (fingerprint(key.public_key()),))


def test_a_changed_plain_report_with_a_separate_signature_is_refused(tmp_path: Path) -> None:
    written(tmp_path, attest(report(), ED))
    plain = written(tmp_path, to_json(report(image=OTHER)), "report.json")

    for trusted in ([], [ED.public_key()]):
        with pytest.raises(VerificationFailed, match=r"differs from the report in report\.dsse\.json"):
            read(plain, trusted)


def test_a_report_of_an_environment_cannot_be_signed() -> None:
    with pytest.raises(ConfigError, match="names no image"):
        attest(report(image=None, tag=None), ED)


def secret(folder: Path, data: bytes) -> Path:
    """A file with a private key, and with the permissions that openssl gives it."""
    path = written(folder, data, "key.pem")
    path.chmod(0o600)
    return path


# --- what is refused --------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], object], key: Any = ED) -> bytes:
    """A signed statement, changed by *change* after it was signed."""
    envelope = json.loads(attest(report(), key))
    change(envelope)
    return json.dumps(envelope).encode()


def other_payload(envelope: dict[str, Any]) -> None:
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["verdict"] = "fail"
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()


def cut(envelope: dict[str, Any]) -> None:
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    envelope["signatures"][0]["sig"] = base64.b64encode(signature[:-1]).decode()


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "payload": (other_payload, "the file was changed after it was signed"),
    "payloadType": (lambda e: e.update(payloadType="application/json"), "invalid signature"),
    "a shorter signature": (cut, "invalid signature"),
    "an empty signature": (lambda e: e["signatures"][0].update(sig=""), "invalid signature"),
    "no keyid and another payload": (
        lambda e: (other_payload(e), e["signatures"][0].pop("keyid")),
        "no signature by a trusted key",
    ),
    "a payload that is not base64": (lambda e: e.update(payload="?"), "invalid base64"),
    "a signature that is not base64": (lambda e: e["signatures"][0].update(sig="é"), "invalid base64"),
    "no signature": (lambda e: e.update(signatures=[]), "signatures: must not be empty"),
    "seventeen signatures": (lambda e: e.update(signatures=e["signatures"] * 17), "signatures: "),
    "signatures that are a mapping": (lambda e: e.update(signatures={}), "signatures: must be a list"),
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
        (
            PAYLOAD_TYPE,
            {"subject": [{"digest": {"sha256": "0" * 64}}]},
            "the subject is not the image of the report",
        ),
        (PAYLOAD_TYPE, {"predicate": {}}, "predicate: the key 'schema' is missing"),
    ],
)
def test_a_good_signature_on_something_else_is_refused(
    payload_type: str, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    statement = json.loads(base64.b64decode(json.loads(attest(report(), ED))["payload"])) | change
    file = written(tmp_path, sign(payload_type, json.dumps(statement).encode(), ED))

    with pytest.raises(KilnError, match=re.escape(why)):
        read(file, [ED.public_key()])


def test_a_signature_by_an_unknown_key_is_ignored(tmp_path: Path) -> None:
    """It is ignored even if its keyid is that of a trusted key: anyone can write a keyid."""
    file = written(tmp_path, attest(report(), UNKNOWN_KEY))
    with pytest.raises(VerificationFailed, match="no signature by a trusted key") as refused:
        read(file, [ED.public_key(), P256.public_key()])
    assert fingerprint(ED.public_key()) in refused.value.hint

    named = changed(lambda e: e["signatures"][0].update(keyid=fingerprint(ED.public_key())), UNKNOWN_KEY)
    with pytest.raises(VerificationFailed, match="invalid signature"):
        read(written(tmp_path, named), [ED.public_key()])
    unnamed = changed(lambda e: e["signatures"][0].update(keyid="unknown"))
    assert read(written(tmp_path, unnamed), [ED.public_key()]).signers


def test_one_of_two_signatures_by_a_trusted_key_is_enough(tmp_path: Path) -> None:
    """The DSSE specification says so; signatures by unknown keys are ignored."""
    second = json.loads(attest(report(), UNKNOWN_KEY))["signatures"]
    both = changed(lambda e: e.update(signatures=second + e["signatures"]))
    file = written(tmp_path, both)

    assert read(file, [ED.public_key()]).signers == (fingerprint(ED.public_key()),)
    assert len(read(file, [ED.public_key(), UNKNOWN_KEY.public_key(), ED.public_key()]).signers) == 2
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


def test_show_names_the_signer(tmp_path: Path) -> None:
    plain = written(tmp_path, to_json(report()), "report.json")
    trusted = written(tmp_path, public_pem(ED), "public.pem")
    assert ran(plain).stdout.splitlines()[-2:] == ["unsigned", "pass"]
    refused = ran(plain, "--trust", trusted).exception
    assert isinstance(refused, VerificationFailed)
    assert "report.json is not signed: report.dsse.json not found" in refused.message

    written(tmp_path, attest(report(), ED))
    hint = "name the key with --trust laboratory=PUBLIC.pem"
    assert ran(plain).stdout.splitlines()[-2] == f"signed, not verified: {hint}"
    for file in (plain, tmp_path / "report.dsse.json"):
        done = ran(file, "--trust", trusted)
        assert (done.exit_code, done.stdout.splitlines()[-2:]) == (
            0,
            [f"signed by {fingerprint(ED.public_key())}", "pass"],
        )
    smoke_report = json.loads(ran(plain, "--trust", trusted, "--json").stdout)
    assert (smoke_report["signed"], smoke_report["signers"]) == (True, [fingerprint(ED.public_key())])


def test_show_also_checks_signed_reports(tmp_path: Path) -> None:
    """The holder of the key can sign false values, but not a verdict that does not follow from the values."""
    wrong_verdict = written(tmp_path, attest(replace(report(), verdict="inconclusive"), ED))
    trusted = written(tmp_path, public_pem(ED), "public.pem")

    assert "its values give 'pass'" in str(ran(wrong_verdict, "--trust", trusted).exception)


def test_a_run_writes_a_signed_report_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like `smoke --report r.json --key key.pem`, it writes report and statement, and prints the verdict."""
    monkeypatch.setenv(PASSPHRASE, SECRET)
    key = keys.private_key(secret(tmp_path, pem(ED, SECRET)))
    to = reports.ReportFiles(
        report=tmp_path / "r.json", junit=tmp_path / "r.xml", markdown=None, as_json=False
    )
    reports.publish(report(nonce="request-0001"), to, key)

    found = read(tmp_path / "r.json", [ED.public_key()])
    assert (found.report.nonce, found.signers) == ("request-0001", (fingerprint(ED.public_key()),))
    captured = capsys.readouterr()
    assert captured.out == "pass\n"
    assert "nonce request-0001" in captured.err
    files = [tmp_path / name for name in ("r.json", "r.dsse.json", "r.xml")]
    smoke_report = "".join((captured.err, *(file.read_text() for file in files)))
    lines = pem(ED).decode().splitlines()[1:-1] + pem(ED, SECRET).decode().splitlines()[1:-1]
    assert [secret for secret in (SECRET, (b"\x01" * 32).hex(), *lines) if secret in smoke_report] == []


def test_the_passphrase_is_removed_from_the_environment_when_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of a tested image inherit the environment, and must not get the passphrase."""
    monkeypatch.setenv(PASSPHRASE, SECRET)
    keys.private_key(secret(tmp_path, pem(ED, SECRET)))

    smoke_report = run_program(["env"], check=True).stdout
    assert PASSPHRASE not in smoke_report
    assert SECRET not in smoke_report


def test_a_passphrase_is_not_an_argument() -> None:
    """An argument would be visible in the process list and in the shell's history."""
    options = [name for command in smoke.commands.values() for param in command.params for name in param.opts]

    assert not [name for name in options if "pass" in name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_private_key_that_others_may_read_signs_nothing(tmp_path: Path, mode: int) -> None:
    key = secret(tmp_path, pem(ED))
    assert keys.private_key(key)
    key.chmod(mode)

    with pytest.raises(ConfigError, match=f"permissions {mode:04o} for the private key") as refused:
        keys.private_key(key)
    assert refused.value.hint.startswith(f"run: chmod 600 {key}")
