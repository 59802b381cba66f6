"""Mounts a file with an EROFS image; only root can do so.

A mount is a descriptor that no process sees until it is moved to a path, in enter.py. It ends with its last
descriptor. docs.kernel.org/filesystems/mount_api.html
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence

# System calls (the same on all 64-bit architectures) and constants, from linux/mount.h.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _SET_FLAG, _SET_STRING, _CREATE = 1, 0, 1, 6
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4
# From linux/loop.h; struct loop_config is a descriptor, a block size, struct loop_info64 and reserved bytes.
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_LOOP_READ_ONLY, _AUTOCLEAR = 1, 4
_CONFIG, _FLAGS_AT = 304, 8 + 52
_ATTEMPTS = 20  # another process may take the free loop device

_LIBC = ctypes.CDLL(None, use_errno=True)


def fault() -> str:
    """Why this process cannot mount EROFS images; empty if it can."""
    if os.geteuid():
        return "only root can mount EROFS"
    try:
        os.close(_call(_FSOPEN, b"erofs", _CLOEXEC))
    except OSError as error:
        return f"this kernel or container does not mount EROFS: {error.strerror}"
    return ""


@contextlib.contextmanager
def mounts(images: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """A mount of each of *images*, which are descriptors of files; they are closed at the end.

    :raises OSError: the kernel refuses one.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for image in images:
            found.append(_mounted(image))
            stack.callback(os.close, found[-1])
        yield tuple(found)


def _mounted(image: int) -> int:
    try:
        return _mount_of(f"/proc/self/fd/{image}")
    except OSError as error:
        if error.errno != errno.ENOTBLK:  # Linux before 6.12 mounts only block devices
            raise
    device = loop_device(image)  # the kernel frees it when the mount ends
    try:
        return _mount_of(os.readlink(f"/proc/self/fd/{device}"))
    finally:
        os.close(device)


def _mount_of(source: str) -> int:
    context = _call(_FSOPEN, b"erofs", _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _SET_STRING, b"source", source.encode(), 0)
        _call(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, _READ_ONLY | _NO_SUID | _NO_DEV)
    finally:
        os.close(context)


def loop_device(image: int) -> int:
    """A descriptor of a loop device for *image*, read-only; the device is free again after its last use.

    :raises OSError: there is none.
    """
    config = bytearray(_CONFIG)
    struct.pack_into("=I", config, 0, image)
    struct.pack_into("=I", config, _FLAGS_AT, _LOOP_READ_ONLY | _AUTOCLEAR)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            device = os.open(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, bytes(config))
                return device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _call(number: int, *arguments: object) -> int:
    found = _LIBC.syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)
