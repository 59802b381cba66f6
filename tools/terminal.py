"""Lines as people type them → what a terminal shows: with a Docker engine, a home and an SSH key."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "gpu-box"  # what SSH calls this machine
_PATIENCE = "120"  # seconds until a line must have ended
_PROMPT = re.compile(r"[$#] \Z")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
# Containers, tokens, fingerprints: other ones in each recording.
_RANDOM = re.compile(r"\b([0-9a-f]{4})(?:[0-9a-f]{44}|[0-9a-f]{60})\b|(SHA256:[\w+/]{4})[\w+/]{39}")
# ssh asks the system, and not HOME, for its files; $OUTWARD is this machine's affair.
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
    """A bash in `home`, which has a ./workspace and a key in ~/.ssh."""

    home: Path
    environ: Mapping[str, str]

    def shows(self, line: str) -> list[str]:
        """What *line* prints on both streams, whatever it ends with."""
        return self.session(line, ())

    def session(self, line: str, typed: Sequence[str]) -> list[str]:
        """What *line* shows while *typed* is typed into it, each at a prompt."""
        argv = ["timeout", "--foreground", _PATIENCE, "bash", "-c", _SHELL + line]
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
            raise SystemExit(f"{line}: it ended before {waiting[0]!r} could be typed:\n{shown}")
        return plain(shown)


def plain(shown: str) -> list[str]:
    """Lines without colours, and without what is random in them."""
    text = _RANDOM.sub(lambda found: f"{found[1] or found[2]}…", _ESCAPES.sub("", shown))
    return [line.rstrip() for line in text.splitlines()]


@contextmanager
def terminal(environ: Mapping[str, str], outward: Sequence[str], folder: Path) -> Iterator[Terminal]:
    """One whose `docker run` has the options *outward*; in *folder*, which the engine of *environ* sees."""
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
