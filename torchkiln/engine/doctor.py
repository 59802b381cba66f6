"""Checks whether this host has what engines and runtimes need, and says how to install what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchkiln.base.recipe import recipe
from torchkiln.errors import KilnError
from torchkiln.model.operating_system import DEFAULT_OS

Part = Literal["embedded engine", "docker engine", "rootfs runtime", "tests"]
_SPACE = 12_000_000_000  # bytes: wheels, layers and an unpacked image of one cell
# The names that distributions have for a program's package, in the order of preference.
_PACKAGES = {
    "docker": ("docker-cli", "docker.io", "docker-ce-cli"),
    "buildx": ("docker-buildx", "docker-buildx-plugin"),
    "unshare": ("util-linux",),
    "newuidmap": ("uidmap", "shadow-utils"),
}
_INSTALLERS = {"apt-get": "apt-get install", "dnf": "dnf install", "pacman": "pacman -S", "apk": "apk add"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The result of one check; `cure` says what to do if it is not ok."""

    part: Part
    what: str
    ok: bool
    found: str
    cure: str = ""


def examine(cache: Path, index: Callable[[], str]) -> tuple[Probe, ...]:
    """All checks, by part; nothing is changed.

    :param index: requests a page from the index and returns its address; raises KilnError.
    """
    checks = (_python, _base_tools, _privileges, _space, _docker, _readers)
    probes = [probe for check in checks for probe in check(cache)]
    probes.append(_index(index))
    order = get_args(Part)
    return tuple(sorted(probes, key=lambda probe: order.index(probe.part)))


def _python(_: Path) -> Iterator[Probe]:
    yield Probe(
        part="embedded engine",
        what="Python",
        ok=sys.version_info >= (3, 10),
        found=sys.version.split()[0],
        cure="use Python 3.10 or newer: make setup PYTHON=python3.11",
    )


def _base_tools(_: Path) -> Iterator[Probe]:
    if shutil.which("mmdebstrap") is None:
        yield _program("embedded engine", "mmdebstrap", "builds the base")
    else:
        what, cure = "mmdebstrap (builds the base)", _install("mmdebstrap")
        yield _answer("embedded engine", what, ["mmdebstrap", "--version"], cure)
    base = recipe(DEFAULT_OS)
    keyring = Path(base.keyring)
    yield Probe(
        part="embedded engine",
        what=f"{base.distribution.capitalize()}'s archive keys",
        ok=keyring.exists(),
        found=str(keyring) if keyring.exists() else "missing",
        cure=_install(base.keyring_package),
    )


def _privileges(_: Path) -> Iterator[Probe]:
    root = os.geteuid() == 0
    spaces, why = (True, "") if root else _run(["unshare", "--user", "--map-root-user", "true"])
    found = "root" if root else "user namespaces" if spaces else f"neither root nor user namespaces ({why})"
    parts: tuple[Part, ...] = ("embedded engine", "rootfs runtime")
    for part in parts:
        yield Probe(
            part=part,
            what="root or user namespaces",
            ok=spaces,
            found=found,
            cure="run as root, or: sysctl kernel.unprivileged_userns_clone=1",
        )
    if not root:
        yield _mapped_ids()
    yield _program("rootfs runtime", "unshare", "creates the namespaces")
    yield _program("rootfs runtime", "tar", "unpacks layers")


def _mapped_ids() -> Probe:
    """Whether newuidmap maps a range of user ids, which mmdebstrap needs without root."""
    if shutil.which("newuidmap") is None:
        return _program("embedded engine", "newuidmap", "maps the user ids of the base")
    works, why = _run(["unshare", "--user", "--map-users=auto", "--map-root-user", "true"])
    if not works and "unrecognized option" in why:  # unshare before 2.38
        works, why = _has_range(), "no range for this user in /etc/subuid"
    return Probe(
        part="embedded engine",
        what="newuidmap (maps the user ids of the base)",
        ok=works,
        found="works" if works else why,
        cure="add a range to /etc/subuid and /etc/subgid: usermod --add-subuids 100000-165535"
        " --add-subgids 100000-165535 $USER",
    )


def _has_range() -> bool:
    import pwd

    user = pwd.getpwuid(os.geteuid())
    try:
        lines = Path("/etc/subuid").read_text().splitlines()
    except OSError:
        return False
    return any(line.split(":")[0] in (user.pw_name, str(user.pw_uid)) for line in lines)


def _space(cache: Path) -> Iterator[Probe]:
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free, fault = shutil.disk_usage(existing).free, ""
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        fault = f", cannot be written: {error.strerror}"
    yield Probe(
        part="embedded engine",
        what="space in the cache",
        ok=free >= _SPACE and not fault,
        found=f"{free / 1e9:.0f} GB free at {cache}{fault}",
        cure=f"one cell needs {_SPACE / 1e9:.0f} GB; set TORCHKILN_CACHE to another disk",
    )


def _index(reach: Callable[[], str]) -> Probe:
    try:
        ok, found, cure = True, f"{reach()} answers", ""
    except KilnError as error:
        ok, found, cure = False, error.message, error.hint
    return Probe(part="embedded engine", what="package index", ok=ok, found=found, cure=cure)


def _docker(_: Path) -> Iterator[Probe]:
    yield _program("docker engine", "docker", "the client")
    if shutil.which("docker") is None:
        return
    yield _answer("docker engine", "buildx", ["docker", "buildx", "version"], _install("buildx"))
    version, cure = (
        ["docker", "version", "--format", "{{.Server.Version}}"],
        "start dockerd, or set DOCKER_HOST",
    )
    yield _answer("docker engine", "Docker daemon", version, cure)


def _readers(_: Path) -> Iterator[Probe]:
    for name in ("skopeo", "umoci"):
        yield _program("tests", name, "reads the images")


def _answer(part: Part, what: str, command: list[str], cure: str) -> Probe:
    works, said = _run(command)
    return Probe(part=part, what=what, ok=works, found=said or ("yes" if works else "no answer"), cure=cure)


def _program(part: Part, name: str, why: str) -> Probe:
    path = shutil.which(name)
    return Probe(
        part=part,
        what=f"{name} ({why})",
        ok=path is not None,
        found=path or "missing",
        cure="" if path else _install(name),
    )


def _install(name: str) -> str:
    """The command that installs the program *name*, by a package that this distribution has."""
    packages = _PACKAGES.get(name, (name,))
    if shutil.which("apt-cache"):
        available = [package for package in packages if _apt_has(package)]
        if not available:
            names = " or ".join(packages)
            return f"apt has no package {names}: run apt-get update, or add an archive that has it"
        return f"apt-get install {available[0]}"
    for program, command in _INSTALLERS.items():
        if shutil.which(program):
            return f"{command} {packages[-1]}"
    return f"install {' or '.join(packages)} with the package manager of this system"


def _apt_has(package: str) -> bool:
    works, said = _run(["apt-cache", "policy", package], lines=3)
    return works and "Candidate: " in said and "Candidate: (none)" not in said


def _run(command: list[str], *, lines: int = 1) -> tuple[bool, str]:
    """Whether *command* succeeds, and the first *lines* of its output, or of its error."""
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, env=environ
        )
    except OSError as error:
        return False, error.strerror or ""
    except subprocess.TimeoutExpired:
        return False, "timed out after 10 seconds"
    said = ran.stdout if ran.returncode == 0 else ran.stderr or ran.stdout
    return ran.returncode == 0, "\n".join(said.strip().splitlines()[:lines])
