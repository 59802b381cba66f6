"""The committed lock against the real index: made again it is the same, and pip takes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pypi_simple import DistributionPackage, PyPISimple

from torchkiln.index.package_index import open_index
from torchkiln.index.session import Session
from torchkiln.index.settings import index_settings
from torchkiln.lock import load_locked, lock, requirements_txt, to_json
from torchkiln.places import ROOT
from torchkiln.store import Store

pytestmark = pytest.mark.network
IMAGES = ROOT / "images"
TAG = "2.7.1-cuda12.1-cudnn9-runtime"
LONG_AGO = "2026-09-01"
UNBOUND = ("jupyterlab", "pip", "tqdm", "uv")  # asked for by name alone, and nothing in the set bounds them


def test_a_date_long_ago_gives_what_was_newest_then(tmp_path: Path) -> None:
    """The date alone decides, without kept versions, as pages tell it: not what has come since.

    Not the lock's own date: a mirror that shows files some days late changes its answer for days just gone.
    """
    committed = load_locked(IMAGES, TAG)
    index = open_index(os.environ, Store(tmp_path))
    then = lock(committed.resolution, index, committed.base, as_of=LONG_AGO)

    files = _wheels_before(LONG_AGO, [one.name for one in then.wheels])
    assert {one.filename: one.sha256 for one in then.wheels}.items() <= {
        (file.filename, file.digests["sha256"]) for found in files.values() for file in found
    }
    versions = {one.name: one.version for one in then.wheels}
    assert {name: versions[name] for name in UNBOUND} == {name: _newest(files[name]) for name in UNBOUND}
    assert versions != {one.name: one.version for one in committed.wheels}


def _wheels_before(day: str, names: Sequence[str]) -> dict[str, list[DistributionPackage]]:
    """By project, what its page dates before *day* (UTC); some pages lack the dates of the newest files."""
    limit = datetime.fromisoformat(day).replace(tzinfo=timezone.utc)
    with Session(index_settings(os.environ)) as session, ThreadPoolExecutor() as pool:
        client = PyPISimple(index_settings(os.environ).default_url, session=session)
        pages = list(pool.map(client.get_project_page, names))
    return {
        name: [
            file
            for file in page.packages
            if file.package_type == "wheel" and not file.is_yanked
            if file.upload_time and file.upload_time < limit
        ]
        for name, page in zip(names, pages, strict=True)
    }


def _newest(files: Sequence[DistributionPackage]) -> str:
    """The newest release for Python 3.11."""
    there = [
        Version(file.version)
        for file in files
        if file.version and "3.11.2" in SpecifierSet(file.requires_python or "")
    ]
    return str(max(one for one in there if not one.is_prerelease))


def test_locked_again_with_its_versions_it_is_the_same_bytes(tmp_path: Path) -> None:
    committed = load_locked(IMAGES, TAG)
    index = open_index(os.environ, Store(tmp_path))
    again = lock(committed.resolution, index, committed.base, as_of="2999-01-01", previous=committed)

    assert to_json(again) == to_json(committed)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="pip judges wheels by its own Python: run these tests by 3.11"
)
def test_pip_takes_the_requirements_with_their_hashes(tmp_path: Path) -> None:
    """The small wheels only: a dry run fetches what it checks."""
    committed = load_locked(IMAGES, TAG)
    small = {one.name for one in committed.wheels if one.size < 100_000}
    lines = requirements_txt(committed).decode().splitlines()
    file = tmp_path / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in lines if line.partition("==")[0] in small))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-cache-dir",
        "-q",
    ]
    done = subprocess.run(
        [*command, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(small) > 40
    assert done.returncode == 0, done.stderr
