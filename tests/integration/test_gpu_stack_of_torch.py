"""The GPU stack has everything that the locked torch requires, according to the METADATA of the wheels."""

from __future__ import annotations

import os
from email.parser import BytesHeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchkiln.gate.gpu_stack import is_of_stack
from torchkiln.index.metadata import Metadata
from torchkiln.index.package_index import open_index
from torchkiln.locks.lock import load_locked
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.network]

# Used to download data sets (torchvision 0.15), and to build triton 2.0.
NOT_USED = {"requests", "certifi", "charset-normalizer", "idna", "urllib3", "cmake", "lit"}


CUDA = {"2.0.1": "11.7-cudnn8", "2.7.1": "12.1-cudnn9", "2.10.0": "12.8-cudnn9", "2.15.0": "13.2-cudnn9"}


@pytest.mark.parametrize("tag", [f"{torch}-cuda{cuda}-runtime" for torch, cuda in CUDA.items()])
def test_the_stack_has_the_requirements_of_torch(tag: str, tmp_path: Path) -> None:
    locked = load_locked(ROOT / "images", tag)
    wheels = {wheel.name: wheel for wheel in locked.wheels}
    pages = open_index(os.environ, Store(tmp_path)).pages
    metadata, required, waiting = Metadata(pages), set[str](), ["torch", "torchvision", "torchaudio"]
    python = {"extra": "", "python_version": "3.11", "python_full_version": locked.base.python}
    while waiting:
        name = waiting.pop()
        if name in required or name not in wheels or name.startswith("nvidia-"):
            continue
        required.add(name)
        data = metadata.of(pages.find(wheels[name]), wheels[name].index)
        for text in BytesHeaderParser().parsebytes(data).get_all("Requires-Dist") or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(python):
                waiting.append(canonicalize_name(requirement.name))

    assert {"torch", "sympy", "jinja2", "markupsafe"} <= required
    assert {name for name in required if not is_of_stack(name)} <= NOT_USED
