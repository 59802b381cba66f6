"""Run pip's command repeatedly in one process: JSON lines in, exit code and output out.

Its argument is pip's folder. Each line has `links`, `requirements`, `root`; pip installs like the
Dockerfile, but with --root: it writes below that folder instead of to /opt/venv.
"""

import contextlib
import io
import json
import os
import sys

PREFIX = "/opt/venv"
OPTIONS = (
    "--isolated --no-index --require-hashes --no-deps --no-compile --no-cache-dir --root-user-action ignore "
    "--disable-pip-version-check --no-warn-script-location --ignore-installed"
)


def main() -> None:
    """Handle requests until stdin ends."""
    sys.path.insert(0, sys.argv[1])
    from pip._internal.cli.main import main as pip

    os.umask(0o022)
    sys.executable = f"{PREFIX}/bin/python"  # the shebang of launchers; runs pip in the image
    for line in sys.stdin:
        request = json.loads(line)
        output = io.StringIO()
        argv = ["install", *OPTIONS.split(), "--find-links", request["links"], "-r", request["requirements"]]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pip([*argv, "--root", request["root"], "--prefix", PREFIX])
        sys.stdout.write(json.dumps({"code": code, "output": output.getvalue()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
