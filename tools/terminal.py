"""Run commands in a terminal with a Docker engine, a home folder and an SSH key, and capture the output."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "gpu-box"  # the host name of this machine in SSH commands
_TIMEOUT = "120"  # seconds
_PROMPT = re.compile(r"[$#] \Z")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
# Ids of containers, tokens and fingerprints, which change with each recording.
_RANDOM = re.compile(r"\b([0-9a-f]{4})(?:[0-9a-f]{44}|[0-9a-f]{60})\b|(SHA256:[\w+/]{4})[\w+/]{39}")
# ssh does not use HOME to find its files, so -F is set. $OUTWARD: options of `docker run` that this machine
# needs.
_SHELL = """
docker() { if [ "$1" = run ]; then command docker run $OUTWARD "${@:2}"; else command docker "$@"; fi; }
ssh() { command ssh -tt -F ~/.ssh/config "$@"; }
"""
_SSH = """\
Host {host}
HostName 127.0.0.1
IdentityFile {key}
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terminal:
    """bash in `home`, which has a ./workspace and a key in ~/.ssh."""

    home: Path
    environ: Mapping[str, str]

    def shows(self, line: str) -> list[str]:
        """The output of *line* on both streams, for any exit code."""
        return self.session(line, ())

    def session(self, line: str, typed: Sequence[str]) -> list[str]:
        """The output of *line* while each item of *typed* is typed at a prompt."""
        argv = ["timeout", "--foreground", _TIMEOUT, "bash", "-c", _SHELL + line]
        shown, waiting = "", list(typed)
        with subprocess.Popen(
            argv,
            cwd=self.home,
            env=dict(self.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdin
            assert process.stdout
            while data := os.read(process.stdout.fileno(), 1 << 16):
                shown += data.decode(errors="replace")
                if waiting and _PROMPT.search(_ESCAPES.sub("", shown)):
                    process.stdin.write(f"{waiting.pop(0)}\n".encode())
                    process.stdin.flush()
        if waiting:
            raise SystemExit(f"{line}: ended before {waiting[0]!r} was typed:\n{shown}")
        return plain(shown)


def plain(shown: str) -> list[str]:
    """The lines of *shown*, without colours, and with `…` in place of random parts of ids."""
    text = _RANDOM.sub(lambda found: f"{found[1] or found[2]}…", _ESCAPES.sub("", shown))
    return [line.rstrip() for line in text.splitlines()]


@contextmanager
def terminal(environ: Mapping[str, str], outward: Sequence[str], folder: Path) -> Iterator[Terminal]:
    """A terminal in *folder*, which the engine can mount; its `docker run` gets the options *outward*."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        home = Path(made)
        for name in (".ssh", "workspace"):
            (home / name).mkdir()
        os.chown(home / "workspace", 1000, 1000)
        key = home / ".ssh/id_ed25519"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
        subprocess.run(argv, check=True)
        (home / ".ssh/config").write_text(_SSH.format(host=HOST, key=key))
        own = {"HOME": made, "OUTWARD": " ".join(outward), "TERM": "xterm", "COLUMNS": "130"}
        yield Terminal(home=home, environ={**environ, **own})
