"""LockedBase → the command that starts its Python in a sandbox, which is to compile byte-code.

A base comes from a cache, a file or a registry: its programs are not the host's, and see nothing of it. Where
the host can make no sandbox, the base of a lock of the user's own runs under resource limits and a filter of
system calls alone; a stranger's does not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchkiln.base import interpreter as base_python
from torchkiln.base.interpreter import Interpreter
from torchkiln.errors import ToolMissing
from torchkiln.model.lock import LockedBase
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Confined:
    """A base's Python; with *inside* it sees only itself."""

    python: Interpreter
    inside: bool

    def argv(self) -> list[str]:
        """The command that starts it, to be followed by Python's own arguments."""
        root = Path("/") if self.inside else None
        start = sandbox.command(self.python.root if self.inside else None, self.python.env(root))
        return [*start, *self.python.argv(root)]


def interpreter(base: LockedBase, store: Store) -> Confined:
    """The Python of *base*, whose blob is in *store*.

    :raises BuildFailed: the base is not in the store, is damaged, or holds no such Python.
    """
    return Confined(python=base_python.interpreter(base, store), inside=not sandbox.fault())


def sandbox_fault() -> str:
    """Why this host can make no sandbox; empty where it can."""
    return sandbox.fault()


def demand_sandbox() -> None:
    """:raises ToolMissing: this host can make no sandbox."""
    if fault := sandbox.fault():
        raise ToolMissing(
            f"this host cannot make a sandbox for the programs of the image: {fault}",
            hint="run as root, or where users may make namespaces (sysctl user.max_user_namespaces)",
        )
