"""A stranger's lock and effects of OS packages give only their own layer, checked like an installed one."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from tests.deb_files import Package
from tests.stored import put, put_tar
from tests.unit.test_project_file import LOCK
from torchkiln.base.archive import deb_path, read_files
from torchkiln.base.effects import effects_of, from_bytes, to_bytes
from torchkiln.base.plain_tree import Node, Spool, Tree, UnpackRules, plain_tree
from torchkiln.base.recipe import recipe
from torchkiln.base.remake import APT_EFFECTS, committed_effects, debs_of, learn, read_effects
from torchkiln.base.tree_tar import layer_tar
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.lock import LockedBase, OsPackage
from torchkiln.oci.encode import ENCODER, encode_bytes
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.projects.apt import os_packages
from torchkiln.projects.apt.os_packages import ensure_apt, lock_apt
from torchkiln.projects.locking import save_locked
from torchkiln.store.store import Store

RECIPE = recipe("debian12")
PACKAGE = Package(name="tool", files={"usr/": b"", "usr/bin/": b"", "usr/bin/tool": b"honest"})
DEB = PACKAGE.file()
INSTALLED = "Package: {}\nStatus: install ok installed\nVersion: {}\nArchitecture: amd64\n\n"
BELOW = OsPackage(name="python3.11-minimal", version="3.11.2-6")
STATUS = INSTALLED.format(BELOW.name, BELOW.version) + INSTALLED.format("tool", "1.0")
NOWHERE = "http://127.0.0.1:9/"
ENVIRON = {
    "PIP_CONFIG_FILE": "/dev/null",
    "TORCHKILN_SNAPSHOT": "off",
    "TORCHKILN_DEBIAN_MIRROR": NOWHERE,
    "TORCHKILN_DEBIAN_SECURITY_MIRROR": NOWHERE,
}


class Installed(Exception):
    """mmdebstrap would install the packages."""


def node(path: str, kind: str = "file", text: str = "", target: str = "") -> Node:
    mode = 0o755 if kind == "folder" else 0o644
    entry = TarEntry(path, kind, mode, 0, 0, RECIPE.epoch, len(text), target, (0, 0), ())
    return Node(entry, text.encode())


@dataclass
class Scene:
    """A cache with a base and one package."""

    folder: Path
    store: Store
    base: LockedBase

    @property
    def layers(self) -> OsLayers:
        return OsLayers(base=self.base)

    def locked(self, more: Mapping[str, Node], status: str = STATUS) -> LockedApt:
        """A lock of the package, whose scripts also made *more*; the cache has learnt its effects."""
        rules = UnpackRules(epoch=RECIPE.epoch, dpkg_options=RECIPE.dpkg_options, merged={})
        with (self.folder / "spool").open("w+b", buffering=0) as file:
            plain = plain_tree((DEB,), lambda deb: self.store.root / deb_path(deb), rules, Spool(file))
            listed: Tree = {"var/lib/dpkg/status": node("var/lib/dpkg/status", text=status)} if status else {}
            finished = {**plain, **listed, **more}
            _, blob = encode_bytes(b"".join(layer_tar(finished)))
            effects = effects_of(
                plain, finished, rules, form="layer", blob=blob.digest, compiled=lambda _: {}
            )
        (self.folder / APT_EFFECTS).write_bytes(to_bytes(effects))
        apt = LockedApt(
            os="debian12",
            requested=("tool",),
            base=self.base.digest,
            debs=(DEB,),
            **asdict(blob),
            encoder=ENCODER,
        )
        learn(self.folder, apt, self.store)
        return apt

    def ensure(self, apt: LockedApt) -> LockedApt:
        return ensure_apt(apt, self.layers, frozenset(), self.store, environ=ENVIRON)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    def install(*_: object) -> None:
        raise Installed

    monkeypatch.setattr(os_packages, "_install", install)
    store = Store(tmp_path / "cache")
    tree = {path: node(path, "folder") for path in ("etc", "usr")}
    tree |= {"etc/issue": node("etc/issue", text="x"), "lib": node("lib", "link", target="usr/lib")}
    blob = put_tar(b"".join(layer_tar(tree)), store)
    put(PACKAGE.deb(), store.root / deb_path(DEB), store)
    base = LockedBase(os="debian12", python="3.11.2", **asdict(blob), encoder=ENCODER, packages=(BELOW,))
    return Scene(tmp_path, store, base)


def test_an_own_lock_never_gets_a_strangers_layer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the same packages on the same base; only the stranger's effects add a file."""
    scene.ensure(scene.locked({"usr/bin/helper": node("usr/bin/helper", text="evil")}))
    monkeypatch.setattr(os_packages, "resolve", lambda *_, **__: ((DEB,), {}))
    monkeypatch.setattr(os_packages, "scratch", lambda *_: pytest.MonkeyPatch.context())

    with pytest.raises(Installed):
        lock_apt(("tool",), scene.layers, frozenset(), scene.store, environ=ENVIRON)


@pytest.mark.parametrize("field", ["diff_id", "size", "unpacked"])
def test_what_a_lock_says_of_the_layer_is_measured(scene: Scene, field: str) -> None:
    apt = scene.locked({})
    other = {"diff_id": "sha256:" + "0" * 64, "size": apt.size + 1, "unpacked": 1}[field]
    with pytest.raises(BuildFailed, match=f"expected {field} {other}, got {getattr(apt, field)}"):
        scene.ensure(replace(apt, **{field: other}))
    assert scene.ensure(apt) == apt


def test_two_locks_of_the_same_packages_have_their_own_layers(scene: Scene) -> None:
    """A script gave other bytes when a colleague locked the packages again."""
    first, second = (scene.locked({"etc/random": node("etc/random", text=text)}) for text in ("1", "2"))
    assert [scene.ensure(apt).digest for apt in (first, second, first)] == [
        first.digest,
        second.digest,
        first.digest,
    ]


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("usr/bin/.wh.tool", "file", "is a whiteout"),
        ("usr/.wh.bin/x", "file", "would delete files"),
        ("usr/.wh..wh..opq", "file", "is a whiteout"),
        ("etc/issue/x", "file", "is below etc/issue, which is not a folder"),
        ("lib/x", "file", "is below lib, which is not a folder"),
        ("usr/bin/tool/x", "file", "is below usr/bin/tool, which is not a folder"),
        ("etc", "file", "would replace a folder by a file"),
        ("etc/issue", "folder", "would replace a file by a folder"),
    ],
)
def test_a_layer_that_could_not_be_installed_is_refused(
    scene: Scene, path: str, kind: str, text: str
) -> None:
    with pytest.raises(BuildFailed, match=f"{path} {text}"):
        scene.ensure(scene.locked({path: node(path, kind)}))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("", "/var/lib/dpkg/status is missing"),
        (STATUS.replace("1.0", "2.0"), "tool 1.0 → 2.0"),
        (STATUS + INSTALLED.format("other", "1"), "other (new) → 1"),
        (INSTALLED.format(BELOW.name, BELOW.version), "tool 1.0"),
    ],
)
def test_the_layer_has_the_locked_packages(scene: Scene, status: str, text: str) -> None:
    with pytest.raises(BuildFailed, match=re.escape(text)):
        scene.ensure(scene.locked({}, status))


def test_a_lock_changes_nothing_that_the_cache_knows_of_a_base(scene: Scene) -> None:
    apt = replace(scene.locked({}), digest=scene.base.digest)
    effects = read_effects(None, scene.locked({}), scene.store)
    assert effects
    (scene.folder / APT_EFFECTS).write_bytes(to_bytes(replace(effects, blob=scene.base.digest)))
    learn(scene.folder, apt, scene.store)

    assert read_effects(None, apt, scene.store)
    assert read_effects(None, scene.base, scene.store) is None
    assert read_files(None, scene.base, scene.store) is None


def test_locking_again_with_an_empty_cache_keeps_the_effects(scene: Scene) -> None:
    apt, path = scene.locked({}), scene.folder / APT_EFFECTS
    before = path.read_bytes()
    save_locked(scene.folder, replace(LOCK, apt=apt), Store(scene.folder / "empty"))
    assert path.read_bytes() == before
    save_locked(scene.folder, LOCK, Store(scene.folder / "empty"))
    assert not path.exists()


def test_effects_of_another_lock_are_not_those_of_this_one(scene: Scene) -> None:
    first, second = scene.locked({}), scene.locked({"etc/x": node("etc/x")})
    assert committed_effects(scene.folder, first) is None
    assert committed_effects(scene.folder, second) == read_effects(None, second, scene.store)
    (scene.folder / APT_EFFECTS).write_bytes(b"not gzip")
    with pytest.raises(ConfigError, match=f"{APT_EFFECTS}: not a gzip file"):
        committed_effects(scene.folder, second)


@pytest.mark.parametrize("date", ["20269999T999999Z", "99991231T000000Z"])
def test_impossible_dates_are_no_error(scene: Scene, date: str) -> None:
    dates = {"bookworm": "20261128T000000Z", "bookworm-security": date}
    debs = debs_of(scene.base, dates, scene.store, {**ENVIRON, "TORCHKILN_SNAPSHOT": NOWHERE})
    assert debs.lacking((replace(DEB, sha256="0" * 64),)).startswith("1 of 1 locked packages")


def test_a_package_with_a_pipe_is_refused(scene: Scene) -> None:
    pipe = Package(name="tool", files={"usr/pipe": {"kind": tarfile.FIFOTYPE}})
    deb, apt = pipe.file(), scene.locked({})
    put(pipe.deb(), scene.store.root / deb_path(deb), scene.store)
    with pytest.raises(BuildFailed, match=r"not a valid \.deb file: usr/pipe is a "):
        scene.ensure(replace(apt, debs=(deb,)))


def test_effects_have_few_gzip_members(scene: Scene) -> None:
    effects = read_effects(None, scene.locked({}), scene.store)
    assert effects
    empty, _ = encode_bytes(b"")
    assert from_bytes(to_bytes(effects) + empty * 10, "x") == effects
    with pytest.raises(ValueError, match="more than 64 gzip members"):
        from_bytes(to_bytes(effects) + empty * 100, "x")
