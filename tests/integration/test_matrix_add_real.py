"""What `matrix add` proposes from the real index's metadata, against the facts: by two ways the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.gridcase import FACTS
from torchkiln.index.offered import open_offered
from torchkiln.matrix.add_release.compat_block import block
from torchkiln.matrix.add_release.propose import look_up
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof
RAW = yaml.safe_load((ROOT / "torchkiln" / "data" / "compat.yaml").read_text())["releases"]


@pytest.mark.parametrize("version", ["2.8.0", "2.9.1", "2.10.0", "2.11.0"])
def test_the_proposal_is_the_block_of_the_facts_but_for_gpu_code(tmp_path: Path, version: str) -> None:
    told = look_up(version, open_offered(os.environ, Store(tmp_path)))
    (proposed,) = yaml.safe_load(block(told)).values()
    stands = {key: value for key, value in RAW[version].items() if key != "earlier"}

    assert told.default == FACTS.releases[version].default
    assert list(proposed["variants"]) == [stands["default"]["variant"]]
    told_by_metadata = proposed.keys() - {"variants", "index_sha256"}
    assert {key: proposed[key] for key in told_by_metadata} == {key: stands[key] for key in told_by_metadata}
    assert proposed.keys() == stands.keys()
