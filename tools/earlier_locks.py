"""Keep the locks of the images whose GPU reports are in docs/proofs, as `TAG-DIGEST.lock.json` beside them.

The gate needs the lock of an earlier image to compare its GPU stack with that of the present one. If a lock
has changed since the commit HEAD, its version of HEAD is kept; a lock that no report names is deleted.
"""

from __future__ import annotations

import subprocess

from tools.kept import IMAGES, PROOFS, on_gpus, proofs
from torchkiln.errors import KilnError
from torchkiln.gate.gpu_stack import built_from
from torchkiln.gate.inputs import locks_in
from torchkiln.locks.file import from_json, lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT


def main() -> None:
    """Write and delete locks in docs/proofs."""
    named = {
        (signed.report.tag or "", digest)
        for signed in on_gpus(proofs(PROOFS))
        for digest, _ in built_from(signed.report.findings)
    }
    present = {digest: tag for tag, digest in named if lock_digest(load_locked(IMAGES, tag)) == digest}
    wanted = {digest: tag for tag, digest in named if digest not in present}
    kept = locks_in(PROOFS)
    for path in PROOFS.glob("*.lock.json"):
        if lock_digest(from_json(path.read_bytes())) not in wanted:
            path.unlink()
    for digest, tag in wanted.items():
        if digest in kept:
            continue
        shown = ["git", "show", f"HEAD:images/{tag}/lock.json"]
        data = subprocess.run(shown, cwd=ROOT, capture_output=True, check=False).stdout
        try:
            same = lock_digest(from_json(data)) == digest
        except KilnError:
            same = False
        if same:
            write_atomic(PROOFS / f"{tag}-{digest.removeprefix('sha256:')[:12]}.lock.json", data)


if __name__ == "__main__":
    main()
