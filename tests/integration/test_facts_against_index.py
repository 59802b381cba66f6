"""The facts of compat.yaml, compared with the default index, for which this host's pip is configured."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from email.parser import Parser

import pytest
import requests
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pypi_simple import DistributionPackage, PyPISimple

from tests.planned import FACTS, MATRIX
from torchkiln.index.session import IndexSession
from torchkiln.index.settings import index_settings
from torchkiln.matrix.facts import Release

pytestmark = pytest.mark.proof

PYTHONS = {"cp310", "cp311"}
NAMES = ("torch", "torchvision", "torchaudio")
Pages = dict[str, list[DistributionPackage]]


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with IndexSession(index_settings(os.environ)) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(session: requests.Session) -> Pages:
    client = PyPISimple(index_settings(os.environ).default_url, session=session)
    with ThreadPoolExecutor() as pool:
        found = pool.map(client.get_project_page, NAMES)
    return {name: page.packages for name, page in zip(NAMES, found, strict=True)}


def _wheels(pages: Pages, name: str, version: str) -> dict[str, DistributionPackage]:
    """The x86_64 Linux wheels of one release, by CPython tag; of several builds, the highest build number."""
    found, builds = {}, {}
    for package in pages[name]:
        if (
            package.package_type == "wheel"
            and package.version
            and Version(package.version) == Version(version)
        ):
            _, _, python, abi, platform = package.filename.removesuffix(".whl").rsplit("-", 4)
            _, _, build, _ = parse_wheel_filename(package.filename)
            tag, number = abi if abi.endswith("t") else python, build[0] if build else 0
            if "x86_64" in platform and "linux" in platform and number >= builds.get(tag, 0):
                found[tag], builds[tag] = package, number
    return found


def _release(version: str) -> Release:
    return FACTS.releases[version]


@pytest.mark.parametrize("version", list(FACTS.releases))
def test_hashes_and_python_tags(pages: Pages, version: str):
    """The index has the hashes and CPython versions of the facts."""
    wheels, default = _wheels(pages, "torch", version), _release(version).default
    assert {tag: wheels[tag].digests["sha256"] for tag, _ in default.sha256} == dict(default.sha256)
    if _release(version).home == version:
        assert set(wheels) == set(default.pythons)
        assert {tag for tag, _ in default.sha256} >= PYTHONS & set(default.pythons)
        assert all(f"-{default.platform}" in wheel.filename for wheel in wheels.values())


@pytest.mark.parametrize("version", list(FACTS.releases))
def test_requirements_of_torch(pages: Pages, session: requests.Session, version: str):
    default = _release(version).default
    torch_metadata = metadata(session, _wheels(pages, "torch", version)["cp311"].url)
    pins: dict[str, str] = {}
    other_requirements, toolkit = set(), set()
    for text in torch_metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        marker = str(requirement.marker or "")
        if "extra" in marker or "Windows" in marker:
            continue
        if requirement.name.startswith(("nvidia-", "cuda-")) and str(requirement.specifier).startswith("=="):
            pins[requirement.name] = str(requirement.specifier).removeprefix("==")
            toolkit |= requirement.extras
        elif canonicalize_name(requirement.name) == "triton":
            assert str(requirement.specifier) == default.triton_specifier
            assert (f'python_version < "{default.triton_below}"' in marker) == bool(default.triton_below)
            assert ("python_version" in marker) == bool(default.triton_below)
        else:
            other_requirements.add(_plain(requirement))
    assert pins == dict(default.pins)
    assert toolkit == set(default.toolkit)
    assert other_requirements == {_plain(Requirement(text)) for text in default.requires}
    assert torch_metadata["Requires-Python"] == default.requires_python


def _plain(requirement: Requirement) -> str:
    marker = str(requirement.marker or "").removeprefix('platform_system == "Linux"').removeprefix(" and ")
    return f"{canonicalize_name(requirement.name)}{requirement.specifier};{marker}"


@pytest.mark.parametrize("version", list(FACTS.releases))
@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
def test_the_companions_accept_this_torch(pages: Pages, session: requests.Session, version: str, name: str):
    companion = getattr(_release(version), name)
    if not companion:
        pytest.skip(f"torch {version} has no {name}")
    wheels = _wheels(pages, name, companion)
    assert PYTHONS & set(_release(version).default.pythons) <= set(wheels)
    torch_metadata = metadata(session, wheels["cp311"].url)
    torch = [
        r
        for text in torch_metadata.get_all("Requires-Dist") or []
        if (r := Requirement(text)).name == "torch"
    ]
    if (name, companion) == ("torchaudio", "2.11.0"):  # does not pin torch, and works with 2.11 and later
        assert not torch
        assert Version(version) >= Version(companion)
    else:
        assert [requirement.specifier.contains(version) for requirement in torch] == [True]


def test_the_matrix_names_the_newest_patch_of_each_minor(pages: Pages):
    """If this fails, PyTorch has released another patch: add it to the matrix. torchkiln has no error."""
    served = {
        Version(p.version) for p in pages["torch"] if p.version and not Version(p.version).is_prerelease
    }
    for torch in MATRIX.torch:
        minor = Version(torch).release[:2]
        assert max(version for version in served if version.release[:2] == minor) == Version(torch)


BLOCK = 1 << 20  # bytes; torch's zip directory has about this size


class RemoteFile(io.RawIOBase):
    """A seekable file behind HTTP, read in blocks, each once."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self.session, self.url, self.at = session, url, 0
        self.blocks: dict[int, bytes] = {}
        answer = session.get(url, headers={"Range": "bytes=0-0"})
        assert answer.status_code == 206, f"the index answers a range request with HTTP {answer.status_code}"
        self.size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def read(self, count: int = -1) -> bytes:
        end = self.size if count < 0 else min(self.at + count, self.size)
        parts = []
        while self.at < end:
            number, offset = divmod(self.at, BLOCK)
            part = self._block(number)[offset : offset + end - self.at]
            parts.append(part)
            self.at += len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self.blocks:
            first, last = number * BLOCK, min((number + 1) * BLOCK, self.size) - 1
            answer = self.session.get(self.url, headers={"Range": f"bytes={first}-{last}"})
            assert answer.status_code == 206
            self.blocks[number] = answer.content
        return self.blocks[number]


def metadata(session: requests.Session, url: str) -> Message:
    """The METADATA of the wheel at *url*."""
    with zipfile.ZipFile(RemoteFile(session, url)) as wheel:  # type: ignore[arg-type]
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())
