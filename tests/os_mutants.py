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
_PARENT = "a file of the parent image, which no package may change"


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


#: name -> the mutant, and the start of the message that refuses it.
MUTANTS: dict[str, tuple[Callable[[Scene], ImageOnDisk], str]] = {
    # --- the loader
    "another libc": (
        has(f"{LIB}/libc.so.6"),
        f"{LIB}/libc.so.6: could be loaded in place of /",
    ),
    "a library of the parent image is replaced": (
        has(f"{LIB}/libold.so.1"),
        f"{LIB}/libold.so.1: {_PARENT}",
    ),
    "a library of the parent image for newer CPUs": (
        has(f"{LIB}/glibc-hwcaps/x86-64-v3/libnew.so.1"),
        f"{LIB}/glibc-hwcaps/x86-64-v3/libnew.so.1: programs of the parent image read /{LIB}/glibc-hwcaps",
    ),
    "a library of the parent image in a folder of its own": (
        has(f"{LIB}/other/libold.so.1"),
        f"{LIB}/other/libold.so.1: could be loaded in place of /{LIB}/libold.so.1",
    ),
    "a newer file to which ldconfig would link a library of the parent image": (
        has(f"{LIB}/libnew.so.1.9", library("libold.so.1")),
        f"{LIB}/libnew.so.1.9: a library with the SONAME libold.so.1: could be loaded in place of /",
    ),
    "a file whose name is that of a library for the loader": (
        has(f"{LIB}/libold.so.01"),
        f"{LIB}/libold.so.01: could be loaded in place of /{LIB}/libold.so.1",
    ),
    "the loader finds another library by an equal name": (
        with_cache(("libold.so.01", f"/{LIB}/libxfake.so.1"), OLD),
        f"{CACHE}: libold.so.1 would be loaded from {LIB}/libxfake.so.1, not from {LIB}/libold.so.1",
    ),
    "a library that only ldconfig could read": (
        has(f"{LIB}/libnew.so.1", library("libnew.so.1")[:150]),
        f"{LIB}/libnew.so.1: a library that cannot be read",
    ),
    "libcudart": (
        has(f"{LIB}/libcudart.so.12"),
        f"{LIB}/libcudart.so.12: could be loaded in place of libcudart.so.12 of nvidia-cuda",
    ),
    "a link to a library of torch": (
        has(f"{LIB}/libcublas.so.12", b"", link="libxfake.so.1"),
        f"{LIB}/libcublas.so.12: libcublas.so.12 is the name of a library in the wheels of torch or NVIDIA",
    ),
    "a library of the driver": (
        has(f"{LIB}/libcuda.so.1"),
        f"{LIB}/libcuda.so.1: is a library of the driver, which the host provides",
    ),
    "a plugin of NCCL": (
        has(f"{LIB}/libnccl-net.so"),
        f"{LIB}/libnccl-net.so: torch, NVIDIA's libraries or libc load libnccl-net.so if it exists",
    ),
    "a library for names of users": (
        has(f"{LIB}/libnss_evil.so.2"),
        f"{LIB}/libnss_evil.so.2: torch, NVIDIA's libraries or libc load libnss_evil.so.2",
    ),
    "the loader finds another library": (
        with_cache(("libold.so.1", f"/{LIB}/libxfake.so.1"), OLD),
        f"{CACHE}: libold.so.1 would be loaded from {LIB}/libxfake.so.1, not from {LIB}/libold.so.1",
    ),
    "the loader no longer finds a library": (
        with_cache(NEW),
        f"{CACHE}: libold.so.1 would no longer be found",
    ),
    "the loader finds libcudart": (
        with_cache(("libcudart.so.12", f"/{LIB}/libxfake.so.1"), OLD),
        f"{CACHE}: could be loaded in place of libcudart.so.12 of nvidia-cuda-runtime",
    ),
    "the loader finds code": (
        with_cache(("libevil.so.1", "/app/libevil.so.1"), OLD),
        f"{CACHE}: libevil.so.1 would be loaded from /app/libevil.so.1",
    ),
    "a cache of the loader that cannot be read": (
        has(CACHE, b"ld.so-1.7.0"),
        f"{CACHE}: cannot be read: invalid ld.so.cache",
    ),
    "etc/ld.so.preload": (has("etc/ld.so.preload"), "etc/ld.so.preload: in a folder of the image"),
    "etc/ld.so.conf.d": (
        has("etc/ld.so.conf.d/0.conf"),
        "etc/ld.so.conf.d/0.conf: packages may add nothing to /etc/ld.so.conf.d",
    ),
    "etc/ld.so.conf": (
        has("etc/ld.so.conf"),
        "etc/ld.so.conf: programs of the parent image read /etc/ld.so.conf",
    ),
    # --- Python
    "sitecustomize": (
        has(f"{MODULES}/sitecustomize.py"),
        f"{MODULES}/sitecustomize.py: runs at each start of Python",
    ),
    "usercustomize without a source": (
        has(f"{MODULES}/usercustomize.pyc"),
        f"{MODULES}/usercustomize.pyc: Python runs it at each start",
    ),
    "a .pth file": (has(f"{MODULES}/x.pth"), f"{MODULES}/x.pth: Python runs it at each start"),
    "a module that Ubuntu's sitecustomize imports": (
        has(f"{MODULES}/apport_python_hook.py"),
        f"{MODULES}/apport_python_hook.py: Python runs it at each start",
    ),
    "a regular package in place of NVIDIA's namespace": (
        has(f"{MODULES}/nvidia/__init__.py"),
        f"{MODULES}/nvidia/__init__.py: could be imported in place of nvidia",
    ),
    "a module before one of the parent image": (
        has(f"{MODULES}/known/__init__.py"),
        f"{MODULES}/known/__init__.py: known is a module of the parent image",
    ),
    "byte-code of a module of the parent image": (
        has(f"{MODULES}/__pycache__/known.cpython-311.pyc"),
        f"{MODULES}/__pycache__/known.cpython-311.pyc: known is a module of the parent image",
    ),
    "metadata of torch": (
        has(f"{MODULES}/torch-9.egg-info/PKG-INFO"),
        f"{MODULES}/torch-9.egg-info/PKG-INFO: metadata of torch, which is fixed",
    ),
    "a plugin that torch loads": (
        has(f"{MODULES}/x-1.egg-info/entry_points.txt", b"[torch.backends]\nx = x:load\n"),
        f"{MODULES}/x-1.egg-info/entry_points.txt: entry points that torch or triton load at import: torch.b",
    ),
    "a plugin that torch loads, by a hard link": (
        has(f"{MODULES}/y-1.egg-info/entry_points.txt", b"", link="usr/share/tool/00", kind=HARD),
        f"{MODULES}/y-1.egg-info/entry_points.txt: a hard link to metadata of a package",
    ),
    "a module of the standard library": (
        has("usr/lib/python3.11/torch.py"),
        "usr/lib/python3.11/torch.py: packages may add nothing to /usr/lib/python3.11",
    ),
    "the standard library as an archive": (
        has("usr/lib/python311.zip"),
        "usr/lib/python311.zip: programs of the parent image read /usr/lib/python311.zip",
    ),
    # --- programs, compilers, shells, services
    "a program that hides one of the parent image": (
        has("usr/bin/env", mode=0o755),
        "usr/bin/env: would be started in place of /bin/env",
    ),
    "a link that hides a program of the parent image": (
        has("usr/sbin/later", b"", link="../bin/tool"),
        "usr/sbin/later: would be started in place of /usr/bin/later",
    ),
    "a program of the parent image is replaced": (has("bin/sh", mode=0o755), f"bin/sh: {_PARENT}"),
    "a compiler of CUDA": (
        has("usr/bin/nvcc", mode=0o755),
        "usr/bin/nvcc: nvcc is a program of CUDA or the driver",
    ),
    "options of the compiler": (
        has("usr/lib/gcc/x86_64-linux-gnu/12/specs"),
        "usr/lib/gcc/x86_64-linux-gnu/12/specs: packages may add nothing to /usr/lib/gcc",
    ),
    "a header before one of the parent image": (
        has("usr/include/x86_64-linux-gnu/stdio.h"),
        "usr/include/x86_64-linux-gnu/stdio.h: could be found in place of /usr/include/stdio.h",
    ),
    "a module before one of perl": (
        has("usr/share/perl5/strict.pm"),
        "usr/share/perl5/strict.pm: could be found in place of /usr/lib/x86_64-linux-gnu/perl-base/strict.pm",
    ),
    "programs that git runs": (
        has("etc/gitconfig", BASE["etc/gitconfig"] + b"[core]\n\tfsmonitor = /usr/bin/tool\n"),
        "etc/gitconfig: not a line of git-lfs: '[core]'",
    ),
    "git's settings in another section": (
        has("etc/gitconfig", b'[safe]\n[filter "lfs"]\n\tdirectory = *\n'),
        "etc/gitconfig: lines of the parent image are changed",
    ),
    "what shells run at their start": (
        has("etc/profile.d/z.sh"),
        "etc/profile.d/z.sh: packages may add nothing to /etc/profile.d",
    ),
    "what bash runs at its start": (
        has("etc/bash_completion.d/z"),
        "etc/bash_completion.d/z: programs of the parent image read /etc/bash_completion.d",
    ),
    "a completion for a program of the parent image": (
        has("usr/share/bash-completion/completions/env"),
        "usr/share/bash-completion/completions/env: bash runs it to complete env",
    ),
    "keys for SSH": (
        has("etc/ssh/authorized_keys"),
        "etc/ssh/authorized_keys: packages may add nothing to /etc/ssh",
    ),
    "a configuration of NCCL": (
        has("etc/nccl.conf"),
        "etc/nccl.conf: programs of the parent image read /etc/nccl.conf",
    ),
    "any file in /etc": (
        has("etc/any.conf"),
        "etc/any.conf: not in a folder to which OS packages may add files",
    ),
    # --- folders of the image
    "a file in the environment": (
        has("opt/venv/lib/evil.py"),
        "opt/venv/lib/evil.py: in a folder of the image",
    ),
    "code": (has("app/evil.py"), "app/evil.py: in a folder of the image"),
    "the entrypoint": (has("opt/torchkiln/account"), "opt/torchkiln/account: "),
    "a file in /usr/local": (
        has("usr/local/bin/tool", mode=0o755),
        "usr/local/bin/tool: not in a folder to which OS packages may add files",
    ),
    "a file in /root": (
        has("root/.bashrc"),
        "root/.bashrc: not in a folder to which OS packages may add files",
    ),
    # --- entries
    "set-user-ID": (has("usr/bin/su2", mode=0o4755), "usr/bin/su2: has the mode 4755"),
    "set-group-ID": (has("usr/bin/agent", mode=0o2755), "usr/bin/agent: has the mode 2755"),
    "a file that its group may write": (has("etc/tool/x", mode=0o664), "etc/tool/x: has the mode 0664"),
    "a folder that everyone may write": (
        changed(Member(name="var/lib/x", kind=b"5", mode=0o777)),
        "var/lib/x: has the mode 0777",
    ),
    "file capabilities": (
        has("usr/bin/ping", mode=0o755, xattrs=("security.capability",)),
        "usr/bin/ping: has extended attributes",
    ),
    "another owner": (has("usr/share/x", uid=102), "usr/share/x: belongs to 102:0"),
    "the owner of the user's files": (has("var/lib/x/y", uid=1234), "var/lib/x/y: belongs to 1234:0"),
    "a folder with another mode": (
        changed(Member(name="usr/bin", kind=b"5", mode=0o777)),
        "usr/bin: the folder gets another mode or owner: 0777, 0:0",
    ),
    "a pipe": (has("var/lib/x/pipe", kind=PIPE, data=b""), "var/lib/x/pipe: a pipe"),
    "a whiteout": (
        has("usr/bin/.wh.later", b""),
        "usr/bin/.wh.later: a whiteout: packages must not remove files of the parent image",
    ),
    "an opaque whiteout": (
        has("etc/profile.d/.wh..wh..opq", b""),
        "etc/profile.d/.wh..wh..opq: a whiteout: packages must not remove files of the parent image",
    ),
    "a hard link to a file of the parent image": (
        has("usr/bin/later2", b"", link="usr/bin/later", kind=HARD),
        "usr/bin/later2: a hard link to /usr/bin/later, which is not a file of this layer",
    ),
    "a hard link with another mode": (
        has("usr/bin/tool3", b"", link="usr/bin/tool", kind=HARD, mode=0o4755),
        "usr/bin/tool3: has the mode 4755",
    ),
    "a link to code": (
        has(f"{LIB}/libx.so.1", b"", link="/app/x.so"),
        f"{LIB}/libx.so.1: a symbolic link to /app/x.so is not allowed",
    ),
    "a link in place of a folder": (
        changed(Member(name="etc/profile.d", link="tool")),
        "etc/profile.d: a link replaces a folder of the layers below",
    ),
    "a file is written through a link": (
        has("var/escape/x"),
        "var/escape: a folder replaces a link of the layers below",
    ),
    # --- the state of dpkg, accounts
    "a second layer above the code": (second_layer, "usr/bin/tool: outside of /app and /opt/venv"),
    "no layer of OS packages": (replaced(), f"{STATUS}: not in the first layer above those of the parent"),
    "no list of packages": (
        changed(without=(STATUS,)),
        f"{STATUS}: not in the first layer above those of the parent image",
    ),
    "a package that project.json does not list": (
        has(STATUS, LAYER[STATUS].data + stanza("evil", "1").encode()),
        f"{STATUS}: evil 1 (amd64) is installed; /etc/torchkiln/project.json does not list it",
    ),
    "another version than in project.json": (
        rewritten(STATUS, b"Version: 1:2.0", b"Version: 1:2.1"),
        f"{STATUS}: tool 1:2.1 (amd64) is installed; /etc/torchkiln/project.json does not list it",
    ),
    "a package that is not installed": (
        rewritten(STATUS, stanza(DEBS[0].name, DEBS[0].version).encode(), b""),
        f"{STATUS}: libxfake1 1.0 (amd64) is listed in /etc/torchkiln/project.json, but not installed",
    ),
    "a package that is only unpacked": (
        rewritten(STATUS, stanza("tool", "1:2.0").encode(), stanza("tool", "1:2.0", "x").encode()),
        f"{STATUS}: tool is not installed: x",
    ),
    "a package of the parent image is no longer listed": (
        rewritten(STATUS, stanza("libc6", "2.36").encode(), b""),
        f"{STATUS}: libc6 of the parent image is no longer listed",
    ),
    "another version of a package of the parent image": (
        rewritten(STATUS, b"Version: 2.36", b"Version: 2.99"),
        f"{STATUS}: libc6 of the parent image is changed",
    ),
    "a package of the parent image for another platform": (
        has(STATUS, LAYER[STATUS].data + stanza("libc6", "2.36").replace("amd64", "i386").encode()),
        f"{STATUS}: libc6 (i386) has the name of a package of the parent image",
    ),
    "a package is listed twice": (
        has(STATUS, LAYER[STATUS].data + stanza("tool", "9").encode()),
        f"{STATUS}: cannot be read: a paragraph has no name, or there are two of 'tool'",
    ),
    "scripts for a package of the parent image": (
        has("var/lib/dpkg/info/libc6:amd64.postinst", mode=0o755),
        "var/lib/dpkg/info/libc6:amd64.postinst: /etc/torchkiln/project.json lists no package libc6",
    ),
    "a diversion of a file of the parent image": (
        has("var/lib/dpkg/diversions", b"/usr/bin/later\n/usr/bin/x\ntool\n"),
        "var/lib/dpkg/diversions: a diversion of /usr/bin/later by tool",
    ),
    "modes for a file of the parent image": (
        has("var/lib/dpkg/statoverride", b"root root 4755 /usr/bin/later\n"),
        "var/lib/dpkg/statoverride: about a file that the packages do not add: 'root root 4755",
    ),
    "a trigger of another package": (
        rewritten(TRIGGERS, b" tool/", b" libc6/"),
        f"{TRIGGERS}: a line of another package: '/usr/share/fonts libc6/noawait'",
    ),
    "a trigger of the parent image is removed": (
        rewritten(TRIGGERS, b"/usr/share/x tini/noawait\n", b""),
        f"{TRIGGERS}: lines of the parent image are changed, removed or in another order",
    ),
    "another alternative": (
        rewritten(EDITOR, b"auto", b"manual"),
        f"{EDITOR}: lines of the parent image are changed, removed or in another order",
    ),
    "an answer of the parent image": (
        rewritten(DEBCONF, b"Owners: tini", b"Owners: tini, tool"),
        f"{DEBCONF}: tini/x is changed or removed",
    ),
    "an account with a shell": (
        rewritten("etc/passwd", b"/usr/sbin/nologin", b"/bin/sh"),
        "etc/passwd: the account tool has the shell '/bin/sh'",
    ),
    "a second root": (
        rewritten("etc/passwd", b"tool:x:102:", b"tool:x:0:"),
        "etc/passwd: the account tool has the id '0', which is not a free id from 100 to 999",
    ),
    "an account without a password": (
        rewritten("etc/passwd", b"tool:x:", b"tool::"),
        "etc/passwd: the account tool has a password",
    ),
    "another account of the parent image": (
        rewritten("etc/passwd", b"root:x:0:0:root:/root:", b"root:x:0:0:root:/app:"),
        "etc/passwd: lines of the parent image are changed, removed or in another order",
    ),
    "a member of a group": (
        rewritten("etc/group", b"tool:x:101:", b"tool:x:101:kim"),
        "etc/group: the account tool is a group with members: kim",
    ),
}
