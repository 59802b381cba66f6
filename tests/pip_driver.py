"""Runs pip's own command again and again in one process: JSON lines in, exit code and talk out.

Started with the folder of the pip to use. Each line has `links`, `requirements`, `root`; pip installs as the
Dockerfile tells it to, only with --root: so it writes below that folder what it would write to /opt/venv.
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
    """Answer until stdin ends."""
    sys.path.insert(0, sys.argv[1])
    from pip._internal.cli.main import main as pip

    os.umask(0o022)
    sys.executable = f"{PREFIX}/bin/python"  # what launchers name; in the image it is the one that runs pip
    for line in sys.stdin:
        told = json.loads(line)
        talk = io.StringIO()
        argv = ["install", *OPTIONS.split(), "--find-links", told["links"], "-r", told["requirements"]]
        with contextlib.redirect_stdout(talk), contextlib.redirect_stderr(talk):
            code = pip([*argv, "--root", told["root"], "--prefix", PREFIX])
        sys.stdout.write(json.dumps({"code": code, "talk": talk.getvalue()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
