"""Every image digest and lock digest that the committed locks give, so that no other change moves one.

To move them: python -m tests.unit.test_pinned_digests > tests/pinned_digests.json
"""

from __future__ import annotations

import json
import sys

from tools.kept import IMAGES, present
from torchkiln.locks.file import lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.util.places import ROOT


def digests() -> dict[str, dict[str, str | None]]:
    """By tag: the digest of the lock, its inputs, and the image's digest, if the lock records the layers."""
    found = {}
    for tag in sorted(path.parent.name for path in IMAGES.glob("*/lock.json")):
        locked = load_locked(IMAGES, tag)
        found[tag] = {"lock": lock_digest(locked), "inputs": locked.inputs, "image": present(tag)}
    return found


def test_no_digest_of_an_image_or_a_lock_moved() -> None:
    pinned = json.loads((ROOT / "tests/pinned_digests.json").read_bytes())

    assert digests() == pinned
    assert len(pinned) > 30
    assert sum(row["image"] is not None for row in pinned.values()) > 20


if __name__ == "__main__":
    json.dump(digests(), sys.stdout, indent=1)
