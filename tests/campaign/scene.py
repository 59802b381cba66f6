"""A small cell for runs of the command line: matrix, lock, base and wheels, and an index of the wheels."""

from __future__ import annotations

import io
import itertools
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.python_tree import python_tree
from tests.campaign.tracer import Counts, Plan, Shared, compile_tracer
from tests.servers.index_server import IndexServer
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.locks.lock import inputs_digest, save
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedBase, LockedCell, OsPackage
from torchkiln.oci.encode import ENCODER, encode

ROOT = Path(__file__).resolve().parents[2]
MARKER = "TORCHKILN_CAMPAIGN"  # an environment variable whose value identifies the processes of a run
TIMEOUT = 600.0  # seconds until a run counts as hung
_MATRIX = """\
torch: ["2.7.1"]
cuda: ["12.1"]
flavors: [runtime]
os: {debian12: {python: "3.11"}}
packages: [numpy]
repository: campaign
"""
# Incompressible bytes, by wheel. A wheel of 20 MB gets its own layer, which is made during the download.
_BIG = {"torch": 20_500_000, "nvidia-cudnn-cu12": 20_100_000, "triton": 4_000_000, "numpy": 1_500_000}
_SMALL = 5
# Used in place of pip, because `pip config list` takes a second of CPU time, twice in each trial.
_PIP = "import os\nprint(f\":env:.index-url='{os.environ['PIP_INDEX_URL']}'\")\n"
_STATUS = "Package: python3.11-minimal\nStatus: install ok installed\nVersion: 3.11.2-6\n\n"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of the command line."""

    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    left: tuple[str, ...] = ()  # processes of the run that did not end in time
    flying: Counts = field(default_factory=dict)  # operations in progress when the signal was sent
    fired: bool = False  # whether the planned event occurred
    hit: bool = False  # whether a signal was sent at the planned time


class Scene:
    """Everything a build needs, in *folder*; each trial has its own cache and output in it."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.folder = folder
        self.tracer = compile_tracer(folder)
        # The campaign runs a copy, so that edits of the checkout have no effect.
        self.checkout = folder / "checkout"
        for name in ("torchkiln", "rootfs", "templates"):
            shutil.copytree(ROOT / name, self.checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "build.py", self.checkout)
        self.wheels = _wheels(folder / "wheels", random.Random(seed))
        self.files = {
            ("simple", locked_wheel(wheel).name, wheel.name): wheel.read_bytes() for wheel in self.wheels
        }
        self.base = folder / "base.tar"
        self.base.write_bytes(_base(random.Random(seed)))
        (folder / "matrix.yaml").write_text(_MATRIX)
        (folder / "fake-pip" / "pip").mkdir(parents=True)
        (folder / "fake-pip" / "pip" / "__init__.py").touch()
        (folder / "fake-pip" / "pip" / "__main__.py").write_text(_PIP)
        self.tag = self._lock()
        self._runs = itertools.count(1)

    def trial(self, name: str) -> Trial:
        """A trial with an empty cache and output, and a separate index server."""
        return Trial(scene=self, folder=self.folder / "trials" / name)

    @property
    def truth(self) -> dict[str, bytes]:
        """The bytes of every wheel, by file name."""
        return {filename: data for (_, _, filename), data in self.files.items()}

    def _lock(self) -> str:
        facts = facts_of.load()
        matrix = matrix_of.read(self.folder / "matrix.yaml", facts)
        cell = Cell(torch="2.7.1", cuda="12.1", flavor="runtime", os="debian12", python="3.11")
        resolution = resolve(cell, matrix, facts)
        encoded = encode(self.base, self.folder / "base.tar.gz")
        kept = self.folder / "vault/blobs/sha256" / encoded.digest.removeprefix("sha256:")
        kept.parent.mkdir(parents=True)
        (self.folder / "base.tar.gz").rename(kept)
        locked = LockedCell(
            resolution=resolution,
            wheels=tuple(sorted((locked_wheel(path) for path in self.wheels), key=lambda wheel: wheel.name)),
            base=LockedBase(
                os="debian12",
                python="3.11.2",
                **asdict(encoded),
                encoder=ENCODER,
                packages=(OsPackage(name="python3.11-minimal", version="3.11.2-6"),),
            ),
            as_of="2026-01-01",
            epoch=1_767_225_600,
            inputs=inputs_digest(resolution, ()),
            layers=(),
        )
        save(self.folder / "images", locked)
        return tag_of(resolution)

    def number(self) -> int:
        """A new number for a run."""
        return next(self._runs)


@dataclass(kw_only=True)
class Trial:
    """A cache and an output folder; `run` runs a build with both."""

    scene: Scene
    folder: Path
    cache: Path = Path()
    output: Path = Path()
    prefix: tuple[str, ...] = ()  # words before the build's command line, such as those of nsenter
    root: Path = Path("/")  # the build's root folder, as a path in this process

    def __post_init__(self) -> None:
        self.cache, self.output = self.folder / "cache", self.folder / "out" / "dist"
        (self.folder / "home").mkdir(parents=True)
        self.server = IndexServer()
        self.server.files = self.scene.files

    def __enter__(self) -> Trial:
        self.server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def host_path(self, path: Path) -> Path:
        """The path by which this process can read *path* of the build, whose root folder may differ."""
        return self.root / path.relative_to("/")

    def command(self, *more: str) -> list[str]:
        """The command line of the build."""
        where = self.scene.folder
        options = {
            "--torch": "2.7",
            "--cuda": "12.1",
            "--matrix": where / "matrix.yaml",
            "--images": where / "images",
            "--vault": where / "vault",
            "--output": self.output,
        }
        flat = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, str(self.scene.checkout / "build.py"), *flat, *more]

    def run(
        self,
        *more: str,
        plan: Plan | None = None,
        act: Callable[[Shared, subprocess.Popen[str]], Counts | None] | None = None,
        environ: Mapping[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> Ran:
        """Run the build.

        :param act: may send signals to the build; returns the operations in progress, or None.
        """
        mark = f"{os.getpid()}-{self.scene.number()}"
        place = self.folder / "counters"
        shared = Shared(place)
        env = self.environment(mark, place, plan) | dict(environ or {})
        started = time.monotonic()
        process = subprocess.Popen(
            [*self.prefix, *self.command(*more)],
            env=env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=preexec,
        )
        flying: Counts | None = None
        try:
            if act:
                flying = act(shared, process)
            hung = False
            try:
                out, err = _ended(process)
            except subprocess.TimeoutExpired:
                hung = True
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            seconds = time.monotonic() - started
            left = survivors(mark, str(self.folder))
            if hung:
                left = (*left, "the build itself: timed out")
            return Ran(
                code=process.returncode,
                out=out.strip(),
                err=err.strip(),
                seconds=seconds,
                left=left,
                flying=shared.flying() if plan else flying or {},
                fired=shared.fired,
                hit=flying is not None,
            )
        finally:
            shared.close()

    def environment(self, mark: str, shared: Path, plan: Plan | None) -> dict[str, str]:
        """The complete environment of the build."""
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.scene.folder / "fake-pip"),
            "PIP_INDEX_URL": self.server.url("simple"),
            "TORCHKILN_CACHE": str(self.cache),
            "TORCHKILN_SMOKE": "no",
            MARKER: mark,
            "LD_PRELOAD": str(self.scene.tracer),
            "TRACER_SHARED": str(shared),
            **({"TRACER_PLAN": plan.text()} if plan else {}),
        }

    def counted(self) -> dict[tuple[str, str], int]:
        """The number of operations of the last run: see `Shared.totals`."""
        data = (self.folder / "counters").read_bytes()
        copy = self.folder / "counters.read"
        shared = Shared(copy)
        copy.write_bytes(data)
        try:
            return shared.totals()
        finally:
            shared.close()


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The output of *process*. Does not wait for EOF, because a surviving child may keep the pipes open."""
    assert process.stdout
    assert process.stderr
    files = {process.stdout: "out", process.stderr: "err"}
    raw: dict[str, list[bytes]] = {"out": [], "err": []}
    deadline = time.monotonic() + TIMEOUT
    with selectors.DefaultSelector() as selector:
        for file, name in files.items():
            os.set_blocking(file.fileno(), False)
            selector.register(file, selectors.EVENT_READ, name)
        over = False
        while selector.get_map():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, TIMEOUT)
            ready = selector.select(0.02)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if data:
                    raw[key.data].append(data)
                else:
                    selector.unregister(key.fileobj)
            if over and not ready:
                break
            over = process.poll() is not None
    process.wait(TIMEOUT)
    process.stdout.close()
    process.stderr.close()
    out, err = (b"".join(raw[name]).decode(errors="replace") for name in ("out", "err"))
    return out, err


def survivors(mark: str, folder: str, *, timeout: float = 60.0) -> tuple[str, ...]:
    """Kill processes of the run *mark* that are alive after *timeout* seconds; returns their commands.

    The timeout gives workers time to exit: they check once a second whether their parent is alive. The base's
    Python has no environment variables, so it is recognised by its output path in *folder*.
    """
    deadline = time.monotonic() + timeout
    while found := _living(mark, folder):
        if time.monotonic() > deadline:
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            return tuple(sorted(found.values()))
        time.sleep(0.05)
    return ()


def _living(mark: str, folder: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        belongs = f"{MARKER}={mark}".encode() in environ.split(b"\0") or folder.encode() + b"/" in command
        if belongs and state != "Z":
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _wheels(folder: Path, dice: random.Random) -> list[Path]:
    sizes = _BIG | {f"small-{number:02}": dice.randrange(2_000, 60_000) for number in range(_SMALL)}
    return [write_wheel(_spec(name, size, dice), folder) for name, size in sizes.items()]


def _spec(name: str, size: int, dice: random.Random) -> WheelSpec:
    module = name.replace("-", "_")
    code = "".join(f"def f{line}(x):\n    return x + {dice.randrange(1 << 30)}\n" for line in range(40))
    sources = 12 if size > 1_000_000 else 2
    files = [File(path=f"{module}/__init__.py", data=code.encode())]
    files += [File(path=f"{module}/part{n}.py", data=f"N = {n}\n{code}".encode()) for n in range(sources)]
    files += [
        File(path=f"{module}/lib{n}.so", data=dice.randbytes(size // 3), mode=0o755, stored=n == 2)
        for n in range(3)
    ]
    return WheelSpec(name=name, version="2.7.1" if name == "torch" else "1.0", files=tuple(files))


def _base(dice: random.Random) -> bytes:
    """The tar of a minimal base: a package list and a Python."""
    files = {
        **python_tree(),
        "usr/share/ballast": (0o644, dice.randbytes(3_000_000)),
        "var/lib/dpkg/status": (0o644, _STATUS.encode()),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (mode, data) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
