"""The reports of real images in docs/proofs: signed, and of the digest that the committed lock gives."""

from __future__ import annotations

import pytest

from tools.grid import IMAGES, PROOFS, proofs
from torchkiln import attestation, facts, matrix
from torchkiln.errors import GateRefused
from torchkiln.foretold import foretold
from torchkiln.gate import clear
from torchkiln.lock import load_locked
from torchkiln.matrix import Policy
from torchkiln.nouns import Digest, LockedCell, Witness
from torchkiln.places import ROOT
from torchkiln.planning import plan_cell
from torchkiln.suite import load_suite

SUITE = load_suite(ROOT / "smoke_tests")
KNOWN = facts.load()
GRID = matrix.read(ROOT / "matrix.yaml", KNOWN)
ALL = proofs(PROOFS)
WITNESSES = [one for one in ALL if one.report.verdict == "pass"]
# docs/proofs/README.md tells why.
FAILED = {"2.1.2-cuda12.1-cudnn8-runtime": {"linkage"}}
TAGS = sorted({one.report.tag or "" for one in WITNESSES})


def locked_of(tag: str) -> LockedCell:
    return load_locked(IMAGES, tag)


def digest_of(tag: str) -> Digest:
    """Of the image that a build from the committed lock gives; nothing is built."""
    found = foretold(plan_cell(locked_of(tag).resolution.cell, GRID, KNOWN, images=IMAGES))
    assert found
    return found


def test_every_signature_is_good_and_there_are_some() -> None:
    """Each envelope has a key beside it that fits, and tells of a run on GPUs."""
    assert {one.name for one in ALL} == {path.name for path in PROOFS.glob("*.dsse.json")}
    assert "2.7.1-cuda12.1-cudnn9-runtime" in TAGS
    assert all(one.signers for one in ALL)


def test_what_failed_is_known() -> None:
    """By cell and check; nothing else failed, nor was left open."""
    found: dict[str | None, set[str]] = {}
    for one in ALL:
        wrong = {each.id for each in one.report.findings if each.outcome not in ("passed", "not-applicable")}
        found.setdefault(one.report.tag, set()).update(wrong)
    assert {tag: wrong for tag, wrong in found.items() if wrong} == FAILED


@pytest.mark.parametrize("witness", ALL, ids=lambda one: one.name)
def test_a_report_is_of_what_the_lock_gives_today(witness: Witness) -> None:
    assert witness.report.image == digest_of(witness.report.tag or "")
    plain = attestation.read(PROOFS / witness.name.replace(".dsse", ""), ())
    assert plain.report == witness.report


@pytest.mark.parametrize("tag", TAGS)
def test_the_gate_clears_that_digest_with_them_and_no_other(tag: str) -> None:
    """All that ran: the tiers whose every check the reports hold."""
    kept = [one for one in WITNESSES if one.report.tag == tag]
    if stale := [one.name for one in kept if one.report.suite != SUITE.digest]:
        pytest.skip(f"made by another suite, to be made again on GPUs: {', '.join(stale)}")
    ran = {finding.id for one in kept for finding in one.report.findings}
    tiers = [tier for tier in range(4) if {check.id for check in SUITE.checks if check.tier == tier} <= ran]
    policy, locked, image = Policy(tiers=tuple(tiers), checks=(), signed=True), locked_of(tag), digest_of(tag)
    assert {0, 1} <= set(tiers)

    assert clear(kept, policy, locked, SUITE, image=image).image == image
    sibling = Digest("sha256:" + "5b" * 32)
    with pytest.raises(GateRefused, match="not cleared"):
        clear(kept, policy, locked, SUITE, image=sibling)
