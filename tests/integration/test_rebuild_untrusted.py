"""`verify --rebuild` of images whose base has a hostile Python. It must not change the host or the cache."""

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
from tests.keys import UNKNOWN_KEY, public_pem
from tests.needs import needs_gcc, needs_namespaces
from tests.published import Scene
from tests.publisher import Publisher, digest_of, interpreter, new_publisher
from tests.reports import TAG
from tests.servers.registry_server import RegistryServer
from torchkiln.base.interpreter import LOADER
from torchkiln.locks.lock import load_locked
from torchkiln.model.layer import LayerFormat
from torchkiln.model.lock import LockedCell, OsPackage
from torchkiln.model.plan import OverlayFile
from torchkiln.model.progress import Silent
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layout import LayerOnDisk
from torchkiln.publishing.rebuild import _take_blob
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store

pytestmark = [needs_gcc, needs_namespaces]

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
# Finds the wheel by the path at the start of the input, and returns prepared byte-code for this wheel.
OBEYS = r"""
    static char in[1 << 20];
    long have = 0, got;
    while ((got = read(0, in + have, sizeof in - have)) > 0) have += got;
    for (int at = 0; at < %d; at++)
        if (!memcmp(in + 4, names[at], strlen(names[at]))) { write(1, answers[at], sizes[at]); _exit(0); }
    return 4;
"""


def obeying() -> str:
    """The C code of a compiler that follows the protocol, but returns the same byte-code for every source."""
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
    """Used in place of `tests.cells.base_of`: a base with a Python whose dynamic loader is *loader*."""

    def __init__(self, loader: bytes) -> None:
        self._loader, self._plain = loader, cells.base_of

    def __call__(self, salt: str = "") -> tuple[bytes, bytes]:
        contents = {"etc/os-release": f"ID=none{salt}\n".encode(), "var/lib/dpkg/status": STATUS.encode()}
        contents |= {f"usr/bin/{NAME}": b"", f"usr/lib/{NAME}/os.py": b"", LOADER: self._loader}
        files = [OverlayFile(path=path, mode=0o755, data=data) for path, data in contents.items()]
        unpacked = tar.archive(files, mtime=0)
        return unpacked, encode_bytes(unpacked)[0]


def locked() -> LockedCell:
    """The lock of `tests.planned`, on a base that lists a Python package."""
    cell = planned.locked()
    python = OsPackage(name=f"{NAME}-minimal", version=VERSION)
    return replace(cell, base=replace(cell.base, packages=(python, *cell.base.packages)))


@pytest.fixture(params=["harm"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A published image with a hostile base, which was built with another Python."""
    body = {"harm": HARM, "obeys": obeying()}[request.param]
    with (
        patch("tests.cells.base_of", Base(program(body))),
        patch("tests.cells.locked", locked),
        RegistryServer() as server,
    ):
        publisher = new_publisher(tmp_path / "publisher")
        publisher.build()
        found = Scene(publisher, server)
        found.publish()
        yield found


def cache_contents(publisher: Publisher) -> dict[str, str]:
    """The SHA-256 of each file in the publisher's cache, by path, without locks and claims."""
    root = publisher.folder / "cache"
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in ("locks", "claims")
    }


def output_of(done: Any, code: int) -> str:
    assert getattr(done.exception, "exit_code", None) == code, done.exception or done.output
    return str(done.exception.message)


def test_the_python_runs_in_a_sandbox_for_every_signer(scene: Scene) -> None:
    """The Python runs in a sandbox with and without a trusted key, with and without --untrusted."""
    before = cache_contents(scene.publisher)
    ways = ((("--untrusted",), ()), (("--untrusted",), None), ((), None))
    for more, keys in ways:
        done = scene.verify("--rebuild", *more, keys=keys)

        assert "rebuild: the image's Python failed to compile: no harm was done" in output_of(done, 12)
        assert not Path("/tmp/torchkiln-rebuild-marker").exists()
        assert cache_contents(scene.publisher) == before


@pytest.mark.parametrize("scene", ["obeys"], indirect=True)
def test_its_byte_code_is_not_used_by_later_builds(scene: Scene) -> None:
    """The Python returns wrong byte-code. The rebuilt layers differ, and the cache does not change."""
    before = cache_contents(scene.publisher)
    message = output_of(scene.verify("--rebuild", "--untrusted", keys=()), 12)
    assert "rebuild: layer " in message
    assert "expected sha256:" in message
    assert cache_contents(scene.publisher) == before

    again = scene.publisher.build()
    assert again.manifest == scene.image.manifest


def test_a_key_that_did_not_sign_it(scene: Scene) -> None:
    """The image is not rebuilt if another check has failed, with and without `--untrusted`."""
    unknown_key = scene.publisher.write(public_pem(UNKNOWN_KEY), "stranger.pem")
    for more in ((), ("--untrusted",)):
        message = output_of(scene.verify("--rebuild", *more, keys=("--key", f"any={unknown_key}")), 12)
        assert "rebuild: not rebuilt: verification failed (signatures, provenance)" in message
        assert "harm was done" not in message


def test_a_damaged_layer_is_found_before_the_rebuild(scene: Scene) -> None:
    """The image is not rebuilt if --full has found a damaged layer."""
    layer = max(scene.image.layers, key=lambda image_layer: image_layer.size)
    data = bytearray(scene.there.blobs[layer.digest])
    data[len(data) // 2] ^= 1
    scene.there.blobs[layer.digest] = bytes(data)
    message = output_of(scene.verify("--rebuild", "--untrusted", "--full"), 12)
    assert "rebuild: not rebuilt: verification failed (layers)" in message


def test_a_host_without_namespaces(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails with a message, and the image's Python does not run."""
    refuses = tmp_path / "enter.py"
    refuses.write_text("import sys; sys.stderr.write('unshare: Operation not permitted'); sys.exit(125)")
    monkeypatch.setattr(sandbox, "_ENTER", refuses)
    sandbox.fault.cache_clear()
    try:
        message = output_of(scene.verify("--rebuild", "--untrusted"), 8)
    finally:
        sandbox.fault.cache_clear()
    assert (
        "no sandbox is available for the programs of the image: unshare: Operation not permitted" in message
    )


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_an_image_is_rebuilt_in_its_own_format(scene: Scene, form: LayerFormat) -> None:
    """If the cache does not have the base, the rebuild takes it from the image, and does not store it."""
    scene.image = scene.publisher.build(layer_format=form)
    scene.publish()
    base = scene.publisher.store.blob(load_locked(scene.publisher.folder / "images", TAG).base.digest)
    base.unlink()
    ref = f"{scene.target}@{scene.image.manifest}"
    with interpreter():
        done = scene.publisher.run(
            "verify", ref, *scene.publisher.keys, "--suite", str(scene.publisher.suite), "--rebuild"
        )
    assert done.exit_code == 0, done.exception
    assert f"rebuilt from its lock: {scene.image.manifest}" in done.stderr
    assert not base.exists()


@dataclass
class Served:
    """Used in place of `Reading`, which reads a repository: it has one layer."""

    data: bytes

    def fetch(self, _digest: str, _size: int, path: Path, _on_progress: object) -> None:
        path.write_bytes(self.data)


@pytest.mark.parametrize(
    ("size", "unpacked", "expected"),
    [(1000, 1 << 20, "unpacked size exceeds that in"), (9 << 30, 1, "8 GiB"), (1, 9 << 30, "8 GiB")],
)
def test_a_base_that_is_too_large(tmp_path: Path, size: int, unpacked: int, expected: str) -> None:
    """A decompression bomb as the base does not fill the disk, even with false sizes in manifest and lock."""
    bomb = Served(gzip.compress(bytes(64 << 20), 9))
    layer = LayerOnDisk(
        digest=digest_of(bomb.data), diff_id=digest_of(b""), size=size, media_type="", path=tmp_path / "none"
    )
    lock = replace(cells.planned_cell([]).locked.base, digest=digest_of(b"other"), unpacked=unpacked)
    own = Store(tmp_path / "own")
    with pytest.raises(ValueError, match=expected):
        _take_blob(bomb, layer, ("base", lock), own, tmp_path, Silent())  # type: ignore[arg-type]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4 << 20
