"""Start the entrypoint as root, as uid 1000 and as a uid without an account; each imports torch."""

import contextlib
import ctypes
import json
import os
import stat
import subprocess
import sys

ENTRYPOINT = "/opt/torchkiln/entrypoint"
# Name in the result: uid (and gid), and HOME as an engine sets it: from /etc/passwd, or / without an account.
USERS = {"root": (0, "/root"), "1000": (1000, "/home/user"), "12345": (12345, "/")}
LIMIT = 120.0  # seconds for each user
NEWUSER = 0x10000000  # CLONE_NEWUSER of <sched.h>
# The runner's folder for temporary files is private to root.
OF_RUNNER = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "USER", "LOGNAME")
CHILD = """
import importlib, importlib.util, json, os, pwd, tempfile

def writable(folder):
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

def name():
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None

failures = []
for module in ("torch", "numpy", "torchvision", "torchaudio"):
    if module == "torchaudio" and importlib.util.find_spec(module) is None:
        continue
    try:
        importlib.import_module(module)
    except Exception as error:
        failures.append(f"{module}: {type(error).__name__}: {error}")
if not failures:
    import torch
    if torch.arange(4).sum().item() != 6:
        failures.append("torch: 0 + 1 + 2 + 3 is not 6")
print(json.dumps({
    "ids": [os.getuid(), os.getgid()],
    "name": name(),
    "home": os.environ.get("HOME"),
    "home_writable": writable(os.environ.get("HOME")),
    "tmp_writable": writable("/tmp"),
    "import_failures": failures,
}))
"""


def become(uid):
    """Change this process to *uid*:*uid*; if only one uid is mapped, in a new user namespace.

    In that namespace the process still owns the image's files, so `unreadable` finds files that others cannot
    read.
    """
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:
        outer_uid, outer_gid = os.getuid(), os.getgid()
        if ctypes.CDLL(None, use_errno=True).unshare(NEWUSER) != 0:
            raise
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {outer_uid} 1"),
            ("gid_map", f"{uid} {outer_gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as setting:
                setting.write(text)


def run(uid, home):
    """Run a process as this user; its output, exit code and the end of stderr."""
    env = {name: value for name, value in os.environ.items() if name not in OF_RUNNER} | {"HOME": home}
    try:
        done = subprocess.run(
            [ENTRYPOINT, sys.executable, "-I", "-B", "-c", CHILD],
            preexec_fn=lambda: become(uid) if uid else None,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"exit_code": None, "stderr": f"{type(error).__name__}: {error}"}
    output = {"exit_code": done.returncode, "stderr": "\n".join(done.stderr.strip().splitlines()[-5:])}
    with contextlib.suppress(ValueError, IndexError):  # without a result, each value is out of bounds
        output |= json.loads(done.stdout.splitlines()[-1])
    return output


def unreadable(top, most=20):
    """Files below *top* that other users cannot read, and folders that they cannot enter; a limited
    number."""
    found = []
    for folder, _, names in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            mode = os.lstat(path).st_mode
            needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
            if not stat.S_ISLNK(mode) and mode & needed != needed:
                found.append(path)
    return sorted(found)[:most]


def fault():
    """Why no process can run as another user here; None if it can."""
    argv = [sys.executable, "-I", "-B", __file__, "become"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return None if done.returncode == 0 else lines[-1]


def main():
    """Print one JSON object: by property, the value for each user."""
    results = {who: run(uid, home) for who, (uid, home) in USERS.items()}
    names = ("exit_code", "stderr", "ids", "name", "home", "home_writable", "tmp_writable", "import_failures")
    by_property = {name: {who: result.get(name) for who, result in results.items()} for name in names}
    modes = {"unreadable": unreadable(sys.prefix), "tmp_mode": f"{os.stat('/tmp').st_mode & 0o7777:04o}"}
    print(json.dumps(by_property | modes))


if __name__ == "__main__":
    if sys.argv[1:] == ["fault"]:
        print(json.dumps(fault()))
    elif sys.argv[1:] == ["become"]:
        become(USERS["12345"][0])
    else:
        main()
