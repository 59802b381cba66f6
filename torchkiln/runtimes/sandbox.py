"""Runs an untrusted program in a sandbox in which it can only compute.

The program has one read-only folder and three standard streams. It has no network, no other processes, no
files of the host, and none of the caller's environment variables. Its output is untrusted data, which the
caller checks.
"""

from __future__ import annotations

import errno
import functools
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

_ENTER = Path(__file__).with_name("enter.py")
# Imported as a module, so that Python caches its bytecode: a sandbox is created for each wheel.
_START = "import sys; sys.path.append(sys.argv[1]); import enter; enter.start(sys.argv[2:])"
_PROBE_S = 30.0
_LIMITS = {
    "AS": 384 << 20,  # bytes of memory: a source of 8 MB compiles in that
    "CPU": 600,  # seconds
    "FSIZE": 256 << 20,  # bytes of a file that it writes: `wheel/bytecode.py` reads no more
    "STACK": 8 << 20,
    "NOFILE": 64,
}


@functools.cache
def fault() -> str:
    """Why this host cannot create a sandbox; empty if it can. Tested once, without a program in it."""
    try:
        with tempfile.TemporaryDirectory(prefix="torchkiln-sandbox-") as folder:
            argv = command(Path(folder), {})
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return last[-200:] or f"exit {done.returncode}"
    return ""


def text_of(limits: Mapping[str, int]) -> str:
    """Resource *limits* as enter.py reads them; no core files, locked memory or message queues."""
    return ",".join((*(f"{name}={limit}" for name, limit in limits.items()), "CORE=0,MEMLOCK=0,MSGQUEUE=0"))


def command(root: Path | None, env: Mapping[str, str]) -> list[str]:
    """The command line of a sandbox, without the program: append its absolute path inside, and arguments.

    :param root: the folder that is / inside; None: the host's root, with only limits and the seccomp filter.
    """
    variables = [f"{name}={value}" for name, value in env.items()]
    folder = "" if root is None else str(root.absolute())
    arguments = (
        folder,
        text_of(_LIMITS),
        filter_program(ALLOWED).hex(),
        str(len(variables)),
        *variables,
    )
    return [sys.executable, "-I", "-S", "-c", _START, str(_ENTER.parent), *arguments]


# The seccomp filters of the sandboxes: allowlists of system calls, and of some of their arguments.
#
# All other calls fail with ENOSYS, as on an older kernel, so that a C library falls back. A call by a number
# of another architecture (i386, x32) kills the program, because the same numbers mean other calls there. No
# list has a call that makes namespaces or sockets of a network, mounts, traces, reads keys, or holds memory
# that no limit counts: memfd, message queues and shared memory of System V and POSIX, io_uring, userfaultfd
# and BPF.

# Numbers from the x86-64 system call table.
_CALLS = json.loads(files("torchkiln").joinpath("data/system_calls.json").read_bytes())
# What CPython and glibc need to start and to read and write open files.
ALLOWED: Mapping[str, int] = _CALLS["allowed"]
# Compilers and build tools change files, start processes, and communicate with them, too. A C library calls
# clone instead of clone3, whose flags a filter cannot read.
BUILDING: Mapping[str, int] = ALLOWED | _CALLS["building"]
# For some calls: the number of an argument, the bits that are compared, their allowed values, and the error
# for others. Memory that processes share without a file is held after they have unmapped it. Locks and larger
# buffers of pipes and sockets are memory, too.
_ARGUMENTS: Mapping[str, tuple[int, int, tuple[int, ...], int]] = {
    "mmap": (3, 0x40021, (0, 0x1, 0x20), errno.EPERM),  # MAP_HUGETLB, _SHARED and _ANONYMOUS
    "fcntl": (1, 0xFFFFFFFF, (0, 1, 2, 3, 4, 1030), errno.EINVAL),  # F_DUPFD … F_SETFL, F_DUPFD_CLOEXEC
    # CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID and _NEWNET
    "clone": (0, 0x7E020000, (0,), errno.EPERM),
    "socket": (0, 0xFFFFFFFF, (1,), errno.EAFNOSUPPORT),  # AF_UNIX
    "socketpair": (0, 0xFFFFFFFF, (1,), errno.EAFNOSUPPORT),
    "setsockopt": (2, 0xFFFFFFFF, (2,), errno.ENOPROTOOPT),  # SO_REUSEADDR
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": (1, 0xFFFFFFFF, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), errno.ENOTTY),
    # PR_SET_PDEATHSIG, _GET_PDEATHSIG, _GET_DUMPABLE, _SET_NAME, _GET_NAME, _CAPBSET_READ, _SET_NO_NEW_PRIVS
    "prctl": (0, 0xFFFFFFFF, (1, 2, 3, 15, 16, 23, 38), errno.EINVAL),
}

_X86_64, _X32 = 0xC000003E, 0x40000000
# Classic BPF: load a word of struct seccomp_data, compare or mask it, return a verdict.
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program(calls: Mapping[str, int]) -> bytes:
    """The filter that allows *calls*, as an array of struct sock_filter."""
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for name, number in calls.items():
        answer = [(_RETURN, 0, 0, _ALLOW)]
        if name in _ARGUMENTS:
            at, mask, values, error = _ARGUMENTS[name]
            answer = [(_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * at), (_AND, 0, 0, mask)]
            answer += [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
            answer += [(_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW)]
        steps += [(_EQUAL, 0, len(answer), number), *answer]
    steps.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
