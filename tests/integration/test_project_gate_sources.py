"""The gate, the SBOM and `publish` of projects with OS packages, and with wheels that no index has."""

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
from tests.oci_samples import Member, tar_of
from tests.project_gate import Scene, scene
from tests.projects import NAME, Bench
from tests.servers.registry_server import RegistryServer
from tests.wheels import make_wheel
from torchkiln.build import project as project_build
from torchkiln.compare.images import contents_of
from torchkiln.model.apt import LockedApt
from torchkiln.model.cell import Source
from torchkiln.model.lock import DebFile
from torchkiln.model.project import PROJECT_JSON, BuiltFrom, GitCommit, Origin, ProjectLock
from torchkiln.oci.encode import encode_bytes

DEBS = tuple(
    DebFile(name=name, version=version, architecture="amd64", source=name, size=100, sha256=letter * 64)
    for name, version, letter in (("libxfake1", "1.0", "a"), ("tool", "1:2.0", "b"))
)
STATUS = "".join(
    f"Package: {deb.name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {deb.version}\n\n"
    for deb in DEBS
)
FILES = 30  # in the packages


def with_packages(small: Bench, lock: ProjectLock) -> ProjectLock:
    """*lock* with two OS packages, whose layer is in the cache."""
    folders = ("usr", "usr/share", "usr/share/tool", "var", "var/lib", "var/lib/dpkg")
    tar = tar_of(
        [
            *(Member(name=f"{folder}/") for folder in folders),
            *(Member(name=f"usr/share/tool/{number:02}", data=b"x") for number in range(FILES)),
            Member(name="var/lib/dpkg/status", data=STATUS.encode()),
        ]
    )
    blob, encoded = encode_bytes(tar)
    temporary = small.store.temporary("apt")
    temporary.write_bytes(blob)
    small.store.adopt(temporary, small.store.blob(encoded.digest))
    apt = LockedApt(
        os="debian12",
        requested=("tool",),
        base=small.cell.base.digest,
        debs=DEBS,
        encoder=small.cell.base.encoder,
        digest=encoded.digest,
        diff_id=encoded.diff_id,
        size=encoded.size,
        unpacked=encoded.unpacked,
    )
    return replace(lock, apt=apt)


@pytest.fixture(scope="module", name="packaged")
def a_scene_with_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with patch.object(project_build, "ensure_apt", lambda apt, *_, **_named: apt):
        yield scene(tmp_path_factory.mktemp("packages"), change=with_packages)


REFUSED = "OS packages are not accepted in the image of a project: libxfake1 1.0, tool 1:2.0\n"


def test_os_packages_are_refused_by_name(packaged: Scene) -> None:
    """And their files are counted, not all listed."""
    code, out, messages = packaged.judged(packaged.image)

    assert (code, out) == (7, ""), messages
    assert f"  layers: {REFUSED}" in messages
    assert "  layers: usr/share/tool/00: outside of /app and /opt/venv\n" in messages
    assert messages.count(": outside of ") == 20
    assert "  layers: 16 more outside of /app and /opt/venv\n" in messages


def test_os_packages_that_project_json_does_not_list_are_refused(packaged: Scene) -> None:
    """Their files are in no folder of a project."""
    top = packaged.layer(
        Member(name="etc/"), Member(name="etc/torchkiln/"), Member(name=PROJECT_JSON, data=unlisted(packaged))
    )
    image = packaged.mutant(order=lambda rows: [*rows[:-1], top])

    code, _, messages = packaged.judged(image)

    assert code == 7
    assert REFUSED not in messages
    assert "  layers: var/lib/dpkg/status: outside of" in messages or "16 more outside of" in messages


def unlisted(there: Scene) -> bytes:
    """project.json without the OS packages."""
    contents = contents_of(there.image.layers[-1], PROJECT_JSON.__eq__)
    document = json.loads(contents.texts[PROJECT_JSON])
    assert [package["name"] for package in document.pop("apt")["packages"]] == ["libxfake1", "tool"]
    return json.dumps(document).encode()


def test_publish_refuses_os_packages(packaged: Scene) -> None:
    with RegistryServer() as server:
        code, _, messages = published(packaged, server)
        assert code == 7, messages
        assert REFUSED in messages
        assert not server.repository("team/app").manifests


def test_an_override_publishes_os_packages(packaged: Scene) -> None:
    """Its SBOM is compared with the layers by `verify --full`; the decision is not a pass."""
    with RegistryServer() as server:
        code, _, messages = published(packaged, server, "--override", "for a demonstration")
        assert code == 0, messages
        done = packaged.publisher.run(
            "verify",
            f"{server.host}/team/app:{NAME}",
            *packaged.publisher.keys,
            *("--suite", str(packaged.publisher.suite), "--full"),
        )
        assert "published with --override: for a demonstration" in done.output
        assert "SPDX and CycloneDX match the image" in done.output


def published(there: Scene, server: RegistryServer, *more: str) -> tuple[int, str, str]:
    """`publish` with signed reports of both images."""
    folder = there.publisher.folder
    files = (there.parent_report(), there.signed(there.report(there.image)))
    reports = [word for file in files for word in ("--report", file)]
    target = ("--to", f"{server.host}/team/app", "--dated", "20261122")
    keys = ("--key", str(folder / "publisher.pem"), "--trust", str(folder / "lab.pub.pem"))
    return there.run("publish", NAME, *target, *keys, *reports, *more)


def components(there: Scene) -> dict[str, dict[str, Any]]:
    """The packages in the SBOM, by name."""
    done = there.publisher.run("sbom", NAME, *there.publisher.here[:4])
    assert done.exit_code == 0, done.exception
    return {package["name"]: package for package in json.loads(done.stdout)["packages"]}


def test_the_sbom_lists_os_packages_with_the_hashes_of_their_files(packaged: Scene) -> None:
    found = components(packaged)

    for deb in DEBS:
        assert found[deb.name]["versionInfo"] == deb.version
        assert found[deb.name]["checksums"][0]["checksumValue"] == deb.sha256
    assert found[NAME]["primaryPackagePurpose"] == "APPLICATION"


# --- wheels that no index has -----------------------------------------------------------------------


def wheels(small: Bench) -> Iterator[Path]:
    yield small.wheel("made", "2", "made/__init__.py")
    yield small.wheel("forked", "3", "forked/__init__.py")
    yield make_wheel(small.project / "wheels", "own", "1", {"own/__init__.py": b"VALUE = 1\n"})


COMMIT = GitCommit(url="https://host.invalid/me/forked.git", commit="a" * 40, subdirectory="pkg")


def with_origins(small: Bench, lock: ProjectLock) -> ProjectLock:
    """*lock* with a wheel of the project's folder, and ones that were built from an sdist and a commit."""
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


def test_wheels_that_no_index_has_are_cleared(sourced: Scene) -> None:
    """By their RECORDs and project.json, as others."""
    code, out, messages = sourced.judged(sourced.image)

    assert (code, out) == (0, f"{sourced.image.manifest}\n"), messages


def test_the_sbom_has_their_hashes_and_origins(sourced: Scene) -> None:
    found = components(sourced)

    for name, path, origin in (
        ("made", "wheels/made-2-py3-none-any.whl", "made-2.tar.gz"),
        ("forked", "wheels/forked-3-py3-none-any.whl", COMMIT.text),
        ("own", "project/wheels/own-1-py3-none-any.whl", "wheels/own-1-py3-none-any.whl"),
    ):
        file = sourced.small.folder / path
        assert found[name]["checksums"][0]["checksumValue"] == sha256(file)
        assert f"not from an index: {origin}" in found[name]["comment"]
    assert "not from an index" not in found["fsspec"]["comment"]
    (purl,) = (one["referenceLocator"] for one in found["forked"]["externalRefs"])
    assert PackageURL.from_string(purl).qualifiers == {"vcs_url": COMMIT.text}


def test_they_are_published(sourced: Scene) -> None:
    with RegistryServer() as server:
        code, _, messages = published(sourced, server)
        assert code == 0, messages
