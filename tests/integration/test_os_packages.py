"""OS packages of a project: apt and dpkg install them from a local archive, on a small base."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.layers import sha256
from tests.needs import needs_mmdebstrap
from tests.planned import FACTS, MATRIX
from tests.projects import Bench, bench
from tests.servers.debian_archive import LIBRARIES, Deb, DebianArchive, archive, library, small_base
from tests.stored import put
from torchkiln.base.archive import deb_path
from torchkiln.base.effects import to_bytes
from torchkiln.base.recipe import SNAPSHOT
from torchkiln.base.remake import APT_EFFECTS, commit_effects, learn, read_effects
from torchkiln.cache.usage import cache_usage
from torchkiln.errors import BuildFailed, KilnError, Unresolvable
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedTools
from torchkiln.model.progress import UNREPORTED
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.load import plan_locked
from torchkiln.projects.apt.os_packages import ensure_apt, lock_apt
from torchkiln.projects.lock import LockedProject
from torchkiln.projects.locking import with_packages
from torchkiln.store.store import Store

pytestmark = [
    pytest.mark.proof,  # a minute of dpkg
    needs_mmdebstrap,
    pytest.mark.skipif(os.geteuid() != 0, reason="users need subordinate ids: /etc/subuid"),
]

LDCONFIG = "activate-noawait ldconfig"
TOOL = Deb(
    name="tool",
    version="1:2.0",
    files={"usr/bin/tool": "#!/bin/sh\necho it works\n"},
    scripts={"postinst": "cat /proc/net/dev >/etc/tool-net; sleep 86423 >/dev/null 2>&1 </dev/null &"},
    fields={"Depends": "libxfake1 (>= 1.0)", "Recommends": "extra"},
)
FAKE = Deb(
    name="libxfake1",
    files={f"{LIBRARIES}/libbz3.so.1": library("libbz2.so.1.0").replace(b"libbz2.so.1.0", b"libbz3.so.1.0")},
    triggers=LDCONFIG,
)
GOOD = (
    TOOL,
    FAKE,
    Deb(name="extra"),
    Deb(name="libmd0", version="99", files={f"{LIBRARIES}/libmd.so.0": "new"}),
    Deb(name="newer", fields={"Depends": "libmd0 (>= 99)"}),
    Deb(name="rival", fields={"Conflicts": "diffutils"}),
    Deb(name="one-editor", fields={"Provides": "editor"}),
    Deb(name="other-editor", fields={"Provides": "editor"}),
    Deb(name="unmet", fields={"Depends": "nowhere"}),
    Deb(
        name="evil",
        files={
            "opt/venv/lib/evil.pth": "",
            "usr/local/cuda-12.1/x": "",
            "usr/lib/python3/dist-packages/sitecustomize.py": "",
            "usr/lib/nested/libmd.so.0": library(),
            "etc/ld.so.conf.d/000-evil.conf": "/usr/lib/nested\n",
            f"{LIBRARIES}/libcuda.so.1": "",
        },
        scripts={"postinst": "echo changed >>/usr/bin/diff3\necho x >/etc/ld.so.preload"},
        triggers=LDCONFIG,
    ),
    Deb(name="random", scripts={"postinst": "head -c 8 /dev/urandom >/etc/random"}),
    Deb(name="configured", files={"etc/bash.bashrc": "mine"}),
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A base in a cache, and a running server with the archive."""

    folder: Path
    layers: OsLayers
    archive: DebianArchive
    environ: dict[str, str]

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache")

    def lock(self, *names: str, own: frozenset[str] = frozenset()) -> tuple[LockedApt, tuple[str, ...]]:
        return lock_apt(names, self.layers, own, self.store, environ=self.environ)

    def elsewhere(self, name: str) -> Store:
        """A new cache, as of another machine, which contains only the base."""
        store = Store(self.folder / name)
        digest = self.layers.base.digest
        put(self.store.blob(digest).read_bytes(), store.blob(digest), store)
        return store

    def refusal(self, *names: str) -> KilnError:
        with pytest.raises(KilnError) as caught:
            self.lock(*names)
        return caught.value


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("os-packages")
    for above in (folder, *folder.parents):
        if above.owner() == "root" and above.is_relative_to("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)  # apt's user must have access
    debian = archive(folder / "archive")
    debian.publish(*GOOD)
    with debian.served() as address:
        environ = {**os.environ, **debian.environ(address), SNAPSHOT: "off"}
        base = small_base(Store(folder / "cache"))
        yield Scene(folder=folder, layers=OsLayers(base=base), archive=debian, environ=environ)


@pytest.fixture(scope="module")
def locked(scene: Scene) -> LockedApt:
    return scene.lock("tool")[0]


def text(store: Store, apt: LockedApt, path: str) -> str:
    with tarfile.open(store.blob(apt.digest)) as tar:
        file = tar.extractfile(path)
        assert file is not None
        return file.read().decode()


def test_the_packages_and_what_they_need_are_one_layer(scene: Scene, locked: LockedApt) -> None:
    assert [(deb.name, deb.version) for deb in locked.debs] == [("libxfake1", "1.0"), ("tool", "1:2.0")]
    assert (locked.requested, locked.base, locked.untrusted) == (("tool",), scene.layers.base.digest, True)
    with tarfile.open(scene.store.blob(locked.digest)) as tar:
        names = {member.name for member in tar if not member.isdir()}
    assert {"usr/bin/tool", f"{LIBRARIES}/libbz3.so.1", "etc/ld.so.cache", "var/lib/dpkg/status"} <= names
    assert not [name for name in names if name.startswith(("usr/bin/diff", "opt/")) or name.endswith(".deb")]
    assert "tool" in text(scene.store, locked, "var/lib/dpkg/status")


def test_a_package_that_the_image_has_adds_nothing(scene: Scene) -> None:
    apt, _ = scene.lock("dash")
    assert (apt.requested, apt.debs) == (("dash",), ())
    with tarfile.open(scene.store.blob(apt.digest)) as tar:
        assert not [member.name for member in tar if member.name.startswith("usr/")]


def test_packages_are_added_to_the_tools_of_a_devel_image(scene: Scene, locked: LockedApt) -> None:
    """The layer omits packages that the devel tools have. Its dpkg status lists all packages."""
    blob = {name: getattr(locked, name) for name in ("digest", "diff_id", "size", "unpacked", "encoder")}
    base = scene.layers.base
    tools = LockedTools(os=base.os, name="devel", base=base.digest, **blob, packages=locked.packages)
    layers = OsLayers(base=base, tools=tools)
    apt, _ = lock_apt(("extra", "tool"), layers, frozenset(), scene.store, environ=scene.environ)

    assert [deb.name for deb in apt.debs] == ["extra"]
    assert (apt.base, apt.tools) == (base.digest, tools.digest)
    status = text(scene.store, apt, "var/lib/dpkg/status")
    assert [f"Package: {name}\n" in status for name in ("dash", "tool", "extra")] == [True] * 3
    with tarfile.open(scene.store.blob(apt.digest)) as tar:
        assert "usr/bin/tool" not in tar.getnames()


def test_scripts_of_packages_have_no_network_and_leave_no_process(scene: Scene, locked: LockedApt) -> None:
    assert subprocess.run(["pgrep", "--full", "^sleep 86423$"]).returncode == 1
    lines = text(scene.store, locked, "etc/tool-net").splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


def test_nothing_of_the_mirror_is_in_the_image(scene: Scene, locked: LockedApt) -> None:
    with tarfile.open(scene.store.blob(locked.digest)) as tar:
        found = [
            member.name
            for member in tar
            if (file := tar.extractfile(member) if member.isfile() else None) and b"127.0.0.1" in file.read()
        ]
    assert found == []


def test_another_machine_makes_the_same_layer_from_the_archive(scene: Scene, locked: LockedApt) -> None:
    """The archive is only needed if the cache of the machine has neither the layer nor the packages."""
    store = scene.elsewhere("second")

    def ensured(environ: dict[str, str]) -> LockedApt:
        return ensure_apt(locked, scene.layers, frozenset(), store, environ=environ)

    assert ensured(scene.environ) == locked
    nowhere = {**scene.environ, "TORCHKILN_DEBIAN_MIRROR": "http://127.0.0.1:9/"}
    assert ensured(nowhere) == locked  # the layer is in the cache, so nothing is made
    store.blob(locked.digest).unlink()
    assert ensured(nowhere) == locked
    assert store.has_blob(locked.digest, locked.size)


def test_files_that_the_archive_no_longer_has_are_named(scene: Scene, locked: LockedApt) -> None:
    store = scene.elsewhere("third")
    shutil.copytree(
        (scene.store.root / deb_path(locked.debs[1])).parent,
        (store.root / deb_path(locked.debs[1])).parent,
        dirs_exist_ok=True,
    )
    try:
        scene.archive.publish(TOOL, replace(FAKE, version="1.1"))
        with pytest.raises(BuildFailed) as caught:
            ensure_apt(locked, scene.layers, frozenset(), store, environ=scene.environ)
        count, name, reason = caught.value.message.splitlines()
        assert count == "1 of 2 locked packages were not found"
        assert name.startswith("libxfake1_1.0_amd64.deb (sha256 ")
        assert re.fullmatch(r"  archive: http://\S+/libxfake1_1\.0_amd64\.deb: HTTP 404 Not Found", reason)
        assert "project lock DIR --upgrade" in caught.value.hint
        assert "TORCHKILN_DEBIAN_MIRROR" in caught.value.hint
    finally:
        scene.archive.publish(*GOOD)


def test_a_lock_cannot_name_a_file_that_the_archive_does_not_have(scene: Scene, locked: LockedApt) -> None:
    forged = replace(locked, debs=(replace(locked.debs[0], sha256="0" * 64), locked.debs[1]))
    with pytest.raises(BuildFailed, match=r"archive: libxfake1_1\.0_amd64\.deb: checksum mismatch: sha256"):
        ensure_apt(forged, scene.layers, frozenset(), scene.elsewhere("sixth"), environ=scene.environ)


def test_a_damaged_file_in_the_cache_is_downloaded_again(scene: Scene, locked: LockedApt) -> None:
    store = scene.elsewhere("fourth")
    for deb in locked.debs:
        path = store.root / deb_path(deb)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(deb.size))
    assert ensure_apt(locked, scene.layers, frozenset(), store, environ=scene.environ) == locked
    assert [sha256(store.root / deb_path(deb)) for deb in locked.debs] == [deb.sha256 for deb in locked.debs]


@pytest.mark.parametrize("name", ["tool", "random"])
def test_with_the_effects_no_script_runs(scene: Scene, tmp_path: Path, name: str) -> None:
    """The layer is the locked one without mmdebstrap, even if a script's output differs on each run."""
    apt, _ = scene.lock(name)
    commit_effects(tmp_path, apt, scene.store)
    store = scene.elsewhere(f"effects-{name}")
    learn(tmp_path, apt, store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda *_, **__: None)
        assert ensure_apt(apt, scene.layers, frozenset(), store, environ=scene.environ) == apt
    assert store.blob(apt.digest).read_bytes() == scene.store.blob(apt.digest).read_bytes()


def test_other_effects_are_refused(scene: Scene, locked: LockedApt, tmp_path: Path) -> None:
    """Effects are not trusted: if they do not give the locked layer, nothing is built."""
    store, effects = scene.elsewhere("forged-effects"), read_effects(None, locked, scene.store)
    assert effects
    changed = tuple(replace(one, text="x", base64="", kept=False) for one in effects.changed)
    (tmp_path / APT_EFFECTS).write_bytes(to_bytes(replace(effects, changed=changed)))
    learn(tmp_path, locked, store)

    with pytest.raises(BuildFailed, match="do not give the locked blob"):
        ensure_apt(locked, scene.layers, frozenset(), store, environ=scene.environ)
    assert not store.has_blob(locked.digest, locked.size)


CANNOT, CHANGES = "cannot be installed in debian12:", "would change packages that the image was tested with:"


@pytest.mark.parametrize(
    ("name", "first", "rest"),
    [
        ("toool", CANNOT, "  E: Unable to locate package toool"),
        ("tool=9", CANNOT, "  E: Version '9' for 'tool' was not found"),
        ("editor", CANNOT, "  Package editor is a virtual .*\n  other-editor .*\n  one-editor .*\n  E: .*"),
        ("unmet", CANNOT, "  unmet : Depends: nowhere but it is not installable\n  E: .*"),
        ("newer", CHANGES, "  libmd0 .* → 99"),
        ("libmd0=99", CHANGES, "  libmd0 .*"),
        ("rival", CHANGES, r"  diffutils .* → \(removed\)"),
    ],
)
def test_packages_that_do_not_fit_are_refused(scene: Scene, name: str, first: str, rest: str) -> None:
    error = scene.refusal(name)

    assert isinstance(error, Unresolvable)
    assert re.fullmatch(f"apt: {name}: {first}\n{rest}", error.message), error.message
    if name == "newer":
        assert "--upgrade-base" in error.hint
    if name == "rival":
        assert error.hint.startswith("remove the packages that conflict")


def test_packages_that_would_change_the_image_are_refused(scene: Scene) -> None:
    error = scene.refusal("evil")

    assert isinstance(error, BuildFailed)
    first, *faults = error.message.splitlines()
    assert first == "the layer of OS packages: packages of the archive would change the image:"
    assert sorted(faults) == [
        "etc/ld.so.preload is in a folder of the image",
        "libmd.so.0 would be loaded from usr/lib/nested/libmd.so.0, not from"
        f" {'lib' if Path('/lib').is_symlink() else 'usr/lib'}/x86_64-linux-gnu/libmd.so.0",
        "opt/venv/lib/evil.pth of evil is in a folder of the image",
        "usr/bin/diff3 of diffutils was changed",
        "usr/lib/nested/libmd.so.0 of evil has the SONAME of a library of the image: libmd.so.0",
        "usr/lib/python3/dist-packages/sitecustomize.py of evil runs at each start of Python",
        f"{LIBRARIES}/libcuda.so.1 of evil is a library of the driver, which the host provides",
        "usr/local/cuda-12.1/x of evil is in a folder of the image",
    ]


def test_files_that_torchkiln_puts_into_the_image_stay(scene: Scene) -> None:
    with pytest.raises(BuildFailed, match=r"etc/bash\.bashrc is a file of the image"):
        scene.lock("configured", own=frozenset({"etc/bash.bashrc"}))


def test_a_layer_that_differs_each_time_is_told(scene: Scene) -> None:
    apt, _ = scene.lock("random")
    with pytest.raises(BuildFailed, match="the layer of OS packages is not the locked one") as caught:
        ensure_apt(apt, scene.layers, frozenset(), scene.elsewhere("fifth"), environ=scene.environ)
    assert "lock the project again" in caught.value.hint


# --- a project --------------------------------------------------------------------------------------


@pytest.fixture
def small(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A cell on the small base, and a project; the mirrors are set."""
    made = bench(tmp_path)
    base = scene.layers.base
    made.cell = replace(made.cell, base=replace(base, python=made.cell.base.python))
    put(scene.store.blob(base.digest).read_bytes(), made.store.blob(base.digest), made.store)
    for name, value in scene.environ.items():
        monkeypatch.setenv(name, value)
    return made


def test_a_project_has_its_packages_above_the_image(scene: Scene, small: Bench, locked: LockedApt) -> None:
    """The parent image does not change; after a change of the base, the layer with the same files is made."""
    lock = replace(small.lock(), apt=locked)
    parent = small.build(small.lock()).parent.image
    built = small.build(lock)

    titles = [layer.title for layer in built.built.image.layers]
    assert built.parent.image == parent
    assert built.built.image.layers[: len(parent.layers)] == parent.layers
    assert titles[len(parent.layers) :] == [
        "debian12 packages: tool (2 packages)",
        "code of my-project (1 file)",
    ]
    assert built.built.image.layers[-2].blob.digest == locked.digest
    # The small base is not made like a real base.
    (base,) = (f"layers[{number}]" for number, title in enumerate(titles) if " base (" in title)
    faults = [fault for fault in validate(small.layout, "my-project") if base not in fault.where]
    assert faults == []
    again = small.build(lock)
    assert (again.built.image.manifest, titles[-2] in again.built.reused) == (
        built.built.image.manifest,
        True,
    )
    moved = replace(lock, apt=replace(locked, base=Digest("sha256:" + "0" * 64), diff_id=locked.digest))
    assert small.build(moved).built.image.layers == built.built.image.layers


def test_the_cache_keeps_what_the_image_was_made_of(small: Bench, locked: LockedApt) -> None:
    small.build(replace(small.lock(), apt=locked))

    usage = cache_usage(small.store, [small.layout], small.folder / "no-locks")
    entries = {entry.path: entry for entry in usage.entries}
    blob = entries[f"blobs/sha256/{locked.digest.removeprefix('sha256:')}"]
    assert blob.users == (f"my-project in {small.layout}",)
    assert blob.records[0].startswith("records/apt/")
    assert [entries[deb_path(deb)].lifetime for deb in locked.debs] == [math.inf] * 2


def test_locked_packages_are_kept_and_locked_again(scene: Scene, small: Bench, locked: LockedApt) -> None:
    """The archive is not needed while the list of packages and the base are the same."""
    plan = plan_locked(small.cell, MATRIX, FACTS)
    found = LockedProject(lock=small.lock(), source="requirements.txt", moves=())

    def packages(
        requested: tuple[str, ...], kept: LockedApt | None, environ: dict[str, str]
    ) -> LockedProject:
        store = small.store
        return with_packages(found, requested, kept, plan, store, environ=environ, report=UNREPORTED)

    nowhere = {**scene.environ, "TORCHKILN_DEBIAN_MIRROR": "http://127.0.0.1:9/"}
    assert packages((), locked, nowhere) is found
    assert packages(("tool",), locked, nowhere).lock == replace(found.lock, apt=locked, untrusted=True)
    with pytest.raises(BuildFailed, match="cannot be reached"):
        packages(("extra", "tool"), locked, nowhere)
    more = packages(("extra", "tool"), locked, scene.environ).lock.apt
    assert [deb.name for deb in more.debs] == ["extra", "libxfake1", "tool"]
    small.store.blob(locked.base).unlink()
    with pytest.raises(BuildFailed, match="the archive of debian12 cannot be reached"):
        packages(("tool",), None, nowhere)
