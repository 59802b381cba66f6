"""claims: tag, labels, /etc/torchkiln/image.json and the software agree with the lock."""

import pytest

from smoke_tests.probe import probe
from smoke_tests.tag import parse_tag


@pytest.mark.tier(0)
def test_claims(facts, measure):
    """Compare the lock and the manifest with image.json and with the software itself."""
    seen = probe("software")
    claims, account, labels = facts["claims"], seen["image_json"] or {}, facts["labels"]
    locked = {wheel["name"] for wheel in facts["wheels"]}

    measure("image_json", {key: account.get(key) for key in claims}, equals=claims)
    wanted = {
        f"torchkiln.{key}": " ".join(value) if isinstance(value, list) else str(value)
        for key, value in claims.items()
        if value and key != "tag"
    }
    wanted["org.opencontainers.image.version"] = claims["tag"]
    measure("labels", {key: labels.get(key) for key in wanted}, equals=wanted)

    measure("build", seen["build"], equals=claims["torch"])
    measure("python", seen["python"], equals=claims["python"])
    measure("os", seen["os"], equals=claims["os"])
    measure("wheel_cuda", seen["wheel_cuda"], equals=claims["wheel_cuda"])
    measure("cuda_promise", _kept(claims["status"], claims["cuda"], seen["wheel_cuda"]), equals=True)
    for library in ("cudnn", "nccl"):
        own_wheel = any(name.startswith(f"nvidia-{library}") for name in locked)
        measure(library, seen[library], equals=_head(claims[library], 3))
        measure(f"{library}_wheel", seen[f"{library}_wheel"], equals=claims[library] if own_wheel else None)
    measure(
        "tag",
        parse_tag(claims["tag"]),
        equals={
            "torch": seen["torch"],
            "cuda": claims["cuda"],
            "cudnn": _head(seen["cudnn"], 1),
            "flavor": claims["flavor"],
            "os": seen["os"],
        },
    )


def _kept(status, promised, wheel):
    """Whether the CUDA version matches: native: the same version; minor-compat: same major and not older."""
    if wheel is None:
        return False
    asked, got = ([int(part) for part in version.split(".")] for version in (promised, wheel))
    return got == asked if status == "native" else got[0] == asked[0] and got >= asked


def _head(version, parts):
    """The first *parts* of a version; None stays None."""
    return version and ".".join(version.split(".")[:parts])
