"""The base for linux/arm64 from real packages; that for linux/amd64, which scripts made, is the oracle."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.archive_proxy import held_archive
from tests.emulated import emulated
from tests.needs import needs_mmdebstrap
from tests.stored import committed_base
from torchkiln.base import artefact
from torchkiln.base.archive import deb_path, keep, read_files
from torchkiln.base.contents import parse_status
from torchkiln.base.dpkg_status import dpkg_status
from torchkiln.base.effects import Effects
from torchkiln.base.foreign import build_foreign
from torchkiln.base.interpreter import interpreter
from torchkiln.base.loader_cache import loader_cache
from torchkiln.base.plain_tree import Spool, Tree, plain_tree, tree_of
from torchkiln.base.remake import learn, read_effects, remade
from torchkiln.model.lock import BaseFiles, LockedBase
from torchkiln.model.platform import LINUX_AMD64, LINUX_ARM64
from torchkiln.model.progress import UNREPORTED
from torchkiln.oci.compression import GZIP
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import IMAGES

pytestmark = [pytest.mark.proof, needs_mmdebstrap]

_ELF, _AARCH64 = b"\x7fELF\x02\x01\x01", (183).to_bytes(2, "little")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A cache with the base for linux/amd64, its packages and its effects."""
    found, native, user = Store(tmp_path_factory.mktemp("cache")), committed_base(), Store(cache_root())
    learn(IMAGES, native, user)
    artefact.ensure(native, user, locked_only=True)
    learn(IMAGES, native, found)
    found.adopt(
        Path(shutil.copy(user.blob(native.digest), found.temporary("base"))), found.blob(native.digest)
    )
    for deb in files_of(native, found).debs:
        if (user.root / deb_path(deb)).is_file():
            keep((user.root / deb_path(deb)).parent, [deb], found)
    return found


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    with held_archive("debian12", os.environ) as held:
        yield held


@pytest.fixture(scope="module")
def foreign(store: Store, environ: Mapping[str, str]) -> LockedBase:
    return build_foreign(committed_base(), LINUX_ARM64, store, environ=environ, report=UNREPORTED)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spool]:
    with (tmp_path_factory.mktemp("spool") / "spool").open("w+b", buffering=0) as file:
        yield Spool(file)


@pytest.fixture(scope="module")
def tree(foreign: LockedBase, store: Store, spool: Spool) -> Tree:
    with GZIP.open(store.blob(foreign.digest)) as stream:
        return tree_of(stream, spool)


def files_of(base: LockedBase, store: Store) -> BaseFiles:
    found = read_files(None, base, store)
    assert found is not None
    return found


def effects_of(base: LockedBase, store: Store) -> Effects:
    found = read_effects(None, base, store)
    assert found is not None
    return found


def content(path: str, tree: Tree) -> bytes:
    return b"".join(tree[path].pieces())


def test_the_two_files_that_are_written_anew_are_those_of_ldconfig_and_dpkg(
    store: Store, spool: Spool, foreign: LockedBase
) -> None:
    """For the packages of linux/amd64, they are the same bytes as the programs wrote."""
    native = committed_base()
    debs, effects = files_of(native, store).debs, effects_of(native, store)
    plain = plain_tree(debs, lambda deb: store.root / deb_path(deb), effects.rules, spool)
    wrote = {effect.path: effect for effect in effects.changed}
    glibc = next(deb.version for deb in debs if deb.name == "libc6")
    cache = loader_cache(plain, LINUX_AMD64, glibc)
    assert cache == base64.b64decode(wrote["etc/ld.so.cache"].base64)
    status = dpkg_status(debs, lambda deb: store.root / deb_path(deb), plain, effects.rules)
    assert status.decode() == wrote["var/lib/dpkg/status"].text


def test_it_has_the_same_packages_in_the_same_versions(foreign: LockedBase, tree: Tree) -> None:
    native = committed_base()
    of_amd, of_arm = ({one.name: one.version for one in base.packages} for base in (native, foreign))
    renamed = {name.replace("x86-64", "aarch64"): version for name, version in of_amd.items()}
    assert renamed.keys() - of_arm.keys() == LINUX_ARM64.lacking
    assert {name: of_arm[name] for name in renamed.keys() & of_arm.keys()}.items() <= renamed.items()
    assert (foreign.python, foreign.platform) == (native.python, "linux/arm64")
    assert parse_status(content("var/lib/dpkg/status", tree).decode()) == foreign.packages
    assert content("var/lib/dpkg/arch", tree) == b"arm64\n"


def test_nothing_in_it_is_for_another_platform(tree: Tree) -> None:
    programs = [path for path, node in tree.items() if content(path, tree)[:7] == _ELF]
    wrong = [path for path in programs if content(path, tree)[18:20] != _AARCH64]
    assert len(programs) > 700
    assert wrong == []
    names = [path for path in tree if "x86_64-linux" in path or "x86-64-linux" in path]
    # these are in packages for every platform
    assert [path for path in names if not path.startswith(("usr/share/", "usr/lib/python3"))] == []
    assert "usr/lib64" not in tree
    assert tree["usr/lib/ld-linux-aarch64.so.1"].entry.target == "aarch64-linux-gnu/ld-linux-aarch64.so.1"


def test_what_scripts_do_is_done(tree: Tree) -> None:
    """Accounts, alternatives, certificates, byte-code and the environment are as in the other base."""
    assert b"user:x:1000:1000" in content("etc/passwd", tree)
    assert tree["usr/bin/cc"].entry.target == "/etc/alternatives/cc"
    assert tree["opt/venv/bin/python3"].entry.target == "/usr/bin/python3"
    assert len(content("etc/ssl/certs/ca-certificates.crt", tree)) > 200_000
    assert "usr/lib/python3.11/__pycache__/_sysconfigdata__aarch64-linux-gnu.cpython-311.pyc" in tree
    assert sum(path.endswith(".pyc") for path in tree) > 600
    assert tree["usr/bin/ssh-agent"].entry.mode == 0o2755
    assert tree["usr/share/doc/libhwasan0"].entry.target == "gcc-12-base"
    assert b"/lib/aarch64-linux-gnu/libhwasan.so.0\0" in content("etc/ld.so.cache", tree)


def test_it_is_made_again_from_its_packages(
    foreign: LockedBase, store: Store, environ: Mapping[str, str]
) -> None:
    """The Python of the base for this machine's platform makes the byte-code: the same blob."""
    again = store.blob(foreign.digest)
    before = again.read_bytes()
    again.unlink()
    shutil.rmtree(store.root / "interpreters")
    interpreter(foreign, store, native=committed_base())
    assert remade(foreign, foreign, store, environ=environ, report=UNREPORTED) is None
    assert again.read_bytes() == before


PROGRAMS = r"""
uname -m; dpkg --audit; apt-get check >/dev/null && echo packages
cp /etc/ld.so.cache /tmp/cache; ldconfig; cmp /etc/ld.so.cache /tmp/cache && echo cache
echo 'int main(){return 7;}' >/tmp/a.c; cc /tmp/a.c -o /tmp/a; /tmp/a || echo $?
mkdir -p /run/sshd; ssh-keygen -A >/dev/null; sshd -t && echo sshd
cd /usr/lib/python3.11; /opt/venv/bin/python - <<'PYTHON'
import importlib._bootstrap_external as loading, importlib.util, pathlib
class Loader(loading.SourceLoader):
    get_data = get_filename = None
for cached in pathlib.Path(".").rglob("*.cpython-311.pyc"):
    source = cached.parent.parent / (cached.name.partition(".")[0] + ".py")
    if source.exists():
        data, name = source.read_bytes(), str(source.absolute())  # marshal marks what is referenced
        code = Loader().source_to_code(data, name)
        made = loading._code_to_hash_pyc(code, importlib.util.source_hash(data), True)
        print("the same" if made == cached.read_bytes() else f"{source}: other byte-code")
PYTHON
"""


def test_its_programs_run_and_write_what_was_written_for_them(
    foreign: LockedBase, store: Store, tmp_path: Path
) -> None:
    """Emulated, ldconfig writes the same cache, and Python the same byte-code; the packages are complete."""
    command = ["tar", "-xzf", str(store.blob(foreign.digest)), "-C", str(tmp_path)]
    subprocess.run(command, check=True)
    first, *codes = emulated(tmp_path, PROGRAMS).split("sshd\n")
    assert first.splitlines() == ["aarch64", "packages", "cache", "7"]
    found = Counter(codes[0].splitlines())
    assert found.keys() == {"the same"}
    assert found.total() > 600
