"""Archives in the layout of NVIDIA's redist server, with a manifest, and the facts that name them.

`small` makes a toolkit of a few bytes for `make test`; tests/servers/debian_cuda.py makes a real one.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.index_server import IndexServer
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedArchive


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Content = bytes | Path | Link
PROGRAMS = frozenset({"bin", "nvvm/bin"})


def path_of(component: str, version: str) -> str:
    """The path of an archive below the server's URL."""
    return f"{component}/linux-x86_64/{component}-linux-x86_64-{version}-archive.tar.xz"


def serve(server: IndexServer, path: str, data: bytes) -> None:
    """Let *server* serve *data* at *path* below `mirror`."""
    folder, _, name = f"redist/{path}".rpartition("/")
    server.files[folder, "", name] = data


def mirror(server: IndexServer) -> str:
    """The URL for `TORCHKILN_CUDA_ARCHIVES`."""
    return f"{server.origin}/files/redist"


def archive_of(data: bytes, component: str = "cuda_nvcc", version: str = "12.1.105") -> LockedArchive:
    """The lock's entry for the archive of *component* with the content *data*."""
    return LockedArchive(
        component=component,
        version=version,
        path=path_of(component, version),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def members_of(top: str, files: Mapping[str, Content]) -> Iterable[tuple[tarfile.TarInfo, bytes | Path]]:
    """*files* below the folder *top*, as in NVIDIA's archives: folders first, owned by a build user."""
    folders = {""} | {
        "/".join(path.split("/")[:count]) for path in files for count in range(1, path.count("/") + 1)
    }
    for path in sorted(folders | files.keys()):
        info = tarfile.TarInfo(f"{top}/{path}".rstrip("/"))
        info.mtime, info.uid, info.gid, info.uname, info.gname = (
            1_680_000_000,
            1000,
            1000,
            "builder",
            "builder",
        )
        content = files.get(path)
        if content is None:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            yield info, b""
        elif isinstance(content, Link):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, content.target, 0o777
            yield info, b""
        else:
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            runs = path.rpartition("/")[0] in PROGRAMS or (
                isinstance(content, Path) and content.stat().st_mode & 0o100
            )
            info.mode = 0o755 if runs else 0o644
            yield info, content


def write_archive(path: Path, files: Mapping[str, Content], *, preset: int = 0) -> None:
    """An xz tar of *files* at *path*, streamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    top = path.name.removesuffix(".tar.xz")
    part = path.with_name(f"{path.name}.part")
    with lzma.open(part, "wb", preset=preset) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for info, content in members_of(top, files):
            if isinstance(content, Path):
                with content.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info, io.BytesIO(content))
    part.rename(path)


def locked_archive(folder: Path, component: str, version: str) -> LockedArchive:
    """The lock's entry for the archive in *folder*."""
    path = path_of(component, version)
    digest = hashlib.sha256()
    with (folder / path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    size = (folder / path).stat().st_size
    return LockedArchive(
        component=component, version=version, path=path, size=size, sha256=digest.hexdigest()
    )


def write_manifest(folder: Path, release: str, archives: Iterable[LockedArchive]) -> None:
    """Write NVIDIA's redistrib_<release>.json for the archives in *folder*."""
    components = {
        archive.component: {
            "name": archive.component,
            "license": "CUDA Toolkit",
            "version": archive.version,
            "linux-x86_64": {
                "relative_path": archive.path,
                "sha256": archive.sha256,
                "md5": "0" * 32,
                "size": str(archive.size),
            },
        }
        for archive in archives
    }
    (folder / f"redistrib_{release}.json").write_text(
        json.dumps({"release_date": "2026-11-23", **components}, indent=1)
    )


def facts_from(folder: Path, release: str) -> bytes:
    """A file of facts (`TORCHKILN_CUDA_REDIST`) from the manifest in *folder*."""
    components = json.loads((folder / f"redistrib_{release}.json").read_text())
    lines = [
        f'    {name}: {{version: "{one["version"]}", size: {one["linux-x86_64"]["size"]},'
        f' sha256: "{one["linux-x86_64"]["sha256"]}"}}\n'
        for name, one in components.items()
        if name != "release_date"
    ]
    head = f'schema: 1\nsource: "redistrib_{release}.json of our server"\nuntrusted: true\nreleases:\n'
    return (head + f'  "{release}":\n' + "".join(lines)).encode()


def small_files(release: str) -> dict[str, tuple[str, dict[str, Content]]]:
    """A tiny toolkit: one file of each kind, included or excluded; returns version and files."""
    text = f"licence of CUDA {release}\n".encode()
    big = bytes(200_000)
    return {
        "cuda_nvcc": (
            "12.1.105",
            {
                "LICENSE": text,
                "bin/nvcc": f"#!/bin/sh\necho release {release}\n".encode(),
                "bin/nvcc.profile": b"TOP = $(_HERE_)/..\n",
                "bin/crt/link.stub": b"stub\n",
                "include/crt/host_config.h": b"#define GNUC 12\n",
                "lib/libnvptxcompiler_static.a": big,
                "nvvm/bin/cicc": b"\x7fELF cicc",
                "nvvm/lib64/libnvvm.so": Link("libnvvm.so.4"),
                "nvvm/lib64/libnvvm.so.4": b"\x7fELF nvvm",
                "nvvm/libdevice/libdevice.10.bc": b"BC",
                "nvvm/libnvvm-samples/README.txt": b"sample",
            },
        ),
        "cuda_cudart": (
            "12.1.105",
            {
                "LICENSE": text,
                "include/cuda.h": b"#define CUDA_VERSION 12010\n",
                "lib/libcudart.so": Link("libcudart.so.12"),
                "lib/libcudart.so.12": Link("libcudart.so.12.1.105"),
                "lib/libcudart.so.12.1.105": b"\x7fELF cudart",
                "lib/libcudart_static.a": b"!<arch>\n",
                "lib/libcudadevrt.a": b"!<arch>\n",
                "lib/stubs/libcuda.so": b"\x7fELF stub",
                "pkg-config/cudart-12.1.pc": b"cudaroot=/usr/local/cuda-12.1\n",
            },
        ),
        "libcublas": (
            "12.1.3.1",
            {
                "LICENSE": text,
                "include/cublas_v2.h": b"#define CUBLAS 12\n",
                "lib/libcublas.so.12.1.3.1": big,
                "lib/libcublas_static.a": big,
                "lib/stubs/libcublas.so": b"\x7fELF stub",
                "src/fortran.c": b"int f;\n",
            },
        ),
        "cuda_gdb": (
            "12.1.105",
            {"LICENSE": text, "bin/cuda-gdb": b"\x7fELF gdb", "share/doc/gdb.html": b"<p>"},
        ),
    }


def write_small(folder: Path, release: str = "12.1.1") -> tuple[LockedArchive, ...]:
    """The toolkit of `small_files` in *folder*, with its manifest."""
    files = small_files(release)
    for component, (version, content) in files.items():
        write_archive(folder / path_of(component, version), content)
    archives = tuple(locked_archive(folder, one, version) for one, (version, _) in sorted(files.items()))
    write_manifest(folder, release, archives)
    return archives


def digest(archives: Iterable[LockedArchive]) -> Digest:
    """The digest of *archives* in a resolution."""
    return digest_of(archives)
