"""claims: tag, labels, /etc/torchkiln/image.json and the software agree with the lock."""

import pytest

from smoke_tests.expected import expected, head
from smoke_tests.probe import probe

VALUES = {
    "claims": {
        "image_json": {"expected": "claims"},
        "labels": {"expected": "labels"},
        "build": {"expected": "build"},
        "python": {"expected": "python"},
        "os": {"expected": "os"},
        "wheel_cuda": {"expected": "wheel_cuda"},
        "cuda_promise": {"equals": True},
        "cudnn": {"expected": "cudnn"},
        "cudnn_wheel": {"expected": "cudnn_wheel"},
        "nccl": {"expected": "nccl"},
        "nccl_wheel": {"expected": "nccl_wheel"},
        "tag": {"expected": "tag"},
    },
}


@pytest.mark.tier(0)
def test_claims(facts, measure):
    """Compare the lock and the manifest with image.json and with the software itself."""
    software = probe("software")
    claims, labels, image_json = facts["claims"], facts["labels"], software["image_json"] or {}

    measure("image_json", {key: image_json.get(key) for key in claims})
    measure("labels", {key: labels.get(key) for key in expected("labels", facts, {})})
    for name in ("build", "python", "os", "wheel_cuda", "cudnn", "cudnn_wheel", "nccl", "nccl_wheel"):
        measure(name, software[name])
    measure("cuda_promise", _matches(claims["status"], claims["cuda"], software["wheel_cuda"]))
    of_software = {"torch": software["torch"], "cudnn": head(software["cudnn"], 1), "os": software["os"]}
    measure("tag", {"cuda": claims["cuda"], "flavor": claims["flavor"], **of_software})


def _matches(status, promised, wheel):
    """Whether the CUDA version matches: for native the same version, for minor-compat the same major, not
    older."""
    if wheel is None:
        return False
    cuda, of_wheel = ([int(part) for part in version.split(".")] for version in (promised, wheel))
    return of_wheel == cuda if status == "native" else of_wheel[0] == cuda[0] and of_wheel >= cuda
