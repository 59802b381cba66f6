"""The reports of real images in docs/proofs: signed, and of the digest that the committed lock gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln import attestation, facts, matrix, signature
from torchkiln.errors import GateRefused
from torchkiln.foretold import foretold
from torchkiln.gate import clear
from torchkiln.lock import load_locked
from torchkiln.matrix import Policy
from torchkiln.nouns import Digest, Witness
from torchkiln.places import ROOT
from torchkiln.planning import plan_cell
from torchkiln.suite import load_suite

PROOFS = ROOT / "docs/proofs"
SIGNED = sorted(PROOFS.glob("*.dsse.json"))
TAG = "2.7.1-cuda12.1-cudnn9-runtime"
SUITE = load_suite(ROOT / "smoke_tests")


def witness(envelope: Path) -> Witness:
    """Its report, the signature looked at with the key that is kept beside it."""
    name = envelope.name.removesuffix(".dsse.json")
    (key,) = (
        path for path in PROOFS.glob("*.pub.pem") if name.startswith(path.name.removesuffix(".pub.pem"))
    )
    trusted = [signature.public_key(key.read_bytes(), where=key.name)]
    return attestation.read(PROOFS / f"{name}.json", trusted)


@pytest.fixture(scope="module")
def digest() -> Digest:
    """Of the image that a build from the committed lock gives; nothing is built."""
    known = facts.load()
    grid = matrix.read(ROOT / "matrix.yaml", known)
    locked = load_locked(ROOT / "images", TAG)
    found = foretold(plan_cell(locked.resolution.cell, grid, known, images=ROOT / "images"))
    assert found
    return found


def test_there_are_some() -> None:
    assert len(SIGNED) >= 2


@pytest.mark.parametrize("envelope", SIGNED, ids=lambda path: path.name)
def test_a_report_is_of_what_the_lock_gives_today(envelope: Path, digest: Digest) -> None:
    found = witness(envelope)

    assert found.signers
    assert (found.report.tag, found.report.image, found.report.verdict) == (TAG, digest, "pass")


def test_the_gate_clears_that_digest_with_them_and_no_other(digest: Digest) -> None:
    """All tiers, on two GPUs."""
    kept = [witness(envelope) for envelope in SIGNED]
    if stale := [found.name for found in kept if found.report.suite != SUITE.digest]:
        pytest.skip(f"made by another suite, to be made again on GPUs: {', '.join(stale)}")
    policy, locked = Policy(tiers=(0, 1, 2, 3), signed=True), load_locked(ROOT / "images", TAG)

    assert clear(kept, policy, locked, SUITE, image=digest).image == digest
    sibling = Digest("sha256:" + "5b" * 32)
    with pytest.raises(GateRefused, match="not cleared"):
        clear(kept, policy, locked, SUITE, image=sibling)
