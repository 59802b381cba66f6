"""import: torch, NumPy, torchvision and torchaudio have the locked versions, and torch works with NumPy."""

import pytest

from smoke_tests.probe import probe

VALUES = {
    "import": {
        "seconds": {"type": {"*": "number"}},
        "torch_config": {"type": "string"},
        "build": {"expected": "build"},
        "versions": {"expected": "promised_versions"},
        "numpy_bridge": {"equals": [1, 2, 3]},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(300)
def test_import(facts, measure):
    """A new interpreter imports each package; the seconds depend on the host and have no bound."""
    imported = probe("imports")

    measure("seconds", imported["seconds"])
    measure("torch_config", imported["config"])
    measure("build", imported["versions"]["torch"])
    measure("versions", {name: version.split("+")[0] for name, version in imported["versions"].items()})
    measure("numpy_bridge", imported["bridge"])
