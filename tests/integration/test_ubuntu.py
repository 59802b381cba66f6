"""The bases of Ubuntu: which archives are trusted, and the errors for others.

The archive in these tests has two empty packages, and is signed like Ubuntu's. tests/proof/test_ubuntu.py
builds a complete base.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.servers import ubuntu_archive
from tests.servers.ubuntu_archive import UbuntuArchive
from torchkiln.base.archive import read_lists
from torchkiln.base.mmdebstrap import command, running, scratch
from torchkiln.base.recipe import BaseRecipe, recipe
from torchkiln.cli.base import base as base_command
from torchkiln.errors import BuildFailed, KilnError
from torchkiln.model.lock import DebFile, OsPackage
from torchkiln.model.progress import UNREPORTED

UBUNTU = recipe("ubuntu22.04")
PACKAGES = tuple(OsPackage(name=name, version=ubuntu_archive.VERSION) for name in ("gcc", "tini"))


def ask_archive(recipe: BaseRecipe, environ: Mapping[str, str]) -> tuple[DebFile, ...]:
    """The .deb files of PACKAGES, from the archive's signed indexes; installs nothing."""
    with scratch(recipe, environ) as place:
        nothing = replace(recipe, packages=(), hooks=())
        words = command(nothing, environ, unprivileged=os.geteuid() != 0, place=place)
        argv = [word.replace("minbase", "custom") for word in words if "apt/archives" not in word]
        with running(argv, place.env, recipe, UNREPORTED) as tar:
            while tar.read(1 << 20):
                pass
        return read_lists(place.lists, PACKAGES)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> UbuntuArchive:
    ubuntu_archive.require(empty=True)
    return ubuntu_archive.make(tmp_path_factory.mktemp("ubuntu"), empty=True)


@pytest.fixture
def environ(archive: UbuntuArchive) -> Iterator[dict[str, str]]:
    """A user's environment variables. At the end, changes of a test to the archive are undone."""
    with archive.served() as address:
        yield {**os.environ, **archive.environ(address)}
    for suite in archive.suites:
        archive.sign(suite)


def refusal(environ: Mapping[str, str]) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        ask_archive(UBUNTU, environ)
    return caught.value


def test_the_archive_is_used_and_verified_by_its_keyring(environ: dict[str, str]) -> None:
    """One package is in main, one in universe."""
    assert [deb.name for deb in ask_archive(UBUNTU, environ)] == ["gcc", "tini"]


@pytest.mark.proof
def test_each_system_has_its_own_suites(tmp_path: Path) -> None:
    """The archive has only the suites of 24.04, so a request for the suites of 22.04 fails."""
    noble = ubuntu_archive.make(tmp_path / "noble", ubuntu_archive.NOBLE, empty=True)
    with noble.served() as address:
        environ = {**os.environ, **noble.environ(address)}
        debs = ask_archive(recipe("ubuntu24.04"), environ)
        assert [deb.name for deb in debs] == ["gcc", "tini"]
        assert "/ubuntu jammy" in refusal(environ).message


def test_an_archive_signed_by_another_key_is_refused(
    archive: UbuntuArchive, environ: dict[str, str], tmp_path: Path
) -> None:
    archive.sign("jammy-security", by=ubuntu_archive.new_key(tmp_path / "gnupg", "another"))
    first, *rest = (error := refusal(environ)).message.splitlines()

    assert first == "the signature of the archive of ubuntu22.04 cannot be verified:"
    assert len(rest) == 1
    assert "/ubuntu jammy-security: " in rest[0]
    assert "NO_PUBKEY" in rest[0]
    assert "TORCHKILN_UBUNTU_KEYRING" in error.hint


def test_an_archive_changed_after_signing_is_refused(archive: UbuntuArchive, environ: dict[str, str]) -> None:
    release = archive.folder / "dists/jammy/InRelease"
    release.write_text(release.read_text().replace("Version: 22.04", "Version: 22.05"))

    assert "/ubuntu jammy: The following signatures were invalid: BADSIG" in refusal(environ).message


def test_an_archive_without_a_signature_is_refused(archive: UbuntuArchive, environ: dict[str, str]) -> None:
    archive.unsign()

    assert refusal(environ).message.count(": it has no signature") == 3


def test_an_index_that_is_not_the_signed_one_is_refused(
    archive: UbuntuArchive, environ: dict[str, str]
) -> None:
    index = archive.folder / "dists/jammy/universe/binary-amd64"
    original = {path: path.read_bytes() for path in index.iterdir()}
    try:
        for path in original:
            path.write_bytes(original[path] + b"\nPackage: evil\n")
        assert "universe/binary-amd64/Packages" in refusal(environ).message
    finally:
        for path, data in original.items():
            path.write_bytes(data)


@pytest.mark.parametrize("keyring", ["", "/nowhere/keys.gpg"], ids=["its usual place", "another"])
def test_without_the_keyring_the_error_names_its_package(
    keyring: str, environ: dict[str, str], tmp_path: Path
) -> None:
    """Exit code 8, without any request."""
    if not keyring and Path(UBUNTU.keyring).exists():
        pytest.skip("this machine has Ubuntu's keys")
    environ |= {"TORCHKILN_UBUNTU_KEYRING": keyring, "TORCHKILN_CACHE": str(tmp_path / "cache")}
    ran = CliRunner(env=environ).invoke(
        base_command, ["build", "--os", "ubuntu22.04", "--images", str(tmp_path / "images")]
    )

    error = ran.exception
    assert isinstance(error, KilnError)
    assert error.exit_code == 8
    assert error.message.endswith(f"not found: {keyring or UBUNTU.keyring}")
    assert "Ubuntu's package ubuntu-keyring" in error.hint
    assert "TORCHKILN_UBUNTU_KEYRING" in error.hint
    assert not (tmp_path / "images").exists()
