"""`torchkiln doctor` on simulated hosts: it starts programs, and suggests packages of the distribution."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from torchkiln.engine import doctor
from torchkiln.engine.doctor import Probe, examine
from torchkiln.errors import BuildFailed


class Host:
    """A PATH with the programs that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, program: str, script: str = "exit 0") -> None:
        path = self.folder / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def offers(self, *packages: str) -> None:
        """Write fake package manager programs of Debian, which know these packages."""
        answer = "echo '  Installed: (none)'; echo '  Candidate: 1'"
        cases = "".join(f"{name}) echo {name}:; {answer};; " for name in packages)
        self.has("apt-cache", f'case "$2" in {cases} *) ;; esac')

    def probe(self, what: str, *, reach: object = lambda: "index.test") -> Probe:
        found = [probe for probe in examine(self.folder / "cache", reach) if probe.what.startswith(what)]  # type: ignore[arg-type]
        return found[0]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return Host(tmp_path)


def test_the_package_is_one_that_the_distribution_has(host: Host) -> None:
    """Debian 12 has the package docker.io, but no docker-cli."""
    host.offers("docker.io", "mmdebstrap")

    assert host.probe("docker (").cure == "apt-get install docker.io"
    assert host.probe("mmdebstrap").cure == "apt-get install mmdebstrap"
    host.offers("docker.io", "docker-cli")
    assert host.probe("docker (").cure == "apt-get install docker-cli"


def test_a_package_that_the_distribution_lacks(host: Host) -> None:
    host.has("docker", "echo 'docker: unknown command: docker buildx' >&2; exit 1")
    host.offers("mmdebstrap")

    probe = host.probe("buildx")
    assert (probe.ok, probe.found) == (False, "docker: unknown command: docker buildx")
    assert probe.cure.startswith("apt has no package docker-buildx or docker-buildx-plugin")


def test_other_package_managers(host: Host) -> None:
    assert host.probe("skopeo").cure == "install skopeo with the package manager of this system"
    host.has("dnf")
    assert host.probe("skopeo").cure == "dnf install skopeo"


def test_user_namespaces_are_tried(host: Host) -> None:
    """mmdebstrap needs newuidmap, which is installed, missing, or without a range in /etc/subuid."""
    host.has("unshare", "echo 'unshare: Operation not permitted' >&2; exit 1")
    probe = host.probe("root or user namespaces")
    assert (probe.ok, "Operation not permitted" in probe.found) == (False, True)

    host.has("unshare")
    host.offers("uidmap")
    assert host.probe("root or user namespaces").ok
    assert host.probe("newuidmap").cure == "apt-get install uidmap"
    host.has("newuidmap")
    assert host.probe("newuidmap").ok
    host.has("unshare", 'case "$*" in *map-users*) echo "unshare: no line matching user" >&2; exit 1;; esac')
    probe = host.probe("newuidmap")
    assert (probe.ok, probe.found) == (False, "unshare: no line matching user")
    assert "usermod --add-subuids" in probe.cure


@pytest.mark.parametrize("has_range", [True, False])
def test_an_old_unshare_cannot_try_newuidmap(
    host: Host, monkeypatch: pytest.MonkeyPatch, has_range: bool
) -> None:
    """Before version 2.38, unshare has no --map-users, so only the range in /etc/subuid is checked."""
    host.has("newuidmap")
    host.has("unshare", 'case "$*" in *map-users*) echo "unshare: unrecognized option" >&2; exit 1;; esac')
    monkeypatch.setattr(doctor, "_has_range", lambda: has_range)
    probe = host.probe("newuidmap")

    assert (probe.ok, probe.found) == (
        (True, "works") if has_range else (False, "no range for this user in /etc/subuid")
    )


def test_mmdebstrap_is_started(host: Host) -> None:
    host.has("mmdebstrap", "echo mmdebstrap 1.3.5")
    assert (host.probe("mmdebstrap").ok, host.probe("mmdebstrap").found) == (True, "mmdebstrap 1.3.5")
    host.has("mmdebstrap", "echo 'perl: not found' >&2; exit 127")
    assert (host.probe("mmdebstrap").ok, host.probe("mmdebstrap").found) == (False, "perl: not found")


def test_the_index_is_requested(host: Host) -> None:
    def unreachable() -> str:
        raise BuildFailed("https://index.test: connection refused", hint="check the network")

    assert host.probe("package index").found == "index.test answers"
    probe = host.probe("package index", reach=unreachable)
    assert (probe.ok, probe.found, probe.cure) == (
        False,
        "https://index.test: connection refused",
        "check the network",
    )


def test_the_cache_is_written_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is mounted read-only may have free space, so a write is tried."""

    def refused(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    assert "cannot be written" not in host.probe("space in the cache").found
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    probe = host.probe("space in the cache")
    assert not probe.ok
    assert "cannot be written: Read-only file system" in probe.found
