"""Small layers and root file systems for tests, made of a few programs of the host."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from torchkiln.model.digest import Digest
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.unpack import LayerBlob

PROGRAMS = ("sh", "cat", "env", "hostname", "id", "ls", "mount", "sleep", "stat", "touch", "wc")


def tar_of(entries: Iterable[tuple[tarfile.TarInfo, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of *entries*, in their order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for info, data in entries:
            info.size = len(data) if info.isreg() else info.size
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, to: str = "", mode: int = 0o755
) -> tuple[tarfile.TarInfo, bytes]:
    """One entry for `tar_of`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, to, mode, 1_700_000_000
    return info, data


def layer(folder: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> LayerBlob:
    """The blob of a layer of *entries* in *folder*, named by its digest as in a store."""
    blob, encoded = encode_bytes(tar_of(entries))
    path = folder / encoded.digest.removeprefix("sha256:")
    path.write_bytes(blob)
    return LayerBlob(path=path, diff_id=encoded.diff_id)


def tiny_root(into: Path, *more: str) -> Path:
    """A root file system of about 10 MB with `PROGRAMS` and *more* of this host, and their libraries."""
    for name in (*PROGRAMS, *more):
        found = shutil.which(name)
        assert found, f"this host has no {name}"
        program = Path(found).resolve()
        _copy(program, into / "bin" / name)
        output = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", output):
            _copy(Path(library).resolve(), into / library.lstrip("/"))
    (into / "etc").mkdir()
    (into / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nkim:x:1234:1234::/home/kim:/bin/sh\n")
    (into / "var").mkdir()
    (into / "var/escape").symlink_to("/etc")
    return into


def tiny_layout(folder: Path, config: dict[str, object], ref: str) -> Path:
    """An OCI layout in *folder*/dist with the layers of `tiny_layers`."""
    return minimal_layout(folder / "dist", tiny_layers(folder), config, ref)


def tiny_layers(folder: Path) -> list[LayerBlob]:
    """Two layers in *folder*: `tiny_root`, and on top a layer with /etc/upper."""
    upper = layer(folder, entry("etc/upper", b"from the upper layer\n"))
    return [layer(folder, *entries_of(tiny_root(folder / "root"))), upper]


def entries_of(root: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The content of *root* as entries of a layer, sorted by path."""
    entries = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            entries.append(entry(name, kind=tarfile.SYMTYPE, to=str(path.readlink())))
        elif path.is_dir():
            entries.append(entry(name, kind=tarfile.DIRTYPE))
        else:
            entries.append(entry(name, path.read_bytes(), mode=path.stat().st_mode & 0o777))
    return entries


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)


def minimal_layout(
    folder: Path, layers: list[LayerBlob], config: dict[str, object], ref: str, kind: str = "gzip"
) -> Path:
    """An OCI layout of one image, made without our code; *kind* is the compression of its layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    prefix = "application/vnd.oci.image."
    ids: list[Digest] = [blob.diff_id for blob in layers]
    document = {"architecture": "amd64", "os": "linux", "config": config}
    document["rootfs"] = {"type": "layers", "diff_ids": ids}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{prefix}manifest.v1+json",
        "config": put(json.dumps(document).encode(), f"{prefix}config.v1+json"),
        "layers": [put(blob.path.read_bytes(), f"{prefix}layer.v1.tar+{kind}") for blob in layers],
    }
    named = put(json.dumps(manifest).encode(), f"{prefix}manifest.v1+json")
    named["annotations"] = {"org.opencontainers.image.ref.name": ref}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
