"""An archive in the layout of Ubuntu 22.04's, where that one cannot be reached: a stand-in, and says so.

Suites jammy, jammy-updates and jammy-security with main and universe, signed by a key made for it. Its
packages are those of the Debian that runs here, as they are; only what calls itself Ubuntu or Python 3.10 is
made anew: base-files with Ubuntu's os-release, and the python3 packages around a real CPython 3.10 of this
machine. The compilers and git are empty packages, for an image's build needs no more than their names.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from torchkiln.base.recipe import recipe

SUITES = ("jammy", "jammy-updates", "jammy-security")
UNIVERSE = ("tini", "libnss-wrapper", "python3-venv", "python3.10-venv")  # as in Ubuntu's
EMPTY = ("gcc", "g++", "libc6-dev", "git")
VERSION = "0standin1"
_LIBRARIES = (
    "libc6, libssl3, libffi8, zlib1g, libbz2-1.0, liblzma5, libuuid1, libsqlite3-0, libreadline8, libexpat1"
)
_OS_RELEASE = """\
PRETTY_NAME="a stand-in for Ubuntu 22.04, by torchkiln's tests"
NAME="Ubuntu"
VERSION_ID="22.04"
VERSION_CODENAME=jammy
ID=ubuntu
ID_LIKE=debian
"""
_LEFT_OUT = ("test", "site-packages", "__pycache__", "idlelib", "tkinter", "lib2to3", "config-3.10*")
_ASKED = """
import json, platform, sys, sysconfig
told = [platform.python_version(), sys.base_prefix, sysconfig.get_path("include")]
told += [sysconfig.get_config_var(name) for name in ("Py_ENABLE_SHARED", "INSTSONAME")]
print(json.dumps(told))
"""
_MAIN = "#include <Python.h>\nint main(int argc, char **argv) { return Py_BytesMain(argc, argv); }\n"


def run(*argv: str | Path, **options: Any) -> str:
    """What the command prints; its complaint is the exception's."""
    done = subprocess.run([str(one) for one in argv], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{argv[0]}: {done.stderr[-2000:]}"
    return done.stdout


@cache
def python310() -> Path | None:
    """A CPython 3.10 of this machine; None: there is none."""
    found = [shutil.which("python3.10"), *sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))]
    for path in filter(None, found):
        done = subprocess.run([path, "-c", "import ssl, ctypes"], capture_output=True, check=False)
        if done.returncode == 0:
            return Path(path)
    return None


def require(*, empty: bool = False) -> None:
    """Skip where something is missing that `make` takes."""
    programs = {"dpkg": "dpkg-deb", "gnupg": "gpg"}
    for name in ("mmdebstrap", *programs) if empty else ("mmdebstrap", *programs, "apt", "gcc"):
        if shutil.which(programs.get(name, name)) is None:
            pytest.skip(f"{name} is not installed: apt-get install {name}")
    if not empty and python310() is None:
        pytest.skip("no CPython 3.10 here, from which the stand-in's python3 is made: pyenv install 3.10")


@dataclass(frozen=True, kw_only=True)
class UbuntuArchive:
    """Its folder, which a server shows, and the keyring that believes it."""

    folder: Path
    keyring: Path
    home: Path  # gpg's

    def sign(self, suite: str, *, by: Path | None = None) -> None:
        """InRelease of *suite*, signed by the key in *by*, or by the archive's own."""
        at = self.folder / "dists" / suite
        (at / "InRelease").unlink(missing_ok=True)
        _gpg(by or self.home, "--clearsign", "--output", at / "InRelease", at / "Release")

    def unsign(self) -> None:
        """Take every signature away."""
        for suite in SUITES:
            (self.folder / "dists" / suite / "InRelease").unlink()

    @contextmanager
    def served(self) -> Iterator[str]:
        """Its address, while the context lasts."""
        handler = partial(_Quiet, directory=str(self.folder.parent))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/{self.folder.name}"
            finally:
                server.shutdown()
                thread.join()

    def environ(self, address: str) -> dict[str, str]:
        """What a user sets to build from it at *address*."""
        return {
            "TORCHKILN_UBUNTU_MIRROR": f"untrusted+{address}",
            "TORCHKILN_UBUNTU_SECURITY_MIRROR": f"untrusted+{address}",
            "TORCHKILN_UBUNTU_KEYRING": str(self.keyring),
            "no_proxy": "127.0.0.1",
        }


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


def make(root: Path, *, empty: bool = False) -> UbuntuArchive:
    """The archive below *root*: ten seconds and 60 MB of packages; two that are empty, if it is to be so."""
    folder, home = root / "ubuntu", new_key(root / "gnupg", "the stand-in's key")
    pools = {component: folder / "pool" / component for component in ("main", "universe")}
    for pool in pools.values():
        pool.mkdir(parents=True)
    stubs = [_package(root / "made" / name, VERSION, "") for name in ("gcc", "tini")] if empty else []
    for deb in stubs or (*_debians(root / "apt"), *_ours(root / "made")):
        name = deb.name.partition("_")[0]
        shutil.copy(deb, pools["universe" if name in UNIVERSE else "main"])
    keyring = root / "keyring.gpg"
    _gpg(home, "--export", "--output", keyring)
    archive = UbuntuArchive(folder=folder, keyring=keyring, home=home)
    for suite in SUITES:
        _suite(folder, suite, pools if suite == "jammy" else dict.fromkeys(pools))
        archive.sign(suite)
    return archive


def new_key(home: Path, name: str) -> Path:
    """A folder of gpg's with one key in it."""
    home.mkdir(mode=0o700, parents=True)
    _gpg(home, "--passphrase", "", "--quick-generate-key", name, "rsa2048", "sign", "never")
    return home


def _gpg(home: Path, *words: str | Path) -> None:
    run("gpg", "--batch", "--quiet", "--homedir", home, "--pinentry-mode", "loopback", *words)
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)


def _debians(place: Path) -> list[Path]:
    """The recipe's packages that are Debian's own, with all that they need, by apt as it is set up here."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "status").touch()
    settings = place / "apt.conf"
    settings.write_text(
        f'Dir::State "{place}/state";\nDir::State::status "{place}/status";\nDir::Cache "{place}/cache";\n'
        'APT::Architecture "amd64";\nAPT::Install-Recommends "false";\nAPT::Sandbox::User "root";\n'
    )
    environ = {**os.environ, "APT_CONFIG": str(settings), "DEBIAN_FRONTEND": "noninteractive"}
    wanted = [one for one in recipe("ubuntu22.04").packages if one not in EMPTY and "python" not in one]
    libraries = [one.strip() for one in _LIBRARIES.split(",")]
    run("apt-get", "update", env=environ)
    run(
        *("apt-get", "--yes", "--download-only", "install", "?essential", "?priority(required)", "apt"),
        *wanted,
        *libraries,
        env=environ,
    )
    return [
        one for one in (place / "cache/archives").glob("*.deb") if not one.name.startswith("base-files_")
    ] + [_base_files(next((place / "cache/archives").glob("base-files_*.deb")), place / "base-files")]


def _base_files(deb: Path, tree: Path) -> Path:
    """Debian's, with Ubuntu's os-release."""
    run("dpkg-deb", "--raw-extract", deb, tree)
    (tree / "usr/lib/os-release").write_text(_OS_RELEASE)
    (tree / "DEBIAN/md5sums").unlink(missing_ok=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    control.write_text(
        "".join(
            f"{'Version: 12ubuntu4+' + VERSION if one.startswith('Version:') else one}\n" for one in lines
        )
    )
    return _packed(tree, tree.with_name(f"base-files_12ubuntu4+{VERSION}_amd64.deb"))


def _ours(place: Path) -> list[Path]:
    """The packages that are made here."""
    python = python310()
    assert python is not None
    version, prefix, include, shared, library = json.loads(run(python, "-c", _ASKED))
    tree = place / "python3.10-minimal"
    stdlib = tree / "usr/lib/python3.10"
    shutil.copytree(
        Path(prefix, "lib/python3.10"), stdlib, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    # As the packages' own scripts do when they are installed: nothing is left for a running Python to write.
    by_hash = ("--invalidation-mode", "unchecked-hash")
    subprocess.run([python, "-m", "compileall", "-q", "-s", tree, "-p", "/", *by_hash, stdlib], check=False)
    (tree / "usr/bin").mkdir()
    program = tree / "usr/bin/python3.10"
    if shared:  # a program that finds its library beside the modules, wherever they lie
        shutil.copy(Path(prefix, "lib", library), stdlib)
        run("strip", stdlib / library)
        source = place / "main.c"
        source.write_text(_MAIN)
        link = ("-Wl,-rpath,$ORIGIN/../lib/python3.10", "-Wl,--enable-new-dtags")
        run("gcc", "-o", program, source, f"-I{include}", str(stdlib / library), *link)
    else:
        shutil.copy(python.resolve(), program)
    # A link lies in one package and leads into another, as in Ubuntu.
    python3 = place / "python3"
    (python3 / "usr/bin").mkdir(parents=True)
    (python3 / "usr/bin/python3").symlink_to("python3.10")
    full = f"{version}-{VERSION}"
    return [
        _package(tree, full, _LIBRARIES),
        _package(python3, full, f"python3.10-minimal (= {full})"),
        *(
            _package(place / name, full, f"{needed} (= {full})")
            for name, needed in (
                ("python3.10-venv", "python3"),
                ("python3-venv", "python3.10-venv"),
                ("python3-dev", "python3"),
            )
        ),
        *(_package(place / name, VERSION, "") for name in EMPTY),
    ]


def _package(tree: Path, version: str, depends: str) -> Path:
    """The package that is called as its folder."""
    (tree / "DEBIAN").mkdir(parents=True)
    needed = f"Depends: {depends}\n" if depends else ""
    (tree / "DEBIAN/control").write_text(
        f"Package: {tree.name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: the tests\n{needed}"
        "Description: a stand-in for Ubuntu's\n"
    )
    return _packed(tree, tree.with_name(f"{tree.name}_{version}_amd64.deb"))


def _packed(tree: Path, deb: Path) -> Path:
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, deb)
    return deb


def _suite(folder: Path, suite: str, pools: Mapping[str, Path | None]) -> None:
    """The indexes of *suite*, and its Release without a signature."""
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
        "Version": "22.04",
        "Codename": "jammy",
        "Date": formatdate(usegmt=True),
        "Architectures": "amd64",
        "Components": " ".join(pools),
        "Description": "a stand-in for Ubuntu 22.04, by torchkiln's tests",
    }
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    (at / "Release").write_text(f"{head}SHA256:\n{''.join(sums)}")


def _index(folder: Path, debs: Sequence[Path]) -> str:
    """A Packages file."""
    told = []
    for deb in debs:
        data = deb.read_bytes()
        control = run("dpkg-deb", "--field", deb).rstrip("\n")
        told.append(
            f"{control}\nFilename: {deb.relative_to(folder)}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    return "\n".join(told)
