"""OpenSSH's own client, which knows one key, at a container's door."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.workplace import Container

READY = r"Server listening on 0\.0\.0\.0 port (\d+)"


@dataclass(frozen=True, kw_only=True)
class Client:
    """One key, one container, and the port that it listens on in there."""

    container: Container
    key: Path
    inside: int = 22

    def options(self, **more: str) -> list[str]:
        """For ssh, scp and sftp; nothing of this machine's user."""
        told = {
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "Port": str(self.container.port(self.inside)),
        }
        words = (word for name, value in (told | more).items() for word in ("-o", f"{name}={value}"))
        return ["-F", "none", *words]

    def ssh(
        self, *command: str, text: str = "", terminal: bool = False, user: str = "root", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """One session, to its end."""
        flags = ["-tt"] if terminal else []
        argv = ["ssh", *flags, *self.options(**more), f"{user}@127.0.0.1", *command]
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=600)
