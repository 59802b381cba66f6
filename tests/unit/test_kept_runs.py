"""A stored run counts as this machine's own run only with a signature by this machine's key."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests import reports
from tests.unit.test_reuse import question_of
from torchkiln.attest.dsse import sign
from torchkiln.attest.machine_key import signed, verified
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.errors import ConfigError
from torchkiln.model.report import SmokeReport
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.report import document, to_json
from torchkiln.smoke.reuse import key_of
from torchkiln.store.store import Store

TYPE = "application/vnd.torchkiln.kept-run+json"
AT = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
REPORT = reports.report(when="2026-11-22T11:00:00Z")


def kept_runs(tmp_path: Path) -> KeptRuns:
    return KeptRuns(store=Store(tmp_path / "cache"), listener=SmokeLines())


def own(tmp_path: Path, smoke_report: SmokeReport = REPORT) -> list[SmokeReport]:
    assert smoke_report.image
    found = (signed_report.report for signed_report in kept_runs(tmp_path).all())
    return [report for report in found if report.image == smoke_report.image]


def key_file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "keys" / "machine.pem"


def record_file(tmp_path: Path, smoke_report: SmokeReport = REPORT) -> Path:
    return tmp_path / "cache" / "records" / "smoke" / f"{key_of(smoke_report)}.json"


def test_a_stored_run_is_our_own(tmp_path: Path) -> None:
    kept_runs(tmp_path).keep(REPORT)
    assert own(tmp_path) == [REPORT]
    assert kept_runs(tmp_path).answer(question_of(REPORT, "import"), AT, days=365) == REPORT


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    kept_runs(tmp_path).keep(REPORT)
    before = key_file(tmp_path).read_bytes()
    kept_runs(tmp_path).keep(replace(REPORT, runtime="docker"))
    assert key_file(tmp_path).read_bytes() == before
    assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert key_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert len(own(tmp_path)) == 2


def test_reading_makes_no_key(tmp_path: Path) -> None:
    assert own(tmp_path) == []
    assert not key_file(tmp_path).exists()


def _envelope(key: Ed25519PrivateKey, payload: bytes, kind: str = TYPE) -> dict[str, Any]:
    smoke_report: dict[str, Any] = json.loads(sign(kind, payload, key))
    return smoke_report


def _changed(store: Store) -> dict[str, Any]:
    """A failed run that was edited to passed, with the signature from before the edit."""
    failed = replace(REPORT, verdict="fail")
    smoke_report = signed(store, TYPE, to_json(failed))
    return smoke_report | {"payload": base64.b64encode(to_json(REPORT)).decode()}


def _respaced(store: Store) -> dict[str, Any]:
    """A signed run with the same values in other white space."""
    smoke_report = signed(store, TYPE, to_json(REPORT))
    return smoke_report | {"payload": base64.b64encode(json.dumps(document(REPORT)).encode()).decode()}


FORGED: dict[str, Callable[[Store], dict[str, Any]]] = {
    "unsigned-as-older-releases-wrote": lambda _: document(REPORT),
    "another-key": lambda _: _envelope(Ed25519PrivateKey.generate(), to_json(REPORT)),
    "another-type": lambda store: signed(store, "application/vnd.in-toto+json", to_json(REPORT)),
    "no-signature": lambda store: signed(store, TYPE, to_json(REPORT)) | {"signatures": []},
    "empty-signature": lambda store: signed(store, TYPE, to_json(REPORT)) | {"signatures": [{"sig": ""}]},
    "signature-is-no-base64": lambda store: (
        signed(store, TYPE, to_json(REPORT)) | {"signatures": [{"sig": "%"}]}
    ),
    "changed-payload": _changed,
    "other-bytes-of-the-same-values": _respaced,
    "type-changed": lambda store: signed(store, TYPE + "x", to_json(REPORT)) | {"payloadType": TYPE},
    "keyid-of-ours": lambda store: (
        _envelope(Ed25519PrivateKey.generate(), to_json(REPORT))
        | {"signatures": [{"sig": "AAAA", "keyid": signed(store, TYPE, b"")["signatures"][0]["keyid"]}]}
    ),
    "empty": lambda _: {},
    "payload-is-a-list": lambda _: {"payload": [], "payloadType": TYPE, "signatures": [{"sig": "AAAA"}]},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_run_without_our_signature_does_not_count(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gate ignores it, and it replaces no signed run; one warning is printed."""
    store = Store(tmp_path / "cache")
    kept_runs(tmp_path).keep(replace(REPORT, runtime="docker"))  # this also creates the key
    store.put_record("smoke", key_of(REPORT), FORGED[case](store))
    assert [found.runtime for found in own(tmp_path)] == ["docker"]
    smoke_report = capsys.readouterr().err.splitlines()
    assert len(smoke_report) == 1
    assert "not signed by this machine's key" in smoke_report[0]
    assert kept_runs(tmp_path).answer(question_of(REPORT, "import"), AT, days=365) is None


def test_a_signed_run_under_another_name_does_not_count(tmp_path: Path) -> None:
    """Someone copied an old passed run to the path of a newer failed run."""
    store, failed = Store(tmp_path / "cache"), replace(REPORT, verdict="fail", runtime="docker")
    kept_runs(tmp_path).keep(REPORT)
    smoke_report = store.record("smoke", key_of(REPORT))
    assert smoke_report
    store.put_record("smoke", key_of(failed), smoke_report)
    assert own(tmp_path) == [REPORT]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    kept_runs(tmp_path).keep(REPORT)
    key_file(tmp_path).chmod(mode)
    with pytest.raises(ConfigError, match="is not used: other users can read or write it"):
        own(tmp_path)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "empty", "garbage", "public", "long"])
def test_an_invalid_key_is_refused_and_not_replaced(tmp_path: Path, kind: str) -> None:
    kept_runs(tmp_path).keep(REPORT)
    path = key_file(tmp_path)
    pem = path.read_bytes()
    path.unlink()
    match kind:
        case "link":
            path.with_name("other").write_bytes(pem)
            path.with_name("other").chmod(0o600)
            path.symlink_to("other")
        case "folder":
            path.mkdir(mode=0o700)
        case "pipe":
            os.mkfifo(path, 0o600)
        case _:
            content = {
                "empty": b"",
                "garbage": b"x" * 100,
                "public": b"-----BEGIN PUBLIC KEY-----",
                "long": b"x",
            }
            path.write_bytes(content[kind] * (10_000 if kind == "long" else 1))
            path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"machine\.pem"):
        own(tmp_path)
    with pytest.raises(ConfigError, match=r"machine\.pem"):
        signed(Store(tmp_path / "cache"), TYPE, b"{}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes the owner of a file")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    kept_runs(tmp_path).keep(REPORT)
    os.chown(key_file(tmp_path), 4711, 4711)
    with pytest.raises(ConfigError, match="it is owned by"):
        own(tmp_path)


def test_after_a_lost_key_new_runs_are_necessary(tmp_path: Path) -> None:
    kept_runs(tmp_path).keep(REPORT)
    key_file(tmp_path).unlink()
    assert own(tmp_path) == []
    kept_runs(tmp_path).keep(REPORT)
    assert own(tmp_path) == [REPORT]


def test_the_envelope_is_verified_over_the_stored_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    smoke_report = signed(store, TYPE, b"payload")
    assert verified(store, TYPE, smoke_report, where="x") == b"payload"
    assert verified(store, "other", smoke_report, where="x") is None


def test_two_processes_that_make_the_key_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process finds no key; before it writes its own, the first process writes one."""
    store = Store(tmp_path / "cache")
    link = os.link

    def late(source: str, target: str, **more: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        signed(Store(tmp_path / "cache"), TYPE, b"first")
        link(source, target, **more)

    monkeypatch.setattr(os, "link", late)
    smoke_report = signed(store, TYPE, b"second")
    assert verified(store, TYPE, smoke_report, where="x") == b"second"


def test_prune_keeps_the_key(tmp_path: Path) -> None:
    """`cache prune` removes only files that can be recreated, and a key cannot."""
    from torchkiln.cache.prune import PrunePolicy, prune
    from torchkiln.cache.usage import cache_usage

    kept_runs(tmp_path).keep(REPORT)
    store = Store(tmp_path / "cache")
    prune(store, lambda: cache_usage(store, [], images=tmp_path / "images"), PrunePolicy(max_size=0))
    assert own(tmp_path) == [REPORT]
