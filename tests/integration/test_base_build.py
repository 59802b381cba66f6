"""A real build of the base: reproducible, without data of the build host; its Python needs no root."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.archive_proxy import held_archive
from tests.engine.registry import free_port
from tests.needs import needs_mmdebstrap
from tests.stored import committed_base
from torchkiln.base import archive, artefact, mmdebstrap
from torchkiln.base.confined import ConfinedPython
from torchkiln.base.effects import to_bytes
from torchkiln.base.interpreter import interpreter
from torchkiln.base.mmdebstrap import build
from torchkiln.base.recipe import EPOCH, recipe, variables
from torchkiln.base.remake import commit_effects, read_effects
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedBase
from torchkiln.model.progress import Reporting
from torchkiln.oci.compression import GZIP
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof  # minutes, because real packages are installed

MIRROR, SECURITY_MIRROR, _ = variables(recipe("debian12"))


@pytest.fixture(scope="module")
def held() -> Iterator[Mapping[str, str]]:
    """The environment in which Debian's archive does not change."""
    with held_archive("debian12", os.environ) as environ:
        yield environ


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, held: Mapping[str, str]) -> tuple[LockedBase, Store]:
    """A new base, built with unusual names in folder and environment, so that tests can detect a leak."""
    # Not in pytest's folder, which each start of pytest closes to other users: apt's user must have access.
    with tempfile.TemporaryDirectory(prefix="tell-tale-scratch-") as folder:
        Path(folder).chmod(0o711)
        return _fresh(Path(folder), tmp_path_factory, held)


def _fresh(
    scratch: Path, tmp_path_factory: pytest.TempPathFactory, held: Mapping[str, str]
) -> tuple[LockedBase, Store]:
    store = Store(tmp_path_factory.mktemp("cache"))
    unusual = {"LANG": "xy_TELLTALE.UTF-8", "TELLTALE": "x", "no_proxy": "tell-tale"}
    environ = {**held, "TMPDIR": str(scratch), **unusual}
    user_cache = Store(cache_root())
    lock = user_cache.lock("base-debian12", "builds a base for the tests")
    with pytest.MonkeyPatch.context() as patch, lock:
        patch.setattr(tempfile, "tempdir", str(scratch))
        base = build(recipe("debian12"), store, environ=environ)
        _store_for_others(base, store, user_cache)
    assert list(scratch.iterdir()) == []
    return base, store


def members(base: LockedBase, store: Store) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The entries of the base's tar, with the content of files."""
    with GZIP.open(store.blob(base.digest)) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            opened = tar.extractfile(member) if member.isfile() else None
            yield member, opened.read() if opened else b""


def _store_for_others(base: LockedBase, store: Store, user_cache: Store) -> None:
    """Copy the base to the user's cache if it is the locked one, because a build takes over a minute."""
    if base == committed_base() and not user_cache.has_blob(base.digest, base.size):
        blob = Path(shutil.copy(store.blob(base.digest), user_cache.temporary("base")))
        user_cache.adopt(blob, user_cache.blob(base.digest))


@pytest.mark.network
@needs_mmdebstrap
def test_the_same_packages_give_the_same_bytes(
    fresh: tuple[LockedBase, Store], held: Mapping[str, str], tmp_path: Path
) -> None:
    """The base is that of the lock, from another build; if Debian's packages have changed, build twice."""
    base, _ = fresh
    other = committed_base()
    if other.packages != base.packages:
        other = build(recipe("debian12"), Store(tmp_path), environ=held)

    assert base == other


@pytest.mark.network
@needs_mmdebstrap
def test_nothing_of_the_build_host_is_inside(
    fresh: tuple[LockedBase, Store], held: Mapping[str, str]
) -> None:
    base, store = fresh
    mirrors = [os.environ.get(name, "") for name in (MIRROR, "http_proxy", "https_proxy")]
    host = socket.gethostname() if len(socket.gethostname()) > 5 else ""
    resolvers = re.findall(r"^nameserver (\S{10,})", Path("/etc/resolv.conf").read_text(), re.MULTILINE)
    texts = filter(None, ["tell-tale", "TELLTALE", held["http_proxy"], host, *mirrors, *resolvers])
    hints = [text.encode() for text in texts]
    found: list[tuple[str, bytes]] = []
    names = set()
    for member, data in members(base, store):
        names.add(member.name.removeprefix("./").rstrip("/"))
        assert member.mtime <= EPOCH, member.name
        assert not member.isdev(), member.name
        found += [(member.name, hint) for hint in hints if hint in data]
        if member.name == "./etc/apt/sources.list":
            assert data.count(b"\ndeb ") == 2
            assert b"[" not in data
        if member.name == "./etc/shadow":
            assert {line.split(b":")[2] for line in data.splitlines()} == {b"%d" % (EPOCH // 86400)}
        if member.name.startswith(("./var/log/", "./var/lib/apt/lists/")) and member.isfile():
            assert data == b"", member.name

    assert found == []
    assert names.isdisjoint({"etc/machine-id", "etc/resolv.conf", "etc/hostname", "etc/hosts", ".dockerenv"})
    assert not [name for name in names if "ssh_host_" in name or name.endswith(".deb")]
    assert {"dev", "proc", "sys", "tmp", "workspace", "opt/venv/bin/python", "usr/bin/tini"} <= names


@pytest.mark.network
@needs_mmdebstrap
def test_its_empty_environment_belongs_to_its_own_python(fresh: tuple[LockedBase, Store]) -> None:
    base, store = fresh
    inside: dict[str, tarfile.TarInfo] = {}
    for member, data in members(base, store):
        name = member.name.removeprefix("./")
        if name.startswith("opt/venv/"):
            inside[name.removeprefix("opt/venv/")] = member
            if name.endswith("pyvenv.cfg"):
                assert f"version = {base.python}" in data.decode()

    assert inside["bin/python3"].linkname == "/usr/bin/python3"
    assert [name for name in inside if name.startswith("lib/python3.11/site-packages/")] == []


_REMAKE = """
import json, os, shutil, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from torchkiln.base.archive import read_files
from torchkiln.base.artefact import read_lock
from torchkiln.base.archive import deb_path
from torchkiln.base.remake import read_effects, remake
from torchkiln.store.store import Store
images, debs, store = (Path(path) for path in sys.argv[2:])
store = Store(store)
base = read_lock(images, "debian12") or read_lock(images, "debian13")
files, effects = read_files(images, base, store), read_effects(images, base, store)
remake(base, base, files.debs, effects, store, path_of=lambda deb: debs / deb_path(deb))
tools = ("mmdebstrap", "apt-get", "dpkg", "dpkg-deb", "tar", "chroot")
found = [name for name in tools if shutil.which(name)]
print(json.dumps({"made": store.has_blob(base.digest, base.size), "uid": os.getuid(), "found": found}))
"""


def remade(base: LockedBase, store: Store, folder: Path) -> None:
    """Make *base* again as user nobody, with an empty PATH and no user namespaces, in an empty cache.

    mmdebstrap is the oracle: the blob must have the digest of its tar.
    """
    folder.chmod(0o755)
    artefact.write_lock(folder / "images", base)
    archive.commit_files(folder / "images", base, store)
    commit_effects(folder / "images", base, store)
    cache, debs = folder / "cache", folder / "debs"
    shutil.copytree(store.root / "debs", debs / "debs")
    cache.mkdir()
    packages = folder / "packages"
    for path in filter(None, map(Path, sys.path)):
        if path.name == "site-packages":
            shutil.copytree(path, packages, dirs_exist_ok=True, symlinks=True)
    shutil.copytree(ROOT / "torchkiln", packages / "torchkiln", dirs_exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", packages, debs, folder / "images"], check=True)
    os.chown(cache, 65534, 65534)
    python = Path("/usr/bin/python3")  # this user cannot read root's
    if not python.is_file():
        pytest.skip(f"{python} is missing: apt-get install python3")
    places = [str(place) for place in (folder / "images", debs, cache)]
    argv = [str(python), "-I", "-B", "-c", _REMAKE, json.dumps([str(packages)]), *places]
    environ = {"PATH": "/nowhere", "TORCHKILN_CACHE": str(cache)}
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    ran = subprocess.run(argv, **nobody, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"made": True, "uid": 65534, "found": []}


@pytest.mark.network
@needs_mmdebstrap
def test_packages_and_effects_give_the_tar_of_mmdebstrap(
    fresh: tuple[LockedBase, Store], open_folder: Path
) -> None:
    base, store = fresh
    effects = read_effects(None, base, store)
    assert effects is not None, "the effects do not describe the base"
    assert len(to_bytes(effects)) < 1 << 20
    codes = [effect for effect in effects.changed if effect.kind == "byte-code"]
    assert len(codes) > 600  # not in the file: they are compiled again

    remade(base, store, open_folder)


@pytest.mark.network
@needs_mmdebstrap
def test_the_base_of_debian_13_is_made_from_its_packages(tmp_path: Path, open_folder: Path) -> None:
    store = Store(tmp_path / "locking")
    base = build(recipe("debian13"), store, environ=os.environ)

    remade(base, store, open_folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can read; each start of pytest closes its own to them."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module", params=[True, False], ids=["in a sandbox", "without one"])
def python(request: pytest.FixtureRequest) -> ConfinedPython:
    if request.param and sandbox.fault():
        pytest.skip(f"this host makes no sandbox: {sandbox.fault()}")
    store = Store(cache_root())
    base, _ = artefact.ensure(committed_base(), store)
    return ConfinedPython(python=interpreter(base, store), sandboxed=request.param)


def output_of(python: ConfinedPython, code: str) -> list[str]:
    environ = {"PYTHONPATH": "/nowhere", "PYTHONHASHSEED": "5", "LD_LIBRARY_PATH": "/nowhere", "LC_ALL": "xx"}
    argv = [*python.argv(), "-c", code]
    got = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (got.returncode, got.stderr) == (0, "")
    return got.stdout.splitlines()


@pytest.mark.network
def test_the_python_of_a_base_is_its_own(python: ConfinedPython) -> None:
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    assert output_of(python, code) == [python.python.version]


@pytest.mark.network
def test_nothing_of_the_host_is_loaded(python: ConfinedPython) -> None:
    """The memory maps name no file of the host. In a sandbox without /proc, the root folder has none."""
    code = """
import os, sys, py_compile, marshal, zipfile, hashlib, ctypes, ssl, lzma, bz2, uuid
if os.path.exists("/proc/self/maps"):
    for line in open("/proc/self/maps"):
        if "/" in line: print(line.split(maxsplit=5)[5].strip())
else:
    print(*(f"/{name}" for name in os.listdir("/")), sep="\\n")
for module in list(sys.modules.values()):
    if getattr(module, "__file__", None): print(module.__file__)
for entry in sys.path: print(entry)
"""
    root = "/usr" if python.sandboxed else str(python.python.root)
    assert {path for path in output_of(python, code) if not path.startswith(root)} == set()


@pytest.mark.network
def test_sets_are_marshalled_deterministically(python: ConfinedPython) -> None:
    code = "print(compile(\"x in {'a','b','c','d','e','f','g'}\", 'f', 'eval').co_consts[0])"

    assert len({tuple(output_of(python, code)) for _ in range(4)}) == 1


def failed(folder: Path, **environ: str) -> tuple[BuildFailed, list[str]]:
    """The error of a build, and its output."""
    said: list[str] = []
    with pytest.raises(BuildFailed) as caught:
        build(recipe("debian12"), Store(folder), environ=environ, report=Reporting(say=said.append))
    return caught.value, said


@needs_mmdebstrap
def test_output_of_mmdebstrap_is_passed_on(tmp_path: Path) -> None:
    error, said = failed(tmp_path, **{MIRROR: f"file://{tmp_path}/no-archive"})

    assert re.search(r"mmdebstrap failed with exit status \d+", error.message)
    assert "no-archive" in error.message
    assert "running apt-get update..." in said
    assert list((tmp_path / "tmp").iterdir()) == []


@needs_mmdebstrap
def test_an_archive_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/debian"
    error, said = failed(tmp_path, **{MIRROR: nowhere, SECURITY_MIRROR: nowhere, "no_proxy": "127.0.0.1"})

    first, *rest = error.message.splitlines()
    assert first == "the archive of debian12 cannot be reached:"
    assert [line.startswith(f"  {nowhere}: ") and "connect" in line for line in rest] == [True]
    assert "check the network and the proxy" in error.hint
    assert not [line for line in said if "received signal" in line]


@needs_mmdebstrap
def test_a_full_cache_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, mmdebstrap is stopped, and the message names the full disk, not mmdebstrap."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mmdebstrap, "encode", full)
    error, _ = failed(tmp_path, **{MIRROR: f"file://{tmp_path}/no-archive"})

    assert re.search(r"cannot write to the cache .*: No space left", error.message)
    assert "torchkiln cache prune" in error.hint


@needs_mmdebstrap
def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    """Press Ctrl-C while the archive does not answer: no process and no file is left."""
    code = (
        # In a background job of a shell, tests and their children ignore Ctrl-C.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import os, sys; from pathlib import Path; from torchkiln.base.mmdebstrap import build;"
        "from torchkiln.base.recipe import recipe; from torchkiln.store.store import Store;"
        "build(recipe('debian12'), Store(Path(sys.argv[1]) / 'cache'), environ=os.environ)"
    )
    (tmp_path / "scratch").mkdir()
    connected = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/debian"
        calls: list[socket.socket] = []

        def answer_nothing() -> None:
            calls.append(silent.accept()[0])
            connected.set()

        threading.Thread(target=answer_nothing, daemon=True).start()
        environ = {**os.environ, MIRROR: address, "TMPDIR": str(tmp_path / "scratch"), "http_proxy": ""}
        builder = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], env=environ, stderr=subprocess.PIPE
        )
        assert connected.wait(300)
        assert processes_in(tmp_path)
        builder.send_signal(signal.SIGINT)
        builder.communicate(timeout=300)
        calls[0].close()

    assert builder.returncode in (1, -signal.SIGINT)
    assert processes_in(tmp_path) == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def processes_in(folder: Path) -> list[str]:
    """The command lines of mmdebstrap and its children that work below *folder*."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ, words = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}/scratch/torchkiln".encode() in environ:
            found.append(words.decode(errors="replace"))
    return found
