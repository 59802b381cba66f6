"""The reports of real images in docs/proofs: signed, and of the digest that the committed lock gives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from torchkiln import attestation, facts, matrix, signature
from torchkiln.errors import GateRefused
from torchkiln.gate import clear
from torchkiln.lock import load_locked
from torchkiln.matrix import Policy
from torchkiln.nouns import BuiltLayer, Digest, ImagePlan, LayerSpec, Witness
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.image import describe
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


def layer(spec: LayerSpec, plan: ImagePlan) -> BuiltLayer:
    """A layer as the lock has recorded it; our own files' is made anew."""
    if spec.kind == "overlay":
        return BuiltLayer(
            title=spec.title, **asdict(encode_bytes(tar.archive(spec.files, mtime=plan.epoch))[1])
        )
    base = plan.locked.base
    if spec.kind == "base":
        return BuiltLayer(
            title=spec.title,
            digest=base.digest,
            diff_id=base.diff_id,
            size=base.size,
            unpacked=base.unpacked,
        )
    (found,) = (layer for layer in plan.locked.layers if layer.title == spec.title)
    return BuiltLayer(**asdict(found))


@pytest.fixture(scope="module")
def digest() -> Digest:
    """Of the image that a build from the committed lock gives; nothing is built."""
    known = facts.load()
    grid = matrix.read(ROOT / "matrix.yaml", known)
    locked = load_locked(ROOT / "images", TAG)
    plan = plan_cell(locked.resolution.cell, grid, known, images=ROOT / "images")
    return describe(plan, [layer(spec, plan) for spec in plan.layers]).manifest_digest


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
