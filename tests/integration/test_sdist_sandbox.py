"""Sdists are built in a sandbox: what a backend can access, its limits, and which answers are accepted."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest
import yaml

from tests.needs import needs_namespaces
from tests.planned import locked
from tests.sdists import files_of, host_root, run_on_host, sdist
from tests.servers.index_server import wheel_bytes
from tests.stored import put_file
from torchkiln.errors import BuildFailed
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.projects.sources import sdist as building
from torchkiln.projects.sources import workshop
from torchkiln.projects.sources.sdist import SandboxedBuilder
from torchkiln.projects.sources.sdists import BuiltSdist, SourceCode
from torchkiln.projects.sources.workshop import Limits
from torchkiln.runtimes import memory_group
from torchkiln.runtimes.command import Program
from torchkiln.runtimes.sandbox import BUILDING
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = needs_namespaces
ATTACKS = yaml.safe_load((ROOT / "tests/sandbox_attacks.yaml").read_bytes())
NO_ZIP = """
def build_wheel(folder, *_):
    with open(folder + "/tool-1.0-py3-none-any.whl", "w") as file:
        file.write("x")
    return "tool-1.0-py3-none-any.whl"
"""
# The backend writes the answer itself, to the driver's file descriptor.
ANSWERS = """
def get_requires_for_build_wheel(*_):
    os.write(3, b"{answer}")
    os._exit(0)
"""


class Scene:
    """A cache, a cell whose base is this host's files, and a builder of sdists."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "cache")
        self.cell: LockedCell = locked()
        (folder / "root").mkdir()
        root = host_root(folder / "root")
        self.builder = SandboxedBuilder(store=self.store, root=lambda _: root)
        self.asked: list[tuple[str, ...]] = []
        self.wheels: dict[str, LockedWheel] = {}

    def put(self, filename: str, data: bytes, name: str, version: str = "1.0") -> LockedWheel:
        """Put a wheel or sdist into the cache."""
        return put_file(name, version, filename, data, self.store)

    def resolve(self, texts: tuple[str, ...]) -> tuple[LockedWheel, ...]:
        self.asked.append(texts)
        return tuple(self.wheels[text] for text in texts)

    def build(self, files: dict[str, str], limits: Limits | None = None) -> BuiltSdist:
        builder = replace(self.builder, limits=limits) if limits else self.builder
        return builder.build(SourceCode(archive=self.put(*sdist(files), "tool")), self.cell, self.resolve)

    def refused(self, files: dict[str, str], limits: Limits | None = None) -> BuildFailed:
        with pytest.raises(BuildFailed) as caught:
            self.build(files, limits)
        assert caught.value.message.startswith("tool-1.0.tar.gz: ")
        return caught.value


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(building, "run_enclosed", run_on_host)
    return Scene(tmp_path)


def test_the_wheel_of_an_sdist(scene: Scene) -> None:
    """The built wheel is in the cache; a second build gives the same bytes."""
    made = scene.build(files_of(needs="attrs>=1"))

    assert (made.wheel.name, made.wheel.version, made.wheel.index) == ("tool", "1.0", Source.PROJECT)
    data = scene.store.wheel(made.wheel).read_bytes()
    assert hashlib.sha256(data).hexdigest() == made.wheel.sha256
    assert b"Requires-Dist: attrs>=1" in made.metadata
    source = SourceCode(archive=scene.put(*sdist(files_of(needs="attrs>=1")), "tool"))
    assert scene.builder.again(source, scene.cell, ()).wheel == made.wheel
    assert not list((scene.store.root / "tmp").glob("*-sdist"))


def test_build_requirements_are_installed(scene: Scene) -> None:
    """Requirements of pyproject.toml are installed, then requirements that the backend adds."""
    helper = wheel_bytes("helper", "2.0", payload=b"VALUE = 'from helper'\n")
    late = wheel_bytes("late", "3.0", payload=b"VALUE = 'from late'\n")
    scene.wheels = {"helper": scene.put(*helper, "helper", "2.0"), "late>=3": scene.put(*late, "late", "3.0")}
    code = "\nimport helper\ndef extra():\n    import late\n    return '#' + helper.VALUE + late.VALUE\n"
    made = scene.build(files_of(requires='["helper"]', more='["late>=3"]', code=code))

    assert scene.asked == [("helper",), ("helper", "late>=3")]
    assert [wheel.name for wheel in made.requires] == ["helper", "late"]
    assert b"from helperfrom late" in scene.store.wheel(made.wheel).read_bytes()


def test_a_build_that_is_not_reproducible(scene: Scene) -> None:
    files = files_of(code="\nimport uuid\ndef extra():\n    return '#' + str(uuid.uuid4())\n")
    made = scene.build(files)
    source = SourceCode(archive=scene.put(*sdist(files), "tool"))
    assert scene.builder.again(source, scene.cell, ()).wheel.sha256 != made.wheel.sha256


def test_the_environment_is_fixed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary-77")
    code = "\nos.setresuid(-1, os.getuid(), -1)"  # as make does
    code += "\nprint(sorted(os.environ), os.environ['SOURCE_DATE_EPOCH'], os.getuid())\nraise SystemExit(3)\n"
    message = scene.refused(files_of(code=code)).message
    assert "its build failed (exit 3)" in message
    assert "] 315532800 65534" in message
    assert "SECRET_TOKEN" not in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user of the host")
def test_the_build_is_not_root_outside_the_sandbox(scene: Scene) -> None:
    """The sandbox's user is not mapped to root of the host."""
    code = """
for line in open('/proc/self/uid_map'):
    inside, outside, count = map(int, line.split())
    if inside <= os.getuid() < inside + count:
        print('outside:', outside + os.getuid() - inside)
raise SystemExit(3)
"""
    assert "outside: 0" not in scene.refused(files_of(code=code)).message


def test_a_hostile_backend_reaches_nothing(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("secret")
    code = f"\n{ATTACKS['lead']}"
    # The kernel kills a caller of uretprobe and uprobe (335, 336) before it runs any filter.
    calls = sorted({*range(600)} - {*BUILDING.values(), 335, 336})
    families = [number for number in range(64) if number != socket.AF_UNIX]
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        there.listen()
        port = there.getsockname()[1]
        for name, attempt in ATTACKS["attempts"].items():
            line = attempt.format(port=port, host=tmp_path, pid=os.getpid(), calls=calls, families=families)
            code += f"try:\n    {line}\n    done.append({name!r})\n"
            code += "except (AssertionError, OSError):\n    failed.append(0)\n"
        code += "import subprocess; subprocess.Popen(['sleep', '86424'], start_new_session=True)\n"
        code += "print(done, len(failed))\nraise SystemExit(4)\n"
        message = scene.refused(files_of(code=code)).message
    assert message.endswith(f"\n[] {len(ATTACKS['attempts'])}")
    assert not (tmp_path / "root/marker").exists()
    assert subprocess.run(["pgrep", "--full", "^sleep 86424$"]).returncode == 1


@pytest.mark.parametrize(
    ("code", "limits", "what"),
    [
        ("while True: pass", Limits(seconds=1), "1 seconds"),
        ("import os\nwhile True: os.write(answer, b'x' * 65536)", Limits(output=1 << 20), "1 MiB of output"),
        (
            "data = []\nwhile True: data.append(b'x' * (1 << 20))",
            Limits(memory=200 << 20),
            "200 MiB of memory",
        ),
    ],
)
def test_a_build_without_end_is_stopped(scene: Scene, code: str, limits: Limits, what: str) -> None:
    body = "\n".join(f"    {line}" for line in code.splitlines())
    lead = "\ndef build_wheel(*_):\n    answer = 3\n"
    message = scene.refused(files_of(code=f"{lead}{body}\n"), limits).message
    assert f"its build was stopped: it used more than {what}" in message


@pytest.mark.parametrize("grouped", [True, False], ids=["control group", "no control group"])
@pytest.mark.parametrize("name", ATTACKS["holds"])
def test_memory_that_is_not_resident_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, grouped: bool
) -> None:
    if not grouped:
        monkeypatch.setattr(memory_group, "_places", lambda _: ())
    body = f"{ATTACKS['lead']}{ATTACKS['holds'][name]}time.sleep(2)\nraise SystemExit('held')"
    code = f"\ndef build_wheel(*_):\n{indent(body, '    ')}\n"
    message = scene.refused(files_of(code=code), Limits(memory=200 << 20, space=100 << 20)).message
    assert "held" not in message
    assert "No space left on device" in message or "used more than 200 MiB of memory" in message


def test_the_kernel_counts_memory_in_a_control_group(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_group.memory_group(1 << 30) as group:
        if group.events is None:
            pytest.skip("this user can make no control group with a limit of memory")
    monkeypatch.setattr(workshop, "_POLL", 600)
    code = "\nimport os\nchild = os.fork()\nkept = b'x' * (250 << 20)\n"
    code += "os.wait() if child else (__import__('time').sleep(5), os._exit(0))\n"
    message = scene.refused(files_of(code=code), Limits(memory=200 << 20, space=100 << 20)).message
    assert "used more than 200 MiB of memory" in message
    assert not group.events.parent.exists()


PLACES = {  # line of /proc/self/cgroup, root and type of the mount -> the folder above the group, its limit
    ("0::/user/x", "/", "cgroup2 none rw"): ("user", "memory.max"),
    ("0::/", "/", "cgroup2 none rw"): (".", "memory.max"),
    ("4:cpu,memory:/y/x", "/y", "cgroup none rw,memory"): ("x", "memory.limit_in_bytes"),
}


@pytest.mark.parametrize("own", PLACES)
def test_the_place_of_a_control_group(tmp_path: Path, own: tuple[str, str, str]) -> None:
    above, limit = PLACES[own]  # a folder stands for the kernel's file system
    (tmp_path / "cgroup").write_text(f"1:cpu:/c\n{own[0]}\n")
    (tmp_path / "mountinfo").write_text(f"1 0 0:1 {own[1]} {tmp_path} rw - {own[2]}\n")
    (tmp_path / above).mkdir(exist_ok=True)
    made = memory_group.memory_group
    with made(5, tmp_path) as group, made(5, tmp_path / "x") as none:
        assert none.events is None
        assert group.events.parent.parent == tmp_path / above
        assert group.events.with_name(limit).read_text() == "5"
        shutil.rmtree(group.events.parent)


def test_the_memory_of_all_descendants_counts() -> None:
    """The limit counts descendants at any depth, because a program could start a long chain of processes."""
    chain = (
        "import os, sys\nfor _ in range(80):\n    if os.fork():\n        os.wait()\n        os._exit(0)\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-I", "-c", chain], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    limit = sys.getrecursionlimit()
    with started as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        sys.setrecursionlimit(len(inspect.stack()) + 60)
        try:
            assert len(set(workshop._tree(process.pid))) == 81
        finally:
            sys.setrecursionlimit(limit)
            process.communicate()


def test_what_it_writes_is_limited(scene: Scene) -> None:
    code = (
        "\ndef build_wheel(*_):\n    for name in 'abcd':\n        open(name, 'wb').write(b'x' * (3 << 20))\n"
    )
    message = scene.refused(files_of(code=code), Limits(space=8 << 20)).message
    assert "No space left on device" in message


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (files_of("other"), "an invalid wheel: its name is other"),
        (files_of(version="2.0"), "an invalid wheel: its version is 2.0"),
        (files_of(code="\nTAG = 'cp39-cp39-win_amd64'\n"), "its tags do not match the image's Python"),
        (files_of(code="\ndef build_wheel(*_):\n    return '../../in/driver.py'\n"), "its build failed"),
        (files_of(code=NO_ZIP), "an invalid wheel: "),
        (files_of(code="\ndef build_wheel(f, *_):\n    open(f + '/a', 'w')\n    return 'a'\n"), "no wheel"),
        ({"pyproject.toml": "[build-system]\nrequires = 3\n"}, "requires is not a list of strings"),
        ({"pyproject.toml": "[build-system"}, "not valid TOML"),
        (files_of(requires='["x @ https://x.test/x.whl"]'), "its build requires x by a direct"),
        (files_of(more='["x @ file:///etc"]'), "its build requires x by a direct URL"),
        (files_of(code=ANSWERS.format(answer="3")), "build requirements are not a list"),
        (files_of(code=ANSWERS.format(answer="[" * 50_000)), "nested too deep"),
        ({"setup.py": "raise SystemExit('gcc: command not found')"}, "its build failed"),
    ],
)  # fmt: skip
def test_what_is_no_wheel_of_the_sdist_is_refused(scene: Scene, files: dict[str, str], why: str) -> None:
    scene.wheels = {"setuptools>=40.8.0": scene.put(*wheel_bytes("setuptools", "80"), "setuptools", "80")}
    assert why in scene.refused(files).message
    assert not [path for path in scene.store.root.glob("wheels/*/*.whl") if path.name.startswith("tool")]


def test_a_missing_compiler_has_a_hint(scene: Scene) -> None:
    code = "\ndef build_wheel(*_):\n    raise SystemExit(\"error: command 'g++' failed: No such file\")\n"
    error = scene.refused(files_of(code=code))
    assert "use --flavor devel" in error.hint
    assert "use --flavor devel" not in scene.refused(files_of(code="\nraise SystemExit('no')\n")).hint


def test_a_build_requirement_that_is_not_listed_has_a_hint(scene: Scene) -> None:
    hint = scene.refused(files_of(code="\nimport torch\n")).hint
    assert "it imports torch, which is not in its [build-system] requires" in hint


def test_an_sdist_that_leaves_its_folder_is_contained(scene: Scene, tmp_path: Path) -> None:
    """It is unpacked only in the sandbox."""
    scene.refused({"../../../marker": "x", **files_of()})
    assert not list(tmp_path.rglob("marker"))


def test_each_isolation_layer_is_active(scene: Scene) -> None:
    """As in test_confined.py, the kernel tells what applies to the build."""
    code = """
status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines())
print(*(status[name] for name in ('NoNewPrivs', 'Seccomp', 'CapEff', 'CapBnd')))
print(*(os.readlink('/proc/self/ns/' + name) for name in sorted(os.listdir('/proc/self/ns'))))
raise SystemExit(4)
"""
    *_, status, there = scene.refused(files_of(code=code)).message.splitlines()
    assert status.split() == ["1", "2", "0" * 16, "0" * 16]
    shared = {os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")} & {*there.split()}
    assert {name.partition(":")[0] for name in shared} <= {"time", "time_for_children"}


def test_the_command_sees_only_its_own_processes(tmp_path: Path) -> None:
    command = "set -- /proc/[0-9]*; echo $#; cat /sys/* 2> /dev/null | wc -c"  # the shell's glob: no process
    program = Program(argv=("/bin/sh", "-c", command), env={"PATH": "/usr/bin"})
    processes, system = run_on_host(host_root(tmp_path), program, Limits()).stdout.split()
    assert processes in (b"1", b"2")
    assert system == b"0"
