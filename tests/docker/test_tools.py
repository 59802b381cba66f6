"""The tools of devel images: without data of the host, reproducible, and equal in both engines."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docker.scene import CELL, DEVEL, TELL_TALE, Fresh, Scene, devel, fresh
from tests.needs import needs_mmdebstrap, nightly
from tests.planned import FACTS, MATRIX
from tests.programs import run_program
from tests.roots import entry, tar_of
from tests.stored import put_tar
from torchkiln.base import tools
from torchkiln.base.contents import inspect
from torchkiln.base.recipe import EPOCH
from torchkiln.docker.dockerfile import load_templates, render
from torchkiln.errors import BuildFailed
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.plan.load import plan_locked
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT, TEMPLATES

__all__ = ["devel", "fresh"]

pytestmark = [pytest.mark.proof, pytest.mark.network, needs_mmdebstrap, nightly]

THEIRS, OURS, REDUCED = "tools:theirs", "tools:ours", "tools:reduced"
NAME = f"pytorch-cuda:{DEVEL}"


def entries(found: Fresh) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Each entry of the layer with its content."""
    with (
        GZIP.open(found.store.blob(found.tools.digest)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            yield member, content.read() if content else b""


def test_the_same_packages_give_the_same_bytes(fresh: Fresh, tmp_path: Path) -> None:
    """The tools are those of the lock, from another build; if Debian's packages have changed, build twice."""
    locked = tools.read_lock(ROOT / "images", "debian12", "devel")
    rebuilt = locked if locked and locked.packages == fresh.tools.packages else fresh.again(tmp_path)

    assert fresh.tools == rebuilt


def test_nothing_of_the_build_and_its_host_is_inside(fresh: Fresh) -> None:
    unwanted = re.compile(
        r"etc/(resolv\.conf|hostname|machine-id|apt/.*)|.*-old|.*-|tmp/.*|run/.*|var/(log|lib/apt)/.*|var/cache/apt/.*"
    )
    hints = [TELL_TALE.encode(), b"torchkiln"]
    hints += [os.environ[name].encode() for name in ("http_proxy", "https_proxy") if os.environ.get(name)]
    found, names = [], []
    for member, data in entries(fresh):
        names.append(member.name)
        assert member.mtime <= EPOCH, member.name
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", ""), member.name
        found += [(member.name, hint) for hint in hints if hint in data]

    assert found == []
    assert [name for name in names if unwanted.fullmatch(name)] == []
    assert names == sorted(names)
    assert {"usr/bin/cmake", "usr/bin/ninja", "usr/bin/gdb", "usr/bin/git-lfs", "usr/bin/pkg-config"} <= set(
        names
    )
    assert "usr/bin/gcc" not in names
    assert not [name for name in names if name.startswith(("usr/share/man/man", "usr/share/locale/d"))]


def test_the_bases_packages_are_unchanged(fresh: Fresh) -> None:
    """The layer's dpkg status contains all packages of the base, unchanged."""
    packages = set(inspect(fresh.store.blob(fresh.tools.digest)).packages)

    assert packages == {*fresh.base.packages, *fresh.tools.packages}
    assert {package.name for package in fresh.tools.packages} >= {
        "cmake",
        "gdb",
        "git-lfs",
        "ninja-build",
        "pkg-config",
    }
    assert len(packages) == len(fresh.base.packages) + len(fresh.tools.packages)


def test_tools_are_refused_if_the_archive_would_change_the_bases_packages(
    fresh: Fresh, tmp_path: Path
) -> None:
    """git-email requires the git of its own release; the base has an older one."""
    store, old = Store(tmp_path), OsPackage(name="git", version="1:1.9-1")
    packages = tuple(old if package.name == "git" else package for package in fresh.base.packages)
    status = "\n\n".join(
        f"Package: {deb.name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {deb.version}"
        for deb in packages
    )
    files = {"var/lib/dpkg/status": f"{status}\n", "etc/apt/preferences.d/x": ""}
    tar = tar_of([entry(f"./{path}", text.encode(), mode=0o644) for path, text in files.items()])
    encoded = put_tar(tar, store)  # a base with only the files that apt reads before it runs dpkg
    base = replace(fresh.base, digest=encoded.digest, packages=packages)

    with pytest.raises(BuildFailed, match=r"git-email : Depends: git \(.*\) but 1:1\.9-1 is to be") as caught:
        tools.build("devel", ("git-email",), base, store, environ=os.environ)
    assert caught.value.exit_code == 6
    assert "lock TAG --upgrade-base" in caught.value.hint
    assert list((tmp_path / "tmp").iterdir()) == []


# --- both engines -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(devel: Scene) -> Scene:
    """The engine has BuildKit's image of the Dockerfile, and the embedded engine's image."""
    for arguments, name in ((("--engine", "docker"), THEIRS), (("--load",), OURS)):
        ran = devel.command("build", *CELL, "--images", str(devel.images), "--locked", *arguments)
        assert ran.returncode == 0, ran.stderr
        devel.docker("tag", NAME, name)
    return devel


def test_both_engines_give_the_same_image(both: Scene) -> None:
    found = both.parity(f"docker:{THEIRS}", f"docker:{OURS}")

    assert found.paths > 9_000
    assert found.left == found.idle == ()


def test_the_tools_work(both: Scene) -> None:
    script = (
        "cmake --version; ninja --version; gdb --version; pkg-config --version; git-lfs version; dpkg --audit"
    )
    output = both.docker(
        "run", "--rm", "--entrypoint", "sh", OURS, "-ec", f"{script}; dpkg --verify cmake gdb git-lfs"
    )

    assert re.search(r"cmake version 3\.\d+", output)
    assert "git-lfs/" in output
    assert output.count("\n") > 6


def test_without_a_context_apt_installs_missing_tools(both: Scene) -> None:
    """Without the build context of the tools, the Dockerfile's step installs a missing tool with apt."""
    text = render(
        plan_locked(load_locked(both.images, DEVEL), MATRIX, FACTS), load_templates(TEMPLATES), ("python3",)
    )
    step = text[text.index("COPY --from=tools") : text.index("# The files of rootfs/")]
    dockerfile = f"FROM scratch AS tools\nFROM {OURS}\nUSER root\nRUN dpkg --purge ninja-build\n{step}"
    run_program(
        ["docker", "buildx", "build", "--load", "-t", REDUCED, "-"],
        input=dockerfile,
        env=dict(both.environ),
        check=True,
    )

    output = both.docker(
        "run", "--rm", "--entrypoint", "sh", REDUCED, "-c", "ninja --version; ls /var/lib/apt/lists"
    )
    assert re.fullmatch(r"1\.\d+\.\d+\n", output)


def test_the_sbom_has_them_with_their_hashes(both: Scene) -> None:
    ran = both.command("sbom", DEVEL, "--images", str(both.images))
    assert ran.returncode == 0, ran.stderr
    packages = {package["name"]: package for package in json.loads(ran.stdout)["components"]}

    assert packages["cmake"]["version"].startswith("3.")
    assert "pkg:deb/debian/cmake@" in json.dumps(packages["cmake"])
