"""An archive in Ubuntu's layout, for machines that cannot reach Ubuntu's archive.

It has the suites jammy, jammy-updates and jammy-security (for 22.04) with main and universe, signed by a test
key. Its packages are those of this machine's Debian, except: base-files has Ubuntu's os-release, the python3
packages contain this machine's CPython 3.10 (3.12 for 24.04), and compilers and git are empty packages,
because the build of an image needs only their names.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.servers.background import InBackground
from torchkiln.base.recipe import recipe
from torchkiln.model.operating_system import SYSTEMS, OperatingSystem

JAMMY, NOBLE = SYSTEMS["ubuntu22.04"], SYSTEMS["ubuntu24.04"]
UNIVERSE = re.compile(r"tini|libnss-wrapper|python3(\.\d+)?-venv")  # as in Ubuntu
EMPTY = ("gcc", "g++", "libc6-dev", "git")
VERSION = "0standin1"
_LIBRARIES = (
    "libc6, libssl3, libffi8, zlib1g, libbz2-1.0, liblzma5, libuuid1, libsqlite3-0, libreadline8, libexpat1"
)
_OS_RELEASE = """\
PRETTY_NAME="a fake Ubuntu {version} of torchkiln's tests"
NAME="Ubuntu"
VERSION_ID="{version}"
VERSION_CODENAME={suite}
ID=ubuntu
ID_LIKE=debian
"""
_LEFT_OUT = ("test", "site-packages", "__pycache__", "idlelib", "tkinter", "lib2to3", "config-3.*")
_SYSCONFIG = """
import json, platform, sys, sysconfig
values = [platform.python_version(), sys.base_prefix, sysconfig.get_path("include")]
values += [sysconfig.get_config_var(name) for name in ("Py_ENABLE_SHARED", "INSTSONAME")]
print(json.dumps(values))
"""
_MAIN = "#include <Python.h>\nint main(int argc, char **argv) { return Py_BytesMain(argc, argv); }\n"


def run(*argv: str | Path, **options: Any) -> str:
    """The output of the command; the exception contains its stderr."""
    done = subprocess.run(
        [str(item) for item in argv], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{argv[0]}: {done.stderr[-2000:]}"
    return done.stdout


@cache
def cpython(minor: str) -> Path | None:
    """The CPython of this machine with the version *minor* ("3.10"), or None."""
    name = f"python{minor}"
    found = [shutil.which(name), *sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/{name}"))]
    for path in filter(None, found):
        done = subprocess.run([path, "-c", "import ssl, ctypes"], capture_output=True, check=False)
        if done.returncode == 0:
            return Path(path)
    return None


def require(system: OperatingSystem = JAMMY, *, empty: bool = False) -> None:
    """Skip the test if `make` needs a program that this machine does not have."""
    programs = {"dpkg": "dpkg-deb", "gnupg": "gpg"}
    for name in ("mmdebstrap", *programs) if empty else ("mmdebstrap", *programs, "apt", "gcc"):
        if shutil.which(programs.get(name, name)) is None:
            pytest.skip(f"{name} is not installed: apt-get install {name}")
    if not empty and cpython(system.python) is None:
        pytest.skip(f"no CPython to build the archive's python3 from: pyenv install {system.python}")


@dataclass(frozen=True, kw_only=True)
class UbuntuArchive:
    """The archive's folder, which can be served over HTTP, and the keyring that trusts it."""

    system: OperatingSystem
    folder: Path
    keyring: Path
    home: Path  # gpg's

    @property
    def suites(self) -> tuple[str, str, str]:
        """The suites, such as jammy, jammy-updates and jammy-security."""
        return suites(self.system)

    def sign(self, suite: str, *, by: Path | None = None) -> None:
        """Sign InRelease of *suite* with the key in *by*, by default with the archive's key."""
        at = self.folder / "dists" / suite
        (at / "InRelease").unlink(missing_ok=True)
        _gpg(by or self.home, "--clearsign", "--output", at / "InRelease", at / "Release")

    def unsign(self) -> None:
        """Remove every signature."""
        for suite in self.suites:
            (self.folder / "dists" / suite / "InRelease").unlink()

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the archive while the context lasts; yields the URL."""
        with _Served(self.folder.parent) as server:
            yield f"http://127.0.0.1:{server.port}/{self.folder.name}"

    def environ(self, address: str) -> dict[str, str]:
        """The variables that a user sets to build from it at *address*."""
        return {
            "TORCHKILN_UBUNTU_MIRROR": f"untrusted+{address}",
            "TORCHKILN_UBUNTU_SECURITY_MIRROR": f"untrusted+{address}",
            "TORCHKILN_UBUNTU_KEYRING": str(self.keyring),
            "no_proxy": "127.0.0.1",
        }


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


class _Served(InBackground):
    def __init__(self, folder: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        self.port = self._server.server_port


def suites(system: OperatingSystem) -> tuple[str, str, str]:
    """The suites of an archive."""
    return system.suite, f"{system.suite}-updates", f"{system.suite}-security"


def make(root: Path, system: OperatingSystem = JAMMY, *, empty: bool = False) -> UbuntuArchive:
    """Make the archive below *root* in ten seconds (60 MB); with *empty*, it has two empty packages only."""
    folder, home = root / "ubuntu", new_key(root / "gnupg", "the test archive's key")
    pools = {component: folder / "pool" / component for component in ("main", "universe")}
    for pool in pools.values():
        pool.mkdir(parents=True)
    stubs = [package(root / "made" / name, VERSION, "") for name in ("gcc", "tini")] if empty else []
    for deb in stubs or (*_debians(root / "apt", system), *_built(root / "made", system.python)):
        name = deb.name.partition("_")[0]
        shutil.copy(deb, pools["universe" if UNIVERSE.fullmatch(name) else "main"])
    keyring = root / "keyring.gpg"
    _gpg(home, "--export", "--output", keyring)
    archive = UbuntuArchive(system=system, folder=folder, keyring=keyring, home=home)
    for suite in archive.suites:
        write_suite(
            folder,
            suite,
            pools if suite == system.suite else dict.fromkeys(pools),
            Version=_version(system),
            Codename=system.suite,
            Description=f"a replacement of Ubuntu {_version(system)}, by torchkiln's tests",
        )
        archive.sign(suite)
    return archive


def new_key(home: Path, name: str) -> Path:
    """Make a gpg folder with one key."""
    home.mkdir(mode=0o700, parents=True)
    _gpg(home, "--passphrase", "", "--quick-generate-key", name, "rsa2048", "sign", "never")
    return home


def _gpg(home: Path, *words: str | Path) -> None:
    run("gpg", "--batch", "--quiet", "--homedir", home, "--pinentry-mode", "loopback", *words)
    run("gpgconf", "--homedir", home, "--kill", "all")
    # Until it has ended, the agent accepts the connection of the next gpg and closes it.
    socket = Path(run("gpgconf", "--homedir", home, "--list-dirs", "agent-socket").strip())
    deadline = time.monotonic() + 60
    while socket.exists():
        assert time.monotonic() < deadline, f"{socket}: gpg-agent does not end"
        time.sleep(0.05)


def _debians(place: Path, system: OperatingSystem) -> list[Path]:
    """Download the recipe's packages and their dependencies from Debian with this machine's apt."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "status").touch()
    settings = place / "apt.conf"
    settings.write_text(
        f'Dir::State "{place}/state";\nDir::State::status "{place}/status";\nDir::Cache "{place}/cache";\n'
        'APT::Architecture "amd64";\nAPT::Install-Recommends "false";\nAPT::Sandbox::User "root";\n'
    )
    environ = {**os.environ, "APT_CONFIG": str(settings), "DEBIAN_FRONTEND": "noninteractive"}
    names = [name for name in recipe(system.name).packages if name not in EMPTY and "python" not in name]
    libraries = [word.strip() for word in _LIBRARIES.split(",")]
    run("apt-get", "update", env=environ)
    run(
        *("apt-get", "--yes", "--download-only", "install", "?essential", "?priority(required)", "apt"),
        *names,
        *libraries,
        env=environ,
    )
    return [
        path for path in (place / "cache/archives").glob("*.deb") if not path.name.startswith("base-files_")
    ] + [_base_files(next((place / "cache/archives").glob("base-files_*.deb")), place / "base-files", system)]


def _base_files(deb: Path, tree: Path, system: OperatingSystem) -> Path:
    """Debian's base-files, with Ubuntu's os-release."""
    run("dpkg-deb", "--raw-extract", deb, tree)
    (tree / "usr/lib/os-release").write_text(_OS_RELEASE.format(version=_version(system), suite=system.suite))
    (tree / "DEBIAN/md5sums").unlink(missing_ok=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    control.write_text(
        "".join(
            f"{'Version: 12ubuntu4+' + VERSION if line.startswith('Version:') else line}\n" for line in lines
        )
    )
    return packed(tree, tree.with_name(f"base-files_12ubuntu4+{VERSION}_amd64.deb"))


def _version(system: OperatingSystem) -> str:
    """Ubuntu's version, "22.04"."""
    return system.name.removeprefix("ubuntu")


def _built(place: Path, minor: str) -> list[Path]:
    """Build the packages of Python *minor*, and empty packages for the other names."""
    name, python = f"python{minor}", cpython(minor)
    assert python is not None
    version, prefix, include, shared, library = json.loads(run(python, "-c", _SYSCONFIG))
    tree = place / f"{name}-minimal"
    stdlib = tree / "usr/lib" / name
    shutil.copytree(
        Path(prefix, "lib", name), stdlib, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    # Real packages compile at installation; done here so that a running Python writes nothing.
    by_hash = ("--invalidation-mode", "unchecked-hash")
    subprocess.run([python, "-m", "compileall", "-q", "-s", tree, "-p", "/", *by_hash, stdlib], check=False)
    (tree / "usr/bin").mkdir()
    program = tree / "usr/bin" / name
    if shared:  # build a program that finds libpython beside the modules, in any folder
        shutil.copy(Path(prefix, "lib", library), stdlib)
        run("strip", stdlib / library)
        source = place / "main.c"
        source.write_text(_MAIN)
        link = (f"-Wl,-rpath,$ORIGIN/../lib/{name}", "-Wl,--enable-new-dtags")
        run("gcc", "-o", program, source, f"-I{include}", str(stdlib / library), *link)
    else:
        shutil.copy(python.resolve(), program)
    # A link in one package points into another, as in Ubuntu.
    python3 = place / "python3"
    (python3 / "usr/bin").mkdir(parents=True)
    (python3 / "usr/bin/python3").symlink_to(name)
    full = f"{version}-{VERSION}"
    return [
        package(tree, full, _LIBRARIES),
        package(python3, full, f"{name}-minimal (= {full})"),
        *(
            package(place / made, full, f"{needed} (= {full})")
            for made, needed in (
                (f"{name}-venv", "python3"),
                ("python3-venv", f"{name}-venv"),
                ("python3-dev", "python3"),
            )
        ),
        *(package(place / made, VERSION, "") for made in EMPTY),
    ]


def package(tree: Path, version: str, depends: str) -> Path:
    """Build a package that has the name of its folder *tree*."""
    (tree / "DEBIAN").mkdir(parents=True)
    needed = f"Depends: {depends}\n" if depends else ""
    (tree / "DEBIAN/control").write_text(
        f"Package: {tree.name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: the tests\n{needed}"
        "Description: a replacement of Ubuntu's\n"
    )
    return packed(tree, tree.with_name(f"{tree.name}_{version}_amd64.deb"))


def packed(tree: Path, deb: Path) -> Path:
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}  # makes the package reproducible
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, deb, env=environ)
    return deb


def write_suite(folder: Path, suite: str, pools: Mapping[str, Path | None], **more: str) -> None:
    """Write the indexes of *suite* and its unsigned Release file with the fields *more*."""
    at = folder / "dists" / suite
    sums = []
    for component, pool in pools.items():
        index = _index(folder, sorted(pool.glob("*.deb")) if pool else ()).encode()
        (at / component / "binary-amd64").mkdir(parents=True)
        for name, data in (("Packages", index), ("Packages.gz", gzip.compress(index, mtime=0))):
            path = f"{component}/binary-amd64/{name}"
            (at / path).write_bytes(data)
            sums.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path}\n")
    fields = {
        "Origin": "Ubuntu",
        "Label": "Ubuntu",
        "Suite": suite,
        "Date": formatdate(usegmt=True),
        "Architectures": "amd64",
        "Components": " ".join(pools),
        "Description": "made by torchkiln's tests",
        **more,
    }
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    (at / "Release").write_text(f"{head}SHA256:\n{''.join(sums)}")


def _index(folder: Path, debs: Sequence[Path]) -> str:
    """The text of a Packages file."""
    stanzas = []
    for deb in debs:
        data = deb.read_bytes()
        control = run("dpkg-deb", "--field", deb).rstrip("\n")
        stanzas.append(
            f"{control}\nFilename: {deb.relative_to(folder)}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    return "\n".join(stanzas)
