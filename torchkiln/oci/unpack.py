"""layers → a root file system in a folder, each diff_id verified while its bytes pass."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchkiln.errors import BuildFailed, ToolMissing, VerificationFailed
from torchkiln.files import remove_tree, tree_size
from torchkiln.nouns import Digest
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tarscan import Entry, TarScan
from torchkiln.store import Store

_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlob:
    """A blob on disk and the digest of the tar in it."""

    path: Path
    diff_id: Digest


def root_of(store: Store, manifest: Digest) -> Path:
    """Where the unpacked image *manifest* lies, if it does."""
    return store.root / "rootfs" / manifest.removeprefix("sha256:")


def unpacked_root(manifest: Digest, layers: Sequence[LayerBlob], store: Store) -> Path:
    """The unpacked image *manifest* in the cache; unpacked at the first call. Nobody may write into it.

    :raises VerificationFailed: a layer is not what its diff_id says, or reaches outside the root.
    :raises BuildFailed: the disk is full or not writable.
    """
    place = root_of(store, manifest)
    if not place.is_dir():
        with store.lock(f"rootfs-{place.name}", "unpacks that image"):
            if not place.is_dir():
                _keep(layers, place, store)
    # The record's time is that of the last use; the root's own is seen inside.
    store.touch(store.root / "records" / "roots" / f"{place.name}.json")
    return place


def _keep(layers: Sequence[LayerBlob], place: Path, store: Store) -> None:
    """Unpack in tmp/, where `sweep` finds what is left of it if we are killed; and note how much it is."""
    temporary = store.temporary("root")
    try:
        unpack(layers, temporary)
        size, files = tree_size(temporary)
        place.parent.mkdir(parents=True, exist_ok=True)
        store.put_record("roots", place.name, {"bytes": size, "files": files})
        os.replace(temporary, place)
    except OSError as error:
        raise BuildFailed(f"{place} cannot be made: {error.strerror}") from error
    finally:
        remove_tree(temporary)


def unpack(layers: Sequence[LayerBlob], into: Path) -> None:
    """Unpack *layers*, lowest first, to the folder *into*, which appears whole or not at all.

    As root the owners are the image's; else everything is the caller's, which a user namespace maps to root.
    Later layers may add and replace, not delete: whiteouts are refused, as are device nodes and whatever
    would be written through a link of an earlier layer.

    :raises VerificationFailed: a layer is damaged, not what its diff_id says, or refused; names it.
    :raises BuildFailed: the disk is full or not writable.
    :raises ToolMissing: GNU tar is not installed.
    """
    if not shutil.which("tar"):
        raise ToolMissing("tar is not installed", hint="as root: apt-get install tar")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    except OSError as error:
        raise BuildFailed(f"{into} cannot be made: {error.strerror}") from error
    try:
        links: set[str] = set()
        for layer in layers:
            _unpack_layer(layer, work, links)
        work.chmod(0o755)
        os.replace(work, into)
    except OSError as error:
        raise BuildFailed(f"{into} cannot be made: {error.strerror}") from error
    finally:
        remove_tree(work)


def _unpack_layer(layer: LayerBlob, root: Path, links: set[str]) -> None:
    ownership = ["--same-owner", "--numeric-owner"] if os.geteuid() == 0 else ["--no-same-owner"]
    argv = ["tar", "--extract", "--file=-", f"--directory={root}", "--preserve-permissions", *ownership]
    argv += ["--no-overwrite-dir", "--delay-directory-restore", "--warning=no-timestamp"]
    hasher, scan = hashlib.sha256(), TarScan()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # a user may own only so many pages of pipes
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, _PIECE)
    try:
        with open_layer(layer.path, ahead=True) as stream:
            while piece := stream.read(_PIECE):
                for entry in scan.feed(piece):
                    _check(entry, links)
                hasher.update(piece)
                process.stdin.write(piece)
        if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
            raise VerificationFailed(f"{layer.path.name}: its tar is {found}, not {layer.diff_id}")
        _, said = process.communicate()
    except BrokenPipeError:
        _, said = process.communicate()
    except (OSError, EOFError, ValueError) as error:
        raise VerificationFailed(f"{layer.path.name} is damaged: {error}") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        told = "\n".join(said.decode(errors="replace").strip().splitlines()[-3:])
        raise BuildFailed(f"{layer.path.name} cannot be unpacked: {told}", hint="is the disk full?")


def _check(entry: Entry, links: set[str]) -> None:
    """Refuse what is unsafe to hand to tar, and take note of links.

    tar itself keeps one archive inside the folder; but a link that an earlier layer left it would follow.
    """
    path = PurePosixPath(entry.name)
    parts = path.parts
    reason = ""
    if path.is_absolute() or ".." in parts:
        reason = "lies outside the root"
    elif path.name.startswith(".wh."):
        reason = "is a whiteout, which this tool neither makes nor reads"
    elif entry.kind in "346":
        reason = "is a device or a pipe"
    elif entry.kind == "5" and str(path) in links:
        reason = "would make a folder of a symbolic link"
    elif links and any(str(parent) in links for parent in path.parents):
        reason = "would be written through a symbolic link"
    elif entry.kind == "1":
        target = PurePosixPath(entry.target)
        if target.is_absolute() or ".." in target.parts or any(str(p) in links for p in target.parents):
            reason = f"is a hard link to {entry.target}, outside the root"
    if reason:
        raise VerificationFailed(f"layer entry {entry.name!r} {reason}")
    if entry.kind == "2":
        links.add(str(path))
    else:
        links.discard(str(path))
