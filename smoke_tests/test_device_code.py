"""device-code: an image for some GPUs keeps exactly the code that these GPUs load from the full wheels."""

from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from smoke_tests.cut_libraries import compare, sha256

_FAULTS = ("absent", "not_zeroed", "lost", "changed", "other")
VALUES = {
    "device-code": {
        "rule": {"equals": 1},
        "gpus": {"expected": "kept_gpus"},
        # By name: the hash of the file that was compared.
        "wheels": {"expected": "cut_wheels"},
        "libraries": {"at_least": 1, "type": "integer"},
        "containers": {"at_least": 1, "type": "integer"},
        # Bytes of device code.
        "kept": {"type": {"*": "integer"}},
        "zeroed": {"at_least": 1, "type": "integer"},
        # Containers without code for any of the GPUs, by library; they are not cut.
        "unserved": {"type": {"*": "integer"}},
        # Containers that do not follow the format; their libraries are not cut.
        "unread": {"type": ["string"]},
        # Libraries of the wheels that are missing in the image, or have another size.
        "absent": {"equals": []},
        # Code that no GPU of the image loads.
        "not_zeroed": {"equals": []},
        # Code that a GPU of the image loads, zeroed.
        "lost": {"equals": []},
        # Any other byte of a library.
        "changed": {"equals": []},
        # Other files that the installed RECORD lists otherwise than the wheel's RECORD.
        "other": {"equals": []},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(1200)
def test_device_code(facts, measure):
    """Compare every library over 1 MB of the cut wheels with the wheels, byte for byte."""
    claims, files, names = facts["claims"], facts["wheel_files"], facts["device_code"]["wheels"]
    own_use = facts["device_code"]["own_use"]
    gpus = [tuple(int(part) for part in gpu.split(".")) for gpu in claims["gpus"]]
    seen = [compare(Path(files[name]), _site(name), gpus, own_use=own_use) for name in names]

    measure("rule", claims["device_code"])
    measure("gpus", [f"{major}.{minor}" for major, minor in gpus])
    measure("wheels", {name: sha256(Path(files[name])) for name in names})
    for total in ("libraries", "containers", "zeroed"):
        measure(total, sum(found[total] for found in seen))
    measure("kept", sum((found["kept"] for found in seen), Counter()))
    measure("unserved", {name: count for found in seen for name, count in found["unserved"].items()})
    for listed in ("unread", *_FAULTS):
        measure(listed, [text for found in seen for text in found[listed]])


def _site(name):
    """The folder of packages with the distribution *name*."""
    try:
        return Path(distribution(name).locate_file(""))
    except PackageNotFoundError:
        return Path("/nonexistent")
