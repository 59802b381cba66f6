#!/usr/bin/env python3
"""Record docs/session.svg: install torchkiln into an empty folder, build an image, start its JupyterLab.

All commands really run. The times depend on the user's package index and cache. Port 8888 must be free.
In the recording, only a token and the paths of this machine are replaced.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "session.svg"
WIDTH = 110
_TOKEN = re.compile(r"(token=[0-9a-f]{4})[0-9a-f]+")
# Addresses of other hosts in the SVG: of fonts, for which viewers use their own, and in a comment.
_ADDRESSES = re.compile(r"\s*(@font-face \{.*?\}|<!--.*?-->)", re.DOTALL)
_READY = "ServerApp] Jupyter Server"
_LIMIT_S = 120


class Session:
    """A terminal in the empty folder `home`, and its output."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self.home = home
        self.environ = environ
        self.console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)

    def run(self, line: str, *, last: int = 6) -> None:
        """Show the command *line* and the last lines of its output.

        :raises SystemExit: the command failed.
        """
        self._prompt(line)
        began = time.monotonic()
        with self._started(line) as process:
            output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{line}: exit code {process.returncode}\n{output}")
        lines = output.splitlines()
        if len(lines) > last:
            self._show(f"… {len(lines) - last} lines left out", style="dim")
        for shown in lines[-last:]:
            self._show(shown)
        if (seconds := time.monotonic() - began) >= 2:
            self._show(f"({seconds:.0f} s)", style="dim")

    def serve(self, line: str, request: str) -> None:
        """Start the service *line*, show its first lines, and then *request* while it runs."""
        self._prompt(f"{line} &")
        with self._started(f"exec {line}") as service:
            assert service.stdout
            signal.alarm(_LIMIT_S)
            try:
                for shown in service.stdout:
                    if _READY in shown:
                        break
                    if shown.startswith("torchkiln: "):
                        self._show(shown.rstrip())
                self.run(request)
            finally:
                signal.alarm(0)
                service.send_signal(signal.SIGINT)
                service.communicate()

    def _started(self, line: str) -> subprocess.Popen[str]:
        """The command *line* in a shell, with both streams in one pipe."""
        return subprocess.Popen(
            line,
            shell=True,
            cwd=self.home,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _prompt(self, line: str) -> None:
        self.console.print(Text("$ ", style="bold green") + Text(line, style="bold"))

    def _show(self, line: str, style: str = "") -> None:
        text = _TOKEN.sub(r"\1…", line.replace(str(self.home), "~"))
        self.console.print(Text(text, style=style), overflow="ellipsis", no_wrap=True)


def main() -> None:
    """Record the session."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, home, tools = (Path(folder, name) for name in ("wheels", "home", "tools"))
        home.mkdir()
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(home),
            str(ROOT),
        ]
        subprocess.run(pip, check=True)
        environ = {
            **os.environ,
            "COLUMNS": str(WIDTH),
            "UV_TOOL_DIR": str(tools),
            "UV_TOOL_BIN_DIR": str(wheels),
            "PATH": f"{wheels}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        session = Session(home, environ)
        session.run("ls")
        session.run("uv tool install --quiet ./torchkiln-*.whl")
        session.run("torchkiln init --torch 2.7 --cuda 12.1")
        session.run("torchkiln lock")
        session.run("torchkiln build", last=8)
        session.serve("torchkiln run", "curl --silent http://127.0.0.1:8888/api")
        picture = session.console.export_svg(title="torchkiln in an empty folder", theme=MONOKAI)
        PICTURE.write_text(_ADDRESSES.sub("", picture))


if __name__ == "__main__":
    main()
