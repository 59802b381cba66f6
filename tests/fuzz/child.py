"""A target under libFuzzer (atheris): `python -m tests.fuzz.child TARGET [its options] CORPUS`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["torchkiln"]):
    import torchkiln.attest.provenance
    import torchkiln.index.listing
    import torchkiln.locks.file
    import torchkiln.oci.documents
    import torchkiln.oci.layer
    import torchkiln.oci.unpack
    import torchkiln.projects.read
    import torchkiln.sbom.matches
    import torchkiln.smoke.report
    import torchkiln.wheel.cut
    import torchkiln.wheel.splice  # noqa: F401

from tests.fuzz import documents_target, fatbin_target, layer_target, pages_target, tar_target, zip_target

_ALL = (zip_target, layer_target, tar_target, documents_target, pages_target, fatbin_target)
TARGETS = {target.__name__.rpartition(".")[2].removesuffix("_target"): target for target in _ALL}


def main() -> None:
    """Fuzz the target; does not return, because libFuzzer ends the process."""
    target = TARGETS[sys.argv[1]]
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=Path(sys.argv[-1]).parent))
    for number, data in enumerate(target.corpus(folder)):
        (Path(sys.argv[-1]) / f"seed-{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: target.check(data, folder) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
