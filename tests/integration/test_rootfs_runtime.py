"""Real commands in an unpacked image: what they see, how they end, and that they leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fake_driver import fake_driver
from tests.needs import namespaces_fault, needs_gcc, needs_ldconfig
from tests.roots import tiny_root
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes import enter, sandbox
from torchkiln.runtimes.command import Bind, Exited, Program
from torchkiln.runtimes.driver import HostDriver
from torchkiln.runtimes.rootfs import RootfsRuntime

ENV = {"PATH": "/bin"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tiny_root(tmp_path_factory.mktemp("image") / "root")
    if fault := namespaces_fault():
        pytest.skip(f"no namespaces: {fault}")
    return root


def run(image: Path, argv: Sequence[str], *, stdin: bytes = b"", **more: Any) -> Exited:
    return RootfsRuntime().run(image, Program(argv=tuple(argv), **{"env": ENV} | more), stdin=stdin)


def sh(
    image: Path,
    script: str,
    runtime: RootfsRuntime | None = None,
    timeout_s: float | None = None,
    **more: Any,
) -> Exited:
    program = Program(argv=("sh", "-c", script), env=ENV, **more)
    return (runtime or RootfsRuntime()).run(image, program, timeout_s=timeout_s)


def lines(ended: Exited) -> list[str]:
    assert (ended.code, ended.stderr) == (0, b"")
    return ended.stdout.decode().splitlines()


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_the_image_is_not_written_and_no_mount_stays(image: Path) -> None:
    before, mounts = names(image), Path("/proc/mounts").read_text()

    assert lines(sh(image, "echo new >/new; echo x >>/etc/passwd; touch /tmp/t; cat /new")) == ["new"]
    assert names(image) == before
    assert Path("/proc/mounts").read_text() == mounts


def test_the_command_is_process_1_on_a_host_of_another_name(image: Path) -> None:
    assert lines(sh(image, "echo $$; hostname; cat /etc/hostname")) == ["1", "torchkiln", "torchkiln"]


def test_only_the_given_environment_and_a_home_are_there(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "1")
    got = run(image, ["env"], env={"PATH": "/bin", "A": "b c"}, user=(1234, 1234))

    assert sorted(lines(got)) == ["A=b c", "HOME=/home/kim", "PATH=/bin"]
    assert "HOME=/mine" in lines(run(image, ["env"], env={"PATH": "/bin", "HOME": "/mine"}))


def test_user_group_folder_and_umask_are_as_requested(image: Path) -> None:
    script = "id -u; id -g; id -G; pwd; umask"

    assert lines(sh(image, script, user=(77, 88), workdir="/made/here")) == [
        *("77", "88", "88"),
        *("/made/here", "0022"),
    ]


def test_devices_are_few_and_shared_memory_has_its_size(image: Path) -> None:
    listed = lines(sh(image, "ls /dev; ls -d /dev/pts/ptmx; echo x >/dev/null; cat </dev/null"))
    nodes = {*enter._NODES, *enter._DEV_LINKS, "shm", "pts"}

    assert set(listed[:-1]) == nodes
    assert lines(sh(image, "mount | cat", RootfsRuntime(shm_size=64 << 20)))
    shm = [line for line in lines(sh(image, "mount", RootfsRuntime(shm_size=64 << 20))) if "/dev/shm" in line]
    assert "size=65536k" in shm[0]


def test_sys_is_read_only_and_hosts_know_localhost(image: Path) -> None:
    assert sh(image, "echo 1 >/sys/kernel/x").code != 0
    assert [line for line in lines(sh(image, "mount")) if " /sys" in line and "(ro" not in line] == []
    assert "127.0.0.1\tlocalhost" in lines(sh(image, "cat /etc/hosts"))


def test_the_host_is_out_of_sight(image: Path) -> None:
    assert lines(sh(image, "ls /")) == sorted([*os.listdir(image), "dev", "proc", "sys", "tmp"])


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("sh -c 'kill -TERM $$'; exit $?", 143), ("exit 0", 0)]
)
def test_the_code_is_passed_on(image: Path, script: str, code: int) -> None:
    assert sh(image, script).code == code


def test_a_signal_from_outside_is_128_and_its_number(image: Path) -> None:
    assert sh(image, "ulimit -t 1; while :; do :; done").code == 128 + signal.SIGKILL


def test_commands_that_cannot_start_end_as_in_a_shell(image: Path) -> None:
    missing = run(image, ["nosuch"])

    assert (missing.code, missing.stderr) == (127, b"nosuch: No such file or directory\n")
    assert run(image, ["/etc/passwd"]).code == 126


def test_input_goes_in_and_much_output_comes_out(image: Path) -> None:
    data = os.urandom(3 << 20)

    assert run(image, ["cat"], stdin=data).stdout == data


def test_the_time_limit_ends_all_processes_and_keeps_their_output(image: Path) -> None:
    mark = f"9{os.getpid()}.5"
    script = f"echo output; sleep {mark} & (sleep {mark} & sleep {mark}); sleep {mark}"
    for seconds in (1.0, 10.0, 100.0):  # a busy machine takes longer until the first output
        if (got := sh(image, script, timeout_s=seconds)).stdout:
            break

    assert (got.timed_out, got.stdout) == (True, b"output\n")
    assert running(mark) == []


def test_when_the_caller_is_killed_everything_ends(image: Path) -> None:
    mark = f"8{os.getpid()}.5"
    code = (
        "import sys; from pathlib import Path; from torchkiln.runtimes.rootfs import RootfsRuntime;"
        "from torchkiln.runtimes.command import Program;"
        "program = Program(argv=('sleep', sys.argv[2]), env={'PATH': '/bin'}, user=(5, 5));"
        "RootfsRuntime().run(Path(sys.argv[1]), program)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(image), mark])
    eventually(lambda: ["sleep", mark] in [line[-2:] for line in running(mark) if line[0] == "sleep"])
    caller.kill()
    caller.wait()

    eventually(lambda: running(mark) == [])


def test_binds_are_read_only_by_default(image: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("from the host")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "out").mkdir(mode=0o777)
    binds = [
        Bind(source=tmp_path / "data", target="/deep/in/the/image"),
        Bind(source=tmp_path / "file", target="/deep/file"),
        Bind(source=tmp_path / "out", target="/out", writable=True),
    ]
    script = (
        "cat /deep/in/the/image/a /deep/file; touch /deep/in/the/image/b /deep/file 2>/out/refused; exit 0"
    )

    assert sh(image, script, binds=binds).stdout == b"from the hosta file"
    assert (tmp_path / "out/refused").read_text().count("Read-only file system") == 2


def test_a_link_in_the_image_does_not_lead_a_bind_to_the_host(image: Path, tmp_path: Path) -> None:
    """/var/escape is a link to /etc, which means the image's /etc."""
    (tmp_path / "f").write_text("bound")
    bind = Bind(source=tmp_path / "f", target="/var/escape/torchkiln-test")

    assert lines(sh(image, "cat /etc/torchkiln-test", binds=[bind])) == ["bound"]
    assert not Path("/etc/torchkiln-test").exists()


def test_a_driver_is_mounted(image: Path, tmp_path: Path) -> None:
    """Device nodes, libraries and tools are mounted. If ldconfig is missing, LD_LIBRARY_PATH is set."""
    host = tmp_path / "host"
    for name in ("nvidia0", "nvidiactl", "libcuda.so.1", "nvidia-smi"):
        host.mkdir(exist_ok=True)
        (host / name).write_text(f"{name} of the host\n")
    driver = HostDriver(
        nodes=tuple((name, host / name) for name in ("nvidia0", "nvidiactl")),
        libraries=tuple((name, host / "libcuda.so.1") for name in ("libcuda.so", "libcuda.so.1")),
        tools=(("nvidia-smi", host / "nvidia-smi"),),
    )
    runtime = RootfsRuntime(driver=driver)
    there = "/usr/local/nvidia/lib64"

    assert lines(sh(image, f"cd /dev; cat nvidia0 nvidiactl {there}/* /usr/bin/nvidia-smi", runtime)) == [
        *("nvidia0 of the host", "nvidiactl of the host"),
        *("libcuda.so.1 of the host", "libcuda.so.1 of the host", "nvidia-smi of the host"),
    ]
    assert sh(image, f"echo x >{there}/libcuda.so.1", runtime).code != 0
    assert lines(sh(image, "echo $LD_LIBRARY_PATH", runtime)) == [there]
    assert "nvidia0" not in lines(sh(image, "ls /dev"))


@needs_ldconfig
@needs_gcc
def test_the_loader_of_the_image_finds_the_driver(tmp_path: Path) -> None:
    """Through ld.so.cache, not LD_LIBRARY_PATH; the image's files do not change."""
    root = tiny_root(tmp_path / "root")
    (root / "sbin").mkdir()
    shutil.copy("/sbin/ldconfig", root / "sbin/ldconfig")
    before = names(root)
    real = fake_driver() / "libcuda.so.1"
    runtime = RootfsRuntime(
        driver=HostDriver(nodes=(), libraries=(("libcuda.so", real), ("libcuda.so.1", real)), tools=())
    )

    output = lines(sh(root, "/sbin/ldconfig -p; echo =$LD_LIBRARY_PATH=", runtime))
    assert any(
        "libcuda.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libcuda.so.1" in line for line in output
    )
    assert output[-1] == "=="
    assert names(root) == before

    (root / "sbin/ldconfig").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ToolMissing, match="ldconfig of the image failed"):
        sh(root, "true", runtime)


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    binds = [Bind(source=tmp_path / "no", target="/x"), Bind(source=tmp_path, target="/")]
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "none", [], env={}, binds=binds, workdir="rel")

    assert len(caught.value.message.splitlines()) == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_without_root_a_user_namespace_is_used(image: Path) -> None:
    """The runtime as user `nobody`, with a Python that this user can read."""
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        pytest.skip(f"{python} is missing, and user `nobody` cannot run root's: apt-get install python3")
    folder = Path(tempfile.mkdtemp(prefix="torchkiln-test-"))
    try:
        folder.chmod(0o755)
        shutil.copytree(image, folder / "root", symlinks=True)
        for path in (folder / "root", *(folder / "root").rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        shutil.copy(enter.__file__, folder / "enter.py")
        spec = (
            '{"root": "%s/root", "mounts": [], "argv": ["sh", "-c", "id -u; id -g; echo $$"],'
            ' "env": {"PATH": "/bin"},'
            ' "files": {}, "binds": [], "nodes": [], "libraries": [], "tools": [], "workdir": "/",'
            ' "user": [%d, %d], "hostname": "h", "shm": "size=1m",'
            ' "scratch": "%s", "tmpfs": "mode=755", "confined": %s}'
        )
        confined = f'{{"limits": "NOFILE=64", "filter": "{sandbox.filter_program(sandbox.BUILDING).hex()}"}}'
        for uid, confinement in ((0, "null"), (1000, "null"), (65534, confined)):
            (folder / "spec").write_text(spec % (folder, uid, uid, folder, confinement))
            got = subprocess.run(
                ["sh", "-c", f"exec {python} -I -S enter.py 3 4 3<spec 4>&2"],
                cwd=folder,
                user=65534,
                group=65534,
                extra_groups=[],
                capture_output=True,
                text=True,
                check=False,
            )
            if "Operation not permitted: 'unshare" in got.stderr:
                pytest.skip(f"user `nobody` cannot create user namespaces: {got.stderr.strip()}")
            assert (got.stderr, got.stdout.split()) == ("", [str(uid), str(uid), "1"])
    finally:
        shutil.rmtree(folder)


def running(mark: str) -> list[list[str]]:
    """The command lines of this host's processes that contain *mark*."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        if mark in words:
            found.append(words)
    return found


def eventually(true: object) -> None:
    for _ in range(6000):
        if true():  # type: ignore[operator]
            return
        time.sleep(0.05)
    pytest.fail("timed out after 300 s")


@pytest.fixture
def beside() -> Iterator[Path]:
    """A folder outside of /tmp, because mounts of the runtime would hide a folder in /tmp."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-test-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["etc", "dev", "proc", "sys", "tmp"])
def test_a_link_of_the_image_does_not_lead_to_the_host(image: Path, beside: Path, name: str) -> None:
    """During the setup of a container, the host's root is mounted at a path that no image can reach."""
    root, outside = beside / "root", beside / "outside"
    shutil.copytree(image, root, symlinks=True)
    outside.mkdir()
    (outside / "hosts").write_text("untouched")
    if (root / name).is_dir():
        shutil.rmtree(root / name)
    (root / name).symlink_to(f"/.torchkiln-host{outside}")

    with contextlib.suppress(ToolMissing):  # the runtime may refuse to start
        sh(root, "echo x >/etc/hosts")

    assert [path.name for path in outside.iterdir()] == ["hosts"]
    assert (outside / "hosts").read_text() == "untouched"


@pytest.mark.parametrize("name", ["etc", "etc/ld.so.conf.d", "data", "usr/local/nvidia"])
def test_a_link_to_a_descriptor_does_not_lead_to_a_bound_folder(image: Path, beside: Path, name: str) -> None:
    """During the setup, the image's folder and bind sources are open, so /proc/self/fd leads to them."""
    outside = beside / "outside"
    outside.mkdir()
    (outside / "there").write_text("untouched")
    real = fake_driver() / "libcuda.so.1"
    driver = HostDriver(nodes=(), libraries=(("libcuda.so.1", real),), tools=())
    for number in range(3, 20):
        root = beside / f"root{number}"
        shutil.copytree(image, root, symlinks=True)
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"/proc/self/fd/{number}")
        (root / "sbin").mkdir(exist_ok=True)
        shutil.copy(root / "bin/id", root / "sbin/ldconfig")
        before = names(root)
        with contextlib.suppress(ToolMissing):
            runtime = RootfsRuntime(driver=driver)
            sh(
                root,
                "true",
                runtime,
                binds=[Bind(source=outside, target="/mnt"), Bind(source=outside, target="/data/below")],
            )
        assert names(outside) == {"there"}
        assert names(root) == before


def test_a_working_folder_does_not_lead_to_open_descriptors(image: Path, beside: Path) -> None:
    """An image's config may name any working folder (compare CVE-2024-21626 of runc)."""
    (beside / "secret").write_text("of the host")
    script = "cat secret ../secret ../../secret ../../../etc/shadow 2>/dev/null; pwd"
    binds = [Bind(source=beside, target="/mnt")]

    for number in range(3, 20):
        with contextlib.suppress(ToolMissing, FileNotFoundError):
            ended = sh(image, script, workdir=f"/proc/self/fd/{number}", binds=binds)
            assert b"of the host" not in ended.stdout
            assert b"root:" not in ended.stdout


@needs_gcc
def test_the_images_ldconfig_does_not_see_the_host(image: Path, tmp_path: Path) -> None:
    """ldconfig runs before the command, as root of the namespace, and must not see the host's root."""
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    (root / "sbin").mkdir(exist_ok=True)
    (root / "sbin/ldconfig").write_text("#!/bin/sh\ncat /proc/mounts >/seen\n")
    (root / "sbin/ldconfig").chmod(0o755)
    real = fake_driver() / "libcuda.so.1"
    driver = HostDriver(nodes=(), libraries=(("libcuda.so.1", real),), tools=())

    mounts = [line.split()[1] for line in lines(sh(root, "cat /seen", RootfsRuntime(driver=driver)))]

    assert "/" in mounts
    assert not [place for place in mounts if place.startswith("/.")]
