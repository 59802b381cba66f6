"""A hostile Python in a base can only compute; torchkiln checks its output against the request."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.cells import HostPython, planned_cell, put_base, small_wheels
from tests.hostile_python import hostile, refused
from tests.needs import needs_gcc, needs_namespaces
from tests.unpublished import FakeIndex
from torchkiln.base.confined import ConfinedPython
from torchkiln.engine import image as image_build
from torchkiln.engine import wheel_layers
from torchkiln.engine.environment import Environment
from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.progress import Silent
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT
from torchkiln.wheel import bytecode
from torchkiln.wheel.bytecode import Compiler

pytestmark = [needs_gcc, needs_namespaces]
PROGRAMS = yaml.safe_load((ROOT / "tests/sandbox_attacks.yaml").read_bytes())["programs"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        there.listen()
        there.setblocking(False)
        yield there


def test_a_hostile_python_writes_nothing(tmp_path: Path) -> None:
    """It cannot write to a path of the host, to its own root, through `..` or to a device."""
    marker = tmp_path / "marker"
    tried = [f"{marker}", "/marker", "/usr/lib/x86_64-linux-gnu/marker", "../../../../marker", "/tmp/marker"]
    opens = "".join(f'report("open", open("{path}", O_CREAT | O_WRONLY, 0666));' for path in tried)
    python = hostile(opens + 'report("mkdir", mkdir("/x", 0777));', tmp_path)
    command = python.argv()
    compiler = Compiler(command, tmp_path / "made")
    with pytest.raises(BuildFailed):
        compiler.finish()

    stderr = compiler._stderr.decode()
    assert stderr.count("open=-1/") == len(tried)
    assert stderr.startswith(f"open=-1/{errno.ENOENT}\nopen=-1/{errno.EROFS}\nopen=-1/{errno.EROFS}\n")
    assert "mkdir=-1/38" in stderr
    assert not marker.exists()
    assert not list((tmp_path / "python").rglob("marker"))


def test_a_hostile_python_reads_nothing_of_the_host(tmp_path: Path) -> None:
    """It sees only its root folder: no other file, variable or process, and not the host name."""
    os.environ["TORCHKILN_TEST_CANARY"] = "canary-5b1f"
    paths = ["/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/environ", "/sys", "/dev/null"]
    paths += ["../../../../../../etc/passwd", "/root", str(tmp_path), "/dev/shm", "/run"]
    opens = "".join(f'report("open", open("{path}", O_RDONLY));' for path in paths)
    body = 'for (char **one = envp; *one; one++) fprintf(stderr, "%s\\n", *one);'
    body += 'char name[99] = ""; gethostname(name, 99); fprintf(stderr, "name=%s\\n", name);'
    body += 'char here[99] = ""; getcwd(here, 99); fprintf(stderr, "here=%s\\n", here);'
    body += 'report("uid", getuid()); report("gid", getgid());'
    body += 'report("pid", getpid()); report("above", getppid());'
    try:
        compiler = Compiler(hostile(opens + body, tmp_path).argv(), tmp_path / "made")
    finally:
        del os.environ["TORCHKILN_TEST_CANARY"]
    with pytest.raises(BuildFailed):
        compiler.finish()

    stderr = compiler._stderr.decode()
    assert stderr.count(f"open=-1/{errno.ENOENT}") == len(paths)
    assert "canary-5b1f" not in stderr
    assert [line for line in stderr.splitlines() if line.startswith("PATH")] == []
    assert "name=sandbox" in stderr
    assert "here=/\n" in stderr
    assert re.findall(r"(?:uid|gid|pid|above)=(\d+)", stderr) == ["65534", "65534", "1", "0"]


def test_a_hostile_python_cannot_connect(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    body = f"""
        struct sockaddr_in to = {{ .sin_family = AF_INET, .sin_port = htons({port}) }};
        inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
        int found = socket(AF_INET, SOCK_STREAM, 0);
        report("socket", found);
        report("connect", connect(found, (struct sockaddr *)&to, sizeof to));
        for (int one = 3; one < 64; one++) if (fcntl(one, F_GETFD) >= 0) report("inherited", one);
        report("last", -1);"""
    message = refused(hostile(body, tmp_path), tmp_path / "cache")

    assert "last=-1" in message
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_other_system_calls_are_refused(tmp_path: Path) -> None:
    """System calls of x86-64 that are not on the list fail: fork, kill, ptrace, mount, unshare, bpf ..."""
    probes = (335, 336)  # uretprobe and uprobe: the kernel kills the caller before it runs any filter
    allowed = ",".join(map(str, (*sandbox.ALLOWED.values(), *probes)))
    body = f"""
        static const int allowed[] = {{{allowed}}};
        for (long number = 0; number < 600; number++) {{
            int skip = 0;
            for (unsigned at = 0; at < sizeof allowed / sizeof *allowed; at++) skip |= allowed[at] == number;
            if (skip) continue;
            errno = 0;
            long got = syscall(number, 0, 0, 0, 0, 0, 0);
            if (got != -1 || errno != ENOSYS) {{ report("answered", number); return 8; }}
        }}
        report("none", 0);"""
    assert "none=0/0" in refused(hostile(body, tmp_path), tmp_path / "cache")
    names = "fork vfork clone clone3 kill tgkill ptrace mount unshare setns socket connect bpf keyctl chroot"
    assert not set(names.split()) & set(sandbox.ALLOWED)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param('long got; __asm__("int $0x80" : "=a"(got) : "a"(20)); report("i386", got);', id="i386"),
        pytest.param('report("x32", syscall(0x40000000 | 39));', id="x32"),
    ],
)
def test_system_calls_of_other_architectures_kill_it(tmp_path: Path, call: str) -> None:
    assert f"exit status {128 + signal.SIGSYS}" in refused(hostile(call, tmp_path), tmp_path / "cache")


@pytest.mark.parametrize(
    ("obtain", "hide", "least"),
    [
        ("malloc(1 << 20)", "", 100),
        ("mmap(0, 1 << 20, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0)", "munmap(page + 4096, 1020 << 10);", -1),
    ],
)
def test_memory_is_bounded(tmp_path: Path, obtain: str, hide: str, least: int) -> None:
    body = f"""
        long got = 0;
        for (char *page; got < 1024 && (page = {obtain}) && page != MAP_FAILED; got++) {{
            memset(page, 1, 1 << 20); {hide}
        }}
        report("mib", got);"""
    message = refused(hostile(body, tmp_path), tmp_path / "cache")
    found = re.search(r"mib=(\d+)", message)
    assert found
    assert least < int(found[1]) < 400


@pytest.mark.parametrize("name", PROGRAMS)
def test_running_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each test has an input that is larger than a pipe's buffer, and a small one."""
    body, message = PROGRAMS[name]["body"], PROGRAMS[name]["message"]
    if message == "timed out":
        monkeypatch.setattr(bytecode, "_TIMEOUT", 0.5)
        monkeypatch.setattr(bytecode, "_RATE", 1 << 30)
    python = hostile(body, tmp_path)
    much = {f"/a/{number}.py": b"x = 1\n" * 3000 for number in range(12)}

    assert message in refused(python, tmp_path / "cache", much)
    assert message in refused(python, tmp_path / "other")


def running(python: ConfinedPython) -> list[Path]:
    """The folders in /proc of the processes that run *python*'s loader."""
    loader = os.stat(Path(python.python.root, python.python.argv()[0]))
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samestat((path / "exe").stat(), loader):
                found.append(path)
        except OSError:
            continue
    return found


def test_each_isolation_layer_is_active(tmp_path: Path) -> None:
    """/proc shows each isolation layer. A failed system call would not show which layer refused it."""
    python = hostile("for (;;) pause();", tmp_path)
    compiler = Compiler(python.argv(), tmp_path / "made")
    try:
        # The kernel shows the program of a process before its variables.
        while not (there := running(python)) or not (there[0] / "environ").read_bytes():
            pass
        (inside,) = there
        status = dict(line.split(":\t", 1) for line in (inside / "status").read_text().splitlines())
        kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
        shared = [
            name
            for name in kinds
            if os.readlink(inside / "ns" / name) == os.readlink(f"/proc/self/ns/{name}")
        ]
        mounts = (inside / "mountinfo").read_text().splitlines()
        limits = (inside / "limits").read_text()
        streams = sorted(path.name for path in (inside / "fd").iterdir())
        variables = (inside / "environ").read_text().split("\0")
    finally:
        compiler.kill()

    assert shared == []
    assert {status[name].strip("\t0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    if os.geteuid() == 0:
        assert (set(status["Uid"].split()), status["Groups"].strip()) == ({"65534"}, "")
    assert len(mounts) == 1
    assert {"ro", "nosuid", "nodev"} <= set(mounts[0].split()[5].split(","))
    assert streams == ["0", "1", "2"]
    assert {name.partition("=")[0] for name in variables if name} == set(python.python.env())
    for line in (
        "address space +402653184 +402653184",
        "file size +268435456 +268435456",
        "core file size +0 +0",
    ):
        assert re.search(f"Max {line}", limits)


def test_killing_the_worker_kills_the_processes_inside(tmp_path: Path) -> None:
    python = hostile("for (;;) pause();", tmp_path)
    compiler = Compiler(python.argv(), tmp_path / "made")
    while not running(python):
        pass
    compiler.kill()
    while running(python):
        pass


@pytest.fixture
def without_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    refuses = tmp_path / "refuses" / "enter.py"
    refuses.parent.mkdir()
    refuses.write_text(
        "import sys; sys.stderr.write('[Errno 1] Operation not permitted: unshare'); sys.exit(125)"
    )
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_ENTER", refuses)
        sandbox.fault.cache_clear()
        yield
    sandbox.fault.cache_clear()


def test_an_untrusted_python_does_not_run_without_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_namespaces: None
) -> None:
    """The Python of the user's own lock runs without a sandbox, with one warning."""
    wheels = small_wheels(tmp_path / "wheels")
    cell, store, message = planned_cell(wheels), Store(tmp_path / "cache"), list[str]()
    put_base(cell.locked.base, store)
    monkeypatch.setattr(wheel_layers, "interpreter", lambda _base, _store: HostPython())

    def build(*, foreign: bool) -> None:
        index, layout = FakeIndex(wheels), tmp_path / "layout"
        environment = Environment(store=store, fetcher=index, observer=Silent(), say=message.append)
        image_build.build(cell, layout, environment, foreign=foreign)

    with pytest.raises(ToolMissing, match=r"no sandbox is available .* Operation not permitted"):
        build(foreign=True)
    assert not (tmp_path / "layout").exists()
    build(foreign=False)
    assert message == [
        "no sandbox is available ([Errno 1] Operation not permitted: unshare):"
        " the base's Python runs with a system call filter only"
    ]


def test_the_filter_works_without_namespaces(tmp_path: Path) -> None:
    body = 'report("fork", fork()); report("socket", socket(AF_INET, SOCK_STREAM, 0)); report("last", -1);'
    compiler = Compiler(hostile(body, tmp_path, inside=False).argv(), tmp_path / "made")
    with pytest.raises(BuildFailed):
        compiler.finish()
    assert compiler._stderr.decode().startswith("fork=-1/38\nsocket=-1/38\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_without_root_a_user_namespace_is_used(tmp_path: Path) -> None:
    """If the user `nobody` starts the sandbox, it uses a user namespace, and denies the same actions."""
    system = "/usr/bin/python3"
    if not os.access(system, os.X_OK):
        pytest.skip(f"{system} is missing, and user `nobody` cannot run root's: apt-get install python3")
    python = hostile(
        'report("uid", getuid()); report("open", open("/etc/passwd", O_RDONLY)); report("fork", fork());'
        'report("pid", getpid()); report("write", open("/marker", O_CREAT | O_WRONLY, 0666));',
        tmp_path,
    )
    with tempfile.TemporaryDirectory(prefix="torchkiln-test-") as folder:
        shutil.copytree(python.python.root, f"{folder}/python")
        shutil.copy(sandbox._ENTER, f"{folder}/enter.py")
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, 65534, 65534)
        there = replace(python, python=replace(python.python, root=Path(folder, "python")))
        words = there.argv()
        argv = [system, *words[1:5], folder, *words[6:]]
        got = subprocess.run(
            argv, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=False
        )
    if "unshare" in got.stderr:
        pytest.skip(f"user `nobody` cannot create user namespaces: {got.stderr.strip()}")
    assert got.stderr.splitlines() == ["uid=65534/0", "open=-1/2", "fork=-1/38", "pid=1/0", "write=-1/30"]
