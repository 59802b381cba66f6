"""Gate, SBOM and `publish` for projects with OS packages, and with wheels that are not on an index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from packageurl import PackageURL

from tests.layers import sha256
from tests.oci_samples import Member
from tests.os_layers import BASE, DEBS, changed, with_packages
from tests.project_gate import Scene, scene
from tests.projects import NAME, TAG, Bench
from tests.servers.registry_server import RegistryServer
from tests.wheels import make_wheel
from torchkiln.model.cell import Source
from torchkiln.model.project import BuiltFrom, GitCommit, Origin, ProjectLock
from torchkiln.projects import build as project_build
from torchkiln.projects.gate import read


@pytest.fixture(scope="module", name="packaged")
def a_scene_with_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with patch.object(project_build, "ensure_apt", lambda apt, *_, **_named: apt):
        yield scene(tmp_path_factory.mktemp("packages"), change=with_packages, base=BASE)


NAMED = "libxfake1 1.0, tool 1:2.0"


def test_os_packages_are_cleared(packaged: Scene) -> None:
    """The gate names the OS packages, because no check proves that they work."""
    code, out, messages = packaged.judged(packaged.image)

    assert (code, out) == (0, f"{packaged.image.manifest}\n"), messages
    assert f"not proved: OS packages that the parent image does not have: {NAMED}\n" in messages


def test_libraries_that_may_be_missing_are_named(packaged: Scene) -> None:
    """The gate names missing libraries, also those that an OS package would provide."""
    code, _, messages = packaged.judged(packaged.image, run={"may_lack": ("libx.so.1",)})

    assert code == 0, messages
    assert (
        "not proved: libraries that may be missing, and packages that may lack libraries: libx.so.1\n"
        in messages
    )


def test_os_packages_are_published_and_verified(packaged: Scene) -> None:
    """`verify --full` also reads the layers, and the parent image's layers if the repository has them."""
    with RegistryServer() as server:
        code, _, messages = packaged.published(server)
        assert code == 0, messages
        alone = packaged.verified(server, NAME, "--full")
        code, _, messages = packaged.published(server, ref=TAG, files=(packaged.parent_report(),))
        assert code == 0, messages
        beside = packaged.verified(server, NAME, "--full")

    for code, text in (alone, beside):
        assert code == 0, text
        assert "CycloneDX matches the image" in text
    assert "and the code does not change it; the publisher's gate compared the packages" in beside[1]
    assert "and 4 of them also in this image" in alone[1]


def test_verify_full_reads_the_layer_of_os_packages(packaged: Scene) -> None:
    """A publisher could sign a decision for an image that the gate refuses; `verify --full` detects it."""
    image = changed(Member(name="usr/bin/su2", data=b"x", mode=0o4755))(packaged)
    reports = (
        packaged.parent_report(),
        packaged.signed(packaged.report(image)),
        packaged.suite_report(image),
    )
    with RegistryServer() as server:
        with (
            patch.object(read, "_build_faults", lambda *_: ()),
            patch.object(read, "package_faults", lambda *_: ()),
        ):
            for ref, files in ((TAG, reports[:1]), ("mutant", reports)):
                code, _, messages = packaged.published(server, ref=ref, files=files)
                assert code == 0, messages
        code, text = packaged.verified(server, NAME, "--full")

    assert code == 12
    assert "below: usr/bin/su2: a privileged program" in text


def components(there: Scene) -> dict[str, dict[str, Any]]:
    """The packages in the SBOM, by name."""
    done = there.publisher.run("sbom", NAME, *there.publisher.here[:4])
    assert done.exit_code == 0, done.exception
    return {package["name"]: package for package in json.loads(done.stdout)["components"]}


def test_the_sbom_lists_os_packages_with_the_hashes_of_their_files(packaged: Scene) -> None:
    found = components(packaged)

    for deb in DEBS:
        assert found[deb.name]["version"] == deb.version
        assert found[deb.name]["hashes"][0]["content"] == deb.sha256
    assert found[NAME]["type"] == "application"


# --- wheels that no index has -----------------------------------------------------------------------


def wheels(small: Bench) -> Iterator[Path]:
    yield small.wheel("made", "2", "made/__init__.py")
    yield small.wheel("forked", "3", "forked/__init__.py")
    yield make_wheel(small.project / "wheels", "own", "1", {"own/__init__.py": b"VALUE = 1\n"})


COMMIT = GitCommit(url="https://host.invalid/me/forked.git", commit="a" * 40, subdirectory="pkg")


def with_origins(small: Bench, lock: ProjectLock) -> ProjectLock:
    """*lock* with wheels from the project's folder, from an sdist and from a Git commit."""
    sdist = BuiltFrom(sdist="made-2.tar.gz", sha256="c" * 64, size=100, reproducible=True)
    origins = (
        Origin(name="forked", git=COMMIT, built=replace(sdist, sdist="forked-1.tar")),
        Origin(name="made", built=sdist),
        Origin(name="own", path="wheels/own-1-py3-none-any.whl"),
    )
    named = {origin.name for origin in origins}
    found = tuple(
        replace(wheel, index=Source.PROJECT) if wheel.name in named else wheel for wheel in lock.wheels
    )
    for wheel in found:
        if wheel.name in ("made", "forked"):
            kept = small.store.wheel(wheel)  # as the cache has it after the build
            kept.parent.mkdir(parents=True)
            shutil.copy(small.folder / "wheels" / wheel.filename, kept)
    return replace(lock, wheels=found, origins=origins)


@pytest.fixture(scope="module", name="sourced")
def a_scene_with_other_wheels(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("sourced"), wheels, change=with_origins)


def test_the_sbom_has_their_hashes_and_origins(sourced: Scene) -> None:
    found = components(sourced)

    for name, path, origin in (
        ("made", "wheels/made-2-py3-none-any.whl", "made-2.tar.gz"),
        ("forked", "wheels/forked-3-py3-none-any.whl", COMMIT.text),
        ("own", "project/wheels/own-1-py3-none-any.whl", "wheels/own-1-py3-none-any.whl"),
    ):
        file = sourced.small.folder / path
        assert found[name]["hashes"][0]["content"] == sha256(file)
        remark = {"name": "torchkiln:remark", "value": f"not from an index: {origin}"}
        assert remark in found[name]["properties"]
    assert "not from an index" not in json.dumps(found["fsspec"])
    assert PackageURL.from_string(found["forked"]["purl"]).qualifiers == {"vcs_url": COMMIT.text}


def test_they_are_published(sourced: Scene) -> None:
    with RegistryServer() as server:
        code, _, messages = sourced.published(server)
        assert code == 0, messages


@pytest.mark.parametrize(("version", "code"), [("1.26.4", 0), ("2.1", 0), ("3.0", 7)])
def test_numpy_may_move_as_far_as_torch_allows(tmp_path: Path, version: str, code: int) -> None:
    """`lock` does not make the third; another program may."""

    def numpy(small: Bench) -> tuple[Path, ...]:
        return (small.wheel("numpy", version, "numpy/__init__.py"),)

    there = scene(tmp_path, numpy)
    found, _, messages = there.judged(there.image)

    assert found == code, messages
    assert ("numpy is 3.0; the image fixes numpy to <3" in messages) is (code == 7)
