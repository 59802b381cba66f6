"""`verify --rebuild` of images whose base's Python means harm: nothing comes of it, now or later."""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests import cells, planned
from tests.hostile_python import answer, program
from tests.keys import STRANGER, public_pem
from tests.needs import needs_gcc
from tests.press import Press, digest_of, interpreter, press
from tests.published import Scene
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer
from torchkiln.base.interpreter import LOADER
from torchkiln.lock.lock import load_locked
from torchkiln.model.layer_format import LayerFormat
from torchkiln.model.lock import LockedCell, OsPackage
from torchkiln.model.plan import OverlayFile
from torchkiln.model.progress import Silent
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layout import LayerOnDisk
from torchkiln.publish.rebuild import _layer_blob
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store

pytestmark = [
    needs_gcc,
    pytest.mark.skipif(bool(sandbox.fault()), reason=f"no namespaces: {sandbox.fault()}"),
]

NAME = f"python3.{sys.version_info[1]}"
WHEELS = ("torch", "triton", "jinja2", "networkx", "sympy")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}-1"
STATUS = f"""{cells._STATUS}
Package: {NAME}-minimal
Status: install ok installed
Architecture: amd64
Version: {VERSION}
"""
PYC = b"\xa7\x0d\x0d\x0a\1\0\0\0" + bytes(8) + b"N"
HARM = r"""
    int made = open("/tmp/torchkiln-rebuild-marker", O_CREAT | O_WRONLY, 0666);
    if (made < 0) made = socket(AF_INET, SOCK_STREAM, 0);
    if (made < 0) made = open("/etc/passwd", O_RDONLY);
    if (made < 0) made = fork();
    fprintf(stderr, made < 0 ? "no harm was done" : "harm was done");
    return 3;
"""
# Answers each source with the same code: what was asked is told by the path at the start of the input.
OBEYS = r"""
    static char in[1 << 20];
    long have = 0, got;
    while ((got = read(0, in + have, sizeof in - have)) > 0) have += got;
    for (int at = 0; at < %d; at++)
        if (!memcmp(in + 4, names[at], strlen(names[at]))) { write(1, answers[at], sizes[at]); _exit(0); }
    return 4;
"""


def obeying() -> str:
    """A program that compiles every wheel's sources to code of its own."""
    site = f"/opt/venv/lib/{NAME}/site-packages"
    answers = [answer([(f"{site}/{name}/__init__.py", PYC)]) for name in WHEELS]
    arrays = ",".join("{" + ",".join(map(str, data)) + "}" for data in answers)
    names = ",".join(f'"{site}/{name}/"' for name in WHEELS)
    sizes = ",".join(str(len(data)) for data in answers)
    most = max(map(len, answers))
    tables = f"static const unsigned char answers[][{most}] = {{{arrays}}};"
    tables += f"static const char *names[] = {{{names}}}; static const int sizes[] = {{{sizes}}};"
    return tables + OBEYS % len(WHEELS)


class Base:
    """Stands for `tests.cells.base_of`: the same base, with a program in the place of its loader."""

    def __init__(self, loader: bytes) -> None:
        self._loader, self._plain = loader, cells.base_of

    def __call__(self, salt: str = "") -> tuple[bytes, bytes]:
        told = {"etc/os-release": f"ID=none{salt}\n".encode(), "var/lib/dpkg/status": STATUS.encode()}
        told |= {f"usr/bin/{NAME}": b"", f"usr/lib/{NAME}/os.py": b"", LOADER: self._loader}
        files = [OverlayFile(path=path, mode=0o755, data=data) for path, data in told.items()]
        unpacked = tar.archive(files, mtime=0)
        return unpacked, encode_bytes(unpacked)[0]


def locked() -> LockedCell:
    """That of `tests.planned`, on a base that has a Python."""
    cell = planned.locked()
    python = OsPackage(name=f"{NAME}-minimal", version=VERSION)
    return replace(cell, base=replace(cell.base, packages=(python, *cell.base.packages)))


@pytest.fixture(params=["harm"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """An image that somebody published whose base is hostile; it was built with another Python."""
    body = {"harm": HARM, "obeys": obeying()}[request.param]
    with (
        patch("tests.cells.base_of", Base(program(body, tmp_path))),
        patch("tests.cells.locked", locked),
        RegistryServer() as server,
    ):
        desk = press(tmp_path / "desk")
        desk.build()
        found = Scene(desk, server)
        found.publish()
        yield found


def kept(desk: Press) -> dict[str, str]:
    """What a cache has, by content; locks and claims come and go."""
    root = desk.folder / "cache"
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in ("locks", "claims")
    }


def told(done: Any, code: int) -> str:
    assert getattr(done.exception, "exit_code", None) == code, done.exception or done.output
    return str(done.exception.message)


@pytest.mark.parametrize("keys", [(), None], ids=["nobody trusted", "trusted"])
def test_it_runs_in_a_sandbox_whoever_signed(scene: Scene, keys: tuple[str, ...] | None) -> None:
    before = kept(scene.desk)
    done = scene.verify("--rebuild", "--untrusted", keys=keys)

    assert "rebuild: the base's Python failed to compile: no harm was done" in told(done, 12)
    assert not Path("/tmp/torchkiln-rebuild-marker").exists()
    assert kept(scene.desk) == before


def test_a_key_alone_is_no_reason_to_run_it_on_the_host(scene: Scene) -> None:
    assert "no harm was done" in told(scene.verify("--rebuild"), 12)


@pytest.mark.parametrize("scene", ["obeys"], indirect=True)
def test_its_byte_code_goes_into_no_later_build(scene: Scene) -> None:
    """It answers as it should, with code of its own: the layers are others, and the cache has none of it."""
    before = kept(scene.desk)
    message = told(scene.verify("--rebuild", "--untrusted", keys=()), 12)
    assert "rebuild: layer " in message
    assert "expected sha256:" in message
    assert kept(scene.desk) == before

    again = scene.desk.build()
    assert again.manifest == scene.image.manifest


def test_without_a_key_it_is_not_built(scene: Scene) -> None:
    """Said before a registry is asked: there is none."""
    done = scene.desk.run("verify", "127.0.0.1:9/team/app:v1", "--rebuild")
    assert told(done, 2).startswith("--rebuild runs Python from the image, and no trusted key or identity")


def test_untrusted_is_for_rebuild(scene: Scene) -> None:
    assert "--untrusted requires --rebuild" in told(scene.verify("--untrusted"), 2)


def test_a_key_that_did_not_sign_it(scene: Scene) -> None:
    """All else is looked at first, `--untrusted` or not."""
    stranger = scene.desk.write(public_pem(STRANGER), "stranger.pem")
    for more in ((), ("--untrusted",)):
        message = told(scene.verify("--rebuild", *more, keys=("--key", stranger)), 12)
        assert "rebuild: not rebuilt: verification failed (signatures" in message
        assert "harm was done" not in message


def test_a_damaged_layer_is_seen_before(scene: Scene) -> None:
    """With --full the layers belong to what must hold."""
    layer = max(scene.image.layers, key=lambda one: one.size)
    data = bytearray(scene.there.blobs[layer.digest])
    data[len(data) // 2] ^= 1
    scene.there.blobs[layer.digest] = bytes(data)
    message = told(scene.verify("--rebuild", "--untrusted", "--full"), 12)
    assert "rebuild: not rebuilt: verification failed (layers)" in message


def test_a_host_without_namespaces(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so; the image's Python does not run."""
    refuses = tmp_path / "enter.py"
    refuses.write_text("import sys; sys.stderr.write('unshare: Operation not permitted'); sys.exit(125)")
    monkeypatch.setattr(sandbox, "_ENTER", refuses)
    sandbox.fault.cache_clear()
    try:
        message = told(scene.verify("--rebuild", "--untrusted"), 8)
    finally:
        sandbox.fault.cache_clear()
    assert (
        "no sandbox is available for the programs of the image: unshare: Operation not permitted" in message
    )


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_an_image_is_built_again_in_its_own_form(scene: Scene, form: LayerFormat) -> None:
    """On the base in the image, where the cache has none; that one then has none either."""
    scene.image = scene.desk.build(layer_format=form)
    scene.publish()
    base = scene.desk.store.blob(load_locked(scene.desk.folder / "images", TAG).base.digest)
    base.unlink()
    ref = f"{scene.target}@{scene.image.manifest}"
    with interpreter():
        done = scene.desk.run("verify", ref, *scene.desk.keys, "--suite", str(scene.desk.suite), "--rebuild")
    assert done.exit_code == 0, done.exception
    assert f"rebuilt from its lock: {scene.image.manifest}" in done.stderr
    assert not base.exists()


@dataclass
class Served:
    """Stands for a `Reading`: it has one layer."""

    data: bytes

    def fetch(self, _digest: str, _size: int, path: Path, _on_progress: object) -> None:
        path.write_bytes(self.data)


@pytest.mark.parametrize(
    ("size", "unpacked", "said"),
    [
        (1000, 1 << 20, "unpacked size exceeds that in"),
        (9 << 30, 1, "8 GiB"),
        (1, 9 << 30, "8 GiB"),
    ],
)
def test_a_base_that_is_too_large(tmp_path: Path, size: int, unpacked: int, said: str) -> None:
    """A small layer does not fill the disk, whatever a manifest and a lock say of it."""
    bomb = Served(gzip.compress(bytes(64 << 20), 9))
    layer = LayerOnDisk(
        digest=digest_of(bomb.data), diff_id=digest_of(b""), size=size, media_type="", path=tmp_path / "none"
    )
    lock = replace(cells.planned_cell([]).locked.base, digest=digest_of(b"other"), unpacked=unpacked)
    own = Store(tmp_path / "own")
    with pytest.raises(ValueError, match=said):
        _layer_blob(bomb, layer, lock, own, tmp_path, Silent())  # type: ignore[arg-type]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4 << 20
