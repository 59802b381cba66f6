"""crun, runc and `torchkiln run` with a small image of host programs; also kills by the memory limit."""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.fake_driver import fake_driver
from tests.needs import namespaces_fault, needs_gcc, needs_ldconfig, tool
from tests.roots import tiny_layout, tiny_root
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes.command import Bind, Exited, Program
from torchkiln.runtimes.driver import HostDriver, killed_for_memory
from torchkiln.runtimes.oci import PROGRAMS, OciRuntime

ENV = {"PATH": "/bin"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked image whose path contains a comma and a colon."""
    return tiny_root(tmp_path_factory.mktemp("oci") / "an image, unpacked: here")


@pytest.fixture(scope="module", params=PROGRAMS)
def runtime(request: pytest.FixtureRequest, root: Path) -> OciRuntime:
    found = OciRuntime(program=request.param, shm_size=3 << 20, hostname="inside")
    tool(found.program)
    if os.geteuid():
        pytest.skip(f"{found.program} needs root here")
    try:
        shell(found, root, "true")
    except ToolMissing as error:  # crun refuses a host with both versions of cgroups
        pytest.skip(str(error))
    return found


def shell(runtime: OciRuntime, root: Path, script: str, *binds: Bind, timeout_s: float = 60) -> Exited:
    program = Program(argv=("sh", "-c", script), env=ENV, binds=binds)
    return runtime.run(root, program, timeout_s=timeout_s)


def test_a_line_arrives_while_the_command_runs(runtime: OciRuntime, root: Path, tmp_path: Path) -> None:
    """The command ends only after the test has received its first line."""
    script = "echo ready; while ! test -e /x/go; do sleep 0.1; done; printf went"
    program = Program(argv=("sh", "-c", script), env=ENV, binds=(Bind(source=tmp_path, target="/x"),))
    lines: list[bytes] = []

    def on_line(line: bytes) -> None:
        lines.append(line)
        (tmp_path / "go").touch()

    ended = runtime.run(root, program, timeout_s=60, on_line=on_line)

    assert (ended.code, ended.stdout, ended.timed_out) == (0, b"", False)
    assert lines == [b"ready", b"went"]


NAMES: list[str] = []  # names of the containers that this process started


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the containers' names, because other test processes on this machine also start containers."""
    token = secrets.token_hex

    def recorded(count: int) -> str:
        NAMES.append(token(count))
        return NAMES[-1]

    monkeypatch.setattr(secrets, "token_hex", recorded)


def left() -> tuple[list[str], list[str]]:
    """Remaining cgroups and mounts of this process's containers."""
    assert NAMES
    ours = re.compile("|".join(f"torchkiln-{name}\\b" for name in NAMES))
    cgroups = glob.glob("/sys/fs/cgroup/torchkiln-*") + glob.glob("/sys/fs/cgroup/*/torchkiln-*")
    mounts = Path("/proc/mounts").read_text().splitlines()
    return [path for path in cgroups if ours.search(path)], [mount for mount in mounts if ours.search(mount)]


def test_output_and_view_of_a_command(runtime: OciRuntime, root: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("bound\n")
    script = (
        "cat /x/f; hostname; id -u; stat -f -c '%b %S' /dev/shm; cat /etc/hosts | wc -l; echo e >&2; exit 5"
    )
    ended = shell(runtime, root, script, Bind(source=tmp_path, target="/x"))
    lines = ended.stdout.decode().splitlines()

    assert (ended.code, ended.stderr, ended.timed_out) == (5, b"e\n", False)
    assert lines[:3] == ["bound", "inside", "0"]
    blocks, size = map(int, lines[3].split())
    assert blocks * size == 3 << 20
    assert lines[4] == "4"
    assert left() == ([], [])


def test_a_command_is_confined(runtime: OciRuntime, root: Path, tmp_path: Path) -> None:
    """The command cannot change the image or a bind, cannot mount, and cannot use other devices."""
    (tmp_path / "f").write_text("")
    before = sorted(root.rglob("*"))
    script = (
        "touch /new /etc/new && echo written; touch /x/f || echo no bind;"
        " mount -t tmpfs t /etc || echo no mount; cat /dev/null && echo null; cat /k || echo no node"
    )
    binds = (Bind(source=tmp_path, target="/x"), Bind(source=Path("/dev/kmsg"), target="/k"))
    ended = shell(runtime, root, script, *binds)

    assert ended.stdout.decode().split("\n") == ["written", "no bind", "no mount", "null", "no node", ""]
    assert b"/k: Operation not permitted" in ended.stderr
    assert sorted(root.rglob("*")) == before


def test_a_signal_a_missing_command_and_a_limit(runtime: OciRuntime, root: Path) -> None:
    """After the time limit, all processes of the command are killed. Its output is kept."""
    assert shell(runtime, root, "sh -c 'kill -9 $$'; exit $?").code == 137
    with pytest.raises(ToolMissing, match="nowhere"):
        runtime.run(root, Program(argv=("nowhere",), env=ENV))

    mark = f"{os.getpid()}7"
    for seconds in (3, 30, 300):  # a busy machine takes longer until the first output
        ended = shell(runtime, root, f"echo begun; sleep {mark} & sleep {mark}", timeout_s=seconds)
        if ended.stdout:
            break
    assert (ended.stdout, ended.code, ended.timed_out) == (b"begun\n", 137, True)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {mark}" not in running.splitlines()
    assert left() == ([], [])


def served(program: str, library: Path) -> OciRuntime:
    """The runtime with a fake driver, whose device node is a copy of this host's /dev/full."""
    driver = HostDriver(
        nodes=(("nvidia0", Path("/dev/full")),),
        libraries=(("libcuda.so", library), ("libcuda.so.1", library)),
        tools=(("nvidia-smi", library),),
    )
    return OciRuntime(program=program, driver=driver)


def test_a_driver_is_mounted(root: Path, runtime: OciRuntime, tmp_path: Path) -> None:
    """Device nodes work, libraries are read-only. Without ldconfig, LD_LIBRARY_PATH has their folder."""
    (tmp_path / "libcuda.so.1").write_text("of the host\n")
    handed = served(runtime.program, tmp_path / "libcuda.so.1")
    script = (
        "cd /usr/local/nvidia/lib64; cat * /usr/bin/nvidia-smi; stat -c %t:%T /dev/nvidia0;"
        " echo $LD_LIBRARY_PATH; echo x >/dev/nvidia0; echo x >libcuda.so.1"
    )
    ended = shell(handed, root, script)

    assert ended.stdout.decode().splitlines() == [*["of the host"] * 3, "1:7", "/usr/local/nvidia/lib64"]
    stderr = ended.stderr.decode()
    assert "I/O error" in stderr  # /dev/full, which gives this error, could be opened
    assert "Read-only file system" in stderr
    assert b"nvidia0" not in shell(runtime, root, "ls /dev").stdout


@needs_ldconfig
@needs_gcc
def test_the_loader_of_the_image_finds_the_driver(runtime: OciRuntime, tmp_path: Path) -> None:
    """Through the image's ld.so.cache, not LD_LIBRARY_PATH; a failure of ldconfig is reported."""
    root = tiny_root(tmp_path / "root")
    (root / "sbin").mkdir()
    shutil.copy("/sbin/ldconfig", root / "sbin/ldconfig")
    handed = served(runtime.program, fake_driver() / "libcuda.so.1")
    stderr = shell(handed, root, "/sbin/ldconfig -p; echo =$LD_LIBRARY_PATH=").stdout.decode().splitlines()
    assert any(
        "libcuda.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libcuda.so.1" in line for line in stderr
    )
    assert stderr[-1] == "=="

    (root / "sbin/ldconfig").write_text("#!/bin/sh\nexit 3\n")
    ended = shell(handed, root, "echo ran")
    assert (ended.code, ended.stdout) == (3, b"")


def test_the_error_names_the_usable_runtimes(root: Path) -> None:
    with pytest.raises(ToolMissing, match="no-such is not installed") as raised:
        shell(OciRuntime(program="no-such"), root, "true")
    assert "--runtime rootfs" in raised.value.hint


CONFIG = {
    "Env": ["PATH=/bin", "FROM=config"],
    "Entrypoint": ["/bin/env", "ENTRY=1"],
    "Cmd": ["sh", "-c", "echo cmd $ENTRY"],
    "WorkingDir": "/etc",
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    layout = tiny_layout(folder, CONFIG, "2.7-test")
    if fault := namespaces_fault():
        pytest.skip(f"no namespaces: {fault}")
    return layout


def run(dist: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, with a cache beside *dist*."""
    env = {"PATH": "/usr/bin:/bin", "TORCHKILN_CACHE": str(dist.parent / "cache")}
    return forked.run(("run", "--output", str(dist), *args), env=env)


@pytest.mark.parametrize(
    ("args", "out"),
    [
        pytest.param([], "cmd 1\n", id="what the image starts"),
        pytest.param(["2.7-test", "cat", "upper"], "from the upper layer\n", id="tag and command"),
        pytest.param(["--", "sh", "-c", "echo $ENTRY $FROM; pwd"], "1 config\n/etc\n", id="dashes"),
        pytest.param(["--no-entrypoint", "--", "sh", "-c", "echo [$ENTRY]"], "[]\n", id="bare"),
        pytest.param(["-e", "FROM=me", "--", "sh", "-c", "echo $FROM"], "me\n", id="env"),
        pytest.param(["--user", "5:6", "--", "sh", "-c", "id -u; id -g"], "5\n6\n", id="user"),
        pytest.param(["-w", "/bin", "2.7-test", "--", "sh", "-c", "pwd"], "/bin\n", id="workdir"),
    ],
)
def test_commands_run_with_the_settings_of_image_and_caller(dist: Path, args: list[str], out: str) -> None:
    got = run(dist, *args)

    assert (got.returncode, got.stdout) == (0, out)


def test_exit_code_and_stdout_are_those_of_the_command(dist: Path) -> None:
    got = run(dist, "--", "sh", "-c", "echo data; exit 42")

    assert (got.returncode, got.stdout) == (42, "data\n")


def test_binds(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("host")
    script = "cat /b/f; touch /b/new && echo no"
    got = run(dist, "--bind", f"{tmp_path}:/b:ro", "--", "sh", "-c", script)

    assert got.stdout == "host"
    assert "Read-only" in got.stderr
    assert run(dist, "--bind", f"{tmp_path}:/b", "--", "touch", "/b/new").returncode == 0
    assert (tmp_path / "new").exists()


def test_the_workspace(dist: Path, tmp_path: Path) -> None:
    assert run(dist, "--workspace", str(tmp_path), "--", "touch", "/workspace/new").returncode == 0
    assert (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["-p", "80", "--", "id"], "require --runtime docker", id="port"),
        pytest.param(
            ["--gpus", "2", "--", "id"],
            "--gpus 2: only all or none is supported without an engine",
            id="gpus",
        ),
        pytest.param(["docker:x", "id"], "require --runtime docker", id="engine's image"),
        pytest.param(["2.7-tset", "true"], "no such image: '2.7-tset'", id="tag"),
        pytest.param(["--bind", "nonsense", "--", "id"], "--bind nonsense: not SRC:DST", id="bind"),
        pytest.param(["--user", "kim", "--", "id"], "user 'kim' is not a numeric UID", id="user"),
        pytest.param(["--shm-size", "lots", "--", "id"], "--shm-size lots: not a valid size", id="size"),
        pytest.param(["-e", "A", "--", "id"], "--env A: not NAME=VALUE", id="env"),
    ],
)
def test_bad_usage_is_named(dist: Path, args: list[str], words: str) -> None:
    got = run(dist, *args)

    assert got.returncode == ConfigError.exit_code
    assert words in got.stderr
    assert "Traceback" not in got.stderr


_LIMIT = 32 << 20
# For cgroup v1 and v2: the folder, and the file with the memory limit.
_KINDS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a limit of 32 MiB."""
    for parent, limit in _KINDS.items():
        place = Path(parent, f"torchkiln-test-{os.getpid()}")
        try:
            place.mkdir()
            (place / limit).write_text(str(_LIMIT))
        except OSError:
            if place.is_dir():
                place.rmdir()
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("cannot create a memory cgroup: this requires root and a writable /sys/fs/cgroup")


def test_a_kill_by_the_memory_limit_is_counted(cgroup: Path) -> None:
    before = killed_for_memory()
    code = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0'); bytearray({8 * _LIMIT})"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    end = time.monotonic() + 300
    while killed_for_memory() == before and time.monotonic() < end:
        time.sleep(0.05)

    assert done.returncode == -9
    assert killed_for_memory() == before + 1


def test_a_kernel_without_a_count_of_kills(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_killer 9\n")

    assert killed_for_memory(tmp_path / "vmstat") == killed_for_memory(tmp_path / "nowhere") == 0
