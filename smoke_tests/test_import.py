"""import: the promised packages can be imported, in the locked versions, and torch works with NumPy."""

import pytest

from smoke_tests.probe import probe

PROMISED = ("torch", "numpy", "torchvision", "torchaudio")


@pytest.mark.tier(0)
@pytest.mark.limit(300)
def test_import(facts, measure):
    """A new interpreter imports each one; the seconds depend on the host and have no bound."""
    locked = {wheel["name"]: wheel["version"].split("+")[0] for wheel in facts["wheels"]}
    seen = probe("imports")

    measure("seconds", seen["seconds"])
    measure("torch_config", seen["config"])
    measure("build", seen["versions"]["torch"], equals=facts["claims"]["torch"])
    measure(
        "versions",
        {name: version.split("+")[0] for name, version in seen["versions"].items()},
        equals={name: locked.get(name) for name in PROMISED},
    )
    measure("numpy_bridge", seen["bridge"], equals=[1, 2, 3])
