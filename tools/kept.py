"""docs/proofs → the reports that are kept, and whether each is of the image that its lock gives today.

A report is bound to the digest of the image that ran. When base, rootfs/ or wheels change, the lock gives
another digest, and the report is of an earlier image: it still tells what was seen, and it clears nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torchkiln.attest import dsse
from torchkiln.build.predicted_digest import predicted_digest
from torchkiln.lock.lock import load_locked
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.plan.load import plan_cell
from torchkiln.smoke import attestation, hosts
from torchkiln.util.places import ROOT

IMAGES, PROOFS = ROOT / "images", ROOT / "docs/proofs"
ACCOUNTS = PROOFS / "accounts"  # each the image.json of an earlier image


def proofs(folder: Path) -> list[SignedReport]:
    """The signed reports of GPU runs in *folder*, each by the key that is kept beside it."""
    found = []
    for key in sorted(folder.glob("*.pub.pem")):
        trusted = [dsse.public_key(key.read_bytes(), where=key.name)]
        for path in sorted(folder.glob(f"{key.name.removesuffix('.pub.pem')}*.dsse.json")):
            signed_report = attestation.read(path, trusted)
            if hosts.gpus(json.loads(signed_report.report.host)):
                found.append(signed_report)
    return found


def without_gpus(folder: Path) -> list[SignedReport]:
    """The reports in *folder* of runs without a GPU in an image; nobody signs those."""
    found = [attestation.read(path, ()) for path in sorted(folder.glob("*-tier0.json"))]
    return [one for one in found if one.report.tag and not hosts.gpus(json.loads(one.report.host))]


@cache
def present(tag: str) -> Digest | None:
    """Of the image that the committed lock of *tag* gives today; None: no lock, or only a build can tell."""
    if not (IMAGES / tag / "lock.json").is_file():
        return None
    matrix, facts = tables()
    return predicted_digest(plan_cell(load_locked(IMAGES, tag).resolution.cell, matrix, facts, images=IMAGES))


@cache
def tables() -> tuple[Matrix, Facts]:
    """The checkout's matrix and the facts."""
    facts = facts_of.load()
    return matrix_of.read(ROOT / "matrix.yaml", facts), facts


def short(report: SmokeReport) -> str:
    """The digest of its image, as people read it: the first twelve digits; empty: it is of none."""
    return (report.image or "").removeprefix("sha256:")[:12]


def is_earlier(report: SmokeReport) -> bool:
    """Whether *report* is of an image, and not of the one that its lock gives today."""
    return report.image is not None and report.image != present(report.tag or "")


def latest_earlier(reports: Sequence[SignedReport], digest: Digest | None) -> list[SignedReport]:
    """Those of *reports* that are of one image, the one that ran last of all that are not *digest*."""
    earlier = [one for one in reports if one.report.image != digest]
    last = max(earlier, key=lambda one: one.report.when or "", default=None)
    return [one for one in earlier if last and one.report.image == last.report.image]


def same_wheels(report: SmokeReport, locked: LockedCell) -> bool:
    """Whether the image of *report* had the wheels of *locked*, by name, version and sha256.

    What it had stands in its image.json, whose own sha256 the report tells; without that file nobody can say.
    """
    account = _account(report, IMAGES / tag_of(locked.resolution) / "image.json")
    wheels = {(one["name"], one["version"], one["sha256"]) for one in account.get("wheels", ())}
    return wheels == {(one.name, one.version, one.sha256) for one in locked.wheels}


def _account(report: SmokeReport, now: Path) -> dict[str, Any]:
    """The image.json of the report's image; empty: it is not kept."""
    wanted = json.loads(report.host).get("image_json_sha256")
    # *now* too: an image differs from another by a file of rootfs/ alone, and both have the same image.json.
    for path in (now, *sorted(ACCOUNTS.glob("*.image.json"))):
        if path.is_file() and hashlib.sha256(data := path.read_bytes()).hexdigest() == wanted:
            account: dict[str, Any] = json.loads(data)
            return account
    return {}
