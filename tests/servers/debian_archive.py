"""A small Debian 12: a root with this host's dpkg and shell, and a signed archive of generated packages.

With both, apt and dpkg install packages in seconds, without Debian's archive.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.needs import tool
from tests.servers.ubuntu_archive import UbuntuArchive, new_key, packed, run, write_suite
from tests.stored import put_tar
from torchkiln.base.contents import inspect
from torchkiln.model.lock import LockedBase
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.oci.encode import ENCODER
from torchkiln.store.store import Store
from torchkiln.util.deb822 import paragraphs

SUITES = ("bookworm", "bookworm-updates", "bookworm-security")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PACKAGES = (
    *("dash", "dpkg", "coreutils", "tar", "diffutils", "grep", "libc-bin", "libc6", "libbz2-1.0", "liblzma5"),
    *("libmd0", "libselinux1", "libzstd1", "zlib1g", "libpcre2-8-0", "libacl1", "libattr1", "libgmp10"),
)
_KEPT = ("Package", "Version", "Architecture", "Maintainer", "Description", "Multi-Arch")
_LEFT_OUT = ("/usr/share/", f"/{LIBRARIES}/gconv")
_SOURCES = "".join(f"deb http://archive.test/debian {suite} main\n" for suite in SUITES)
_FOLDERS = ("dev", "proc", "sys", "tmp", "run", "etc/apt", "var/lib/dpkg/updates", "var/lib/dpkg/triggers")
_FOLDERS += ("var/lib/dpkg/alternatives", "var/log", "opt/venv/bin")


@dataclass(frozen=True, kw_only=True)
class Deb:
    """A package to build: `files` by path, `scripts` by name ("postinst"), additional `control` fields."""

    name: str
    version: str = "1.0"
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    triggers: str = ""


def library(name: str = "libmd.so.0") -> bytes:
    """The content of a real library of this host whose SONAME is *name*."""
    return Path("/", LIBRARIES, name).resolve().read_bytes()


@dataclass(frozen=True, kw_only=True)
class DebianArchive(UbuntuArchive):
    """The archive at `folder`, which is also used as the security archive."""

    def publish(self, *debs: Deb) -> None:
        """Replace all packages by *debs*."""
        shutil.rmtree(self.folder, ignore_errors=True)
        pool = self.folder / "pool/main"
        pool.mkdir(parents=True)
        for deb in debs:
            _made(deb, self.folder.parent / "made").rename(pool / f"{deb.name}_{deb.version}_amd64.deb")
        for suite in SUITES:
            pools = {"main": pool if suite == SUITES[0] else None}
            write_suite(self.folder, suite, pools, Origin="Debian", Suite=suite, Codename=suite)
            self.sign(suite)

    def environ(self, address: str) -> dict[str, str]:
        return {name.replace("UBUNTU", "DEBIAN"): value for name, value in super().environ(address).items()}


def archive(root: Path) -> DebianArchive:
    """An archive below *root*, which is empty until `publish`."""
    for name in ("mmdebstrap", "gpg", "dpkg-deb", "ldconfig"):
        if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
            pytest.skip(f"{name} is not installed")
    root.mkdir(parents=True, exist_ok=True)
    home, keyring = new_key(root / "gnupg", "the test archive's key"), root / "keyring.gpg"
    run("gpg", "--batch", "--quiet", "--homedir", home, "--export", "--output", keyring)
    return DebianArchive(system=SYSTEMS["debian12"], folder=root / "debian", keyring=keyring, home=home)


def small_base(store: Store) -> LockedBase:
    """Put a base of some packages of this host's Debian into *store*; returns its lock."""
    tool("dpkg")
    encoded = put_tar(_root(store.temporary("root")), store)
    found = inspect(store.blob(encoded.digest))
    how = {"python": found.python, "encoder": ENCODER, "packages": found.packages}
    return LockedBase(os="debian12", **asdict(encoded), **how)


def _made(deb: Deb, place: Path) -> Path:
    tree = place / deb.name
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "DEBIAN").mkdir(parents=True)
    for path, content in deb.files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, text in deb.scripts.items():
        script = tree / "DEBIAN" / name
        script.write_text(f"#!/bin/sh\nset -e\n{text}\n")
        script.chmod(0o755)
    if deb.triggers:
        (tree / "DEBIAN/triggers").write_text(f"{deb.triggers}\n")
    fields = {"Maintainer": "the tests", "Description": "made for a test", **deb.fields}
    (tree / "DEBIAN/control").write_text(
        f"Package: {deb.name}\nVersion: {deb.version}\nArchitecture: amd64\n"
        + "".join(f"{name}: {value}\n" for name, value in fields.items())
    )
    return packed(tree, tree.with_name(f"{deb.name}.deb"))


def _root(place: Path) -> bytes:
    """The tar of the root file system; *place* is a temporary folder for its files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _fill(tar)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        made.extractall(place)
    run("/sbin/ldconfig", "-r", place)
    cache = (place / "etc/ld.so.cache").read_bytes()
    shutil.rmtree(place)
    out.seek(0)
    with tarfile.open(fileobj=out, mode="a", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "etc/ld.so.cache", cache)
    return out.getvalue()


def _fill(tar: tarfile.TarFile) -> None:
    for name in _FOLDERS:
        _add(tar, name, kind=tarfile.DIRTYPE)
    for name in ("bin", "sbin", "lib", "lib64"):
        _add(tar, name, kind=tarfile.SYMTYPE, to=f"usr/{name}")
    status, seen = (
        [_stanza({"package": "python3.11-minimal", "version": "3.11.2-6"})],
        {"bin", "sbin", "lib", "lib64"},
    )
    for name, fields in _described().items():
        paths = [path for path in _paths(name) if not path.startswith(_LEFT_OUT)]
        status.append(_stanza(fields))
        suffix = ":amd64" if fields.get("multi-arch") == "same" else ""
        _add(tar, f"var/lib/dpkg/info/{name}{suffix}.list", "".join(f"{path}\n" for path in paths).encode())
        for path in paths:
            place = Path(path).parent.resolve() / Path(path).name  # /lib is a link
            inside = str(place).lstrip("/")
            if inside not in seen and place.exists() and not (place.is_dir() and not place.is_symlink()):
                seen.add(inside)
                _copy(tar, place, inside)
    _add(tar, "var/lib/dpkg/status", "\n".join(status).encode())
    _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    _add(tar, "etc/group", b"root:x:0:\n")
    _add(tar, "etc/apt/sources.list", _SOURCES.encode())
    _add(tar, "var/lib/dpkg/triggers/ldconfig", b"libc-bin\n")
    for name in ("triggers/File", "triggers/Unincorp", "triggers/Lock", "arch", "lock", "lock-frontend"):
        _add(tar, f"var/lib/dpkg/{name}", b"amd64\n" if name == "arch" else b"")
    _add(tar, "var/lib/dpkg/info/format", b"1\n")
    for name in ("postinst", "triggers"):
        script = Path("/var/lib/dpkg/info", f"libc-bin.{name}")
        _add(tar, f"var/lib/dpkg/info/{script.name}", script.read_bytes(), mode=0o755)


def _described() -> dict[str, dict[str, str]]:
    """The fields of the packages in this host's dpkg status."""
    text = run("dpkg", "--status", *_PACKAGES)
    return {found["package"]: found for found in paragraphs(text.splitlines())}


def _paths(name: str) -> list[str]:
    return sorted(path for path in run("dpkg", "--listfiles", name).splitlines() if path.startswith("/"))


def _stanza(fields: Mapping[str, str]) -> str:
    kept = {"Architecture": "amd64", "Maintainer": "the tests", "Description": "a package"}
    kept |= {name: fields[name.lower()] for name in _KEPT if name.lower() in fields}
    kept["Description"] = kept["Description"].partition("\n")[0]
    return f"Package: {kept.pop('Package')}\nStatus: install ok installed\n" + "".join(
        f"{name}: {value}\n" for name, value in kept.items()
    )


def _copy(tar: tarfile.TarFile, place: Path, inside: str) -> None:
    if place.is_symlink():
        _add(tar, inside, kind=tarfile.SYMTYPE, to=str(place.readlink()))
    else:
        _add(tar, inside, place.read_bytes(), mode=place.stat().st_mode & 0o777)


def _add(
    tar: tarfile.TarFile,
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    to: str = "",
    mode: int = 0o644,
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mtime = kind, to, len(data), 1_700_000_000
    info.mode = 0o755 if kind == tarfile.DIRTYPE else mode
    tar.addfile(info, io.BytesIO(data))
