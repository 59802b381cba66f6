"""The lines of a command in a root file system arrive while it runs."""

from __future__ import annotations

from pathlib import Path

from tests.needs import needs_namespaces
from tests.roots import tiny_root
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Bind, Exited, Program
from torchkiln.runtimes.rootfs import RootfsRuntime

pytestmark = needs_namespaces

ENV = {"PATH": "/bin"}


def _run(root: Path, program: Program, on_line: OnLine) -> Exited:
    return RootfsRuntime().run(root, program, timeout_s=60, on_line=on_line)


def test_a_line_arrives_while_the_command_runs(tmp_path: Path) -> None:
    """The command ends only after the test has received its first line."""
    root = tiny_root(tmp_path / "root")
    script = "echo ready; while ! test -e /mnt/go; do sleep 0.1; done; printf went"
    bind = Bind(source=tmp_path, target="/mnt")
    program = Program(argv=("sh", "-c", script), env=ENV, binds=(bind,))
    lines: list[bytes] = []

    def on_line(line: bytes) -> None:
        lines.append(line)
        (tmp_path / "go").touch()

    ended = _run(root, program, on_line)

    assert (ended.code, ended.stdout, ended.timed_out) == (0, b"", False), ended.stderr
    assert lines == [b"ready", b"went"]
