"""Starts a process in an unpacked image. A separate program that uses only the standard library.

    python -I -S enter.py SPEC_FD FAULT_FD

The spec is JSON on SPEC_FD. An error before the command runs is written to FAULT_FD, which closes when the
command starts. The program creates namespaces for mounts, processes, host name and IPC, and one for users if
it does not run as root. It mounts an overlay over the image and makes that the root. It fills /proc, /dev,
/sys and the files of /etc that belong to a machine, and executes the command as process 1. All mounts are
private and end with the process. With "confined" in the spec, the command is not trusted: it has no network,
no /sys, no capabilities, resource limits and a seccomp filter.

    start([ROOT, LIMITS, FILTER, COUNT, NAME=VALUE..., COMMAND...])

Runs an untrusted command in a sandbox; `sandbox.py` uses it. All namespaces are new, so there is no network.
The root is one read-only folder without /proc and /dev. The user is nobody, without capabilities; a seccomp
filter and resource limits apply. An error goes to stderr, with exit code 125. Without a COMMAND only the
sandbox is created.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import sys

# A sandbox is created for each wheel, so slow imports that it does not need are local to functions.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)

# From <sched.h>, <sys/mount.h>, <sys/prctl.h> and the x86-64 system call table.
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000
_ISOLATED = 0x2000000 | 0x40000000  # NEWCGROUP and NEWNET
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER, _CAPABILITY_VERSION_3 = 38, 2, 0x20080522
_SYS_PIVOT_ROOT, _SYS_MOUNT_SETATTR, _NOBODY, _SIGKILL = 155, 442, 65534, 9
_SYS_MOVE_MOUNT, _HERE, _FROM_DESCRIPTOR = 429, -100, 4
_DETACH, _AT_EMPTY_PATH, _AT_RECURSIVE = 2, 0x1000, 0x8000

_NODES = ("null", "full", "random", "urandom", "tty", "zero")
_CONFINED_NODES = _NODES[:4]  # memory that is mapped from /dev/zero can be shared
_DEV_LINKS = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx"}
_DEV_LINKS |= {name: f"/proc/self/fd/{n}" for n, name in enumerate(("stdin", "stdout", "stderr"))}
# The folder for a driver's libraries, which is empty in all images, and the loader's configuration for it.
DRIVER, LOADERS = "/usr/local/nvidia/lib64", "/etc/ld.so.conf.d/00-torchkiln-driver.conf"
LDCONFIG = "/sbin/ldconfig"


def main(spec_fd: int, fault_fd: int) -> NoReturn:
    """Prepare, run the command, and exit with its code, or with 128 plus the number of its signal."""
    import json
    import signal

    os.get_exec_path()  # imports a module, which is impossible after the root has changed
    os.set_inheritable(spec_fd, False)
    os.set_inheritable(fault_fd, False)
    with os.fdopen(spec_fd, "rb") as source:
        spec = json.load(source)
    try:
        _die_with_parent()
        private_user = _unshare(0, _ISOLATED if spec["confined"] else 0)
        child = os.fork()
        if child == 0:
            # When the parent dies, process 1 is killed, and with it everything in the namespace.
            _die_with_parent()
            _prepare(spec, private_user)
            _execute(spec, private_user)
    except (OSError, ValueError) as error:
        os.write(fault_fd, str(error).encode())
        os._exit(125)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, _SIGKILL))
    for ignored in (signal.SIGINT, signal.SIGQUIT):  # typed at a terminal: the command handles them
        signal.signal(ignored, signal.SIG_IGN)
    os.close(fault_fd)
    _exit_as(child)


def start(words: list[str]) -> NoReturn:
    """Run the command in *words*, whose order is above, in a sandbox; exit with its code, or with 125."""
    root, limits, program, count, *rest = words
    env = dict(variable.split("=", 1) for variable in rest[: int(count)])
    argv = rest[int(count) :]
    try:
        if not root:  # no namespaces on this host: only limits and filter
            _set_limits(limits)
            _install_filter(program)
            os.execve(argv[0], argv, env)
        _die_with_parent()
        private_user = _unshare(_NOBODY, _ISOLATED)
        child = os.fork()
        if child == 0:
            _die_with_parent()
            _only_root(root)
            _set_limits(limits)
            _drop_privileges(private_user)
            _install_filter(program)
            if not argv:
                os._exit(0)
            os.execve(argv[0], argv, env)
    except (OSError, ValueError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(125)
    _exit_as(child)


def _exit_as(child: int) -> NoReturn:
    """Wait for the process *child*, and exit with its code, or with 128 plus the number of its signal."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies; a change of user clears this."""
    _call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def _only_root(root: str) -> None:
    """Make the folder *root*, read-only, the whole file system."""
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount(root, root, None, _BIND | _REC)
    _read_only(root, _NOSUID | _NODEV)
    os.chdir(root)
    _call("syscall", _SYS_PIVOT_ROOT, b".", b".")  # the old root is now mounted over the new one
    _call("umount2", b".", _DETACH)
    os.chdir("/")
    _call("sethostname", b"sandbox", 7)


def _set_limits(limits: str) -> None:
    """Set *limits*, such as "AS=402653184,CORE=0", unless lower ones are set; close descriptors from 3 on."""
    for limit in limits.split(","):
        name, _, value = limit.partition("=")
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        lowest = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (lowest, lowest))
    os.closerange(3, 1024)


def _drop_privileges(private_user: bool) -> None:
    """Become the user nobody, in a user namespace, without capabilities and unable to gain any."""
    if not private_user:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        _drop_bounding()
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        # May fail: some hosts allow only root to create user namespaces. The map is for programs that set
        # their user to the present one, such as make.
        if _LIBC.unshare(_NEWUSER) == 0 and os.path.exists("/proc/self/uid_map"):
            _call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
            _map_ids(f"{_NOBODY} {_NOBODY} 1", f"{_NOBODY} {_NOBODY} 1")
    _drop_bounding()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _die_with_parent()  # again: a change of user clears it


def _drop_bounding() -> None:
    for capability in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == -1:
            return  # the kernel has no capability of this number


def _install_filter(program: str) -> None:
    """Install the seccomp filter *program*, in hex; after this nothing gains a privilege."""
    steps = bytes.fromhex(program)
    code = ctypes.create_string_buffer(steps, len(steps))
    # struct sock_fprog: the number of eight-byte instructions, and a pointer to them.
    whole = (ctypes.c_uint64 * 2)(len(steps) // 8, ctypes.addressof(code))
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, whole, 0, 0)


def _unshare(inside: int, more: int) -> bool:
    """Make namespaces, and *more*; returns whether one is of users, in which this user is *inside*."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEWNS | _NEWPID | _NEWUTS | _NEWIPC | more | (_NEWUSER if uid else 0))
    if uid:
        _map_ids(f"{inside} {uid} 1", f"{inside} {gid} 1")
    return bool(uid)


def _map_ids(uid_line: str, gid_line: str) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", uid_line), ("gid_map", gid_line)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _prepare(spec: dict[str, Any], private_user: bool) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    # All sources are opened before the root changes, because paths have another meaning afterwards. They are
    # opened in the new mount namespace, because a mount of another namespace cannot be bound.
    lower = [os.open(spec["root"], os.O_PATH | os.O_DIRECTORY)] if spec["root"] else spec["mounts"]
    names = _CONFINED_NODES if spec["confined"] else _NODES
    places = {**{name: f"/dev/{name}" for name in names}, **dict(spec["nodes"])}
    nodes = {name: os.open(place, os.O_PATH) for name, place in places.items()}
    driver = [(os.open(source, os.O_PATH), f"{DRIVER}/{name}") for name, source in spec["libraries"]]
    driver += [(os.open(source, os.O_PATH), f"/usr/bin/{name}") for name, source in spec["tools"]]
    binds = [(os.open(source, os.O_PATH), target, writable) for source, target, writable in spec["binds"]]

    top = spec["scratch"]
    _mount("tmpfs", top, "tmpfs", _NOSUID | _NODEV, spec["tmpfs"])
    root = f"{top}/root"
    for folder in ("upper", "work", "root"):
        os.mkdir(f"{top}/{folder}")
    os.chdir(top)  # upperdir and workdir are relative: overlay's options allow no comma or colon in a path
    lowers = [f"/proc/self/fd/{lower[0]}"] if spec["root"] else []
    for number, layer in enumerate(spec["mounts"]):  # the last one is the highest: the first for overlay
        os.mkdir(f"{number}")
        _call("syscall", _SYS_MOVE_MOUNT, layer, b"", _HERE, f"{number}".encode(), _FROM_DESCRIPTOR)
        lowers.insert(0, f"{number}")
    options = f"lowerdir={':'.join(lowers)},upperdir=upper,workdir=work"
    _mount("overlay", root, "overlay", 0, options + (",userxattr" if private_user else ""))
    os.chmod(root, 0o755)

    # The host's root is here until everything is bound. No link in the image can name it: the name is random.
    old = f"/.{os.urandom(16).hex()}"
    os.mkdir(root + old, 0o700)
    _call("syscall", _SYS_PIVOT_ROOT, root.encode(), (root + old).encode())
    os.chdir("/")
    # From here on every path is resolved inside the image. Links in the image can lead outside only through
    # /proc and an open descriptor. So files are created before /proc is mounted, and descriptors are closed.
    loader = spec["libraries"] and os.access(LDCONFIG, os.X_OK)
    _make_places(spec["files"] | ({LOADERS: DRIVER + "\n"} if loader else {}))
    targets = [target for _, target, _ in binds]
    for source, target in (*driver, *((source, target) for source, target, _ in binds)):
        if not _lies_below(target, targets):
            _make_target(source, target)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    if spec["confined"]:
        _mount("tmpfs", "/sys", "tmpfs", _RDONLY, "mode=555,size=4k")
    else:
        _mount(f"{old}/sys", "/sys", None, _BIND | _REC)
        _read_only("/sys")
    _devices(nodes, spec, private_user)
    for source, target in driver:
        _bind(source, target)
        _read_only(target)
    for source, target, writable in binds:
        if _lies_below(target, targets):
            _make_target(source, target)  # in another bind: the caller's folder gets the mount point
        _bind(source, target)
        if not writable:
            _read_only(target)
    _call("umount2", old.encode(), _DETACH)
    os.rmdir(old)
    opened = (*lower, *nodes.values(), *(source for source, _ in driver), *(source for source, *_ in binds))
    for descriptor in opened:
        os.close(descriptor)
    if loader:
        _run_ldconfig()
    elif spec["libraries"]:  # an image without ldconfig
        found = filter(None, (DRIVER, spec["env"].get("LD_LIBRARY_PATH")))
        spec["env"]["LD_LIBRARY_PATH"] = ":".join(found)
    _call("sethostname", spec["hostname"].encode(), len(spec["hostname"].encode()))


def _make_places(files: dict[str, str]) -> None:
    """Create the mount points, which must not be links, and the *files* of this machine."""
    for folder in ("proc", "sys", "dev", "etc", "tmp"):
        if os.path.islink(f"/{folder}"):
            raise ValueError(f"/{folder} of the image is a symbolic link")
        os.makedirs(f"/{folder}", exist_ok=True)
    for path, text in files.items():
        if os.path.lexists(path):
            os.unlink(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x") as file:
            file.write(text)


def _lies_below(target: str, others: list[str]) -> bool:
    return any(target.startswith(other.rstrip("/") + "/") for other in others)


def _devices(nodes: dict[str, int], spec: dict[str, Any], private_user: bool) -> None:
    _mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755,size=64k,nr_inodes=256")
    for name, source in nodes.items():
        _make_target(source, f"/dev/{name}")
        _bind(source, f"/dev/{name}")
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"mode=1777,{spec['shm']}")
    if spec["confined"]:
        return  # no terminals: they have buffers
    os.mkdir("/dev/pts")
    # Group 5 is tty in Debian; a user namespace with one user does not have it.
    options = "newinstance,ptmxmode=0666,mode=0620" + ("" if private_user else ",gid=5")
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, options)


def _run_ldconfig() -> None:
    """Run the image's ldconfig, so that its loader finds the driver's libraries."""
    null = [(os.POSIX_SPAWN_OPEN, stream, "/dev/null", os.O_RDWR, 0) for stream in (0, 1, 2)]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    child = os.posix_spawn(LDCONFIG, [LDCONFIG, DRIVER], environment, file_actions=null)
    if os.waitpid(child, 0)[1]:
        raise ValueError(f"{LDCONFIG} of the image failed, so its loader cannot find the driver's libraries")


def _make_target(source: int, target: str) -> None:
    """Create a file or folder at *target*, of the type of *source*, if it does not exist."""
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if stat.S_ISDIR(os.fstat(source).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _bind(source: int, target: str) -> None:
    _mount(f"/proc/self/fd/{source}", target, None, _BIND | _REC)


def _read_only(target: str, more: int = 0) -> None:
    """Make *target* and all mounts below it read-only, with *more* flags."""
    attributes = (ctypes.c_uint64 * 4)(_RDONLY | more, 0, 0, 0)  # struct mount_attr: set, clear, ...
    descriptor = os.open(target, os.O_PATH)
    try:
        flags, size = _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.sizeof(attributes)
        _call("syscall", _SYS_MOUNT_SETATTR, descriptor, b"", flags, attributes, size)
    finally:
        os.close(descriptor)


def _execute(spec: dict[str, Any], private_user: bool) -> NoReturn:
    import signal

    uid, gid = spec["user"]
    env = spec["env"]
    env.setdefault("HOME", _home(uid))
    os.umask(0o022)
    os.makedirs(spec["workdir"], exist_ok=True)  # as root, whatever the command's user
    os.chdir(spec["workdir"])
    # Python ignores the first two, and `torchkiln run` on a terminal ignores the others: reset all of them.
    for name in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    if private_user:
        if (uid, gid) != (0, 0):
            _call("unshare", _NEWUSER)
            _map_ids(f"{uid} 0 1", f"{gid} 0 1")
    elif not spec["confined"]:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    _die_with_parent()  # again: a change of user clears it
    if spec["confined"]:
        _drop_privileges(private_user)
        _install_filter(spec["confined"]["filter"])
        _set_limits(spec["confined"]["limits"])  # last, because it closes the descriptor for errors
    try:
        os.execvpe(spec["argv"][0], spec["argv"], env)
    except OSError as error:
        # As in shells and container engines: 127 not found, 126 not executable.
        sys.stderr.write(f"{spec['argv'][0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _home(uid: int) -> str:
    try:
        with open("/etc/passwd") as file:
            for line in file:
                fields = line.rstrip("\n").split(":")
                if len(fields) > 5 and fields[2] == str(uid):
                    return fields[5]
    except OSError:
        pass
    return "/"


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        "mount",
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError, with its arguments, if it returns -1."""
    if getattr(_LIBC, name)(*arguments) == -1:
        number = ctypes.get_errno()
        words = " ".join(part.decode() for part in arguments if isinstance(part, bytes))
        raise OSError(number, os.strerror(number), f"{name} {words}".strip())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
