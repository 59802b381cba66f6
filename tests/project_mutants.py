"""Mutants of a project's image; each changes files or settings that the parent image's report has proved.

A mutant is the built image with a changed configuration or another layer. Its digests match, and a report
states that all its checks passed. So the gate has only one reason to refuse the mutant: the change.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Any

from tests.oci_samples import Member, tar_of
from tests.project_gate import Scene
from tests.projects import SITE
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.opening import open_layer

FOLDER, LINK, HARD, PIPE = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
CODE = b"raise SystemExit\n"


def folders(path: str) -> list[Member]:
    """The folders above *path*."""
    parts = path.split("/")[:-1]
    return [Member(name="/".join(parts[:count]) + "/") for count in range(1, len(parts) + 1)]


def adds(path: str, data: bytes = CODE, **other: Any) -> bytes:
    """A layer with one file, and the folders above it."""
    return tar_of([*folders(path), Member(name=path, data=data, **other)])


def in_its_own_layer(there: Scene, layer: bytes) -> ImageOnDisk:
    """An image with *layer* below that of the code, where the layers of packages are."""
    return there.mutant(layer, order=lambda rows: [*rows[:-2], rows[-1], rows[-2]])


def in_the_code(there: Scene, layer: bytes) -> ImageOnDisk:
    """An image whose layer of code also has the entries of *layer*; folders of both are as in *layer*."""
    with open_layer(there.image.layers[-1].path) as stream:
        code = stream.read()
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as joined,
        tarfile.open(fileobj=io.BytesIO(code)) as lower,
        tarfile.open(fileobj=io.BytesIO(layer)) as upper,
    ):
        both = {member.name: member for member in upper if member.isdir()}
        for tar in (lower, upper):
            for member in tar:
                if tar is lower or member.name not in lower.getnames():
                    own = both.get(member.name, member)
                    joined.addfile(own, tar.extractfile(own) if own.isreg() else None)
    return there.mutant(out.getvalue(), order=lambda rows: [*rows[:-2], rows[-1]])


def links(path: str, target: str, kind: bytes) -> bytes:
    """A layer with a link."""
    return tar_of([*folders(path), Member(name=path, link=target, kind=kind)])


def configured(**changes: Any) -> Callable[[Scene], ImageOnDisk]:
    """An image with *changes* in the field `config` of its configuration."""
    return lambda there: there.mutant(config=lambda document: document["config"].update(changes))


def with_env(*lines: str) -> Callable[[Scene], ImageOnDisk]:
    """An image whose configuration has *lines* as additional environment variables."""
    return lambda there: there.mutant(config=lambda document: document["config"]["Env"].extend(lines))


def with_label(name: str, value: str) -> Callable[[Scene], ImageOnDisk]:
    """An image whose label *name* has *value*."""

    def change(document: dict[str, Any]) -> None:
        document["config"]["Labels"][name] = value

    return lambda there: there.mutant(config=change)


def sets_path(there: Scene) -> ImageOnDisk:
    """An image whose PYTHONPATH has another folder of the code."""

    def change(document: dict[str, Any]) -> None:
        env = document["config"]["Env"]
        env[env.index("PYTHONPATH=/app")] = "PYTHONPATH=/app/vendor:/app"

    return there.mutant(config=change)


def reordered(there: Scene) -> ImageOnDisk:
    """An image in which two layers of the parent image have changed places."""
    return there.mutant(order=lambda rows: [rows[0], rows[2], rows[1], *rows[3:]])


def replaced_layer(there: Scene) -> ImageOnDisk:
    """An image with another layer in place of the first layer of the parent image."""
    other = there.layer(Member(name="etc/"), Member(name="etc/x"))
    return there.mutant(order=lambda rows: [other, *rows[1:]])


def left_out(there: Scene) -> ImageOnDisk:
    """An image without the second layer of the parent image."""
    return there.mutant(order=lambda rows: [rows[0], *rows[2:]])


SITE_TORCH = f"{SITE}/torch"
#: name -> a layer with code, and the start of the message that refuses its entries in the layer of code.
IN_APP: dict[str, tuple[bytes, str]] = {
    "torch.py in /app": (adds("app/torch.py"), "app/torch.py: would be imported in place of torch"),
    "torch.pyc in /app": (adds("app/torch.pyc"), "app/torch.pyc: would be imported in place of torch"),
    "torch.so in /app": (adds("app/torch.so"), "app/torch.so: would be imported in place of torch"),
    "a folder torch in /app": (
        adds("app/torch/__init__.py"),
        "app/torch/__init__.py: would be imported in place of torch",
    ),
    "a link torch in /app": (
        links("app/torch", "vendor", LINK),
        "app/torch: would be imported in place of torch",
    ),
    "triton in /app/src": (
        adds("app/src/triton.py"),
        "app/src/triton.py: would be imported in place of triton",
    ),
    "a module of the standard library in /app": (
        adds("app/ctypes/__init__.py"),
        "app/ctypes/__init__.py: would be imported in place of ctypes of the standard library",
    ),
    "metadata of torch in /app": (
        adds("app/torch-9.dist-info/METADATA", b"Name: torch\nVersion: 9\n"),
        "app/torch-9.dist-info/METADATA: metadata of torch, which is fixed",
    ),
    "a plugin that torch loads, by metadata in another case": (
        adds("app/x-1.Dist-Info/entry_points.txt", b"[[torch.backends]]\nx = x:load\n"),
        "app/x-1.Dist-Info/entry_points.txt: entry points that torch or triton load at import: ",
    ),
    "a plugin that torch loads, by a link to metadata": (
        links("app/x-1.dist-info", "x", LINK),
        "app/x-1.dist-info: a link to metadata of a package",
    ),
    "a plugin that torch loads, in a large file": (
        adds("app/x-1.dist-info/entry_points.txt", b"[torch.backends]\n" + bytes(16 << 20)),
        "app/x-1.dist-info/entry_points.txt: has more than 16 MiB",
    ),
    "sitecustomize in /app": (
        adds("app/sitecustomize.py"),
        "app/sitecustomize.py: Python runs it at each start",
    ),
    "a file is written through a link": (
        tar_of(
            [
                Member(name="app/"),
                Member(name="app/x", link=f"../{SITE_TORCH}", kind=LINK),
                Member(name="app/x/__init__.py", data=CODE),
            ]
        ),
        "app/x/__init__.py: its parent app/x is not a directory",
    ),
    "a hard link to a file of torch": (
        links("app/x.py", f"{SITE_TORCH}/__init__.py", HARD),
        f"app/x.py: a hard link to /{SITE_TORCH}/__init__.py",
    ),
    "a link out of /app": (
        links("app/x.py", "/etc/passwd", LINK),
        "app/x.py: a symbolic link that leads out of /app",
    ),
    "set-user-ID": (adds("app/su", mode=0o4755), "app/su: has the mode 4755"),
    "a pipe": (tar_of([*folders("app/x"), Member(name="app/x", kind=PIPE)]), "app/x: a pipe"),
}
#: name -> a layer with entries outside of /app.
ELSEWHERE: dict[str, bytes] = {
    "a file of torch": adds(f"{SITE_TORCH}/__init__.py"),
    "metadata of torch": adds(f"{SITE}/torch-9.dist-info/METADATA", b"Name: torch\nVersion: 9\n"),
    "a second libcudart": adds(f"{SITE}/nvidia/cublas/lib/libcudart.so.12"),
    "a file of torch is removed": adds(f"{SITE_TORCH}/lib/.wh.libtorch.so", b""),
    "torch is emptied": adds(f"{SITE_TORCH}/.wh..wh..opq", b""),
    "a .pth file of no package": adds(f"{SITE}/x.pth", b"import os\n"),
    "etc/ld.so.preload": adds("etc/ld.so.preload"),
    "image.json": adds("etc/torchkiln/image.json"),
    "a shell": adds("bin/sh", mode=0o755),
    "a link in place of a folder above torch": links(SITE.rpartition("/")[0], "/app", LINK),
    "a folder with another mode": tar_of([Member(name="opt", kind=FOLDER, mode=0o700)]),
    "a folder with another owner": tar_of([Member(name="opt", kind=FOLDER, mode=0o755, uid=1000)]),
    "the mode of a folder above project.json": tar_of([Member(name="etc", kind=FOLDER, mode=0o700)]),
    "the owner of a folder above project.json": tar_of([Member(name="etc", kind=FOLDER, uid=1000)]),
}
#: name -> the mutant, and the start of the message that refuses it.
MUTANTS: dict[str, tuple[Callable[[Scene], ImageOnDisk], str]] = {
    "another torch by PYTHONPATH": (sets_path, "config: PYTHONPATH is '/app/vendor:/app', not /app"),
    "LD_PRELOAD": (with_env("LD_PRELOAD=/app/x.so"), "config: Env has LD_PRELOAD: set it when"),
    "another LD_LIBRARY_PATH": (with_env("LD_LIBRARY_PATH=/app"), "config: Env has LD_LIBRARY_PATH twice"),
    "PYTHONHOME": (with_env("PYTHONHOME=/app"), "config: Env has PYTHONHOME: set it when"),
    "a library that CUDA loads": (
        with_env("CUDA_INJECTION64_PATH=/app/x.so"),
        "config: Env has CUDA_INJECTION64_PATH: set it when",
    ),
    "a variable that imports a module": (
        with_env("PYTHONWARNINGS=error::evil.X"),
        "config: Env has PYTHONWARNINGS: set it when",
    ),
    "a folder of compiled kernels": (
        with_env("TRITON_CACHE_DIR=/app/cache"),
        "config: Env has TRITON_CACHE_DIR: set it when",
    ),
    "another entrypoint": (
        configured(Entrypoint=["/app/start"]),
        "config: Entrypoint is ['/app/start']; the parent image has",
    ),
    "another user": (configured(User="1000"), "config: User is '1000'; the parent image has absent"),
    "no health check": (
        configured(Healthcheck={"Test": ["NONE"]}),
        "config: Healthcheck is {'Test': ['NONE']}",
    ),
    "another folder to start in": (
        configured(WorkingDir="/app/x"),
        "config: WorkingDir is '/app/x', not /app",
    ),
    "another label": (
        with_label("torchkiln.cuda", "13.0"),
        "config: the label torchkiln.cuda is '13.0', not '12.1'",
    ),
    "an untrusted index": (
        with_label("torchkiln.untrusted", "true"),
        "config: the label torchkiln.untrusted: an index that the project's lock used is untrusted",
    ),
    "layers in another order": (reordered, "layers: layer 2 is"),
    "a layer is replaced": (replaced_layer, "layers: layer 1 is"),
    "a layer is left out": (left_out, "layers: layer 2 is"),
}
