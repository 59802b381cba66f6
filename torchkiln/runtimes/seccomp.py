"""Makes the seccomp filter of the sandbox: an allowlist of system calls for a program that only computes.

All other calls fail with ENOSYS, as on an older kernel, so that a C library falls back. A program cannot
create processes, connect, mount, trace or send signals. A call by a number of another architecture (i386,
x32) kills the program, because the same numbers mean other calls there.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping

# From the x86-64 system call table: what CPython and glibc need to start and to read and write open files.
# fmt: off
ALLOWED: Mapping[str, int] = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "mremap": 25, "madvise": 28, "dup": 32,
    "getpid": 39, "execve": 59, "exit": 60, "uname": 63, "fcntl": 72, "getcwd": 79, "chdir": 80,
    "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
    "arch_prctl": 158, "gettid": 186, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "openat": 257, "newfstatat": 262, "readlinkat": 267,
    "faccessat": 269, "set_robust_list": 273, "dup3": 292, "getrandom": 318, "statx": 332, "rseq": 334,
    "faccessat2": 439,
}

# Calls that are not needed to build a package: for namespaces, mounts, the memory of other processes, keys,
# and the kernel itself. The program has no capabilities, so most of them would fail anyway. The flags of
# clone3 cannot be read here: a C library falls back to clone.
DENIED: Mapping[str, int] = {
    "ptrace": 101, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166, "swapon": 167,
    "reboot": 169, "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248,
    "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "clone3": 435, "mount_setattr": 442,
}
# fmt: on
# CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID and _NEWNET
_CLONE, _NEW_NAMESPACES = 56, 0x7E020000

_X86_64, _X32 = 0xC000003E, 0x40000000
# Classic BPF: load a word of struct seccomp_data, compare it, return a verdict.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def program() -> bytes:
    """The filter as an array of struct sock_filter."""
    steps = _this_architecture()
    for number in ALLOWED.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def builder_program() -> bytes:
    """The filter for a program that builds a package and starts other programs.

    DENIED calls fail with ENOSYS; a clone into a new namespace fails with EPERM.
    """
    steps = _this_architecture()
    for number in DENIED.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += [
        (_EQUAL, 0, 3, _CLONE),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _this_architecture() -> list[tuple[int, int, int, int]]:
    """The steps that kill a program which uses calls of another architecture, and load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
