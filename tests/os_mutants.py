"""Mutants of the layer of a project's OS packages; each changes what the parent image's report has proved.

As in `project_mutants.py`, all digests match, and a report states that all checks passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.oci_samples import Member
from tests.os_layers import (
    BASE,
    CACHE,
    DEBCONF,
    DEBS,
    EDITOR,
    LAYER,
    LIB,
    MODULES,
    NEW,
    OLD,
    STATUS,
    TRIGGERS,
    changed,
    layer_of,
    library,
    loader_cache,
    replaced,
    rewritten,
    stanza,
)
from tests.project_gate import Scene
from torchkiln.oci.layout import ImageOnDisk

HARD, PIPE = b"1", b"6"


def has(path: str, data: bytes = b"x", **other: Any) -> Callable[[Scene], ImageOnDisk]:
    """An image whose layer of OS packages also has the file *path*."""
    return changed(Member(name=path, data=data, **other))


def with_cache(*pairs: tuple[str, str]) -> Callable[[Scene], ImageOnDisk]:
    """An image whose layer of OS packages has an ld.so.cache with *pairs*."""
    return has(CACHE, loader_cache(*pairs))


def second_layer(there: Scene) -> ImageOnDisk:
    """An image with a second layer of OS packages above the layer with the project's code."""
    tar = layer_of([LAYER["usr/bin/tool"]])
    return there.mutant(tar, order=lambda rows: [*rows[:-2], rows[-1], rows[-2]])


#: name -> the mutant.
MUTANTS: dict[str, Callable[[Scene], ImageOnDisk]] = {
    # --- the loader
    "another libc": has(f"{LIB}/libc.so.6"),
    "a library of the parent image is replaced": has(f"{LIB}/libold.so.1"),
    "a library of the parent image for newer CPUs": has(f"{LIB}/glibc-hwcaps/x86-64-v3/libnew.so.1"),
    "a library of the parent image in a folder of its own": has(f"{LIB}/other/libold.so.1"),
    "a newer file to which ldconfig would link a library of the parent image": has(
        f"{LIB}/libnew.so.1.9", library("libold.so.1")
    ),
    "a file whose name is that of a library for the loader": has(f"{LIB}/libold.so.01"),
    "the loader finds another library by an equal name": with_cache(
        ("libold.so.01", f"/{LIB}/libxfake.so.1"), OLD
    ),
    "a library that only ldconfig could read": has(f"{LIB}/libnew.so.1", library("libnew.so.1")[:150]),
    "libcudart": has(f"{LIB}/libcudart.so.12"),
    "a link to a library of torch": has(f"{LIB}/libcublas.so.12", b"", link="libxfake.so.1"),
    "a library of the driver": has(f"{LIB}/libcuda.so.1"),
    "a plugin of NCCL": has(f"{LIB}/libnccl-net.so"),
    "a library for names of users": has(f"{LIB}/libnss_evil.so.2"),
    "the loader finds another library": with_cache(("libold.so.1", f"/{LIB}/libxfake.so.1"), OLD),
    "the loader no longer finds a library": with_cache(NEW),
    "the loader finds libcudart": with_cache(("libcudart.so.12", f"/{LIB}/libxfake.so.1"), OLD),
    "the loader finds code": with_cache(("libevil.so.1", "/app/libevil.so.1"), OLD),
    "a cache of the loader that cannot be read": has(CACHE, b"ld.so-1.7.0"),
    "etc/ld.so.preload": has("etc/ld.so.preload"),
    "etc/ld.so.conf.d": has("etc/ld.so.conf.d/0.conf"),
    "etc/ld.so.conf": has("etc/ld.so.conf"),
    # --- Python
    "sitecustomize": has(f"{MODULES}/sitecustomize.py"),
    "usercustomize without a source": has(f"{MODULES}/usercustomize.pyc"),
    "a .pth file": has(f"{MODULES}/x.pth"),
    "a module that Ubuntu's sitecustomize imports": has(f"{MODULES}/apport_python_hook.py"),
    "a regular package in place of NVIDIA's namespace": has(f"{MODULES}/nvidia/__init__.py"),
    "a module before one of the parent image": has(f"{MODULES}/known/__init__.py"),
    "byte-code of a module of the parent image": has(f"{MODULES}/__pycache__/known.cpython-311.pyc"),
    "metadata of torch": has(f"{MODULES}/torch-9.egg-info/PKG-INFO"),
    "a plugin that torch loads": has(
        f"{MODULES}/x-1.egg-info/entry_points.txt", b"[torch.backends]\nx = x:load\n"
    ),
    "a plugin that torch loads, by a hard link": has(
        f"{MODULES}/y-1.egg-info/entry_points.txt", b"", link="usr/share/tool/00", kind=HARD
    ),
    "a module of the standard library": has("usr/lib/python3.11/torch.py"),
    "the standard library as an archive": has("usr/lib/python311.zip"),
    # --- programs, compilers, shells, services
    "a program that hides one of the parent image": has("usr/bin/env", mode=0o755),
    "a link that hides a program of the parent image": has("usr/sbin/later", b"", link="../bin/tool"),
    "a program of the parent image is replaced": has("bin/sh", mode=0o755),
    "a compiler of CUDA": has("usr/bin/nvcc", mode=0o755),
    "options of the compiler": has("usr/lib/gcc/x86_64-linux-gnu/12/specs"),
    "a header before one of the parent image": has("usr/include/x86_64-linux-gnu/stdio.h"),
    "a module before one of perl": has("usr/share/perl5/strict.pm"),
    "programs that git runs": has(
        "etc/gitconfig", BASE["etc/gitconfig"] + b"[core]\n\tfsmonitor = /usr/bin/tool\n"
    ),
    "git's settings in another section": has("etc/gitconfig", b'[safe]\n[filter "lfs"]\n\tdirectory = *\n'),
    "what shells run at their start": has("etc/profile.d/z.sh"),
    "what bash runs at its start": has("etc/bash_completion.d/z"),
    "a completion for a program of the parent image": has("usr/share/bash-completion/completions/env"),
    "keys for SSH": has("etc/ssh/authorized_keys"),
    "a configuration of NCCL": has("etc/nccl.conf"),
    "any file in /etc": has("etc/any.conf"),
    # --- folders of the image
    "a file in the environment": has("opt/venv/lib/evil.py"),
    "code": has("app/evil.py"),
    "the entrypoint": has("opt/torchkiln/account"),
    "a file in /usr/local": has("usr/local/bin/tool", mode=0o755),
    "a file in /root": has("root/.bashrc"),
    # --- entries
    "set-user-ID": has("usr/bin/su2", mode=0o4755),
    "set-group-ID": has("usr/bin/agent", mode=0o2755),
    "a file that its group may write": has("etc/tool/x", mode=0o664),
    "a folder that everyone may write": changed(Member(name="var/lib/x", kind=b"5", mode=0o777)),
    "file capabilities": has("usr/bin/ping", mode=0o755, xattrs=("security.capability",)),
    "another owner": has("usr/share/x", uid=102),
    "the owner of the user's files": has("var/lib/x/y", uid=1234),
    "a folder with another mode": changed(Member(name="usr/bin", kind=b"5", mode=0o777)),
    "a pipe": has("var/lib/x/pipe", kind=PIPE, data=b""),
    "a whiteout": has("usr/bin/.wh.later", b""),
    "an opaque whiteout": has("etc/profile.d/.wh..wh..opq", b""),
    "a hard link to a file of the parent image": has("usr/bin/later2", b"", link="usr/bin/later", kind=HARD),
    "a hard link with another mode": has("usr/bin/tool3", b"", link="usr/bin/tool", kind=HARD, mode=0o4755),
    "a link to code": has(f"{LIB}/libx.so.1", b"", link="/app/x.so"),
    "a link in place of a folder": changed(Member(name="etc/profile.d", link="tool")),
    "a file is written through a link": has("var/escape/x"),
    # --- the state of dpkg, accounts
    "a second layer above the code": second_layer,
    "no layer of OS packages": replaced(),
    "no list of packages": changed(without=(STATUS,)),
    "a package that project.json does not list": has(
        STATUS, LAYER[STATUS].data + stanza("evil", "1").encode()
    ),
    "another version than in project.json": rewritten(STATUS, b"Version: 1:2.0", b"Version: 1:2.1"),
    "a package that is not installed": rewritten(STATUS, stanza(DEBS[0].name, DEBS[0].version).encode(), b""),
    "a package that is only unpacked": rewritten(
        STATUS, stanza("tool", "1:2.0").encode(), stanza("tool", "1:2.0", "x").encode()
    ),
    "a package of the parent image is no longer listed": rewritten(
        STATUS, stanza("libc6", "2.36").encode(), b""
    ),
    "another version of a package of the parent image": rewritten(STATUS, b"Version: 2.36", b"Version: 2.99"),
    "a package of the parent image for another platform": has(
        STATUS, LAYER[STATUS].data + stanza("libc6", "2.36").replace("amd64", "i386").encode()
    ),
    "a package is listed twice": has(STATUS, LAYER[STATUS].data + stanza("tool", "9").encode()),
    "scripts for a package of the parent image": has("var/lib/dpkg/info/libc6:amd64.postinst", mode=0o755),
    "a diversion of a file of the parent image": has(
        "var/lib/dpkg/diversions", b"/usr/bin/later\n/usr/bin/x\ntool\n"
    ),
    "modes for a file of the parent image": has(
        "var/lib/dpkg/statoverride", b"root root 4755 /usr/bin/later\n"
    ),
    "a trigger of another package": rewritten(TRIGGERS, b" tool/", b" libc6/"),
    "a trigger of the parent image is removed": rewritten(TRIGGERS, b"/usr/share/x tini/noawait\n", b""),
    "another alternative": rewritten(EDITOR, b"auto", b"manual"),
    "an answer of the parent image": rewritten(DEBCONF, b"Owners: tini", b"Owners: tini, tool"),
    "an account with a shell": rewritten("etc/passwd", b"/usr/sbin/nologin", b"/bin/sh"),
    "a second root": rewritten("etc/passwd", b"tool:x:102:", b"tool:x:0:"),
    "an account without a password": rewritten("etc/passwd", b"tool:x:", b"tool::"),
    "another account of the parent image": rewritten(
        "etc/passwd", b"root:x:0:0:root:/root:", b"root:x:0:0:root:/app:"
    ),
    "a member of a group": rewritten("etc/group", b"tool:x:101:", b"tool:x:101:kim"),
}
