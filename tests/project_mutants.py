"""Mutants of a project's image; each changes files or settings that the parent image's report has proved.

A mutant is the built image with a changed configuration or another layer. Its digests match, and a report
states that all its checks passed. So the gate has only one reason to refuse the mutant: the change.
"""

from __future__ import annotations

import base64
import hashlib
import tarfile
from collections.abc import Callable
from typing import Any

from tests.oci_samples import Member, tar_of
from tests.project_gate import Scene
from tests.projects import SITE
from torchkiln.model.project import PROJECT_JSON
from torchkiln.oci.layout import ImageOnDisk

FOLDER, LINK, HARD, PIPE = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
CODE = b"raise SystemExit\n"


def folders(path: str) -> list[Member]:
    """The folders above *path*."""
    parts = path.split("/")[:-1]
    return [Member(name="/".join(parts[:count]) + "/") for count in range(1, len(parts) + 1)]


def adds(path: str, data: bytes = CODE, **other: Any) -> bytes:
    """A layer with one file, and the folders above it."""
    return tar_of([*folders(path), Member(name=path, data=data, **other)])


def on_top(layer: Callable[[], bytes] | bytes) -> Callable[[Scene], ImageOnDisk]:
    """An image with *layer* below the top layer. project.json stays in the top layer, as required."""

    def order(rows: list[Any]) -> list[Any]:
        return [*rows[:-2], rows[-1], rows[-2]]

    return lambda there: there.mutant(layer() if callable(layer) else layer, order=order)


def recorded(path: str, data: bytes = CODE) -> bytes:
    """A layer with the file *path*, and with a RECORD of the project's fsspec 3 that also lists this file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    inside = (
        path.removeprefix(f"{SITE}/") if path.startswith(SITE) else f"../../../{path[len('opt/venv/') :]}"
    )
    record = f"{SITE}/fsspec-3.dist-info/RECORD"
    text = f"{inside},sha256={digest},{len(data)}\nfsspec-3.dist-info/RECORD,,\n".encode()
    members = {member.name: member for member in (*folders(path), *folders(record))}
    files = [Member(name=path, data=data), Member(name=record, data=text)]
    return tar_of([*members.values(), *files])


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
    """An image whose PYTHONPATH has a folder that contains a torch."""

    def change(document: dict[str, Any]) -> None:
        env = document["config"]["Env"]
        env[env.index("PYTHONPATH=/app")] = "PYTHONPATH=/app/vendor:/app"

    return there.mutant(
        adds("app/vendor/torch.py"), config=change, order=lambda rows: [*rows[:-2], rows[-1], rows[-2]]
    )


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
#: name -> the mutant, and the start of the message that refuses it.
MUTANTS: dict[str, tuple[Callable[[Scene], ImageOnDisk], str]] = {
    # --- torch from elsewhere
    "torch.py in /app": (on_top(adds("app/torch.py")), "app/torch.py: would be imported in place of torch"),
    "torch.pyc in /app": (
        on_top(adds("app/torch.pyc")),
        "app/torch.pyc: would be imported in place of torch",
    ),
    "torch.so in /app": (on_top(adds("app/torch.so")), "app/torch.so: would be imported in place of torch"),
    "a folder torch in /app": (
        on_top(adds("app/torch/__init__.py")),
        "app/torch/__init__.py: would be imported in place of torch",
    ),
    "a link torch in /app": (
        on_top(links("app/torch", "vendor", LINK)),
        "app/torch: would be imported in place of torch",
    ),
    "triton in /app/src": (
        on_top(adds("app/src/triton.py")),
        "app/src/triton.py: would be imported in place of triton",
    ),
    "a module of the standard library in /app": (
        on_top(adds("app/ctypes/__init__.py")),
        "app/ctypes/__init__.py: would be imported in place of ctypes of the standard library",
    ),
    "metadata of torch in /app": (
        on_top(adds("app/torch-9.dist-info/METADATA", b"Name: torch\nVersion: 9\n")),
        "app/torch-9.dist-info/METADATA: metadata of torch, which is fixed",
    ),
    "another torch by PYTHONPATH": (sets_path, "config: PYTHONPATH is '/app/vendor:/app', not /app"),
    "a file of torch": (
        on_top(recorded(f"{SITE_TORCH}/__init__.py")),
        f"{SITE_TORCH}/__init__.py: changes a file of torch",
    ),
    "torch.py in site-packages": (
        on_top(recorded(f"{SITE}/torch.py")),
        f"{SITE}/torch.py: would be imported in place of torch, or as a part of it",
    ),
    "a new file in torch": (
        on_top(recorded(f"{SITE_TORCH}/lib/libmore.so")),
        f"{SITE_TORCH}/lib/libmore.so: is in a folder of torch",
    ),
    "metadata of torch": (
        on_top(recorded(f"{SITE}/torch-9.dist-info/METADATA", b"Name: torch\nVersion: 9\n")),
        f"{SITE}/torch-9.dist-info/METADATA: metadata of torch, which is fixed",
    ),
    "a backend that torch loads": (
        on_top(recorded(f"{SITE}/fsspec-3.dist-info/entry_points.txt", b"[torch.backends]\nx = fsspec:x\n")),
        f"{SITE}/fsspec-3.dist-info/entry_points.txt: entry points that torch or triton load at import:"
        " torch.backends",
    ),
    "a plugin that torch loads, by metadata in another case": (
        on_top(adds("app/x-1.Dist-Info/entry_points.txt", b"[[torch.backends]]\nx = x:load\n")),
        "app/x-1.Dist-Info/entry_points.txt: entry points that torch or triton load at import: ",
    ),
    "a plugin that torch loads, by a link to metadata": (
        on_top(links("app/x-1.dist-info", "x", LINK)),
        "app/x-1.dist-info: a link to metadata of a package",
    ),
    "a plugin that torch loads, in a large file": (
        on_top(adds("app/x-1.dist-info/entry_points.txt", b"[torch.backends]\n" + bytes(16 << 20))),
        "app/x-1.dist-info/entry_points.txt: has more than 16 MiB",
    ),
    # --- CUDA's libraries
    "another libcudart": (
        on_top(recorded(f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12")),
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12: changes a file of nvidia-cuda-runtime-cu12",
    ),
    "a second libcudart": (
        on_top(recorded(f"{SITE}/nvidia/cublas/lib/libcudart.so.12")),
        f"{SITE}/nvidia/cublas/lib/libcudart.so.12: could be loaded in place of libcudart.so.12 of"
        " nvidia-cuda-runtime-cu12",
    ),
    "a regular package in place of NVIDIA's namespace": (
        on_top(recorded(f"{SITE}/nvidia/__init__.py")),
        f"{SITE}/nvidia/__init__.py: would be imported in place of nvidia, or as a part of it",
    ),
    # --- whiteouts
    "a file of torch is removed": (
        on_top(adds(f"{SITE_TORCH}/lib/.wh.libtorch.so", b"")),
        f"{SITE_TORCH}/lib/.wh.libtorch.so: removes /{SITE_TORCH}/lib/libtorch.so, a file of torch",
    ),
    "torch is removed": (
        on_top(adds(f"{SITE}/.wh.torch", b"")),
        f"{SITE}/.wh.torch: removes /{SITE_TORCH}/__init__.py, a file of torch",
    ),
    "torch is emptied": (
        on_top(adds(f"{SITE_TORCH}/.wh..wh..opq", b"")),
        f"{SITE_TORCH}/.wh..wh..opq: invalid whiteout: opaque, or not an empty file",
    ),
    "NVIDIA's libraries are removed": (
        on_top(adds(f"{SITE}/nvidia/.wh..wh..opq", b"")),
        f"{SITE}/nvidia/.wh..wh..opq: invalid whiteout: opaque, or not an empty file",
    ),
    "site-packages is removed": (
        on_top(adds(f"{SITE.rpartition('/')[0]}/.wh.site-packages", b"")),
        f"{SITE.rpartition('/')[0]}/.wh.site-packages: removes /{SITE}/",
    ),
    "a package is removed and not replaced": (
        on_top(adds(f"{SITE}/.wh.six-1.dist-info", b"")),
        "six is removed, but no other version is installed",
    ),
    "a file of the system is removed": (
        on_top(adds("bin/.wh.env", b"")),
        "bin/.wh.env: removes /bin/env, which belongs to no package",
    ),
    # --- what runs at each start
    "sitecustomize in /app": (
        on_top(adds("app/sitecustomize.py")),
        "app/sitecustomize.py: Python runs it at each start",
    ),
    "usercustomize in site-packages": (
        on_top(recorded(f"{SITE}/usercustomize/__init__.py")),
        f"{SITE}/usercustomize/__init__.py: Python runs it at each start",
    ),
    "a .pth file of no package": (
        on_top(adds(f"{SITE}/x.pth", b"import os\n")),
        f"{SITE}/x.pth: not listed in the RECORD of any package",
    ),
    "a .pth file of a package that no report names": (
        on_top(recorded(f"{SITE}/x.pth", b"import os\n")),
        "project.dsse.json: does not name files that Python runs at each start: x.pth",
    ),
    # --- the loader and the system
    "LD_PRELOAD": (with_env("LD_PRELOAD=/app/x.so"), "config: Env has LD_PRELOAD, which no project can set"),
    "another LD_LIBRARY_PATH": (
        with_env("LD_LIBRARY_PATH=/app"),
        "config: Env has LD_LIBRARY_PATH twice",
    ),
    "PYTHONHOME": (with_env("PYTHONHOME=/app"), "config: Env has PYTHONHOME, which no project can set"),
    "a library that CUDA loads": (
        with_env("CUDA_INJECTION64_PATH=/app/x.so"),
        "config: Env has CUDA_INJECTION64_PATH, which selects programs or libraries that torch loads",
    ),
    "etc/ld.so.preload": (
        on_top(adds("etc/ld.so.preload")),
        "etc/ld.so.preload: outside of /app and /opt/venv",
    ),
    "etc/ld.so.conf": (on_top(adds("etc/ld.so.conf")), "etc/ld.so.conf: outside of /app and /opt/venv"),
    "etc/ld.so.conf.d": (
        on_top(adds("etc/ld.so.conf.d/0.conf")),
        "etc/ld.so.conf.d/0.conf: outside of /app and /opt/venv",
    ),
    "a library of the system": (
        on_top(adds("usr/lib/libc.so.6")),
        "usr/lib/libc.so.6: outside of /app and /opt/venv",
    ),
    "the entrypoint's program": (
        on_top(adds("opt/torchkiln/entrypoint")),
        "opt/torchkiln/entrypoint: outside of /app and /opt/venv",
    ),
    "image.json": (
        on_top(adds("etc/torchkiln/image.json")),
        "etc/torchkiln/image.json: outside of /app and /opt/venv",
    ),
    "OS packages": (
        on_top(adds("var/lib/dpkg/status")),
        "var/lib/dpkg/status: outside of /app and /opt/venv",
    ),
    "a shell": (on_top(adds("bin/sh", mode=0o755)), "bin/sh: outside of /app and /opt/venv"),
    # --- links
    "a link in place of a folder above torch": (
        on_top(links(SITE.rpartition("/")[0], "/app", LINK)),
        f"{SITE.rpartition('/')[0]}: a link replaces a folder of the layers below",
    ),
    "a file is written through a link": (
        on_top(
            tar_of(
                [
                    Member(name="app/"),
                    Member(name="app/x", link=f"../{SITE_TORCH}", kind=LINK),
                    Member(name="app/x/__init__.py", data=CODE),
                ]
            )
        ),
        "app/x/__init__.py: its parent app/x is not a directory",
    ),
    "a hard link to a file of torch": (
        on_top(links("app/x.py", f"{SITE_TORCH}/__init__.py", HARD)),
        f"app/x.py: a hard link to /{SITE_TORCH}/__init__.py",
    ),
    "a link out of /app": (
        on_top(links("app/x.py", "/etc/passwd", LINK)),
        "app/x.py: a symbolic link that leads out of /app",
    ),
    "a link in site-packages": (
        on_top(links(f"{SITE}/fsspec/x", "../torch", LINK)),
        f"{SITE}/fsspec/x: a symbolic link, which wheels cannot contain",
    ),
    # --- programs of the environment
    "another Python": (
        on_top(recorded("opt/venv/bin/python")),
        "opt/venv/bin/python: belongs to Python's environment",
    ),
    "settings of the environment": (
        on_top(recorded("opt/venv/pyvenv.cfg")),
        "opt/venv/pyvenv.cfg: belongs to Python's environment",
    ),
    "another torchrun": (
        on_top(recorded("opt/venv/bin/torchrun")),
        "opt/venv/bin/torchrun: changes a file of torch",
    ),
    "a program in place of the system's": (
        on_top(recorded("opt/venv/bin/env")),
        "opt/venv/bin/env: would be started in place of /bin/env",
    ),
    # --- modes, owners, kinds
    "a folder with another mode": (
        on_top(tar_of([Member(name="opt", kind=FOLDER, mode=0o700)])),
        "opt: the folder gets another mode or owner: 0700, 0:0",
    ),
    "a folder with another owner": (
        on_top(tar_of([Member(name="opt", kind=FOLDER, mode=0o755, uid=1000)])),
        "opt: belongs to 1000:0, not to root",
    ),
    "set-user-ID": (on_top(adds("app/su", mode=0o4755)), "app/su: has the mode 4755"),
    "a pipe": (on_top(tar_of([*folders("app/x"), Member(name="app/x", kind=PIPE)])), "app/x: a pipe"),
    # --- packages
    "another major version of numpy": (
        on_top(adds(f"{SITE}/numpy-1.26.4.dist-info/METADATA", b"Name: numpy\nVersion: 1.26.4\n")),
        "numpy 1.26.4 differs in the major version from 2.3.5 of the parent image",
    ),
    "a package that project.json does not list": (
        on_top(adds(f"{SITE}/evil-1.dist-info/METADATA", b"Name: evil\nVersion: 1\n")),
        f"evil 1 is installed; /{PROJECT_JSON} lists no such package",
    ),
    "a file of no package": (
        on_top(adds(f"{SITE}/fsspec/evil.py")),
        f"{SITE}/fsspec/evil.py: not listed in the RECORD of any package",
    ),
    # --- the configuration
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
    # --- the layers of the parent image
    "layers in another order": (reordered, "layers: layer 2 is"),
    "a layer is replaced": (replaced_layer, "layers: layer 1 is"),
    "a layer is left out": (left_out, "layers: layer 2 is"),
}
