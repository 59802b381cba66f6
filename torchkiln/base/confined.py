"""Starts the Python of a base in a sandbox to compile byte-code.

A base may come from a file or a registry, so its programs are not trusted and cannot see the host. If the
host has no sandbox, programs of the base of the user's own lock run with only resource limits and a system
call filter; those of a foreign lock do not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base import interpreter as base_python
from torchkiln.base.interpreter import Interpreter
from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.lock import LockedBase, LockedStandalone
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store
from torchkiln.wheel.bytecode import Compiler, read_pack, write_pack


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfinedPython:
    """A base's Python; with `sandboxed` it sees only its own files."""

    python: Interpreter
    sandboxed: bool

    def argv(self) -> list[str]:
        """The command that starts Python; the caller appends Python's arguments."""
        root = Path("/") if self.sandboxed else None
        start = sandbox.command(self.python.root if self.sandboxed else None, self.python.env(root))
        return [*start, *self.python.argv(root)]

    def compiled(self, sources: Iterable[tuple[str, bytes]], output: Path) -> dict[str, bytes]:
        """The .pyc of each of *sources* that compiles, by the absolute path of the source.

        :param output: a new temporary file; another is beside it.
        :raises BuildFailed: Python failed, or returned invalid byte-code.
        """
        compiler, pack = Compiler(self.argv(), output), output.with_suffix(".pack")
        try:
            for path, data in sources:
                compiler.add(path, data)
            compiler.finish()
            write_pack(output, pack, compiler.requested)
            with pack.open("rb") as file:
                return {code.source: code.content() for code in read_pack(file)}
        except ValueError as error:
            raise BuildFailed(f"the Python returned invalid byte-code: {error}") from error
        finally:
            compiler.kill()


def interpreter(base: LockedBase, store: Store, standalone: LockedStandalone | None = None) -> ConfinedPython:
    """The Python of *base*, or the *standalone* one on it; their blobs are in *store*.

    :raises BuildFailed: a blob is not in the store, is damaged, or has no such Python.
    """
    return confined(base_python.interpreter(base, store, standalone))


def confined(python: Interpreter) -> ConfinedPython:
    """*python* in a sandbox, if this host has one."""
    return ConfinedPython(python=python, sandboxed=not sandbox.fault())


def sandbox_fault() -> str:
    """Why this host has no sandbox; empty if it has one."""
    return sandbox.fault()


def require_sandbox() -> None:
    """:raises ToolMissing: this host has no sandbox."""
    if fault := sandbox.fault():
        raise ToolMissing(
            f"no sandbox is available for the programs of the image: {fault}",
            hint="run as root, or enable user namespaces (sysctl user.max_user_namespaces)",
        )
