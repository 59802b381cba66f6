"""Other programs that read torchkiln's images and layers. This module imports nothing of torchkiln."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from tests.trees import Tree, tree_of_folder, tree_of_tars

_HANGS = 60  # seconds; a reader of a few MB that takes longer hangs, as tarfile's r|gz of newer Pythons does


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in an OCI layout, as its index describes it."""

    layout: Path
    ref: str
    docker_archive: Path  # the same image in the format of `docker save`
    name: str  # the image's name in that archive

    @property
    def layers(self) -> list[Path]:
        """The blobs of the image's layers, lowest first."""
        index = json.loads((self.layout / "index.json").read_bytes())
        (digest,) = {
            entry["digest"]
            for entry in index["manifests"]
            if entry["annotations"]["org.opencontainers.image.ref.name"] == self.ref
        }
        manifest = json.loads(self._blob(digest).read_bytes())
        return [self._blob(layer["digest"]) for layer in manifest["layers"]]

    def _blob(self, digest: str) -> Path:
        return self.layout / "blobs" / digest.replace(":", "/")


class CannotRead(Exception):
    """A reader failed; the message is the reader's error output."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A program that reads images. `read` returns an image's tree; it may write to the given folder."""

    name: str
    package: str  # the Debian package, "" for Python itself
    version: tuple[str, ...]  # the command that prints the version
    read: Callable[[Image, Path], Tree]
    many_members: bool = True  # whether it reads a layer of many gzip members

    def missing(self) -> str:
        """Why the reader cannot run here; empty if it can."""
        if shutil.which(self.version[0]) is None:
            return f"{self.version[0]} is not installed (apt-get install {self.package})"
        if self.name == "podman" and os.geteuid():
            return "podman mounts an image only for root"
        return ""

    def version_number(self) -> str:
        """The version that the reader prints, such as `1.9.3`."""
        done = subprocess.run(self.version, capture_output=True, text=True, check=True)
        found = re.search(r"\d+\.\d+[\w.+-]*", done.stdout + done.stderr)
        assert found, done.stdout
        return found[0].rstrip(".")


def run(*command: str | Path, stdin: BinaryIO | None = None) -> str:
    """The stdout of *command*.

    :raises CannotRead: when it fails.
    """
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, stdin=stdin)
    if done.returncode:
        raise CannotRead(done.stderr or done.stdout)
    return done.stdout


def _layer_by_layer(unpack: Callable[[Path, Path], None]) -> Callable[[Image, Path], Tree]:
    """A reader that unpacks each layer into its own folder: programs treat existing folders differently."""

    def read(image: Image, folder: Path) -> Tree:
        found: Tree = {}
        for number, layer in enumerate(image.layers):
            (target := folder / str(number)).mkdir()
            unpack(layer, target)
            found |= tree_of_folder(target)
        return found

    return read


def _through(*inflater: str) -> Callable[[Image, Path], Tree]:
    """A reader that decompresses with the program *inflater*, and unpacks with GNU tar.

    GNU tar must set the modes of folders last, because a folder can be read-only.
    """

    def unpack(layer: Path, folder: Path) -> None:
        with tempfile.TemporaryFile() as plain, layer.open("rb") as blob:
            try:
                done = subprocess.run(
                    inflater, stdin=blob, stdout=plain, stderr=subprocess.PIPE, check=False, timeout=_HANGS
                )
            except subprocess.TimeoutExpired as error:
                raise CannotRead("does not end") from error
            if done.returncode:
                raise CannotRead(done.stderr.decode())
            plain.seek(0)
            run("tar", "--delay-directory-restore", "-xpf", "-", "-C", folder, stdin=cast(BinaryIO, plain))

    return _layer_by_layer(unpack)


def _bsdtar(layer: Path, folder: Path) -> None:
    run("bsdtar", "-xpf", layer, "-C", folder)


def _python_gzip(image: Image, _folder: Path) -> Tree:
    with ExitStack() as open_files:
        return tree_of_tars(
            cast(BinaryIO, open_files.enter_context(gzip.open(layer))) for layer in image.layers
        )


# `r|gz` reads only the first member of a gzip file.
_STREAM = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as packed:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as plain:
        for member in packed:
            plain.addfile(member, packed.extractfile(member) if member.isreg() else None)
"""


def _skopeo_to_folder(image: Image, folder: Path) -> Tree:
    """Copy the image with skopeo, which decompresses the layers with Go's gzip; return their tree."""
    target = folder / "copy"
    source = f"oci:{image.layout}:{image.ref}"
    run("skopeo", "copy", "--insecure-policy", "--dest-decompress", source, f"dir:{target}")
    manifest = json.loads((target / "manifest.json").read_bytes())
    with ExitStack() as open_files:
        return tree_of_tars(
            open_files.enter_context((target / layer["digest"].removeprefix("sha256:")).open("rb"))
            for layer in manifest["layers"]
        )


def _skopeo_to_archive(image: Image, folder: Path) -> Tree:
    """Copy the image with skopeo to a docker-archive, which has uncompressed layers; return their tree."""
    target = folder / "copy.tar"
    source = f"oci:{image.layout}:{image.ref}"
    run("skopeo", "copy", "--insecure-policy", source, f"docker-archive:{target}:copy:latest")
    with tarfile.open(target) as archive:
        (manifest,) = json.load(_member(archive, "manifest.json"))
        return tree_of_tars(_member(archive, name) for name in manifest["Layers"])


def _member(archive: tarfile.TarFile, name: str) -> BinaryIO:
    found = archive.extractfile(name)
    assert found is not None
    return cast(BinaryIO, found)


def _umoci(image: Image, folder: Path) -> Tree:
    rootless = ["--rootless"] if os.geteuid() else []
    run("umoci", "unpack", *rootless, "--image", f"{image.layout}:{image.ref}", folder / "bundle")
    return tree_of_folder(folder / "bundle" / "rootfs")


def _podman(image: Image, folder: Path) -> Tree:
    """Load the image into a separate store of podman, mount it, and return the tree of the mount point."""
    with tempfile.TemporaryDirectory(prefix="run") as short:  # --runroot may have at most 50 characters
        store = ["--root", str(folder / "root"), "--runroot", short, "--storage-driver", "vfs"]
        run("podman", *store, "load", "--input", image.docker_archive)
        try:
            return tree_of_folder(Path(run("podman", *store, "image", "mount", image.name).strip()))
        finally:
            run("podman", *store, "image", "umount", image.name)
            run("podman", *store, "rmi", "--force", image.name)


READERS = (
    Reader(name="gzip", package="gzip", version=("gzip", "--version"), read=_through("gzip", "-dc")),
    Reader(name="pigz", package="pigz", version=("pigz", "--version"), read=_through("pigz", "-dc")),
    Reader(name="igzip", package="isal", version=("igzip", "--version"), read=_through("igzip", "-dc")),
    Reader(
        name="bsdtar",
        package="libarchive-tools",
        version=("bsdtar", "--version"),
        read=_layer_by_layer(_bsdtar),
    ),
    Reader(name="Python's gzip", package="", version=(sys.executable, "--version"), read=_python_gzip),
    Reader(
        name="skopeo to a folder", package="skopeo", version=("skopeo", "--version"), read=_skopeo_to_folder
    ),
    Reader(
        name="skopeo to a docker-archive",
        package="skopeo",
        version=("skopeo", "--version"),
        read=_skopeo_to_archive,
    ),
    Reader(name="umoci", package="umoci", version=("umoci", "--version"), read=_umoci),
    Reader(name="podman", package="podman", version=("podman", "--version"), read=_podman),
    Reader(
        name="Python's tarfile, r|gz",
        package="",
        version=(sys.executable, "--version"),
        read=_through(sys.executable, "-c", _STREAM),
        many_members=False,
    ),
    Reader(
        name="Perl's IO::Uncompress::Gunzip",
        package="perl",
        version=("perl", "-MIO::Uncompress::Gunzip", "-e", "print $IO::Uncompress::Gunzip::VERSION"),
        read=_through("perl", "-MIO::Uncompress::Gunzip", "-e", "IO::Uncompress::Gunzip::gunzip('-', '-')"),
        many_members=False,
    ),
)


# --- tar readers -----------------------------------------------------------------------------------


Read = Callable[[Sequence[bytes], Path], Tree]  # layers and an empty folder → the unpacked tree


def _program(*command: str) -> Read:
    def read(layers: Sequence[bytes], folder: Path) -> Tree:
        for layer in layers:
            environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
            done = subprocess.run([*command, str(folder)], input=layer, capture_output=True, env=environ)
            if done.returncode:
                raise CannotRead(done.stderr.decode(errors="replace"))
        return tree_of_folder(folder)

    return read


def _python(layers: Sequence[bytes], _folder: Path) -> Tree:
    return tree_of_tars(io.BytesIO(layer) for layer in layers)


#: The readers of tars by name. Each unpacks into the given folder.
TAR_READERS: Mapping[str, Read] = {
    "GNU tar": _program("tar", "--delay-directory-restore", "-xpf", "-", "-C"),
    "bsdtar": _program("bsdtar", "-xpf", "-", "-C"),
    "Python's tarfile": _python,
}


def comparable(tree: Tree) -> Tree:
    """*tree* without the root and the times of folders, which readers may choose."""
    return {
        os.fsencode(path).decode("utf-8", "surrogateescape"): replace(entry, mtime=0)
        if entry.kind == "folder"
        else entry
        for path, entry in tree.items()
        if path != "."
    }
